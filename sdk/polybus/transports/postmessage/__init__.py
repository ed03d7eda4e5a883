"""Buses over message ports: pages and frames, workers, child processes, pipes.

`PortTransport` makes a connection of any `MessagePort`: ``connect(PortTransport(port), protocol="ubre")``. `MessageChannel`,
`Window` and `Frame` are a browser's in one process; `script` is the JavaScript for a real one.
"""

from __future__ import annotations

from ._channel import InMemoryPort, MessageChannel, MessageEvent
from ._clone import ArrayBuffer, ClonedError, DataCloneError
from ._handshake import ServedFrame, StrangeHello, connect_to_host, serve_frame
from ._port import MessagePort, PortInfo
from ._transport import PortTransport
from ._window import Frame, Window, WindowProxy

__all__ = [
    "ArrayBuffer",
    "ClonedError",
    "DataCloneError",
    "Frame",
    "InMemoryPort",
    "MessageChannel",
    "MessageEvent",
    "MessagePort",
    "PortInfo",
    "PortTransport",
    "ServedFrame",
    "StrangeHello",
    "Window",
    "WindowProxy",
    "connect_to_host",
    "serve_frame",
]
