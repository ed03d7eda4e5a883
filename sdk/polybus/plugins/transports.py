"""Interfaces of transports: connections, framings, dialling and listening, admission, and protocols over HTTP.

Without a framing, a transport over a byte stream writes a length before each frame, and a WebSocket carries each frame as a
message. A protocol with its own form on TCP, such as line ends or lengths as text, has an attribute ``framing`` in its
adapter (see `ProtocolFeatures`).
"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

from attrs import field, frozen
from msgspec import Struct

from ..errors import BusError, RemoteProtocolError
from ..limits import Limits
from ..secrets import shown_members

if TYPE_CHECKING:
    import socket
    import ssl

    from .protocols import ProtocolAdapter


class FrameCutter(Protocol):
    """Cuts the input of one connection into frames, without I/O."""

    @property
    def partial(self) -> str:
        """Description of the unfinished frame for people; empty between two frames."""
        ...

    @property
    def arrived(self) -> int:
        """Bytes of the unfinished frame; 0 between two frames."""
        ...

    @property
    def broken(self) -> RemoteProtocolError | None:
        """Error after input that is not of this protocol: nothing more is cut. Its `close_code` ends the connection."""
        ...

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Frames completed by this chunk. Never raises: see `broken`."""
        ...


class Framing(Protocol):
    """Form of a protocol's frames in a byte stream.

    On ``tcp``, ``tls`` and ``unix`` the connection is the stream; on ``ws`` and ``wss`` binary messages carry it in chunks of
    any size. In memory frames are passed whole.
    """

    def cutter(self, limits: Limits, transport: str) -> FrameCutter:
        """Cutter for one connection, which enforces `Limits.message`.

        Args:
            limits: Limits of the bus.
            transport: The transport's word in the URL: ``tcp``, ``tls``, ``ws``...
        """
        ...

    def pack(self, frame: bytes, /) -> bytes:
        """Bytes of a frame in the stream."""
        ...

    def plain_preface(self, data: bytes) -> int | None:
        """Length of a server's first message, which arrives in plain text before the TLS handshake on ``tls``.

        Args:
            data: The input so far.

        Returns:
            0 if more input is needed; None if TLS begins at once.

        Raises:
            RemoteProtocolError: The server does not speak this protocol, or only without TLS.
        """
        ...


class Closed(Struct, frozen=True):
    """Reason for the end of a connection."""

    code: int = 1006
    """WebSocket close code: 1000 orderly, 1001 going away, 1006 without a close message, 4401 unauthorized, 4403 forbidden...
    """
    reason: str = ""
    error: BusError | None = None
    """Error for waiting callers instead of a `Disconnected`: `Unauthorized`, `Forbidden`, ..."""
    stalled: bool = False
    """True if this side cut the connection because its peer read nothing: servers log that."""


class Receiver(Protocol):
    """The user of a transport. All methods are synchronous, are called on the event loop, and never raise.

    Optional abilities: `ReceiverFeatures`.
    """

    def frames_received(self, frames: Sequence[bytes]) -> None:
        """Whole frames, in order: all that one read completed."""

    def closed(self, why: Closed) -> None:
        """The last call: nothing more is sent or received."""

    def pause_writing(self) -> None:
        """The peer is slow: send nothing until `resume_writing`. (The transport keeps a frame sent anyway.)"""

    def resume_writing(self) -> None:
        """There is room again."""


