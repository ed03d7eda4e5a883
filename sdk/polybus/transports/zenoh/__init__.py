"""Zenoh: ``zenoh://host:port``, a fabric of routers, peers and clients. Needs the extra `zenoh`.

A connection is one session of Zenoh, and has one peer, the fabric. Frames become samples, and samples frames, by the `Fabric`
of the protocol; what is heard is what its session asks for. Whoever serves is a router that listens, whoever connects a client
of a router; options of the URL say otherwise. Scouting by multicast is off unless it is asked for, so is shared memory.
"""

from __future__ import annotations

from .transport import Zenoh

__all__ = ["Zenoh"]
