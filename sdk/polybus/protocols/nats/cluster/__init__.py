"""The dialect for nodes of a cluster, with its own subjects and tracking of requests."""
