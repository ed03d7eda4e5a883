"""Bridges, which forward requests, publications and streams from one bus to another, under another name or protocol."""

from ._bridge import Bridge, bridge
from ._route import Route

__all__ = ["Bridge", "Route", "bridge"]
