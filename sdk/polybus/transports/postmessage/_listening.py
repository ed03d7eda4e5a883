"""A bus that serves ports: who comes in by one, and whether it may."""

from __future__ import annotations

import anyio

from ...errors import BusError
from ...plugins import Admission, Handshake, Host, ListenOptions
from .._stream.close_codes import code_for, text_of
from ._connection import PortConnection
from ._control import Hello
from ._port import MessagePort


class PortListening:
    """Implements `plugins.Listening`."""

    def __init__(self, url: str, options: ListenOptions) -> None:
        self.url: str = url
        self.scope: anyio.CancelScope = anyio.CancelScope()
        self.host: Host = options.host
        self._options = options
        self._waiting: dict[PendingPort, None] = {}
        """Ports that are not let in yet. One may be silent for long: a bare peer may have nothing to say for hours. But there
        are no more than `Limits.handshakes`, as no event tells when a page has gone."""

    def receive(self, port: MessagePort) -> PendingPort:
        """Take a port by which a client may come in."""
        silent = [newcomer for newcomer in self._waiting if newcomer.silent]
        if len(silent) >= self.host.limits.handshakes:
            silent[0].give_way()
        newcomer = PendingPort(port, self.url, self._options, self._waiting)
        self._waiting[newcomer] = None
        run_port(port, self._options.host)
        newcomer.connection.listen()
        return newcomer

    async def aclose(self) -> None:
        """Stop accepting; connections stay."""
        self.scope.cancel()
        for newcomer in list(self._waiting):
            newcomer.connection.close(1001, "the server is leaving")


class PendingPort:
    """One port of a bus that serves, from its first message on."""

    def __init__(self, port: MessagePort, url: str, options: ListenOptions, waiting: dict[PendingPort, None]) -> None:
        self._port = port
        self._url = url
        self._options = options
        self._waiting = waiting
        self.silent: bool = True
        """True if it has said nothing so far."""
        self.over: anyio.Event = anyio.Event()
        self.connection: PortConnection = PortConnection(
            port, options.host, options.reads, options.writes, self._first, self.over.set
        )

    def _first(self, said: Hello | None) -> None:
        connection, gate = self.connection, self._options.gate
        self.silent = False
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

    def give_way(self) -> None:
        """Others want to come in."""
        self._refuse(1013, "it has said nothing, and others want to come in")

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
    """The task that a port may have."""
    run = getattr(port, "run", None)
    if run is not None:
        host.spawn(run)
