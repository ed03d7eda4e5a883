"""The cluster-node dialect, with its own subjects and request tracking."""
