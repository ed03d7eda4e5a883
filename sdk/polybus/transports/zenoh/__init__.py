"""Zenoh: ``zenoh://host:port``, a fabric of routers, peers and clients. Needs the extra `zenoh`.

A connection is a Zenoh session with a single peer: the fabric. The protocol's `Fabric` converts between frames and samples, and
the session receives the samples that match its filters. By default, a server is a listening router and a client connects to a
router, and multicast scouting and shared memory are off.
"""

from __future__ import annotations

from .transport import Zenoh

__all__ = ["Zenoh"]
