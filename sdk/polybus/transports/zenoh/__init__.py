"""Zenoh: ``zenoh://host:port``, a fabric of routers, peers and clients. Needs the extra `zenoh`.

A connection is one Zenoh session with one peer, the fabric. The protocol's `Fabric` converts between frames and samples, and
the session receives what it has filters for. A server is a listening router and a client connects to a router, unless options
of the URL change that. Multicast scouting and shared memory are off by default.
"""

from __future__ import annotations

from .transport import Zenoh

__all__ = ["Zenoh"]
