"""Transports, which carry whole frames over a connection.

polybus imports each transport on first use, because the core needs no sockets and browsers lack them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .memory import Memory as Memory
    from .tcp import Tcp as Tcp
    from .tcp import Tls as Tls
    from .tcp import Unix as Unix
    from .websocket import SecureWebSocket as SecureWebSocket
    from .websocket import WebSocket as WebSocket

__all__ = ["Memory", "SecureWebSocket", "Tcp", "Tls", "Unix", "WebSocket"]

__getattr__: Callable[[str], Any] = lazy_names(
    __name__, {".memory": ["Memory"], ".tcp": ["Tcp", "Tls", "Unix"], ".websocket": ["SecureWebSocket", "WebSocket"]}
)
