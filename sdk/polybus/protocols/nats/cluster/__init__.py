"""The dialect of cluster nodes, with its own subjects and tracking of requests."""
