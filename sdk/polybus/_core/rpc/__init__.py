"""Requests, streams and channels. Nothing in this package depends on a connection."""