class Transport(Protocol):
    """An established connection that carries whole frames.

    Frames are passed on unchanged in both directions. A session and a transport that know each other may therefore mark them
    with a subclass of ``bytes``, for example to tell which exchange a frame and its answer belong to.

    Optional abilities: `TransportFeatures`.
    """

    @property
    def name(self) -> str:
        """The word in the URL: ``tcp``, ``ws``, ..."""
        ...

    @property
    def max_frame(self) -> int:
        """Largest frame that `send` accepts, in bytes."""
        ...

    @property
    def hops(self) -> int:
        """Tunnels that this connection runs through: 0 on a network."""
        ...

    @property
    def address(self) -> str:
        """Address of the other end, for people and logs."""
        ...

    def start(self, receiver: Receiver) -> None:
        """Start delivery in the next iteration of the event loop, beginning with earlier input. Called once."""

    def send(self, frame: bytes) -> None:
        """Queue a frame without waiting; frames of one event loop iteration leave in one write. Ignored after the end.

        Raises:
            TooLarge: The frame is over `max_frame`, which is `Limits.message`.
        """

    def write_backlog(self) -> int:
        """Bytes queued but not yet taken by the operating system."""
        ...

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Write the queue, tell the peer, close; abort after `Limits.close_timeout`. `Receiver.closed` follows."""

    def abort(self, why: Closed) -> None:
        """Close at once. `Receiver.closed` follows with this reason."""

    def tick(self, now: float) -> None:
        """Called about once a second: pings, frame and write deadlines, close timeout."""


class Reservation(Protocol):
    """Memory for a client before it has a connection, within `Limits.total_bytes` and the share of its address."""

    def hold(self, size: int) -> bool:
        """Reserve more bytes. Returns False, and reserves nothing, if there is no room."""
        ...

    def give_back(self, size: int) -> None:
        """Reserve fewer bytes."""

    def release(self) -> None:
        """Release all. Call it once, at the end."""


class Host(Protocol):
    """Services of a bus for a transport."""

    @property
    def backend(self) -> Literal["asyncio", "trio"]: ...

    @property
    def limits(self) -> Limits: ...

    def time(self) -> float:
        """Monotonic seconds, the clock for all `now` arguments."""
        ...

    def reserve(self, address: str) -> Reservation:
        """Reserve memory for a client that is not yet admitted.

        Args:
            address: The client's address with its port.
        """
        ...

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call in the next iteration of the event loop. The function must not raise."""

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a coroutine function as a task of the bus, cancelled when the bus is left. Its errors are logged."""


@frozen(kw_only=True)
class Handshake:
    """Facts about a peer before admission, for `Bus(authenticate=...)`."""

    protocol: str = ""
    transport: str = ""
    url: str = ""
    """URL of the listener."""
    path: str = "/"
    query: Mapping[str, str] = field(factory=dict, repr=shown_members)
    headers: Mapping[str, str] = field(factory=dict, repr=shown_members)
    """Names in lower case; empty if the transport has no headers."""
    cookies: Mapping[str, str] = field(factory=dict, repr=lambda cookies: f"<{len(cookies)}>")
    origin: str | None = None
    address: str = ""
    tls_peer: Mapping[str, Any] | None = None
    """The verified client certificate, as returned by `ssl.SSLSocket.getpeercert`."""
    outer: Any = None
    """Of a tunnel: the outer peer."""
    params: Mapping[str, str] = field(factory=dict, repr=shown_members)
    """Facts from the protocol's own handshake or a tunnel."""
    scope: Mapping[str, Any] | None = field(default=None, repr=False)
    """ASGI scope in a web application, with the additions of middleware (``session``, ``user``, ``path_params``)."""


class Identity(Struct, frozen=True):
    """Identity of a peer.

    Attributes:
        value: Any object: becomes `Peer.identity` and `Context.identity`.
        key: The user, shared by all of the user's connections, for `Bus.peers_of`.
        expires_at: Aware datetime at which the link ends (WebSocket close code 4401), unless the
            peer shows a new token before.
    """

    value: Any = None
    key: str | None = None
    expires_at: Any = None

    def ends(self, now: float) -> float | None:
        """Time at which it ends, on the clock of `now`; None for never."""
        if self.expires_at is None:
            return None
        return now + float((self.expires_at - datetime.datetime.now(datetime.UTC)).total_seconds())


class Admission(Struct, frozen=True):
    """Result of `Gate.admit` for an admitted peer."""

    identity: Identity
    handshake: Handshake


