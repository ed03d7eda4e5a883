"""Connections of a broker: their admission, and the way of their frames to the exchange."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from attrs import frozen

from .._core.link.multiplexer import expiry
from .._core.runtime.access import AccessControl
from .._core.runtime.admissions import Admissions
from .._util.log_fields import log_fields
from ..errors import BusError, Unavailable
from ..plugins import Admission, Closed, Handshake, Receiver, Transport, TransportFeatures
from .exchange import Exchange

if TYPE_CHECKING:
    from .._core.runtime.runtime import Runtime
    from ..limits import Limits

logger: logging.Logger = logging.getLogger("polybus.broker")

ListensIn: TypeAlias = "Callable[[Transport], tuple[Transport, Callable[[Receiver], Receiver]]]"

WANTED = "x-csb-server"
"""The header (where there is none: the member of the query) by which a client asks for a server."""


@frozen
class Side:
    """The part of an exchange that serves the connections of one side: of clients, or of servers.

    Attributes:
        join: Makes the participant of a connection; None where it was turned away, and closed.
        take: Frames of a participant.
        left: Its connection is gone, and why.
        send_away: Closes it, with code and reason; what it sends counts no more.
        paused, resumed: It reads too slowly; it takes more.
    """

    join: Callable[[_Connection, Callable[[bytes], None], Handshake], Any]
    take: Callable[[Any, Sequence[bytes]], None]
    left: Callable[[Any, str], None]
    send_away: Callable[[Any, int, str], None]
    paused: Callable[[Any], None]
    resumed: Callable[[Any], None]


def client_side(exchange: Exchange) -> Side:
    registry = exchange.registry

    def join(connection: _Connection, send: Callable[[bytes], None], handshake: Handshake) -> Any:
        wanted = handshake.headers.get(WANTED) or handshake.query.get(WANTED, "")
        params = {name: value for name, value in handshake.query.items() if name != WANTED}
        params["path"] = handshake.path
        if "authorization" in handshake.headers:
            params["authorization"] = handshake.headers["authorization"]
        # What a stranger has sent need not be Unicode.
        params = {_plain(name): _plain(value) for name, value in params.items()}
        return registry.client_joined(connection, send, wanted, params)

    readers = registry.readers
    return Side(join, exchange.from_client, registry.client_left, registry.send_away, readers.paused, readers.resumed)


def server_side(exchange: Exchange) -> Side:
    registry = exchange.registry

    def join(connection: _Connection, send: Callable[[bytes], None], handshake: Handshake) -> Any:
        return registry.server_joined(connection, send, handshake.query.get("server", ""))

    left, paused, resumed = registry.server_left, registry.server_paused, registry.server_resumed
    return Side(join, exchange.from_server, left, registry.expel, paused, resumed)


class _Connection:
    """One connection; the receiver of its transport."""

    __slots__ = ("_expires", "_gate", "_participant", "_side", "_transport", "address")

    def __init__(self, gate: BrokerGate, transport: Transport) -> None:
        self._gate = gate
        self._side = gate.side
        self._transport = transport
        self.address: str = transport.address
        self._expires: float | None = None
        self._participant: Any = None

    def send(self, frame: bytes, /) -> None:
        self._transport.send(frame)

    def backlog(self) -> int:
        return self._transport.write_backlog()

    def close(self, code: int, reason: str, /) -> None:
        self._transport.close(code, reason)

    def cut(self, code: int, reason: str) -> None:
        self.abort(Closed(code, reason))

    def hold(self) -> None:
        TransportFeatures.of(self._transport).pause_reading()

    def release(self) -> None:
        TransportFeatures.of(self._transport).resume_reading()

    def tick(self, now: float) -> None:
        """About once a second."""
        self._transport.tick(now)
        if self._expires is not None and now >= self._expires:
            self._expires = None
            if self._participant is not None:
                self._side.send_away(self._participant, 4401, "the identity has expired: authenticate again")

    def abort(self, why: Closed) -> None:
        self._transport.abort(why)

    def joined(self, admission: Admission, expires: float | None) -> None:
        """It is let in, until its identity ends."""
        self._expires = expires
        self._participant = self._side.join(self, self._transport.send, admission.handshake)

    def frames_received(self, frames: Sequence[bytes]) -> None:
        if self._participant is None:
            return
        try:
            self._side.take(self._participant, frames)
        except Exception:  # it costs this connection, and neither the event loop nor the others
            text = "what came from %s could not be handled; its connection is cut"
            logger.exception(text, self.address, extra=log_fields(address=self.address, protocol="csb"))
            self.abort(Closed(1011, "an internal error"))

    def closed(self, why: Closed) -> None:
        if self._participant is not None:
            self._side.left(self._participant, why.reason)
        self._gate.left_for_good(self)

    def pause_writing(self) -> None:
        if self._participant is not None:
            self._side.paused(self._participant)

    def resume_writing(self) -> None:
        if self._participant is not None:
            self._side.resumed(self._participant)


class BrokerGate:
    """Admission on one side: limits first, then `authenticate`. Implements `plugins.Gate`."""

    def __init__(self, runtime: Runtime, limits: Limits, authority: AccessControl, side: Side) -> None:
        self._runtime = runtime
        self._authority = authority
        self._admissions = Admissions(limits)
        self.side: Side = side
        self.ends: dict[_Connection, str] = {}
        self.open: bool = True
        self.listens_in: ListensIn | None = None
        """Gives what is used in place of a transport and of its receiver, where connections are recorded."""

    def knock(self, address: str) -> BusError | None:
        if not self.open:
            return Unavailable("this broker is shutting down")
        refusal = self._admissions.knock(address, len(self.ends))
        if refusal is not None:
            self.turned_away(address, refusal.text, "too many")
        return refusal

    def turned_away(self, address: str, why: str, about: str) -> None:
        """Log that a client was refused before `authenticate` was asked."""
        self._authority.turned_away(address, why, about)

    def left(self, address: str) -> None:
        self._admissions.left(address)

    def admit(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> None:
        self._runtime.spawn(self._ask, handshake, decided)

    async def _ask(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> None:
        decided(await self._authority.admit(handshake))

    def opened(self, transport: Transport, admission: Admission) -> None:
        self._admissions.opened()
        receives: Callable[[Receiver], Receiver] | None = None
        if self.listens_in is not None:
            transport, receives = self.listens_in(transport)
        end = _Connection(self, transport)
        self.ends[end] = transport.address
        end.joined(admission, expiry(admission.identity, self._runtime))
        transport.start(end if receives is None else receives(end))

    def left_for_good(self, end: _Connection) -> None:
        address = self.ends.pop(end, None)
        if address is not None:
            self._admissions.gone(address)

    def tick(self, now: float) -> None:
        """About once a second: liveness of every connection."""
        for end in list(self.ends):
            try:
                end.tick(now)
            except Exception:
                fields = log_fields(address=end.address, protocol="csb")
                logger.exception("the connection of %s is cut after a mistake of ours", end.address, extra=fields)
                end.abort(Closed(1011, "an internal error"))


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
