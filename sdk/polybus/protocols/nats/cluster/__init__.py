"""The dialect among the nodes of a cluster: subjects of its own, and who has which request."""
