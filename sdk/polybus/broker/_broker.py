"""`Broker` and its connections."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import anyio
from attrs import frozen

from ..errors import BusError, LocalProtocolError, Unavailable
from ..integrations import AccessControl, Admissions, Authenticate, Runtime
from ..limits import Limits
from ..plugins import Admission, Closed, Handshake, Listening, ListenOptions, Receiver, Transport, tools
from ..plugins.registry import make_recorder, metrics_maker, resolve_url
from ..plugins.tools import log_fields, without_secrets
from .events import BrokerEvent, BrokerStats
from .exchange import Exchange
from .registry import ClientRegistry

if TYPE_CHECKING:
    import ssl

    from ..plugins.extensions import Recorder
    from ..plugins.tools import Loop

logger: logging.Logger = logging.getLogger("polybus.broker")

ListensIn: TypeAlias = "Callable[[Transport, str | None], tuple[Transport, Callable[[Receiver], Receiver]]]"

WANTED = "x-csb-server"
"""A client names the server that it wants in this header or query parameter."""


@frozen
class Side:
    """Callbacks for the connections on one side of the broker, either clients or servers."""

    join: Callable[[Transport, Handshake], Any]
    """Creates a participant for a connection. Returns None if it has closed the connection instead."""
    take: Callable[[Any, Sequence[bytes]], None]
    left: Callable[[Any, str], None]
    send_away: Callable[[Any, int, str], None]
    paused: Callable[[Any], None]
    resumed: Callable[[Any], None]


def client_side(exchange: Exchange) -> Side:
    registry, readers = exchange.registry, exchange.registry.readers

    def join(transport: Transport, handshake: Handshake) -> Any:
        wanted = handshake.headers.get(WANTED) or handshake.query.get(WANTED, "")
        params = {name: value for name, value in handshake.query.items() if name != WANTED}
        params["path"] = handshake.path
        if "authorization" in handshake.headers:
            params["authorization"] = handshake.headers["authorization"]
        # A client may send invalid Unicode.
        params = {_plain(name): _plain(value) for name, value in params.items()}
        return registry.client_joined(transport, wanted, params)

    return Side(join, exchange.from_client, registry.client_left, registry.send_away, readers.paused, readers.resumed)


def server_side(exchange: Exchange) -> Side:
    registry = exchange.registry

    def join(transport: Transport, handshake: Handshake) -> Any:
        return registry.server_joined(transport, handshake.query.get("server", ""))

    left, paused, resumed = registry.server_left, registry.server_paused, registry.server_resumed
    return Side(join, exchange.from_server, left, registry.expel, paused, resumed)


class _BrokerConnection:
    """One connection to the broker. Receives the transport's callbacks."""

    __slots__ = ("_expires", "_gate", "_participant", "_side", "transport")

    def __init__(self, gate: BrokerGate, transport: Transport) -> None:
        self._gate = gate
        self._side = gate.side
        self.transport: Transport = transport
        self._expires: float | None = None
        self._participant: Any = None

    def tick(self, now: float) -> None:
        self.transport.tick(now)
        if self._expires is not None and now >= self._expires:
            self._expires = None
            if self._participant is not None:
                self._side.send_away(self._participant, 4401, "the identity has expired: authenticate again")

    def joined(self, admission: Admission, expires: float | None) -> None:
        self._expires = expires
        self._participant = self._side.join(self.transport, admission.handshake)

    def frames_received(self, frames: Sequence[bytes]) -> None:
        if self._participant is None:
            return
        try:
            self._side.take(self._participant, frames)
        except Exception:  # close only this connection
            address = self.transport.address
            text = "a frame from %s could not be handled: its connection is closed"
            logger.exception(text, address, extra=log_fields(address=address, protocol="csb"))
            self.transport.abort(Closed(1011, "an internal error"))

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
    """Accepts or rejects new connections on one side: checks limits, then calls `authenticate`. Implements `plugins.Gate`."""

    def __init__(self, runtime: Runtime, limits: Limits, authority: AccessControl, side: Side) -> None:
        self._runtime = runtime
        self._authority = authority
        self._admissions = Admissions(limits)
        self.side: Side = side
        self.ends: dict[_BrokerConnection, str] = {}
        self.open: bool = True
        self.listens_in: ListensIn | None = None
        """Wraps a transport and its receiver to record frames under the client's identity key. Set while recording."""

    def knock(self, address: str) -> BusError | None:
        if not self.open:
            return Unavailable("this broker is shutting down")
        refusal = self._admissions.knock(address, len(self.ends))
        if refusal is not None:
            self._authority.turned_away(address, refusal.text, "too many")
        return refusal

    def left(self, address: str) -> None:
        self._admissions.left(address)

    def admit(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> Callable[[], None]:
        scope = self._runtime.cancel_scope()

        async def ask() -> None:
            with scope:
                outcome = await self._authority.admit(handshake)
                if not scope.cancel_called:
                    decided(outcome)

        self._runtime.spawn(ask)
        return scope.cancel

    def opened(self, transport: Transport, admission: Admission) -> None:
        self._admissions.opened()
        receives: Callable[[Receiver], Receiver] | None = None
        if self.listens_in is not None:
            transport, receives = self.listens_in(transport, admission.identity.key)
        end = _BrokerConnection(self, transport)
        self.ends[end] = transport.address
        end.joined(admission, admission.identity.ends(self._runtime.time()))
        transport.start(end if receives is None else receives(end))

    def left_for_good(self, end: _BrokerConnection) -> None:
        address = self.ends.pop(end, None)
        if address is not None:
            self._admissions.gone(address)
            self._runtime.notifier.signal()

    async def gone(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._runtime.notifier.until(lambda: not self.ends)

    def tick(self, now: float) -> None:
        for end in list(self.ends):
            try:
                end.tick(now)
            except Exception:
                address = end.transport.address
                fields = log_fields(address=address, protocol="csb")
                logger.exception("the connection of %s is closed after an internal error", address, extra=fields)
                end.transport.abort(Closed(1011, "an internal error"))


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


_SECURE = frozenset(("tls", "wss"))
_QUIET = 0.05  # Seconds without a frame after which a draining broker stops waiting for more


class Broker:
    """A CSB broker that forwards frames between clients and servers.

    ``async with Broker(clients="csb+ws://127.0.0.1:8000/game", servers="csb+tcp://127.0.0.1:9000") as broker: ...``. Clients
    connect as they would connect to a server. A server connects to ``csb+tcp://127.0.0.1:9000?side=broker-server``, and its
    peers are then the clients. A client can select a server with the ``x-csb-server`` header. By default, the broker assigns it
    to the server with the fewest clients. The broker never decodes payloads.

    Args:
        clients: One or more URLs to listen on for clients, with any transport.
        servers: One or more URLs to listen on for servers.
        limits: The broker uses `Limits.message`, ``peers``, the timeouts and the pings. It closes a slow client with more than
            ``outbox_bytes`` unread bytes. ``total_bytes`` limits the unread bytes of all slow clients together, and of each
            server.
        authenticate: Hook for clients, as in `Bus.authenticate`. The broker closes a client when its identity expires, but does
            not pass the identity on to servers.
        authenticate_servers: Hook for servers.
        origins: Web origins of pages that may connect as clients.
        hosts: Additional Host values to accept on a loopback address, for a broker behind a proxy.
        tls: TLS context for ``tls`` and ``wss`` addresses on both sides.
        metrics: Address for Prometheus's ``/metrics``, for example ``http://127.0.0.1:9100``. Requires ``pip install
            'polybus[prometheus]'``.
        insecure: Accept every client even if other machines can reach an address, directly or through a proxy.
        record: Folder for a recording of every frame to and from clients, as `Bus.record` does. Requires ``pip install
            'polybus[capture]'``.

    Raises:
        ImportError: If you pass `record` without pyarrow installed, or `metrics` without prometheus-client.
        ValueError: If a URL is invalid or is not a CSB URL, or `origins` or `hosts` has an invalid entry.
        LocalProtocolError: If other machines can reach an address that does not require authentication.
    """

    def __init__(
        self,
        clients: str | Iterable[str],
        servers: str | Iterable[str],
        *,
        limits: Limits | None = None,
        authenticate: Authenticate | None = None,
        authenticate_servers: Authenticate | None = None,
        origins: Iterable[str] = (),
        hosts: Iterable[str] = (),
        tls: ssl.SSLContext | None = None,
        metrics: str | None = None,
        insecure: bool = False,
        record: str | os.PathLike[str] | None = None,
    ) -> None:
        self.limits: Limits = limits if limits is not None else Limits()
        seconds = self.limits.handshake_timeout
        self._authorities = AccessControl(authenticate, None, seconds), AccessControl(authenticate_servers, None, seconds)
        self._targets = _targets(clients), _targets(servers)
        for targets, authority, word in zip(
            self._targets, self._authorities, ("authenticate", "authenticate_servers"), strict=True
        ):
            for url, (_, transport, address) in targets.items():
                shown = without_secrets(url)
                if not (insecure or authority.authenticate is not None or transport.is_private(address)):
                    raise LocalProtocolError(
                        f"{shown} can be reached from other machines, and the broker accepts everyone: pass {word}=..., or "
                        "bind to 127.0.0.1, or pass insecure=True"
                    )
        self._origins = (origins,) if isinstance(origins, str) else tuple(origins)
        self._hosts = (hosts,) if isinstance(hosts, str) else tuple(hosts)
        tools.check_origins(self._origins)
        tools.check_hosts(self._hosts)
        self._tls = tls
        self._insecure = insecure
        transports = [transport.name for targets in self._targets for _, transport, _ in targets.values()]
        if tls is not None and not set(transports) & _SECURE:
            raise LocalProtocolError("tls= is given, but no address is tls:// or wss://")
        self._metrics = None if metrics is None else self._metrics_server(metrics)
        self._record = record
        self._recorder = self._new_recorder()
        self._events: tools.EventHub[BrokerEvent] = tools.EventHub(lambda: self._running.loop.waiter(), self._wake)
        self._runtime: Runtime | None = None
        self._loop: Loop | None = None
        self._exchange: Exchange | None = None
        self._gates: list[BrokerGate] = []
        self._listening: list[Listening] = []
        self._closed: anyio.Event | None = None
        self.client_urls: tuple[str, ...] = ()
        """URLs that clients can connect to. Empty until the broker is entered."""
        self.server_urls: tuple[str, ...] = ()
        """URLs that servers can connect to, including ``side=broker-server``."""

    # -- life ------------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start listening for clients and servers.

        Raises:
            OSError: If an address is already in use or does not belong to this machine.
            LocalProtocolError: If the broker has already been entered, or `tls` is missing.
            CaptureError: If the folder for the recording cannot be created or written to.
        """
        if self._runtime is not None:
            raise LocalProtocolError("this broker has already been entered: create another one")
        runtime = self._runtime = Runtime(self.limits)
        runtime.on_failure = self.aclose
        self._loop = runtime.loop
        for authority in self._authorities:
            authority.warnings = runtime.warnings
        limits = self.limits
        registry = ClientRegistry(
            runtime.time,
            most=limits.outbox_bytes,
            most_for_all=limits.total_bytes,
            bad_messages=limits.bad_messages,
            tell=self._events.emit,
        )
        exchange = self._exchange = Exchange(registry, limits.total_bytes)
        self._closed = anyio.Event()
        try:
            await runtime.open()
            sides = client_side(exchange), server_side(exchange)
            self._gates = [
                BrokerGate(runtime, limits, authority, side) for authority, side in zip(self._authorities, sides, strict=True)
            ]
            if self._recorder is not None:
                await tools.in_own_thread(self._recorder.open)
                self._gates[0].listens_in = self._listens_in
            # Servers first, so that a client that connects at once is more likely to find one.
            self.server_urls = await self._listen(1, "?side=broker-server", (), ())
            self.client_urls = await self._listen(0, "", self._origins, self._hosts)
            if self._metrics is not None:
                await self._metrics.listen()
                runtime.spawn(self._metrics.serve)
            runtime.spawn(self._keep_house, runtime, registry)
        except BaseException:
            await tools.to_the_end(self._shut)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async def leave() -> None:
            if error is None:
                await self.drain(self.limits.close_timeout)
            await self._shut()

        await tools.to_the_end(leave)

    def _metrics_server(self, url: str) -> tools.HttpStatus:
        text = metrics_maker("broker", "Broker(metrics=...)")
        server = tools.HttpStatus("metrics", url, {"/metrics": lambda: (200, text(self.stats()))}, "http://127.0.0.1:9100")
        if not tools.is_loopback(server.host):
            raise LocalProtocolError(f"metrics={url!r} can be reached from other machines: bind it to 127.0.0.1 behind a proxy")
        return server

    def _new_recorder(self) -> Recorder | None:
        return None if self._record is None else make_recorder(self._record)

    def _listens_in(self, transport: Transport, who: str | None) -> tuple[Transport, Callable[[Receiver], Receiver]]:
        assert self._recorder is not None
        adapter = next(iter(self._targets[0].values()))[0]
        return self._recorder.tap(adapter, transport, opened=False, who=who).listening_in(transport)

    async def _listen(self, side: int, suffix: str, origins: tuple[str, ...], hosts: tuple[str, ...]) -> tuple[str, ...]:
        urls = []
        for adapter, transport, address in self._targets[side].values():
            codec = adapter.codec(self.limits)
            options = ListenOptions(
                host=self._running,
                gate=self._gates[side],
                protocol=adapter.name,
                reads=codec.reads,
                writes=codec.writes,
                subprotocol=adapter.name,
                origins=origins,
                hosts=hosts,
                tls=self._tls if transport.name in _SECURE else None,
                private=not (self._insecure or self._authorities[side].authenticate is not None),
                turned_away=self._authorities[side].turned_away,
            )
            listening = await transport.listen(address, options)
            self._listening.append(listening)
            urls.append(f"{adapter.name}+{listening.url}{suffix}")
            if options.tls is not None:
                tools.warn_of_certificate(options.tls, urls[-1])
        return tuple(urls)

    async def drain(self, timeout: float = 20.0) -> None:
        """Reject new clients and requests, wait for pending requests, then close the clients and finally the servers.

        Args:
            timeout: Maximum number of seconds to wait for answers to forwarded requests.
        """
        if self._exchange is None or self._runtime is None:
            return
        for gate in self._gates:
            gate.open = False
        registry = self._exchange.registry
        registry.draining = True
        counters = registry.counters
        with anyio.move_on_after(timeout):
            while registry.stats().clients:
                before = counters.frames_to_clients_total + counters.frames_to_servers_total
                await anyio.sleep(_QUIET)
                if before == counters.frames_to_clients_total + counters.frames_to_servers_total and not registry.busy():
                    break
        registry.drain()
        await self._gates[0].gone(self.limits.close_timeout + 1)
        for end in list(self._gates[1].ends):
            end.transport.close(1001, "the broker is shutting down")
        await self._gates[1].gone(self.limits.close_timeout + 1)

    async def aclose(self) -> None:
        """Close all connections immediately. You can call this at any time and more than once."""
        await tools.to_the_end(self._shut)

    async def _shut(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            return
        listening, self._listening = self._listening, []
        for listener in listening:
            await listener.aclose()
        if self._metrics is not None:
            await self._metrics.aclose()
        for gate in self._gates:
            for end in list(gate.ends):
                end.transport.abort(Closed(1001, "the broker was closed"))
        for gate in self._gates:
            await gate.gone(self.limits.close_timeout + 1)
        await runtime.close()
        if self._recorder is not None:
            recorder, self._recorder = self._recorder, self._new_recorder()
            await tools.in_own_thread(recorder.close)
        self._events.close()
        self.client_urls = self.server_urls = ()
        if self._closed is not None:
            self._closed.set()

    async def wait_closed(self) -> None:
        """Wait until the broker's ``async with`` block has ended.

        Raises:
            LocalProtocolError: If the broker is not entered.
        """
        self._running  # noqa: B018  # raises when it is not entered
        assert self._closed is not None
        await self._closed.wait()

    @property
    def _running(self) -> Runtime:
        if self._runtime is None:
            raise LocalProtocolError("this broker is not running: enter it with `async with broker:`")
        return self._runtime

    async def _keep_house(self, runtime: Runtime, registry: ClientRegistry) -> None:
        limits = self.limits
        shortest = min(limits.ping_interval, limits.ping_timeout, limits.write_timeout, limits.frame_timeout)
        pace = max(0.01, min(1.0, shortest / 4))
        while True:
            await anyio.sleep(pace)
            now = runtime.time()
            registry.tick(now)
            for gate in self._gates:
                gate.tick(now)

    # -- watching --------------------------------------------------------------------------------------------------------

    @property
    def metrics_url(self) -> str | None:
        """URL of the Prometheus metrics, or `None` if the broker does not serve metrics."""
        return None if self._metrics is None else f"{self._metrics.url}/metrics"

    def stats(self) -> BrokerStats:
        """Return a snapshot of connections and counters.

        Raises:
            LocalProtocolError: If the broker has never been entered.
        """
        if self._exchange is None:
            raise LocalProtocolError("this broker was never entered, so it has no statistics")
        return self._exchange.registry.stats()

    def events(self) -> AsyncIterator[BrokerEvent]:
        """Iterate over the broker's events from now on. If more than 1,000 are unread, the oldest are dropped."""
        return self._events.stream()

    def _wake(self, waiter: Any) -> None:
        if self._loop is not None:
            self._loop.wake(waiter)


def _targets(urls: str | Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for url in (urls,) if isinstance(urls, str) else tuple(urls):
        adapter, transport, address = resolve_url(url, serves=True)
        if adapter.name != "csb":
            raise ValueError(f"{without_secrets(url)}: a broker requires csb, for example csb+{without_secrets(address)}")
        if adapter.url_options:
            names = ", ".join(adapter.url_options)
            raise ValueError(f"{without_secrets(url)}: {names} belongs in the URL with which a server connects")
        found[url] = adapter, transport, address
    if not found:
        raise ValueError("a broker requires an address for clients and one for servers")
    return found
