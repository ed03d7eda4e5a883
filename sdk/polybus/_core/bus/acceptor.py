"""Accepts links: `BusGate`, which transports call, and the public `Listener`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define, field

from ..._util.cancel_scopes import to_the_end
from ..._util.certificates import warn_of_certificate
from ..._util.listening import network_of
from ..._util.misuse import entered_first
from ..._validation import check_choice, check_hosts, check_origins, check_tls, check_type, texts
from ...errors import BusError, LocalProtocolError, Unavailable, Unsupported
from ...plugins import (
    Admission,
    EndpointFeatures,
    Handshake,
    Identity,
    Listening,
    ListenOptions,
    ProtocolAdapter,
    ProtocolFeatures,
    Transport,
)
from ...plugins.registry import join_url, resolve_target, resolve_url
from ...retry import Backoff
from ...secrets import without_secrets
from ..link.link import Link
from ..runtime.access import Admissions

if TYPE_CHECKING:
    import socket
    import ssl

    from ..link.ports import LinkOwner
    from ..peer.peer import Peer
    from ..runtime.runtime import Runtime
    from ..runtime.services import Services
    from .bus_parts import BusParts

WHEN_FULL = ("drop_oldest", "drop_newest", "disconnect")


_IDLE: Final = 10.0
"""Seconds after which an idle peer without a connection (HTTP) may be disconnected to make room for a new one."""
_LEAVING: Final = "this server accepts no clients: it is shutting down or has not started yet"


@define(eq=False, repr=False)
class BusGate:
    """Accepts or rejects connections: checks the limits first, then calls `authenticate`. Implements `plugins.Gate`."""

    _services: Services
    _owner: LinkOwner
    adapter: ProtocolAdapter
    url: str
    _when_full: str
    _retry: Backoff | None = None
    _admissions: Admissions = field(init=False)
    links: dict[Link, str] = field(factory=dict, init=False)
    _waiting: dict[anyio.CancelScope, Callable[[Admission | BusError], None]] = field(factory=dict, init=False)
    """Connections that are waiting for the result of `authenticate`."""
    open: bool = field(default=True, init=False)
    _looks_again: float = field(default=-math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self._admissions = Admissions(self._services.limits)

    def knock(self, address: str) -> BusError | None:
        if not (self.open and self._services.ready):
            return Unavailable(_LEAVING)
        links, limits = self._services.running.links, self._services.limits
        refusal = self._admissions.knock(address, len(links))
        if refusal is not None and refusal.reason != "handshakes":
            gone = self._make_room(None if len(links) >= limits.peers else network_of(address))
            refusal = self._admissions.knock(address, len(links) - gone) if gone else refusal
        if refusal is not None:
            self._services.access.turned_away(address, refusal.text, "too many")
        return refusal

    def _make_room(self, network: str | None) -> int:
        """Disconnect idle HTTP peers of a network address, by default the address with the most, and return their number.

        At most a hundredth of all peers is disconnected. If no peer is idle, the next search is at least a second later.
        """
        idle: dict[str, list[Link]] = {}
        runtime = self._services.running
        for link in runtime.links if runtime.time() >= self._looks_again else ():
            asked: Callable[[], float] | None = getattr(link.transport, "idle", None)  # one of its `TransportFeatures`
            if asked is not None and asked() > _IDLE and link.transport is not None:
                idle.setdefault(network_of(link.transport.address), []).append(link)
        those = max(idle.values(), key=len, default=[]) if network is None else idle.get(network, [])
        gone = those[: max(1, self._services.limits.peers // 100)]
        if not idle:
            self._looks_again = runtime.time() + 1
        for link in gone:
            if link.transport is not None:
                link.transport.close(1013, "the server needs the slot for another client")
            self.gone(link)
        return len(gone)

    def left(self, address: str) -> None:
        """Stop counting a connection that ended before it was accepted."""
        self._admissions.left(address)

    def admit(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> Callable[[], None] | None:
        if not (self.open and self._services.ready):  # since `knock`, for example during a TLS handshake
            decided(Unavailable(_LEAVING))
        elif self._services.access.authenticate is None:
            decided(Admission(Identity(), handshake))
        else:
            runtime = self._services.running
            scope = runtime.cancel_scope()
            self._waiting[scope] = decided
            runtime.spawn(self._ask, scope, handshake, decided)
            return partial(self._withdraw, scope)
        return None

    def _withdraw(self, scope: anyio.CancelScope) -> None:
        if self._waiting.pop(scope, None) is not None:
            scope.cancel()

    async def _ask(
        self, scope: anyio.CancelScope, handshake: Handshake, decided: Callable[[Admission | BusError], None]
    ) -> None:
        if scope not in self._waiting:  # withdrawn or rejected since this task was created
            return
        with scope:
            try:
                outcome = await self._services.access.admit(handshake)
            except KeyboardInterrupt:  # the program is exiting: answer the client first
                if scope in self._waiting:
                    decided(Unavailable("this server cannot authenticate you now: try again later"))
                raise
            finally:
                waits = self._waiting.pop(scope, None) is not None
            if waits:
                decided(outcome)

    def refuse_waiting(self) -> None:
        """Reject the connections that are waiting for the result of `authenticate`."""
        waiting, self._waiting = self._waiting, {}
        for scope, decided in waiting.items():
            scope.cancel()
            decided(Unavailable(_LEAVING))

    def opened(self, transport: Transport, admission: Admission) -> None:
        self._admissions.opened()
        link = Link(
            self._owner,
            self._services,
            self.adapter,
            self.url,
            when_full=self._when_full,
            admission=admission,
            retry=self._retry,
        )
        self.links[link] = transport.address
        link.attach(transport)

    def gone(self, link: Link) -> None:
        address = self.links.pop(link, None)
        if address is not None:
            self._admissions.gone(address)


class Listener:
    """An address at which a bus accepts links.

    Attributes:
        url: URL for clients, including the options and the actual port.
    """

    def __init__(self, gate: BusGate) -> None:
        self._gate = gate
        self.url: str = gate.url

    @property
    def peers(self) -> list[Peer]:
        """Peers that connected through this listener."""
        return [peer.public for link in self._gate.links for peer in link.peers]

    def __repr__(self) -> str:
        return f"<Listener {without_secrets(self.url)} {len(self._gate.links)} links>"


@entered_first("async with bus.serve(url) as listener:")
class Serving:
    """The async context manager that `Bus.serve` returns."""

    def __init__(
        self,
        parts: BusParts,
        target: Any,
        protocol: str | ProtocolAdapter | None,
        origins: Iterable[str],
        hosts: Iterable[str],
        tls: ssl.SSLContext | None,
        when_full: str,
        insecure: bool,
        retry: Backoff | None,
    ) -> None:
        check_choice(when_full, WHEN_FULL, "when_full")
        self._parts = parts
        self._origins = texts(origins, "origins", "https://example.org")
        self._hosts = texts(hosts, "hosts", "example.org")
        check_origins(self._origins)
        check_hosts(self._hosts)
        check_tls(tls, serves=True)
        self._tls = tls
        self._when_full = when_full
        check_type(insecure, bool, "insecure", "insecure=True")
        check_type(retry, Backoff, "retry", "retry=Backoff(maximum=20)")
        self._retry = retry
        self._private = not (insecure or parts.services.access.authenticate)
        self._transport: Any
        told = without_secrets(str(target))
        if isinstance(target, str):
            self._address: str | None
            self._adapter, self._transport, self._address = resolve_url(target, protocol, serves=True)
            if self._private and not self._transport.is_private(self._address):
                raise LocalProtocolError(
                    f"{told} can be reached from other machines and the bus accepts everyone: pass Bus(authenticate=...), "
                    "bind to 127.0.0.1, or pass insecure=True"
                )
        else:
            self._adapter, self._transport = resolve_target(target, protocol, "listen")
            self._address = None  # a transport object has its own address
        if ProtocolFeatures.of(self._adapter).dials:
            raise LocalProtocolError(
                f"{told}: the bus is a client of this protocol: use connect(url, bus=bus) or polybus.run(bus, url)"
            )
        self._sockets: tuple[socket.socket, ...] = ()
        self._gate: BusGate
        self._runtime: Runtime | None = None

    async def bind(self) -> list[socket.socket]:
        """Bind sockets for this or other processes. Raises `OSError`, or `Unsupported` if processes cannot share them."""
        bind = EndpointFeatures.of(self._transport).bind
        if bind is None or self._address is None:
            shown = self._address or "a transport object"
            raise Unsupported(f"{shown} cannot be shared by several processes: tcp, tls, unix, ws, wss, http and https can")
        sockets = await bind(self._address)
        self._warn_of_certificate(join_url(self._adapter, self._address))
        return sockets

    def serve_at(self, sockets: Sequence[socket.socket]) -> None:
        self._sockets = tuple(sockets)

    async def release(self) -> None:
        """Stop listening if other processes can serve the address. Existing connections stay open."""
        features, listening = EndpointFeatures.of(self._transport), self._parts.links.gates.get(self._gate)
        if listening is not None and features.bind is not None and not features.keeps_sessions:
            self._gate.refuse_waiting()
            await listening.aclose()

    async def __aenter__(self) -> Listener:
        parts = self._parts
        services, links = parts.services, parts.links
        self._runtime = await parts.life.enter()
        try:
            gate = self._gate = BusGate(services, links, self._adapter, "", self._when_full, self._retry)
            codec = self._adapter.codec(services.limits)
            options = ListenOptions(
                host=services.running,
                gate=gate,
                protocol=self._adapter.name,
                reads=codec.reads,
                writes=codec.writes,
                subprotocol=self._adapter.name,
                origins=self._origins,
                hosts=self._hosts,
                tls=self._tls,
                private=self._private,
                adapter=self._adapter,
                framing=ProtocolFeatures.of(self._adapter).framing,
                sockets=self._sockets,
                turned_away=services.access.turned_away,
            )
            where = () if self._address is None else (self._address,)
            listening: Listening = await self._transport.listen(*where, options)
            gate.url = join_url(self._adapter, listening.url)
            links.add_gate(gate, listening)
            if not self._sockets:  # otherwise the process that bound them has already warned for all workers
                self._warn_of_certificate(gate.url)
        except BaseException as error:
            await parts.life.leave(self._runtime, error)
            raise
        return Listener(gate)

    def _warn_of_certificate(self, url: str) -> None:
        if self._tls is not None:
            warn_of_certificate(self._tls, without_secrets(url))

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        life = self._parts.life
        try:
            if self._parts.services.runtime is self._runtime and not life.is_last():  # the last exit closes all links
                await to_the_end(self._stop, error is None)
        finally:
            await life.leave(self._runtime, error)

    async def _stop(self, drain: bool) -> None:
        gate, links = self._gate, self._parts.links
        gate.open = False
        gate.refuse_waiting()
        if (listening := links.gates.pop(gate, None)) is not None:
            await listening.aclose()
        for link in list(gate.links):
            await links.close(link, drain=drain, code=1001)
