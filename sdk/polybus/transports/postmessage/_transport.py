"""A port as something to connect to, or to serve: ``connect(PortTransport(port), protocol="ubre")``."""

from __future__ import annotations

import logging
from typing import Final

import anyio

from ..._util.log_fields import log_fields
from ...errors import ConnectFailed, Forbidden, LocalProtocolError, Unauthorized
from ...plugins import Closed, DialOptions, Listening, ListenOptions
from ._connection import PortConnection
from ._control import Hello
from ._listening import PendingPort, PortListening, run_port
from ._port import MessagePort
from ._sources import PortSource, Single, source_of

logger: logging.Logger = logging.getLogger("polybus.transports")

_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 8.0
"""Seconds before a source that has failed to give a port to a bus that serves is asked again; they double from time to time."""


class PortTransport:
    """Makes connections of message ports, for ``connect(PortTransport(port))`` and ``bus.serve(PortTransport(port))``.

    One port makes one connection, which does not come back. A function is called for every attempt, so that a link comes
    back by a new port; a bus that serves calls it again when the connection has ended. An async iterator of ports (what
    `serve_frame` gives) is asked for the next one; a bus that serves takes each as it comes.

    The connecting end greets the other one and waits for its greeting, so a refusal is an error of `connect`. The headers of
    `connect` travel in that greeting, over the port alone.

    Args:
        source: A port, a function that gives one, or an async iterator of ports. In Pyodide each may be of JavaScript, as it
            is.
        bare: The other end is none of ours and does not greet: it is sent frames alone. It gives no sign of life either, so
            that its end goes unnoticed, and it cannot hold back who sends. On the serving side that is found out by itself.

    Raises:
        TypeError: It is none of these.
    """

    def __init__(self, source: PortSource, *, bare: bool = False) -> None:
        self._source = source_of(source)
        self._bare = bare

    @property
    def url(self) -> str:
        """For people and errors."""
        return f"port://{self._source.name}"

    @property
    def reconnects(self) -> bool:
        """True if there may be another port."""
        return self._source.lasting

    @property
    def spent(self) -> bool:
        """True if there will be no other port."""
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
            connection.abort(Closed(1006, "the connecting side gave up"))
            raise
        connection.settled()
        return connection

    async def _greeting(self, connection: PortConnection, options: DialOptions, heard: anyio.Event, said: list[Hello]) -> None:
        """May raise `ConnectFailed`: the other end is silent, or speaks another protocol."""
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
            raise ConnectFailed(self.url, f"the other end speaks {other}, not {options.subprotocol}")

    async def listen(self, options: ListenOptions) -> Listening:
        """Let in who comes by the ports of this source.

        Raises:
            LocalProtocolError: The port was used before.
            ConnectFailed: The port fails at once.
        """
        _check_tls(options)
        listening = PortListening(self.url, options)
        if isinstance(self._source, Single):
            self._receive(listening, await self._source.take(self.url, options.host))
        else:
            options.host.spawn(self._serve, listening)
        return listening

    def _receive(self, listening: PortListening, port: MessagePort) -> PendingPort:
        """May raise `ConnectFailed`: the port fails at once."""
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
        raise LocalProtocolError("tls= given for a message port, which has no network of its own", protocol="port")
