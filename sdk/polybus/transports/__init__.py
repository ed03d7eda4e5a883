"""The transports: one connection each, carrying whole frames.

Each is loaded when it is first asked for: the core needs no sockets, and in a browser there are none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .memory import Memory as Memory
    from .tcp import Tcp as Tcp
    from .tcp import Tls as Tls
    from .tcp import Unix as Unix
    from .websocket import SecureWebSocket as SecureWebSocket
    from .websocket import WebSocket as WebSocket

__all__ = ["Memory", "SecureWebSocket", "Tcp", "Tls", "Unix", "WebSocket"]

_MODULES = {
    "Memory": "memory",
    "SecureWebSocket": "websocket",
    "Tcp": "tcp",
    "Tls": "tcp",
    "Unix": "tcp",
    "WebSocket": "websocket",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
