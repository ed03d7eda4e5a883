"""Requests, streams and channels, independent of any connection."""
