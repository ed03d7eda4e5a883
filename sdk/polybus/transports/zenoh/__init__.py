"""Zenoh: ``zenoh://host:port``, a network of routers, peers and clients. Requires the `zenoh` extra.

A connection is a Zenoh session, and the whole Zenoh network (the fabric) is its single peer. The protocol's `Fabric` converts
between frames and samples, and the session receives samples that match its filters. By default, a server is a listening router
and a client connects to a router. Multicast scouting and shared memory are disabled by default.
"""

from __future__ import annotations

from .transport import Zenoh

__all__ = ["Zenoh"]
