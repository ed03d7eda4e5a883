"""Zenoh sessions as transports, which carry frames as samples, and Zenoh URLs."""

from __future__ import annotations

import errno
import logging
import math
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import anyio
from attrs import define, evolve, field, frozen

from ...errors import BusError, ConnectFailed, LocalProtocolError, RemoteProtocolError, TooLarge, Unavailable, Unsupported
from ...plugins import (
    Closed,
    Connector,
    DialOptions,
    Fabric,
    Handshake,
    Host,
    Listening,
    ListenOptions,
    ProtocolFeatures,
    Receiver,
    ReceiverFeatures,
    Sample,
    Transport,
)
from ...plugins.connections import TransportState, decision
from ...plugins.tools import check_choice, is_loopback, log_fields, without_secrets
from ..sockets import host_port
from .node import Early, ZenohNode

PORT: Final = 7447
_MODES: Final = ("client", "peer", "router")
_LINKS: Final = ("tcp", "tls", "quic", "ws", "udp")
_SECURE: Final = ("tls", "quic")
_OPTIONS: Final = ("mode", "link", "connect", "listen", "scouting", "ca", "cert", "key", "config")


@frozen(kw_only=True)
class ZenohAddress:
    """A parsed URL.

    ``host`` is empty if other nodes are found only by scouting. If ``mode`` is `None`, a serving node is a router, and any
    other node is a client. ``connect`` and ``listen`` are additional locators, such as ``tcp/192.0.2.7:7447``. ``ca``,
    ``cert``, ``key`` and ``config`` are paths. URL options take precedence over ``config``.
    """

    host: str
    port: int
    mode: str | None = None
    link: str = "tcp"
    connect: tuple[str, ...] = ()
    listen: tuple[str, ...] = ()
    scouting: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    config: str | None = None

    @property
    def shown(self) -> str:
        return f"{self.link}/{host_port(self.host, self.port)}" if self.host else "scouting"

    @property
    def is_private(self) -> bool:
        """True if a serving node and the nodes that it joins are reachable only from this machine."""
        locators = (*self.connect, *self.listen)
        near = all(is_loopback(urlsplit(f"//{locator.partition('/')[2]}").hostname or "") for locator in locators)
        return is_loopback(self.host) and near and not self.scouting and self.config is None

    def settings(self, *, serves: bool, patience: float) -> Mapping[str, Any]:
        """Return the session's configuration by Zenoh's configuration paths. `patience` is the connect timeout in seconds."""
        own = (self.shown,) if self.host else ()
        listen, connect = ((*own, *self.listen), self.connect) if serves else (self.listen, (*own, *self.connect))
        settings: dict[str, Any] = {
            "mode": self.mode or ("router" if serves else "client"),
            "listen/endpoints": list(listen),
            "listen/timeout_ms": 0,
            "listen/exit_on_failure": True,
            "connect/endpoints": list(connect),
            # A server retries in the background, but a client fails immediately.
            "connect/timeout_ms": -1 if serves else 0,
            "connect/exit_on_failure": not serves,
            "scouting/multicast/enabled": self.scouting,
            "scouting/gossip/enabled": self.scouting,
            "transport/unicast/open_timeout": round(patience * 1000),
            "transport/shared_memory/enabled": False,
        }
        if not self.scouting:
            # Otherwise a router waits for others, and admits clients before it receives their messages.
            settings["scouting/delay"] = 0
        side = "listen" if serves else "connect"
        tls = {"root_ca_certificate": self.ca, f"{side}_certificate": self.cert, f"{side}_private_key": self.key}
        settings |= {f"transport/link/tls/{name}": path for name, path in tls.items() if path is not None}
        if self.link in _SECURE and self.cert is not None and self.ca is not None:
            settings["transport/link/tls/enable_mtls"] = True
        return settings

    def url(self) -> str:
        query = urlencode({} if self.link == "tcp" else {"link": self.link})
        return f"zenoh://{host_port(self.host, self.port)}{'/?' if query else ''}{query}"


def listening_address(url: str) -> ZenohAddress:
    address = zenoh_address(url)
    if address.mode == "client":
        shown = without_secrets(url)
        raise ValueError(f"{shown}: mode=client does not listen: leave it out, or write mode=peer")
    return address


