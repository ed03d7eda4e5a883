"""Buses over message ports: pages and frames, workers, and what hands over whole messages otherwise.

`PortTransport` makes a connection of any `MessagePort`: ``connect(PortTransport(port), protocol="ubre")``. `MessageChannel` is
a browser's in one process; `script` is the JavaScript for a real one, and `polybus.testing.browser` has windows and frames for
tests. In Pyodide a port of JavaScript is taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...plugins.tools import lazy_names
from ._transport import PortTransport
from .channel import (
    ArrayBuffer,
    ClonedError,
    DataCloneError,
    InMemoryPort,
    MessageChannel,
    MessageEvent,
    MessagePort,
    PortInfo,
    Unreadable,
)

if TYPE_CHECKING:
    from ._js import JSPort as JSPort

__all__ = [
    "ArrayBuffer", "ClonedError", "DataCloneError", "InMemoryPort", "JSPort", "MessageChannel", "MessageEvent", "MessagePort",
    "PortInfo", "PortTransport", "Unreadable", "script",
]  # fmt: skip

# It needs what not every place has: a browser.
__getattr__: Callable[[str], Any] = lazy_names(__name__, {"._js": ["JSPort"]})


def script() -> str:
    """The JavaScript module for the browser's side, with ``serveFrame``, ``connectToHost`` and ``pump``.

    `polybus.fastapi.attach` serves it beside ``script="/polybus.js"``, as ``/polybus-frames.js``.
    """
    from importlib.resources import files

    return files("polybus").joinpath("javascript", "polybus-frames.js").read_text(encoding="utf-8")
