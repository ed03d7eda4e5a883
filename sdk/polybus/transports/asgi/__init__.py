"""WebSockets accepted by an ASGI server, for a bus behind another web server."""

from __future__ import annotations

from ..upgrades import HandshakeRejected
from ._endpoint import ENCRYPTED, AsgiRequest, AsgiWebSocket, accept, answered
from ._transport import AsgiTransport, Receive, Scope, Send

__all__ = [
    "AsgiRequest",
    "AsgiTransport",
    "AsgiWebSocket",
    "ENCRYPTED",
    "HandshakeRejected",
    "Receive",
    "Scope",
    "Send",
    "accept",
    "answered",
]
