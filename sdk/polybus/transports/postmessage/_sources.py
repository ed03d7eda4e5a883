"""Sources of the ports of a `PortTransport`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import import_module
from typing import Any, TypeAlias

import anyio
from attrs import frozen

from ...errors import BusError, ConnectFailed, LocalProtocolError
from ...plugins import Host
from ._port import MessagePort

PortSource: TypeAlias = MessagePort | Callable[[], "MessagePort | Awaitable[MessagePort]"] | AsyncIterator[MessagePort]
"""Source of ports: one port; a function, plain or async, that gives a port each time; or ports as they come. In a browser
each port may be one of JavaScript, as it is; there it is `Any` for type checkers."""

_EXPECTED = "a message port, a function that gives one, or an async iterator of ports"


class Single:
    """One port, once."""

    lasting = False
    one_at_a_time = True

    def __init__(self, port: MessagePort) -> None:
        self.name: str = port.info.address
        self._port: MessagePort | None = port

    @property
    def spent(self) -> bool:
        return self._port is None

    async def take(self, url: str, host: Host) -> MessagePort:
        port, self._port = self._port, None
        if port is None:
            raise LocalProtocolError(f"this {url} was used before: a port makes one connection", protocol="port")
        return port


@frozen
class _Function:
    """A port for each call."""

    _function: Callable[[], Any]
    lasting: bool = True
    one_at_a_time: bool = True
    spent: bool = False

    @property
    def name(self) -> str:
        return getattr(self._function, "__name__", "ports").strip("<>")

    async def take(self, url: str, host: Host) -> MessagePort:
        try:
            port = self._function()
            if inspect.isawaitable(port):
                port = await port
        except (BusError, OSError) as error:
            raise ConnectFailed(url, getattr(error, "reason", None) or str(error) or type(error).__name__) from error
        return _given(port, url)


class _Iterator:
    """Ports as they come. An async generator ends where it is cancelled: it is waited for, and not cut when time is up."""

    one_at_a_time = False

    def __init__(self, ports: AsyncIterator[MessagePort]) -> None:
        self._ports = ports
        self._generates = inspect.isasyncgen(ports)
        self.name: str = getattr(ports, "__name__" if self._generates else "name", "ports")
        self.lasting: bool = True
        self._asked = False
        self._came: list[MessagePort | Exception] = []
        self._news = anyio.Event()

    @property
    def spent(self) -> bool:
        return not self.lasting

    async def take(self, url: str, host: Host) -> MessagePort:
        if not self._generates:
            return await self._next(url)
        if not (self._asked or self._came):
            self._asked = True
            host.spawn(self._ask, url)
        while not self._came:
            await self._news.wait()
        came = self._came.pop()
        if isinstance(came, Exception):
            raise came
        return came

    async def _next(self, url: str) -> MessagePort:
        try:
            return _given(await anext(self._ports), url)
        except StopAsyncIteration:
            self.lasting = False
            raise ConnectFailed(url, "there are no more ports") from None

    async def _ask(self, url: str) -> None:
        try:
            self._came.append(await self._next(url))
        except Exception as error:
            self._came.append(error)
        finally:
            self._asked = False
            self._news.set()
            self._news = anyio.Event()


_Source: TypeAlias = Single | _Function | _Iterator


def source_of(source: Any) -> _Source:
    """May raise `TypeError`: it is none."""
    if (port := _port_of(source)) is not None:
        return Single(port)
    if hasattr(source, "__anext__"):
        return _Iterator(source)
    if callable(source):
        return _Function(source)
    raise TypeError(f"PortTransport() takes {_EXPECTED}, not {_named(source)}")


def _port_of(value: Any) -> MessagePort | None:
    """The value as a port, also one of JavaScript; None where it is none. May raise `TypeError`: it is one that waits."""
    if _is_of_javascript(value):
        js = import_module("._js", __package__)
        return js.JSPort(value) if js.can_post(value) else None
    port: MessagePort = value
    if not (callable(getattr(value, "post", None)) and callable(getattr(value, "on_message", None))):
        return None
    for name in ("post", "on_message", "close"):
        if inspect.iscoroutinefunction(getattr(value, name, None)):
            raise TypeError(f"{type(value).__name__}.{name} is an async function, nobody waits for it: ports have plain ones")
    return port


def _given(value: Any, url: str) -> MessagePort:
    """May raise `TypeError`: it is no port."""
    port = _port_of(value)
    if port is None:
        raise TypeError(f"{url} gave {_named(value)}, which is no message port")
    return port


def _is_of_javascript(value: Any) -> bool:
    ffi = sys.modules.get("pyodide.ffi")  # always loaded where there is JavaScript
    return ffi is not None and isinstance(value, ffi.JsProxy)


def _named(value: Any) -> str:
    """A value in words, for errors."""
    return import_module("._js", __package__).named(value) if _is_of_javascript(value) else type(value).__name__
