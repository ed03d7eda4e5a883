"""Connects or serves over message ports: ``connect(PortTransport(port), protocol="ubre")``."""

from __future__ import annotations

import errno
import inspect
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import import_module
from typing import Any, Final, TypeAlias

import anyio
from attrs import frozen

from ...errors import BusError, ConnectFailed, Forbidden, LocalProtocolError, Unauthorized
from ...plugins import Admission, Closed, DialOptions, Handshake, Host, Listening, ListenOptions
from ...plugins.close_codes import code_for, text_of
from ...plugins.tools import log_fields
from .channel import MessagePort
from .connection import Hello, PortConnection

logger: logging.Logger = logging.getLogger("polybus.transports")

PortSource: TypeAlias = MessagePort | Callable[[], "MessagePort | Awaitable[MessagePort]"] | AsyncIterator[MessagePort]
"""A source of ports: a port, a plain or async function that returns a new port, or an async iterator over ports. In a browser
each port may be a JavaScript object, so the type includes `Any`.
"""

_EXPECTED = "a message port, a function that gives one, or an async iterator of ports"


class Single:
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
            raise LocalProtocolError(f"this {url} has already been used: a port can only connect once", protocol="port")
        return port


@frozen
class _Function:
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
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            raise ConnectFailed(url, reason, errno=getattr(error, "errno", None)) from error
        return _given(port, url)


class _Iterator:
    """Reads ports from an async iterator.

    The next port is awaited in a task, because cancellation by a timeout would finish an async generator.
    """

    one_at_a_time = False

    def __init__(self, ports: AsyncIterator[MessagePort]) -> None:
        self._ports = ports
        self.name: str = getattr(ports, "__name__", "ports")
        self.lasting: bool = True
        self._asked = False
        self._came: list[MessagePort | Exception] = []
        self._news = anyio.Event()

    @property
    def spent(self) -> bool:
        return not self.lasting

    async def take(self, url: str, host: Host) -> MessagePort:
        while not self._came:
            if not self._asked:
                self._asked = True
                host.spawn(self._ask, url)
            await self._news.wait()
        came = self._came.pop()
        if isinstance(came, Exception):
            raise came
        return came

    async def _ask(self, url: str) -> None:
        try:
            self._came.append(_given(await anext(self._ports), url))
        except StopAsyncIteration:
            self.lasting = False
            self._came.append(ConnectFailed(url, "there are no more ports"))
        except Exception as error:
            self._came.append(error)
        finally:
            self._asked = False
            self._news.set()
            self._news = anyio.Event()


_Source: TypeAlias = Single | _Function | _Iterator


def source_of(source: Any) -> _Source:
    if (port := _port_of(source)) is not None:
        return Single(port)
    if hasattr(source, "__anext__"):
        return _Iterator(source)
    if callable(source):
        return _Function(source)
    raise TypeError(f"PortTransport() takes {_EXPECTED}, not {_named(source)}")


def _port_of(value: Any) -> MessagePort | None:
    """Return a value as a port, or `None` if it is neither a port nor a JavaScript port. Async methods are a `TypeError`."""
    if _is_of_javascript(value):
        js = import_module("._js", __package__)
        return js.JSPort(value) if js.can_post(value) else None
    port: MessagePort = value
    if not (callable(getattr(value, "post", None)) and callable(getattr(value, "on_message", None))):
        return None
    for name in ("post", "on_message", "close"):
        if inspect.iscoroutinefunction(getattr(value, name, None)):
            raise TypeError(f"{type(value).__name__}.{name} is an async function, but a port needs a plain function")
    return port


def _given(value: Any, url: str) -> MessagePort:
    port = _port_of(value)
    if port is None:
        raise TypeError(f"{url} gave {_named(value)}, which is not a message port")
    return port


def _is_of_javascript(value: Any) -> bool:
    ffi = sys.modules.get("pyodide.ffi")  # always loaded if there is JavaScript
    return ffi is not None and isinstance(value, ffi.JsProxy)


def _named(value: Any) -> str:
    return import_module("._js", __package__).named(value) if _is_of_javascript(value) else type(value).__name__


