"""Browser ports (frames, workers and channels) for Python in the browser (Pyodide)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from ...errors import LocalProtocolError
from .channel import PortData, PortInfo

_EXPECTED: Final = "a MessagePort of JavaScript, a worker, or the global scope of one"
_DATA_ALONE: Final = "(callback) => (event) => callback(event.data)"
"""JavaScript code that passes only the posted data to Python, which saves an object per message."""
_FAILED: Final = "(callback) => () => callback()"
_CLOSED: Final = "(callback) => (event) => callback(event.reason ?? 'the port was closed')"


class JSPort:
    """A JavaScript `MessagePort`, a worker, or its global scope, as a port for a bus. Needs Pyodide.

    `PortTransport` creates one implicitly: ``connect(PortTransport(port), protocol="ubre")``. Create one yourself if you know
    more about the other end than the object shows. A port from ``connectToHost`` or ``serveFrame`` already has its origin and
    epoch.

    Args:
        port: The JavaScript object.
        info: Facts about the other end that the object doesn't have.

    Raises:
        LocalProtocolError: If this Python does not run in a browser.
        TypeError: If the object is not a port.
    """

    def __init__(self, port: Any, info: PortInfo | None = None) -> None:
        try:
            self._js: Any = import_module("pyodide.code")
            self._ffi: Any = import_module("pyodide.ffi")
        except ImportError:
            raise LocalProtocolError("JSPort is for Python that runs in a browser, with Pyodide", protocol="port") from None
        if not can_post(port):
            raise TypeError(f"JSPort() takes {_EXPECTED}, not {named(port)}")
        self._port = port
        self._managed = getattr(port, "polybus", None)
        self.info: PortInfo = info or _info_of(self._managed)
        self._post = port.postMessage
        self._proxies: list[Any] = []

    def post(self, data: PortData) -> None:
        """Send a string, or bytes as a transferred ArrayBuffer."""
        if type(data) is str:
            self._post(data)
        else:
            buffer = self._ffi.to_js(data).buffer
            self._post(buffer, self._ffi.to_js([buffer]))

    def on_message(self, callback: Callable[[PortData], None]) -> None:
        """Start delivery."""

        def deliver(data: Any) -> None:
            callback(self._bytes_of(data) if isinstance(data, self._ffi.JsProxy) else data)

        if self._managed is not None:
            self._managed.release()
        self._port.onmessage = self._listener(_DATA_ALONE, deliver)

    @staticmethod
    def _bytes_of(data: Any) -> Any:
        """Return the bytes of a buffer. Any other object is returned unchanged, even if it has a method of that name."""
        try:
            found = data.to_bytes()
        except Exception:  # the `to_bytes` of any other object may raise anything
            return data
        return found if type(found) is bytes else data

    def on_message_error(self, callback: Callable[[], None]) -> None:
        self._port.onmessageerror = self._listener(_FAILED, callback)

    def on_close(self, callback: Callable[[str], None]) -> None:
        """Set a function to call when the handshake closes this port in favour of a newer page."""
        if self._managed is not None:
            self._port.addEventListener("close", self._listener(_CLOSED, callback))

    def _listener(self, wrapper: str, callback: Callable[..., None]) -> Any:
        proxy = self._ffi.create_proxy(callback)
        self._proxies.append(proxy)
        return self._js.run_js(wrapper)(proxy)

    def close(self) -> None:
        """Stop delivery, and release JavaScript's references to Python objects."""
        proxies, self._proxies = self._proxies, []
        if not proxies:
            return
        # Even if closing fails; and not immediately, because a proxy may be the caller.
        asyncio.get_running_loop().call_soon(lambda: [proxy.destroy() for proxy in proxies])
        self._port.onmessage = self._port.onmessageerror = None
        # `close` of a worker's global scope would end the worker.
        if not hasattr(self._port, "importScripts"):
            self._port.close()


def can_post(value: Any) -> bool:
    """Return True for a JavaScript port. Windows are not accepted, because any page in a window would receive the messages."""
    return callable(getattr(value, "postMessage", None)) and not hasattr(value, "window")


def named(value: Any) -> str:
    if hasattr(value, "window"):
        return "a window: `serveFrame` and `connectToHost` of polybus-frames.js give its port"
    name = getattr(getattr(value, "constructor", None), "name", None)
    return f"{name} of JavaScript" if isinstance(name, str) and name else type(value).__name__


def _info_of(managed: Any) -> PortInfo:
    if managed is None:
        return PortInfo(address="port")
    origin, epoch = str(managed.origin), int(managed.epoch)
    return PortInfo(origin=origin, epoch=epoch, address=f"{origin}#{epoch}")