def zenoh_address(url: str) -> ZenohAddress:
    """Parse a Zenoh URL. Raises `ValueError` if a part is missing, malformed or unknown."""
    parts = urlsplit(url)
    shown = without_secrets(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise ValueError(f"{shown}: unknown option {', '.join(unknown)}; use one of {', '.join(_OPTIONS)}")
    if parts.path not in ("", "/") or parts.username is not None:
        raise ValueError(f"{shown}: zenoh:// has no path and no user: write zenoh://127.0.0.1:{PORT}")
    for name, choices in (("mode", _MODES), ("link", _LINKS), ("scouting", ("off", "multicast"))):
        if name in options:
            check_choice(options[name], choices, f"{shown}: {name}")
    address = ZenohAddress(
        host=parts.hostname or "",
        port=PORT if parts.port is None else parts.port,
        mode=options.get("mode"),
        link=options.get("link", "tcp"),
        connect=_locators(shown, "connect", options),
        listen=_locators(shown, "listen", options),
        scouting=options.get("scouting") == "multicast",
        **{name: _file(shown, name, options[name]) for name in ("ca", "cert", "key", "config") if name in options},
    )
    if not (address.host or address.connect or address.listen or address.scouting or address.config):
        raise ValueError(
            f"{shown}: the host is missing: write zenoh://127.0.0.1:{PORT}, or ?scouting=multicast to look for one"
        )
    if (address.cert is None) != (address.key is None):
        raise ValueError(f"{shown}: cert= and key= belong together: the files of a certificate and of its key")
    if address.link in _SECURE and address.cert is None and address.ca is None and address.config is None:
        raise ValueError(f"{shown}: link={address.link} needs ca= to verify others, and to serve also cert= with key=")
    return address


def _locators(url: str, name: str, options: Mapping[str, str]) -> tuple[str, ...]:
    given = tuple(filter(None, options.get(name, "").split(",")))
    for locator in given:
        if not _is_locator(locator):
            raise ValueError(
                f"{url}: {name}={locator} is not a locator: a locator has the form tcp/127.0.0.1:{PORT}, several with commas"
            )
    return given


def _is_locator(text: str) -> bool:
    """Return True for a link, host and port. Zenoh doesn't report an error for a locator without a port."""
    link, _, rest = text.partition("/")
    try:
        parts = urlsplit(f"//{rest}")
        return link in _LINKS and bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False


def _file(url: str, name: str, path: str) -> str:
    if not Path(path).is_file():
        raise ValueError(f"{url}: {name}={path} is not a file")
    return path


logger: logging.Logger = logging.getLogger("polybus.transports")

EARLY: Final = 1.0
"""Seconds, from its first declaration, in which samples of a node that joins others wait for a subscriber."""
_ROUTED: Final = 0.15
"""Seconds after which routers have a route to a new subscriber. They announce it up to 0.1 s earlier."""
_TOO_MUCH_IN: Final = "input exceeded the limit of its priority or sender"
_TOO_MUCH_OUT: Final = "output exceeded the limit of its priority: a subscriber on the fabric does not read"


@define(eq=False, repr=False)
class ZenohTransport:
    """Transport over a Zenoh session.

    `filters` are declared from the start, like a new protocol session's. If `dialled` is set, the transport ends when
    the last other node disconnects.
    """

    _address: ZenohAddress
    _fabric: Fabric
    _host: Host
    _dialled: bool = field(kw_only=True, alias="dialled")
    filters: Sequence[str] = field(default=(), kw_only=True)
    """The filters of the most recent declaration."""
    name = "zenoh"
    hops = 0
    address: str = field(init=False)
    max_frame: int = field(init=False)
    node: ZenohNode = field(init=False)
    ended: anyio.Event = field(factory=anyio.Event, init=False)
    _receiver: Receiver | None = field(default=None, init=False)
    _state: TransportState = field(default=TransportState.OPEN, init=False)
    _why: Closed | None = field(default=None, init=False)
    _closing_at: float = field(default=0.0, init=False)
    _paused: bool = field(default=False, init=False)
    _deaf: bool = field(default=False, init=False)
    _hears: bool = field(default=False, init=False)
    """True once the session has declared its filters."""
    _declared: anyio.Event | None = field(default=None, init=False)
    _jobs: int = field(default=0, init=False)
    _lost: int = field(default=0, init=False)
    _early: Early | None = field(default=None, init=False)
    _early_until: float = field(default=math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self.address = f"zenoh {self._address.shown}"
        largest = self.max_frame = self._host.limits.message
        self.node = ZenohNode(self._fabric.sender, largest, self._arrived, self._eased, self._alone)

    async def open(self, *, serves: bool) -> None:
        """Open the session with a new protocol session's filters. If this raises a `zenoh.ZError`, the transport has ended."""
        limits, first = self._host.limits, [*self.filters]
        self._fabric.session("server" if serves else "client", limits, None, first.extend).start(0.0)
        settings = self._address.settings(serves=serves, patience=limits.connect_timeout)
        try:
            await self.node.run(self.node.open, settings, self._address.config, first)
        except BaseException:
            self.abort(Closed(1006, "the session was cancelled"))
            raise
        if not serves or self._address.connect or self._address.scouting:
            self._early = Early(lambda key: self.node.seek(key, self._told), self._write)

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        if self._state is TransportState.LOST:
            self._host.call_soon(self._tell_end)
            return
        # Send nothing before the first filters are declared, or answers would be missed.
        self._paused = True
        receiver.pause_writing()
        self._host.call_soon(self._deliver)  # samples may have arrived before the receiver

    # -- in --------------------------------------------------------------------------------------------------------------

    def hear(self, expressions: Sequence[str]) -> None:
        self._hears = True
        self._jobs += 1
        self._declared = self._declared or anyio.Event()
        self.filters = tuple(expressions)
        self.node.declare(self.filters, self._have_declared)

    def _have_declared(self, failure: Exception | None) -> None:
        self._jobs -= 1
        if failure is not None:
            self.abort(Closed(1011, f"Zenoh cannot declare subscribers: {failure}"))
        if not self._jobs and self._declared is not None:
            self._declared.set()
            self._declared = None
            self._early_until = min(self._early_until, self._host.time() + EARLY)
            self._eased()

    async def written(self) -> None:
        if self._declared is not None:
            await self._declared.wait()

    def _arrived(self) -> None:
        if self._receiver is not None and not self._deaf:
            self._deliver()

    def _deliver(self) -> None:
        receiver = self._receiver
        if receiver is None or self._deaf or self._state is not TransportState.OPEN:
            return
        batch, more = self.node.inbox.take()
        features = ReceiverFeatures.of(receiver)
        frames: list[bytes] = []
        for sample in batch:
            try:
                frame = self._fabric.frame(sample, self._host.limits)
            except RemoteProtocolError as error:
                features.malformed(error)
            else:
                if frame is None:
                    features.lost(1, "")
                else:
                    frames.append(frame)
        if lost := self.node.inbox.lost():
            features.lost(lost, _TOO_MUCH_IN)
        if frames:
            receiver.frames_received(frames)
        if more:
            self._host.call_soon(self._deliver)

    def slow_arrival(self) -> int:
        return self.node.inbox.waiting

    def pause_reading(self) -> None:
        """Pause delivery. Samples are queued, and dropped once a limit is reached."""
        self._deaf = True

    def resume_reading(self) -> None:
        if self._deaf:
            self._deaf = False
            self._deliver()

    # -- out -------------------------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        if len(frame) > self.max_frame:
            raise TooLarge(f"a frame of {len(frame)} bytes, the limit is {self.max_frame}: raise Limits(message=...)")
        if self._state is not TransportState.OPEN:
            return
        sample = self._fabric.sample(frame)
        if self._early is not None and self._early.full:
            self._end_early()
        if self._early is None:
            self._write(sample)
        else:
            self._early.add(sample)

    def _write(self, sample: Sample) -> None:
        lanes = self.node.lanes
        if not lanes.add(sample):
            self._lost += 1
        elif not self._paused and lanes.full:
            self._paused = True
            if self._receiver is not None:
                self._receiver.pause_writing()

    def _told(self, key: str, has_subscriber: bool) -> None:
        if has_subscriber and self._early is not None and self._early.waits(key):
            self._host.spawn(self._when_routed, key)
        else:
            self._learn(key, has_subscriber)

    async def _when_routed(self, key: str) -> None:
        await anyio.sleep(_ROUTED)
        self._learn(key, True)

    def _learn(self, key: str, has_subscriber: bool) -> None:
        if self._early is not None:
            self._early.told(key, has_subscriber)
            self._leave()

    def _end_early(self) -> None:
        early, self._early = self._early, None
        if early is not None:
            self.node.stop_seeking()
            early.end()
            self._leave()

    def write_backlog(self) -> int:
        return self.node.lanes.waiting

    def _eased(self) -> None:
        if self._paused and self._hears and not self._jobs and not self.node.lanes.full:
            self._paused = False
            if self._receiver is not None and self._state is TransportState.OPEN:
                self._receiver.resume_writing()

    # -- time and end ----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        self._eased()  # a stalled lane must not pause the others
        self.node.lanes.look()
        if now >= self._early_until:
            self._end_early()
        if self._lost and self._receiver is not None:
            lost, self._lost = self._lost, 0
            ReceiverFeatures.of(self._receiver).lost(lost, _TOO_MUCH_OUT)
        if self._state is TransportState.CLOSING and now >= self._closing_at and self._why is not None:
            self.abort(self._why)

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self._state is TransportState.OPEN:
            self._state = TransportState.CLOSING
            self._why = Closed(code, reason)
            self._closing_at = self._host.time() + self._host.limits.close_timeout
            self._leave()

    def _leave(self) -> None:
        """Close the session if the bus wants it and no sample waits for a subscriber."""
        if self._state is TransportState.CLOSING and not (self._early is not None and self._early.count):
            self._early = None
            self.node.close(self._over)

    def abort(self, why: Closed) -> None:
        if self._state is not TransportState.LOST:
            self._why = why
            self._lost += self.node.cut()
            self._over()

    def _alone(self) -> None:
        if self._dialled:
            self.abort(Closed(1006, "the other node disconnected"))

    def _over(self) -> None:
        if self._state is TransportState.LOST:
            return
        self._state = TransportState.LOST
        if self._early is not None:
            self._lost += self._early.count
            self._early = None
        if self._declared is not None:
            self._declared.set()
        self.node.inbox.clear()
        self.node.lanes.drop()
        self.ended.set()
        if self._receiver is not None:
            self._host.call_soon(self._tell_end)

    def _tell_end(self) -> None:
        receiver, why = self._receiver, self._why
        if receiver is not None and why is not None:
            self._why = None
            if self._lost:
                ReceiverFeatures.of(receiver).lost(self._lost, "")
            receiver.closed(why)


_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 8.0
"""Initial and maximum pause in seconds before reopening a listening session that has ended."""
_PORTS_TRIED: Final = 5
_ADVICE: Final = "Is a router of Zenoh, or a bus that serves, running there? connect(..., wait=30) keeps trying"


def _fabric_of(options: DialOptions | ListenOptions) -> Fabric:
    if options.tls is not None:
        text = "Zenoh does TLS itself: instead of tls= write ?link=tls&ca=FILE, and to serve also &cert=FILE&key=FILE"
        raise LocalProtocolError(text, protocol="zenoh")
    fabric = None if options.adapter is None else ProtocolFeatures.of(options.adapter).fabric
    if fabric is None:
        name = "this protocol" if options.adapter is None else options.adapter.name
        raise Unsupported(f"{name} has no form over zenoh: up has")
    return fabric


def _reason(error: Exception) -> str:
    """Return Zenoh's error message without its source location."""
    return str(error).partition(" at /")[0].strip()


@define
class ZenohConnector:
    url: str
    address: ZenohAddress
    reconnects: bool = field(default=True, init=False)

    async def connect(self, options: DialOptions) -> Transport:
        fabric, limits = _fabric_of(options), options.host.limits
        if options.headers:
            text = f"zenoh carries no headers ({', '.join(options.headers)})"
            raise LocalProtocolError(text, protocol="zenoh")
        transport = ZenohTransport(self.address, fabric, options.host, dialled=bool(self.address.host or self.address.connect))
        seconds = limits.connect_timeout + limits.handshake_timeout
        try:
            with anyio.fail_after(seconds):
                await transport.open(serves=False)
        except TimeoutError:
            text = f"timed out after {seconds:g} s (Limits.connect_timeout and handshake_timeout)"
            raise ConnectFailed(self.url, text, errno=errno.ETIMEDOUT) from None
        except BusError:
            raise
        except Exception as error:  # Zenoh's errors have no base class of their own
            raise ConnectFailed(self.url, f"{_reason(error)} {_ADVICE}") from error
        return transport


class ZenohListening:
    """A listening session and its single connection to the bus. The session is reopened whenever it ends."""

    def __init__(self, address: ZenohAddress, fabric: Fabric, options: ListenOptions) -> None:
        self.url: str = address.url()
        self._address, self._fabric, self._options = address, fabric, options
        self._scope = anyio.CancelScope()

    async def begin(self) -> None:
        transport = await self._opened()
        try:
            await self._admitted(transport)
        except Unavailable:
            pass  # the bus has not started yet, so `_keep` tries again
        self._options.host.spawn(self._keep, transport)

    async def _opened(self, filters: Sequence[str] = ()) -> ZenohTransport:
        tries = 1 if self._address.port or not self._address.host else _PORTS_TRIED
        while True:
            address = self._address if self._address.port else evolve(self._address, port=_free_port(self._address.host))
            transport = ZenohTransport(address, self._fabric, self._options.host, dialled=False, filters=filters)
            try:
                await transport.open(serves=True)
            except Exception as error:
                tries -= 1
                if not tries:
                    raise OSError(f"cannot listen on {self.url}: {_reason(error)}") from error
            else:
                self._address = address
                self.url = address.url()
                return transport

    async def _admitted(self, transport: ZenohTransport) -> None:
        options, gate = self._options, self._options.gate
        try:
            if (refused := gate.knock(transport.address)) is not None:
                raise refused
            handshake = Handshake(protocol=options.protocol, transport="zenoh", url=self.url, address=transport.address)
            try:
                outcome = await decision(gate, handshake)
                if isinstance(outcome, BusError):
                    raise outcome
            except BaseException:
                gate.left(transport.address)
                raise
            gate.opened(transport, outcome)
            await transport.written()  # from now on, messages of clients that know this server arrive
        except BaseException:
            transport.abort(Closed(1006, "the bus rejected it"))
            raise

    async def _keep(self, transport: ZenohTransport) -> None:
        pause = _PAUSE
        with self._scope:
            while True:
                await transport.ended.wait()
                await anyio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                try:
                    # A client may reconnect and publish before the bus has admitted the session and declared its filters.
                    transport = await self._opened(transport.filters)
                    await self._admitted(transport)
                except Unavailable:
                    continue
                except (OSError, BusError) as error:
                    logger.warning(
                        "the session of %s was not opened anew: %s", self.url, error, extra=log_fields(address=self.url)
                    )
                    continue
                pause = _PAUSE

    async def aclose(self) -> None:
        """Stop opening sessions. The address is released when the connection, which uses the same session, ends."""
        self._scope.cancel()


def _free_port(host: str) -> int:
    """Return a currently free port, because Zenoh does not report the port that it chooses."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


class Zenoh:
    """``zenoh://host:port``"""

    name = "zenoh"
    carries_query = True
    """True because URL options that the protocol doesn't know configure the Zenoh session."""

    @staticmethod
    def load(serves: bool) -> None:
        try:
            import zenoh  # noqa: F401  # needed soon
        except ImportError:
            raise ImportError("zenoh:// needs eclipse-zenoh: pip install 'polybus[zenoh]'", name="zenoh") from None

    def connector(self, url: str) -> Connector:
        return ZenohConnector(url, zenoh_address(url))

    def is_private(self, url: str) -> bool:
        return zenoh_address(url).is_private

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        listening = ZenohListening(listening_address(url), _fabric_of(options), options)
        await listening.begin()
        return listening
