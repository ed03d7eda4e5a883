"""A port as something to connect to, or to serve: ``connect(PortTransport(port), protocol="ubre")``."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import anyio
from attrs import frozen

from ...errors import BusError, ConnectFailed, Forbidden, LocalProtocolError, Unauthorized
from ...plugins import Admission, Closed, DialOptions, Handshake, Host, ListenOptions
from .._codes import code_for, text_of
from ._connection import PortConnection
from ._control import Hello
from ._port import MessagePort

if TYPE_CHECKING:
    from ...plugins import Listening

__all__ = ["PortSource", "PortTransport"]

PortSource: TypeAlias = MessagePort | Callable[[], "MessagePort | Awaitable[MessagePort]"] | AsyncIterator[MessagePort]
"""Where ports come from: one port; a function, plain or async, that gives a port each time; or ports as they come."""

logger: logging.Logger = logging.getLogger("polybus.transports")

_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 8.0
"""Seconds before a source that has failed to give a port to a bus that serves is asked again; they double from time to time."""


class PortTransport:
    """Makes connections of message ports, for ``connect(PortTransport(port))`` and ``bus.serve(PortTransport(port))``.

    One port makes one connection, which does not come back. A function is called for every attempt, so that a link comes
    back by a new port; a bus that serves calls it again when the connection has ended. An async iterator of ports (what
    `serve_frame` gives) is asked for the next one; a bus that serves takes each as it comes.

    Whoever connects greets the other end and waits for its greeting, so a refusal is an error of `connect`. The headers of
    `connect` travel in that greeting, over the port alone.

    Args:
        source: A port, a function that gives one, or an async iterator of ports.
        bare: The other end is none of ours and does not greet: it is sent frames alone. It gives no sign of life either, so
            that its end goes unnoticed, and it cannot hold back who sends. On the serving side that is found out by itself.
    """

    def __init__(self, source: PortSource, *, bare: bool = False) -> None:
        self._source = _source_of(source)
        self._bare = bare

    @property
    def url(self) -> str:
        """For people and errors."""
        return f"port://{self._source.name}"

    @property
    def reconnects(self) -> bool:
        """Whether there may be another port."""
        return self._source.lasting

    @property
    def spent(self) -> bool:
        """Whether there will be no other port: nobody waits for one."""
        return self._source.spent

    def __repr__(self) -> str:
        return f"<PortTransport {self.url}>"

    async def connect(self, options: DialOptions) -> PortConnection:
        """One attempt: a port, and both greetings.

        Raises:
            ConnectFailed: No port or no greeting came in time, or the other end speaks something else.
            TypeError: The source gave something that is no port.
            Unauthorized: The other end refuses who we are.
            Forbidden: It does not let us in.
            LocalProtocolError: The port was used before.
        """
        _check_tls(options)
        seconds = options.host.limits.connect_timeout
        port: MessagePort | None = None
        with anyio.move_on_after(seconds):
            port = await self._source.take(self.url, options.host)
        if port is None:
            raise ConnectFailed(self.url, f"timed out after {seconds:g} s: no port came")
        heard, said = anyio.Event(), list[Hello]()

        def first(hello: Hello | None) -> None:
            if hello is not None:
                said.append(hello)
            heard.set()

        connection = PortConnection(port, options.host, options.reads, options.writes, first)
        _run(port, options.host)
        connection.listen()
        try:
            if not self._bare:
                await self._greeting(connection, options, heard, said)
        except BaseException:
            connection.abort(Closed(1006, "the connecting side gave up"))
            raise
        connection.settled()
        return connection

    async def _greeting(self, connection: PortConnection, options: DialOptions, heard: anyio.Event, said: list[Hello]) -> None:
        """
        Raises:
            ConnectFailed: The other end is silent, says no, or speaks another protocol.
            Unauthorized, Forbidden: It refuses us.
        """
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
        why = connection.ended
        if why is not None:
            if isinstance(why.error, (Unauthorized, Forbidden)):
                raise why.error
            raise ConnectFailed(self.url, why.reason or f"closed with code {why.code}")
        if said and (other := said[0].protocol) is not None and other != options.subprotocol:
            raise ConnectFailed(self.url, f"the other end speaks {other}, not {options.subprotocol}")

    async def listen(self, options: ListenOptions) -> Listening:
        """Let in who comes by the ports of this source.

        Raises:
            LocalProtocolError: The port was used before.
        """
        _check_tls(options)
        listening = _PortListening(self.url, options)
        if isinstance(self._source, _Single):
            listening.receive(await self._source.take(self.url, options.host))
        else:
            options.host.spawn(self._serve, listening)
        return listening

    async def _serve(self, listening: _PortListening) -> None:
        pause = _PAUSE
        with listening.scope:
            while True:
                try:
                    newcomer = listening.receive(await self._source.take(self.url, listening.host))
                except Exception as error:
                    if not self._source.lasting:
                        return
                    if not isinstance(error, ConnectFailed):
                        logger.exception("polybus: %s gave no port; it will be asked again", self.url)
                    await anyio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    continue
                pause = _PAUSE
                if self._source.one_at_a_time:
                    await newcomer.over.wait()


# -- where ports come from -----------------------------------------------------------------------------------------------


class _Single:
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
        return _checked(port, url)


class _Iterator:
    """Ports as they come."""

    one_at_a_time = False

    def __init__(self, ports: AsyncIterator[MessagePort]) -> None:
        self._ports = ports
        self.name: str = getattr(ports, "name", "ports")
        self.lasting: bool = True

    @property
    def spent(self) -> bool:
        return not self.lasting

    async def take(self, url: str, host: Host) -> MessagePort:
        try:
            return _checked(await anext(self._ports), url)
        except StopAsyncIteration:
            self.lasting = False
            raise ConnectFailed(url, "there are no more ports") from None


class _Generator(_Iterator):
    """The same of an async generator, which ends where it is cancelled: it is waited for, and not cut when time is up."""

    def __init__(self, ports: AsyncIterator[Any]) -> None:
        super().__init__(ports)
        self.name = getattr(ports, "__name__", "ports")
        self._asked = False
        self._came: list[MessagePort | Exception] = []
        self._news = anyio.Event()

    async def take(self, url: str, host: Host) -> MessagePort:
        if not (self._asked or self._came):
            self._asked = True
            host.spawn(self._ask, url, host)
        while not self._came:
            await self._news.wait()
        came = self._came.pop()
        if isinstance(came, Exception):
            raise came
        return came

    async def _ask(self, url: str, host: Host) -> None:
        try:
            self._came.append(await super().take(url, host))
        except Exception as error:
            self._came.append(error)
        finally:
            self._asked = False
            self._news.set()
            self._news = anyio.Event()


_Source: TypeAlias = _Single | _Function | _Iterator


def _source_of(source: Any) -> _Source:
    """
    Raises:
        TypeError: It is none.
    """
    if _is_port(source):
        return _Single(source)
    if inspect.isasyncgen(source):
        return _Generator(source)
    if hasattr(source, "__anext__"):
        return _Iterator(source)
    if callable(source):
        return _Function(source)
    raise TypeError(
        "PortTransport() takes a message port, a function that gives one, or an async iterator of ports, "
        f"not {type(source).__name__}"
    )


def _is_port(value: Any) -> bool:
    return callable(getattr(value, "post", None)) and callable(getattr(value, "on_message", None))


def _checked(port: Any, url: str) -> MessagePort:
    """
    Raises:
        TypeError: It is no port.
    """
    if not _is_port(port):
        raise TypeError(f"{url} gave {type(port).__name__}, which is no message port")
    return cast("MessagePort", port)


# -- the serving side ----------------------------------------------------------------------------------------------------


class _PortListening:
    """Implements `plugins.Listening`."""

    def __init__(self, url: str, options: ListenOptions) -> None:
        self.url: str = url
        self.scope: anyio.CancelScope = anyio.CancelScope()
        self.host: Host = options.host
        self._options = options
        self._waiting: dict[_Newcomer, None] = {}

    def receive(self, port: MessagePort) -> _Newcomer:
        """Somebody may come in by this port."""
        newcomer = _Newcomer(port, self.url, self._options, self._waiting)
        self._waiting[newcomer] = None
        _run(port, self._options.host)
        newcomer.connection.listen()
        return newcomer

    async def aclose(self) -> None:
        """Nobody comes in any more; connections stay."""
        self.scope.cancel()
        for newcomer in list(self._waiting):
            newcomer.connection.close(1001, "the server is leaving")


class _Newcomer:
    """One port of a bus that serves, from its first message on."""

    def __init__(self, port: MessagePort, url: str, options: ListenOptions, waiting: dict[_Newcomer, None]) -> None:
        self._port = port
        self._url = url
        self._options = options
        self._waiting = waiting
        self.over: anyio.Event = anyio.Event()
        self.connection: PortConnection = _Tracked(port, options.host, options.reads, options.writes, self._first, self.over)

    def _first(self, said: Hello | None) -> None:
        connection, gate = self.connection, self._options.gate
        if connection.ended is not None:
            self._waiting.pop(self, None)
            return
        protocol = None if said is None else said.protocol
        if protocol is not None and protocol != self._options.subprotocol:
            self._refuse(1002, f"{self._options.subprotocol} is spoken here, not {protocol[:64]}")
            return
        refused = gate.knock(connection.address)
        if refused is not None:
            self._refuse(code_for(refused), text_of(refused))
            return
        gate.admit(self._handshake(said), self._decided)

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
        headers = {} if said is None else said.headers
        info = self._port.info
        return Handshake(
            protocol=self._options.protocol,
            transport="port",
            url=self._url,
            headers=headers,
            origin=info.origin,
            address=info.address,
            params={} if info.epoch is None else {"epoch": str(info.epoch)},
        )


class _Tracked(PortConnection):
    """A connection that says when it is over."""

    __slots__ = ("_over",)

    def __init__(self, port: MessagePort, host: Host, reads: Any, writes: Any, first: Any, over: anyio.Event) -> None:
        super().__init__(port, host, reads, writes, first)
        self._over = over

    def _end(self, why: Closed) -> None:
        super()._end(why)
        self._over.set()


def _run(port: MessagePort, host: Host) -> None:
    """The task that a port may have."""
    run = getattr(port, "run", None)
    if run is not None:
        host.spawn(run)


def _check_tls(options: DialOptions | ListenOptions) -> None:
    if options.tls is not None:
        raise LocalProtocolError("tls= given for a message port, which has no network of its own", protocol="port")
