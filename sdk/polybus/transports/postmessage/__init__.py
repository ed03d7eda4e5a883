"""Connects buses over message ports: between pages and frames, with workers, or over any other carrier of whole messages.

`PortTransport` connects over a `MessagePort`: ``connect(PortTransport(port), protocol="ubre")``. In Pyodide you can pass a
JavaScript port. `MessageChannel` simulates a browser's message channel in one process. `script` returns the JavaScript code for
a real browser.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...plugins.tools import lazy_names
from ._transport import PortTransport
from .channel import InMemoryPort, MessageChannel, MessagePort, PortInfo

if TYPE_CHECKING:
    from ._js import JSPort as JSPort

__all__ = ["InMemoryPort", "JSPort", "MessageChannel", "MessagePort", "PortInfo", "PortTransport", "script"]

# Loaded on demand: it needs a browser.
__getattr__: Callable[[str], Any] = lazy_names(__name__, {"._js": ["JSPort"]})


def script() -> str:
    """Return the JavaScript module for the browser, which exports ``serveFrame``, ``connectToHost`` and ``pump``.

    If you set ``script="/polybus.js"``, `polybus.fastapi.attach` also serves the module as ``/polybus-frames.js``.
    """
    from importlib.resources import files

    return files("polybus").joinpath("javascript", "polybus-frames.js").read_text(encoding="utf-8")
