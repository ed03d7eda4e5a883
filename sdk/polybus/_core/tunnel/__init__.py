"""Tunnels: connections that run inside another connection. A tunnel is a channel with frames as items.

`TunnelConnector` is the place to connect to that `Bus.tunnel` and `Peer.tunnel` return. `TunnelTransport` is one connection, at
either end; the far end is in `endpoint`. Outer and inner link call this code directly; a frame costs no task and no queue,
unless the other side has granted no credit or the outer connection is slow.

A frame travels as bytes. On a text wire, a frame that is a JSON document travels as such, not as text inside text.
"""

from .connection import WINDOW, FrameChannel, TunnelConnector, TunnelTransport, too_deep, too_large

__all__ = ["WINDOW", "FrameChannel", "TunnelConnector", "TunnelTransport", "too_deep", "too_large"]
