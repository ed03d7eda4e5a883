"""A port of the browser, for Python that runs in it (Pyodide): of a frame, a worker or a channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from ...errors import LocalProtocolError
from .channel import PortData, PortInfo

_EXPECTED: Final = "a MessagePort of JavaScript, a worker, or the global scope of one"
_DATA_ALONE: Final = "(callback) => (event) => callback(event.data)"
"""Only what was posted crosses into Python: one object less for each message."""
_FAILED: Final = "(callback) => () => callback()"
_CLOSED: Final = "(callback) => (event) => callback(event.reason ?? 'the port was closed')"


class JSPort:
    """A `MessagePort` of JavaScript, a worker, or its global scope, as a port for a bus; needs Pyodide.

    `PortTransport` makes one by itself: ``connect(PortTransport(port), protocol="ubre")``. By hand it is for a port of which
    more is known than the object says. The port that `connectToHost` or `serveFrame` of the JavaScript module gives brings its
    origin and epoch along.

    Args:
        port: The JavaScript object.
        info: What is known of the other end, where the object does not say it.

    Raises:
        LocalProtocolError: This Python does not run in a browser.
        TypeError: The object is no port.
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
        """Hand over a message: text as a string, bytes as an ArrayBuffer, which is transferred."""
        if type(data) is str:
            self._post(data)
        else:
            buffer = self._ffi.to_js(data).buffer
            self._post(buffer, self._ffi.to_js([buffer]))

    def on_message(self, callback: Callable[[PortData], None]) -> None:
        """Begin to deliver."""

        def deliver(data: Any) -> None:
            callback(self._bytes_of(data) if isinstance(data, self._ffi.JsProxy) else data)

        if self._managed is not None:
            self._managed.release()
        self._port.onmessage = self._listener(_DATA_ALONE, deliver)

    @staticmethod
    def _bytes_of(data: Any) -> Any:
        """The bytes of a buffer. Any other object stays what it is, which is no frame: it may have a member of that name."""
        try:
            found = data.to_bytes()
        except Exception:  # a foreign object of JavaScript: its own `to_bytes` may raise anything
            return data
        return found if type(found) is bytes else data

    def on_message_error(self, callback: Callable[[], None]) -> None:
        """Be told of each message that came and cannot be read."""
        self._port.onmessageerror = self._listener(_FAILED, callback)

    def on_close(self, callback: Callable[[str], None]) -> None:
        """Be told when the handshake closes this end, because it has found a newer page."""
        if self._managed is not None:
            self._port.addEventListener("close", self._listener(_CLOSED, callback))

    def _listener(self, wrapper: str, callback: Callable[..., None]) -> Any:
        proxy = self._ffi.create_proxy(callback)
        self._proxies.append(proxy)
        return self._js.run_js(wrapper)(proxy)

    def close(self) -> None:
        """Deliver nothing more, and give back what JavaScript holds of Python."""
        proxies, self._proxies = self._proxies, []
        if not proxies:
            return
        # Whatever the port does at its end. Not at once: it may be one of them that calls us.
        asyncio.get_running_loop().call_soon(_destroy, proxies)
        self._port.onmessage = self._port.onmessageerror = None
        # The global scope of a worker has a `close` too, and it ends the worker.
        if not hasattr(self._port, "importScripts"):
            self._port.close()


def can_post(value: Any) -> bool:
    """True if an object of JavaScript is a port or like one. A window is not: any page in it gets what it is posted."""
    return callable(getattr(value, "postMessage", None)) and not hasattr(value, "window")


def named(value: Any) -> str:
    """An object of JavaScript in words, for errors."""
    if hasattr(value, "window"):
        return "a window: `serveFrame` and `connectToHost` of polybus-frames.js give its port"
    name = getattr(getattr(value, "constructor", None), "name", None)
    return f"{name} of JavaScript" if isinstance(name, str) and name else type(value).__name__


def _destroy(proxies: list[Any]) -> None:
    for proxy in proxies:
        proxy.destroy()


def _info_of(managed: Any) -> PortInfo:
    if managed is None:
        return PortInfo(address="port")
    origin, epoch = str(managed.origin), int(managed.epoch)
    return PortInfo(origin=origin, epoch=epoch, address=f"{origin}#{epoch}")
