"""Connections of a broker: who may come in, and how what they bring reaches the exchange."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from .._core.access import Authority
from .._link.multiplexer import expiry
from ..errors import BusError, TooManyRequests, Unavailable
from ..plugins import Admission, Closed, Handshake, Receiver, Transport, TransportFeatures
from .exchange import Exchange
from .participants import Client, Server

if TYPE_CHECKING:
    from .._core.runtime import Runtime
    from ..limits import Limits

__all__ = ["WANTED", "ClientEnd", "Door", "ServerEnd"]

logger: logging.Logger = logging.getLogger("polybus.broker")

ListensIn: TypeAlias = "Callable[[Transport], tuple[Transport, Callable[[Receiver], Receiver]]]"

WANTED = "x-csb-server"
"""The header (where there is none: the member of the query) by which a client asks for a server."""


class _End:
    """One connection; the receiver of its transport."""

    __slots__ = ("_door", "_expires", "_transport", "exchange")

    def __init__(self, door: Door, transport: Transport) -> None:
        self._door = door
        self._transport = transport
        self._expires: float | None = None
        self.exchange: Exchange = door.exchange

    @property
    def address(self) -> str:
        return self._transport.address

    def send(self, frame: bytes) -> None:
        self._transport.send(frame)

    def backlog(self) -> int:
        return self._transport.write_backlog()

    def close(self, code: int, reason: str) -> None:
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
            self.send_away(4401, "the identity has expired: authenticate again")

    def abort(self, why: Closed) -> None:
        """Cut at once."""
        self._transport.abort(why)

    def frames_received(self, frames: Sequence[bytes]) -> None:
        try:
            self._take(frames)
        except Exception:  # it costs this connection, and neither the event loop nor the others
            logger.exception("polybus: what came from %s could not be handled; its connection is cut", self.address)
            self.abort(Closed(1011, "an internal error"))

    def _take(self, frames: Sequence[bytes]) -> None:
        raise NotImplementedError

    def joined(self, admission: Admission, expires: float | None) -> None:
        """It is let in, until its identity ends."""
        self._expires = expires
        self._join(admission)

    def _join(self, admission: Admission) -> None:
        raise NotImplementedError

    def send_away(self, code: int, reason: str) -> None:
        """Close it; it has no say any more."""
        raise NotImplementedError


class ClientEnd(_End):
    """A client's connection."""

    __slots__ = ("_client",)

    _client: Client | None

    def _join(self, admission: Admission) -> None:
        handshake = admission.handshake
        wanted = handshake.headers.get(WANTED) or handshake.query.get(WANTED, "")
        params = {name: value for name, value in handshake.query.items() if name != WANTED}
        params["path"] = handshake.path
        if "authorization" in handshake.headers:
            params["authorization"] = handshake.headers["authorization"]
        # What a stranger has sent need not be Unicode.
        params = {_plain(name): _plain(value) for name, value in params.items()}
        self._client = None
        self._client = self.exchange.client_joined(self, self._transport.send, wanted, params)

    def _take(self, frames: Sequence[bytes]) -> None:
        if self._client is not None:
            self.exchange.from_client(self._client, frames)

    def closed(self, why: Closed) -> None:
        if self._client is not None:
            self.exchange.client_left(self._client, why.reason)
        self._door.left_for_good(self)

    def send_away(self, code: int, reason: str) -> None:
        if self._client is not None:
            self.exchange.send_away(self._client, code, reason)

    def pause_writing(self) -> None:
        if self._client is not None:
            self.exchange.client_paused(self._client)

    def resume_writing(self) -> None:
        if self._client is not None:
            self.exchange.client_resumed(self._client)


class ServerEnd(_End):
    """A socket of a server."""

    __slots__ = ("_server",)

    _server: Server | None

    def _join(self, admission: Admission) -> None:
        self._server = None
        self._server = self.exchange.server_joined(self, self._transport.send, admission.handshake.query.get("server", ""))

    def _take(self, frames: Sequence[bytes]) -> None:
        if self._server is not None:
            self.exchange.from_server(self._server, frames)

    def closed(self, why: Closed) -> None:
        if self._server is not None:
            self.exchange.server_left(self._server, why.reason)
        self._door.left_for_good(self)

    def send_away(self, code: int, reason: str) -> None:
        if self._server is not None:
            self.exchange.expel(self._server, code, reason)

    def pause_writing(self) -> None:
        if self._server is not None:
            self.exchange.server_paused(self._server)

    def resume_writing(self) -> None:
        if self._server is not None:
            self.exchange.server_resumed(self._server)


class Door:
    """Who may come in on one side: limits first, then `authenticate`. Implements `plugins.Gate`."""

    def __init__(
        self, runtime: Runtime, limits: Limits, exchange: Exchange, authority: Authority, make: type[ClientEnd | ServerEnd]
    ) -> None:
        self._runtime = runtime
        self._limits = limits
        self._authority = authority
        self._make = make
        self._knocking = 0
        self._inside: dict[str, int] = {}
        self.exchange: Exchange = exchange
        self.ends: dict[_End, str] = {}
        self.open: bool = True
        self.listens_in: ListensIn | None = None
        """Where connections are recorded: what is to be used in place of a transport, and of what it reports to."""

    def knock(self, address: str) -> BusError | None:
        """Count a newcomer, or say why it has to stay outside."""
        limits, host = self._limits, _host(address)
        if not self.open:
            return Unavailable("this broker is shutting down")
        if self._knocking >= limits.handshakes:
            return TooManyRequests(f"{self._knocking} handshakes are under way (Limits.handshakes)", reason="handshakes")
        if len(self.ends) >= limits.peers:
            return TooManyRequests(f"{limits.peers} connections are open (Limits.peers)")
        if self._inside.get(host, 0) >= limits.peers_per_address:
            return TooManyRequests(f"{limits.peers_per_address} connections from {host} (Limits.peers_per_address)")
        self._knocking += 1
        self._count(host, 1)
        return None

    def left(self, address: str) -> None:
        """A newcomer gave up before it was let in."""
        self._knocking -= 1
        self._count(_host(address), -1)

    def admit(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> None:
        """Ask `authenticate`; at once where there is none."""
        self._runtime.spawn(self._ask, handshake, decided)

    async def _ask(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> None:
        decided(await self._authority.admit(handshake))

    def opened(self, transport: Transport, admission: Admission) -> None:
        """A newcomer is in."""
        self._knocking -= 1
        receives: Callable[[Receiver], Receiver] | None = None
        if self.listens_in is not None:
            transport, receives = self.listens_in(transport)
        end = self._make(self, transport)
        self.ends[end] = _host(transport.address)
        end.joined(admission, expiry(admission.identity, self._runtime))
        transport.start(end if receives is None else receives(end))

    def left_for_good(self, end: _End) -> None:
        """A connection is gone."""
        host = self.ends.pop(end, None)
        if host is not None:
            self._count(host, -1)

    def _count(self, host: str, step: int) -> None:
        left = self._inside.get(host, 0) + step
        if left > 0:
            self._inside[host] = left
        else:
            self._inside.pop(host, None)

    def tick(self, now: float) -> None:
        """About once a second: liveness of every connection."""
        for end in list(self.ends):
            try:
                end.tick(now)
            except Exception:
                logger.exception("polybus: the connection of %s is cut after a mistake of ours", end.address)
                end.abort(Closed(1011, "an internal error"))


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _host(address: str) -> str:
    host, _, _ = address.rpartition(":")
    return host or address