class Gate(Protocol):
    """Access control of a bus for its transports."""

    def knock(self, address: str) -> BusError | None:
        """A connection was accepted; nothing is read yet. Returns an error to reject it with (limits, draining), or None."""
        ...

    def left(self, address: str) -> None:
        """A connection ended after `knock` and before `opened`."""

    def admit(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> None:
        """Ask for admission of a peer. `decided` is called once, now or later."""

    def opened(self, transport: Transport, admission: Admission) -> None:
        """The connection is established; the bus calls `transport.start`."""


@frozen(kw_only=True)
class DialOptions:
    """Options of a client's connection."""

    host: Host
    reads: frozenset[Literal["text", "binary"]]
    writes: Literal["text", "binary"]
    subprotocol: str
    headers: Mapping[str, str] = field(factory=dict, repr=shown_members)
    tls: ssl.SSLContext | None = None
    adapter: ProtocolAdapter | None = None
    """The protocol, for transports with a special form of its messages (HTTP)."""
    framing: Framing | None = None
    """The protocol's own framing, for transports over byte streams and WebSockets; None for the transport's."""


class Connector(Protocol):
    """Connects to one place; `connect()` accepts it instead of a URL.

    Optional abilities: `EndpointFeatures`.
    """

    @property
    def url(self) -> str:
        """URL for people and errors."""
        ...

    @property
    def reconnects(self) -> bool:
        """True if it can connect again after a lost connection."""
        ...

    async def connect(self, options: DialOptions) -> Transport:
        """Make one attempt, bounded by `Limits.connect_timeout` and `Limits.handshake_timeout`.

        Raises:
            ConnectFailed: The attempt failed; with the address and the reason.
            Unauthorized: The server rejects our credentials.
            Forbidden: The server does not admit us.
            Unsupported: The protocol has no form over this transport.
            LocalProtocolError: Headers or TLS options for a connection without them, or a header reserved for the handshake.
        """
        ...


def _unheard(address: str, why: str, about: str) -> None:
    """No-op."""


class ListenOptions(Struct, frozen=True, kw_only=True):
    """Options of a listener."""

    host: Host
    gate: Gate
    protocol: str
    reads: frozenset[Literal["text", "binary"]]
    writes: Literal["text", "binary"]
    subprotocol: str
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    tls: ssl.SSLContext | None = None
    private: bool = False
    """Every peer is admitted, so none may come from another machine. Listeners check it that can see at which address a
    connection arrived, or where its client is."""
    adapter: ProtocolAdapter | None = None
    """The protocol, for transports with a special form of its messages (HTTP)."""
    framing: Framing | None = None
    """The protocol's own framing, as in `DialOptions`."""
    sockets: tuple[socket.socket, ...] = ()
    """Sockets already bound by `EndpointFeatures.bind`, perhaps in another process. The listener owns them but not what
    belongs to the address, such as the file of a Unix socket."""
    turned_away: Callable[[str, str, str], None] = _unheard
    """``turned_away(address, why, about)`` logs a client that violates a rule of this listener, such as `origins`; entries
    with the same `about` are counted together."""


class Listening(Protocol):
    """A bound listener."""

    @property
    def url(self) -> str:
        """The real address, without the protocol: ``tcp://127.0.0.1:40123``."""
        ...

    async def aclose(self) -> None:
        """Stop accepting and release the address; connections stay."""


class TransportAdapter(Protocol):
    """A transport of URLs: dials and listens.

    Optional abilities: `EndpointFeatures`.
    """

    def connector(self, url: str) -> Connector:
        """Connector for an address without the protocol, for example ``ws://host/path``.

        Raises:
            ValueError: The address lacks something, or has parts without a meaning here; the text names them.
        """
        ...

    def is_private(self, url: str) -> bool:
        """True if only this machine can reach that address (loopback, Unix socket, memory)."""
        ...

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        """Bind and accept.

        Raises:
            OSError: The address is in use or not ours.
            ValueError: The address lacks something, or an entry of `origins` or `hosts` is invalid.
            LocalProtocolError: `tls` is unnecessary or missing.
            Unsupported: The protocol has no form over this transport.
        """
        ...


AsgiApp: TypeAlias = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[MutableMapping[str, Any]], Awaitable[None]]],
    Awaitable[None],
]
"""``await app(scope, receive, send)``"""


class WebRoute(Struct, frozen=True):
    """Address of a protocol in a web application.

    Attributes:
        path: Relative to the attached path: empty for that path itself, or beginning with ``/``.
        app: Called for every connection or request there, with the full `scope["path"]`.
        methods: HTTP methods, such as ``("GET", "POST")``; None for WebSockets.
    """

    path: str
    app: AsgiApp
    methods: tuple[str, ...] | None = None


class WebEndpoint(Protocol):
    """Server side of a protocol in a web application: routes that accept connections.

    `polybus.fastapi.attach` asks the protocol's adapter for one: ``adapter.web_endpoint(path)``, or that of its
    `HttpBinding`. Without either, the protocol uses WebSockets at the path.
    """

    def routes(self) -> Sequence[WebRoute]:
        """All addresses."""
        ...

    async def listen(self, options: ListenOptions) -> Listening:
        """Pass connections to `options.gate` until `Listening.aclose`.

        Raises:
            ValueError: An option is invalid, for example an origin.
            LocalProtocolError: It is served already.
        """
        ...


class HttpBinding(Protocol):
    """A protocol over HTTP, at both ends. An adapter offers the class as ``http_binding``, with one instance per URL.

    ``connect("lines+http://host/path")`` calls `connect`; ``serve()`` with such a URL, and `polybus.fastapi.attach`, call
    `web_endpoint`, unless the adapter has a method of that name.
    """

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Create one from the members of a URL's query in the class's ``option_names``, any collection of names.

        The server sees the others (`Handshake.query`). A server's own URL has none of these.

        Raises:
            ValueError: A value is not known.
        """
        ...

    @property
    def option_names(self) -> Collection[str]:
        """Members of a URL's query that are options."""
        ...

    async def connect(self, url: str, options: DialOptions) -> Transport:
        """Connect to ``http://host/path`` or ``https://host/path``, as `Connector.connect`.

        Raises:
            ConnectFailed: The attempt failed; with the address and the reason.
            Unauthorized: The server rejects our credentials.
            Forbidden: The server does not admit us.
        """
        ...

    def web_endpoint(self, path: str) -> WebEndpoint:
        """Endpoint of a server at this path."""
        ...