class PortListening:
    def __init__(self, url: str, options: ListenOptions) -> None:
        self.url: str = url
        self.scope: anyio.CancelScope = anyio.CancelScope()
        self.host: Host = options.host
        self._options = options
        self._waiting: dict[PendingPort, None] = {}
        """Ports that are not admitted yet, at most `Limits.handshakes`. If the other end doesn't use polybus, a port may be
        silent for hours, and no event shows that a page has been closed.
        """

    def receive(self, port: MessagePort) -> PendingPort:
        silent = [newcomer for newcomer in self._waiting if newcomer.silent]
        if len(silent) >= self.host.limits.handshakes:
            silent[0].give_way()
        newcomer = PendingPort(port, self.url, self._options, self._waiting)
        self._waiting[newcomer] = None
        run_port(port, self._options.host)
        newcomer.connection.listen()
        return newcomer

    async def aclose(self) -> None:
        """Stop accepting connections. Existing connections continue."""
        self.scope.cancel()
        for newcomer in list(self._waiting):
            newcomer.connection.close(1001, "the server is leaving")


class PendingPort:
    """A port of a serving bus that is waiting for the other end's first message."""

    def __init__(self, port: MessagePort, url: str, options: ListenOptions, waiting: dict[PendingPort, None]) -> None:
        self._port = port
        self._url = url
        self._options = options
        self._waiting = waiting
        self.silent: bool = True
        self.over: anyio.Event = anyio.Event()
        self._withdraw: Callable[[], None] | None = None
        self.connection: PortConnection = PortConnection(
            port, options.host, options.reads, options.writes, self._first, self._ended
        )

    def _first(self, said: Hello | None) -> None:
        connection, gate = self.connection, self._options.gate
        self.silent = False
        if connection.ended is not None:
            self._waiting.pop(self, None)
            return
        protocol = None if said is None else said.protocol
        if protocol is not None and protocol != self._options.subprotocol:
            self._refuse(1002, f"this side uses {self._options.subprotocol}, not {protocol[:64]}")
            return
        refused = gate.knock(connection.address)
        if refused is not None:
            self._refuse(code_for(refused), text_of(refused))
            return
        self._withdraw = gate.admit(self._handshake(said), self._decided)

    def give_way(self) -> None:
        self._refuse(1013, "it has not sent anything, and other clients are waiting")

    def _ended(self) -> None:
        self.over.set()
        if self._withdraw is not None and self in self._waiting:
            self._withdraw()
            del self._waiting[self]
            self._options.gate.left(self.connection.address)

    def _decided(self, outcome: Admission | BusError) -> None:
        connection, gate = self.connection, self._options.gate
        if connection.ended is not None or self not in self._waiting:
            self._waiting.pop(self, None)
            gate.left(connection.address)
        elif isinstance(outcome, BusError):
            gate.left(connection.address)
            self._refuse(code_for(outcome), text_of(outcome))
        else:
            del self._waiting[self]
            if connection.ours:
                connection.greet(self._options.subprotocol, {})
            connection.settled()
            gate.opened(connection, outcome)

    def _refuse(self, code: int, text: str) -> None:
        self._waiting.pop(self, None)
        self.connection.close(code, text)

    def _handshake(self, said: Hello | None) -> Handshake:
        info = self._port.info
        return Handshake(
            protocol=self._options.protocol,
            transport="port",
            url=self._url,
            headers={} if said is None else said.headers,
            origin=info.origin,
            address=info.address,
            params={} if info.epoch is None else {"epoch": str(info.epoch)},
        )


def run_port(port: MessagePort, host: Host) -> None:
    run = getattr(port, "run", None)
    if run is not None:
        host.spawn(run)


_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 8.0
"""Initial and maximum pause in seconds before a serving bus asks a failed source for another port."""


