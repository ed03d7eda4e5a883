"""Buses over message ports: pages and frames, workers, child processes, pipes.

`PortTransport` makes a connection of any `MessagePort`: ``connect(PortTransport(port), protocol="ubre")``. `MessageChannel`,
`Window` and `Frame` are a browser's in one process; `script` is the JavaScript for a real one. In Pyodide a port of
JavaScript is taken as it is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ._channel import InMemoryPort, MessageChannel, MessageEvent
from ._clone import ArrayBuffer, ClonedError, DataCloneError, Unreadable
from ._handshake import ServedFrame, StrangeHello, connect_to_host, serve_frame
from ._port import MessagePort, PortInfo
from ._transport import PortTransport
from ._window import Frame, Window, WindowProxy

if TYPE_CHECKING:
    from ._js import JSPort as JSPort
    from ._pipe_port import PipePort as PipePort
    from ._stream_port import StdioPort as StdioPort

__all__ = [
    "ArrayBuffer",
    "ClonedError",
    "DataCloneError",
    "Frame",
    "InMemoryPort",
    "JSPort",
    "MessageChannel",
    "MessageEvent",
    "MessagePort",
    "PipePort",
    "PortInfo",
    "PortTransport",
    "ServedFrame",
    "StdioPort",
    "StrangeHello",
    "Unreadable",
    "Window",
    "WindowProxy",
    "connect_to_host",
    "script",
    "serve_frame",
]

# They need what not every place has: a browser, processes, threads.
_ELSEWHERE = {"JSPort": "_js", "PipePort": "_pipe_port", "StdioPort": "_stream_port"}


def __getattr__(name: str) -> object:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_ELSEWHERE[name]}", __name__), name)


def script() -> str:
    """The JavaScript module for the browser's side, with ``serveFrame``, ``connectToHost`` and ``pump``.

    `polybus.fastapi.attach` serves it with ``script="/polybus.js"``.
    """
    from importlib.resources import files

    return files(__name__).joinpath("polybus.js").read_text(encoding="utf-8")
