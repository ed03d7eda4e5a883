"""Bridges: requests, publications and streams go on from one bus to another, under another name, in another protocol.

A `Route` says what crosses. In each bus the bridge stands where a handler or a subscription would: it asks and tells the other
bus as a program there would, and translates what comes back.
"""

from .bridge import Bridge, Route, bridge

__all__ = ["Bridge", "Route", "bridge"]
