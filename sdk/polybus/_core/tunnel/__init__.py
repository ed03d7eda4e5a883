"""Tunnels: connections inside another connection. A tunnel is a channel with frames as items.

`TunnelConnector` is the result of `Bus.tunnel` and `Peer.tunnel`, `TunnelTransport` one connection, at either end; the far end
is in `endpoint`. A frame costs no task and no queue, unless the other side has granted no credit or the outer connection is
slow.

Frames travel as bytes; on a text wire JSON documents are embedded, not quoted as text.
"""

from .connection import WINDOW, FrameChannel, TunnelConnector, TunnelTransport, too_deep, too_large

__all__ = ["WINDOW", "FrameChannel", "TunnelConnector", "TunnelTransport", "too_deep", "too_large"]
