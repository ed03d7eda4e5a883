"""Tunnels: connections that run inside another connection. A tunnel is a channel whose items are frames.

`TunnelConnector` is what `Bus.tunnel` and `Peer.tunnel` give: a place to connect to. `TunnelTransport` is one connection, at
either end; what the far end does with a new one is in `tunnels`. Everything here is called from the outer link and from the
inner one; a frame costs no task and waits in no queue, unless the other side has granted no credit or the outer connection is
slow.

A frame travels as bytes. Where the outer wire is text and the frame is a JSON document, it travels as that, so that nothing is
written as text inside text.
"""

from .connection import WINDOW, FrameChannel, TunnelConnector, TunnelTransport, too_deep, too_large

__all__ = ["WINDOW", "FrameChannel", "TunnelConnector", "TunnelTransport", "too_deep", "too_large"]