class PortTransport:
    """Connects over message ports, for ``connect(PortTransport(port))`` and ``bus.serve(PortTransport(port))``.

    A single port allows one connection, without reconnecting. If you pass a function, it is called for each attempt, so a link
    can reconnect over a new port. A serving bus calls the function again after each connection ends. If you pass an async
    iterator over ports, each attempt uses the next port, and a serving bus accepts every port immediately.

    The connecting end sends a greeting and waits for a greeting from the other end, so that `connect` raises an error if the
    connection is rejected. The greeting also contains the headers passed to `connect`, which are sent only over the port.

    Args:
        source: A port, a function that returns a port, or an async iterator over ports. In Pyodide, ports may be JavaScript
            objects.
        bare: Set this option if the other end does not use polybus, and therefore expects frames without a greeting. Such an
            end sends no pings, so a lost connection goes unnoticed, and it cannot pause the sender. A serving bus detects it
            automatically.

    Raises:
        TypeError: If `source` is not a source of ports.
    """

    def __init__(self, source: PortSource, *, bare: bool = False) -> None:
        self._source = source_of(source)
        self._bare = bare

    @property
    def url(self) -> str:
        """The address for logs and error messages."""
        return f"port://{self._source.name}"

    @property
    def reconnects(self) -> bool:
        """True if the source may provide another port."""
        return self._source.lasting

    @property
    def spent(self) -> bool:
        """True if the source will not provide another port."""
        return self._source.spent

    def __repr__(self) -> str:
        return f"<PortTransport {self.url}>"

    async def connect(self, options: DialOptions) -> PortConnection:
        """Try to connect once: get a port, and exchange greetings.

        Raises:
            ConnectFailed: If a port or greeting does not arrive in time, or the other end uses another protocol.
            TypeError: If the source returns an object that is not a port.
            Unauthorized: If the other end cannot authenticate this client.
            Forbidden: If the other end does not admit this client.
            LocalProtocolError: If the port has been used before.
        """
        _check_tls(options)
        seconds = options.host.limits.connect_timeout
        port: MessagePort | None = None
        with anyio.move_on_after(seconds):
            port = await self._source.take(self.url, options.host)
        if port is None:
            raise ConnectFailed(self.url, f"timed out after {seconds:g} s: no port arrived", errno=errno.ETIMEDOUT)
        heard, said = anyio.Event(), list[Hello]()

        def first(hello: Hello | None) -> None:
            if hello is not None:
                said.append(hello)
            heard.set()

        connection = PortConnection(port, options.host, options.reads, options.writes, first)
        run_port(port, options.host)
        connection.listen()
        try:
            if not self._bare and connection.ended is None:
                await self._greeting(connection, options, heard, said)
            why = connection.ended
            if why is not None:
                if isinstance(why.error, (Unauthorized, Forbidden)):
                    raise why.error
                raise ConnectFailed(self.url, why.reason or f"closed with code {why.code}")
        except BaseException:
            connection.abort(Closed(1006, "the connecting side cancelled"))
            raise
        connection.settled()
        return connection

    async def _greeting(self, connection: PortConnection, options: DialOptions, heard: anyio.Event, said: list[Hello]) -> None:
        connection.greet(options.subprotocol, options.headers)
        seconds = options.host.limits.handshake_timeout
        with anyio.move_on_after(seconds) as scope:
            await heard.wait()
        if scope.cancelled_caught:
            raise ConnectFailed(
                self.url,
                f"timed out after {seconds:g} s: the other end did not greet. Is it started? "
                "PortTransport(port, bare=True) is for one that does not use polybus",
            )
        if said and (other := said[0].protocol) is not None and other != options.subprotocol:
            raise ConnectFailed(self.url, f"the other side uses {other}, not {options.subprotocol}")

    async def listen(self, options: ListenOptions) -> Listening:
        """Accept clients on the ports from this source.

        Raises:
            LocalProtocolError: If the port has been used before.
            ConnectFailed: If the port fails immediately.
        """
        _check_tls(options)
        listening = PortListening(self.url, options)
        if isinstance(self._source, Single):
            self._receive(listening, await self._source.take(self.url, options.host))
        else:
            options.host.spawn(self._serve, listening)
        return listening

    def _receive(self, listening: PortListening, port: MessagePort) -> PendingPort:
        newcomer = listening.receive(port)
        why = newcomer.connection.ended
        if why is not None and why.code == 1006:
            raise ConnectFailed(self.url, why.reason)
        return newcomer

    async def _serve(self, listening: PortListening) -> None:
        pause = _PAUSE
        with listening.scope:
            while True:
                try:
                    port = await self._source.take(self.url, listening.host)
                    newcomer = self._receive(listening, port)
                except Exception as error:
                    if not self._source.lasting:
                        return
                    if not isinstance(error, ConnectFailed):
                        logger.exception(
                            "%s gave no port; it will be asked again", self.url, extra=log_fields(address=self.url)
                        )
                    await anyio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    continue
                pause = _PAUSE
                if self._source.one_at_a_time:
                    await newcomer.over.wait()


def _check_tls(options: DialOptions | ListenOptions) -> None:
    if options.tls is not None:
        raise LocalProtocolError("a message port has no network of its own and cannot use tls=", protocol="port")
