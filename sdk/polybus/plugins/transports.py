"""Interfaces for transports: connections, framing, dialling and listening, admission, and protocols over HTTP.

By default, byte stream transports prefix each frame with its length, and WebSockets carry one frame per message. A protocol
that delimits its messages differently on TCP, for example by line ends, sets ``framing`` on its adapter (see
`ProtocolFeatures`).
"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

from attrs import field, frozen
from msgspec import Struct

from .._validation import check_type
from ..errors import BusError, RemoteProtocolError
from ..limits import Limits
from ..secrets import shown_members

if TYPE_CHECKING:
    import socket
    import ssl

    from .protocols import ProtocolAdapter


class FrameCutter(Protocol):
    """Splits the input of a connection into frames, without I/O."""

    @property
    def partial(self) -> str:
        """Human-readable description of the unfinished frame, or an empty string between frames."""
        ...

    @property
    def arrived(self) -> int:
        """Number of bytes received of the unfinished frame, or 0 between frames."""
        ...

    @property
    def broken(self) -> RemoteProtocolError | None:
        """The error, once the input has violated the framing, otherwise None. After an error the cutter returns no more frames,
        and polybus closes the connection with the error's `close_code`."""
        ...

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Return the frames completed by this chunk. Never raises; errors are reported in `broken`."""
        ...


class Framing(Protocol):
    """Delimits a protocol's frames in a byte stream.

    For ``tcp``, ``tls`` and ``unix``, the stream is the connection itself. Over ``ws`` and ``wss`` it is carried in binary
    messages of any size. The memory transport doesn't use framing.
    """

    def cutter(self, limits: Limits, transport: str) -> FrameCutter:
        """Create the cutter for a connection. It must enforce `Limits.message`.

        Args:
            limits: Limits of the bus.
            transport: Name of the transport in the URL, such as ``tcp``, ``tls`` or ``ws``.
        """
        ...

    def pack(self, frame: bytes, /) -> bytes:
        """Return a frame as it is written to the stream."""
        ...

    def plain_preface(self, data: bytes) -> int | None:
        """Return the length of a plain-text message that the server sends before the TLS handshake, with ``tls`` URLs.

        Args:
            data: Everything received so far.

        Returns:
            The length in bytes, 0 if more input is needed, or None if the protocol starts with TLS.

        Raises:
            RemoteProtocolError: If the server doesn't use this protocol, or doesn't support TLS.
        """
        ...


class Closed(Struct, frozen=True, weakref=True):
    """The reason why a connection ended."""

    code: int = 1006
    """WebSocket close code, for example 1000 for a normal closure, 1001 for going away, 1006 if no close message was received,
    4401 for unauthorized and 4403 for forbidden."""
    reason: str = ""
    error: BusError | None = None
    """Error to raise in waiting callers instead of `Disconnected`, such as `Unauthorized`."""
    stalled: bool = False
    """True if this side aborted the connection because the peer stopped reading. Servers log this."""
    errno: int | None = None
    """The system's error number, as in `ConnectFailed`."""
    status: int | None = None
    """HTTP status of the server's rejection, as in `ConnectFailed`."""


class Receiver(Protocol):
    """Callbacks of a transport. They run on the event loop and never raise.

    Optional features are listed in `ReceiverFeatures`.
    """

    def frames_received(self, frames: Sequence[bytes]) -> None:
        """Handle all frames completed by one read, in order."""

    def closed(self, why: Closed) -> None:
        """Handle the end of the connection. This is the last callback, and nothing more can be sent."""

    def pause_writing(self) -> None:
        """Stop sending until `resume_writing` is called, because the peer is slow. Frames sent in the meantime are queued."""

    def resume_writing(self) -> None:
        """Start sending again."""


class Transport(Protocol):
    """An established connection that carries whole frames.

    The bus passes frame objects through unchanged in both directions, so a session and a transport that are designed for each
    other can use a subclass of ``bytes``, for example to tag a request and its answer.

    Optional features are listed in `TransportFeatures`.
    """

    @property
    def name(self) -> str:
        """Name of the transport in the URL, such as ``tcp`` or ``ws``."""
        ...

    @property
    def max_frame(self) -> int:
        """Size of the largest frame that `send` accepts, in bytes."""
        ...

    @property
    def hops(self) -> int:
        """Number of tunnels on the way to the peer, or 0 for a network connection."""
        ...

    @property
    def address(self) -> str:
        """Address of the peer, for logs."""
        ...

    def start(self, receiver: Receiver) -> None:
        """Start delivering frames in the next event loop iteration, including any that have already arrived. Called once."""

    def send(self, frame: bytes) -> None:
        """Queue a frame without waiting. Frames sent in the same event loop iteration should be written together.

        After the connection has ended, frames are discarded.

        Raises:
            TooLarge: If the frame exceeds `max_frame`, which is `Limits.message`.
        """

    def write_backlog(self) -> int:
        """Return the number of queued bytes that the operating system hasn't accepted yet."""
        ...

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Flush the queue, send the close code and close the connection, aborting it after `Limits.close_timeout`.

        The transport calls `Receiver.closed` at the end.
        """

    def abort(self, why: Closed) -> None:
        """Close the connection immediately and call `Receiver.closed` with `why`."""

    def tick(self, now: float) -> None:
        """Send pings and check the read, write and close timeouts. Called about once a second."""


class Reservation(Protocol):
    """Memory reserved for a client that hasn't been admitted yet, within `Limits.total_bytes` and the quota of its address."""

    def hold(self, size: int) -> bool:
        """Reserve more bytes. Returns False without reserving any if the quota is exhausted."""
        ...

    def give_back(self, size: int) -> None:
        """Return some of the reserved bytes."""

    def release(self) -> None:
        """Return all reserved bytes. Call this exactly once."""


class Host(Protocol):
    """Gives transports access to the clock, tasks and memory quotas of a bus."""

    @property
    def backend(self) -> Literal["asyncio", "trio"]: ...

    @property
    def limits(self) -> Limits: ...

    def time(self) -> float:
        """Return the monotonic time in seconds. All `now` arguments come from this clock."""
        ...

    def reserve(self, address: str) -> Reservation:
        """Create a memory reservation for a client that hasn't been admitted yet.

        Args:
            address: Address of the client, including the port.
        """
        ...

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function, which must not raise, in the next event loop iteration."""

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a coroutine function in a task that is cancelled when the bus exits. Exceptions are logged."""


@frozen(kw_only=True)
class Handshake:
    """Details of a connecting client, for `Bus(authenticate=...)`."""

    protocol: str = ""
    transport: str = ""
    url: str = ""
    """URL of the listener."""
    path: str = "/"
    query: Mapping[str, str] = field(factory=dict, repr=shown_members)
    headers: Mapping[str, str] = field(factory=dict, repr=shown_members)
    """Headers with lower-case names. Empty if the transport has no headers."""
    cookies: Mapping[str, str] = field(factory=dict, repr=lambda cookies: f"<{len(cookies)}>")
    origin: str | None = None
    address: str = ""
    tls_peer: Mapping[str, Any] | None = None
    """Verified client certificate, as returned by `ssl.SSLSocket.getpeercert`."""
    outer: Any = None
    """Peer at the outer end of a tunnel, or None for other connections."""
    params: Mapping[str, str] = field(factory=dict, repr=shown_members)
    """Parameters from the protocol's handshake or the tunnel."""
    scope: Mapping[str, Any] | None = field(default=None, repr=False)
    """ASGI scope in a web application, including keys added by middleware such as ``session`` and ``user``."""


class Identity(Struct, frozen=True, weakref=True):
    """The identity of a peer.

    Attributes:
        value: Any object, available as `Peer.identity` and `Context.identity`.
        key: User key, shared by all connections of a user, for `Bus.peers_of`.
        expires_at: Timezone-aware datetime at which the bus closes the link with code 4401, unless the peer presents a new
            token first.

    Raises:
        TypeError: If the key is not a string.
    """

    value: Any = None
    key: str | None = None
    expires_at: Any = None

    def __post_init__(self) -> None:
        check_type(self.key, str, "key", "Identity(key=str(user.id))")

    def ends(self, now: float) -> float | None:
        """Return the expiry time on the clock of `now`, or None if the identity doesn't expire."""
        if self.expires_at is None:
            return None
        return now + float((self.expires_at - datetime.datetime.now(datetime.UTC)).total_seconds())


class Admission(Struct, frozen=True, weakref=True):
    """Result of `Gate.admit` for an accepted client."""

    identity: Identity
    handshake: Handshake


class Gate(Protocol):
    """Decides which clients are accepted. Listeners call it for each connection."""

    def knock(self, address: str) -> BusError | None:
        """Return the error to reject a new connection with, or None to continue with the handshake.

        Call this before reading from the connection. The bus rejects connections over a limit or while draining.
        """
        ...

    def left(self, address: str) -> None:
        """Report that a connection ended after `knock` but before `opened`."""

    def admit(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> Callable[[], None] | None:
        """Authenticate a client. `decided` is called exactly once, immediately or later.

        If the client may leave earlier, the result is a function to call then. It cancels the authentication, and `decided` is
        not called. After the decision, the function does nothing.
        """
        ...

    def opened(self, transport: Transport, admission: Admission) -> None:
        """Hand over an established connection. The bus then calls `transport.start`."""


@frozen(kw_only=True)
class DialOptions:
    """Options for connecting."""

    host: Host
    reads: frozenset[Literal["text", "binary"]]
    writes: Literal["text", "binary"]
    subprotocol: str
    headers: Mapping[str, str] = field(factory=dict, repr=shown_members)
    tls: ssl.SSLContext | None = None
    adapter: ProtocolAdapter | None = None
    """The protocol, for transports such as HTTP that depend on it."""
    framing: Framing | None = None
    """The protocol's framing for byte streams and WebSockets, or None to use the framing of the transport."""


class Connector(Protocol):
    """Connects to a single address. You can pass a connector to `connect()` instead of a URL.

    Optional features are listed in `EndpointFeatures`.
    """

    @property
    def url(self) -> str:
        """URL for logs and error messages."""
        ...

    @property
    def reconnects(self) -> bool:
        """True if the connector can connect again after the connection is lost."""
        ...

    async def connect(self, options: DialOptions) -> Transport:
        """Try once to connect, within `Limits.connect_timeout` and `Limits.handshake_timeout`.

        Raises:
            ConnectFailed: If no connection can be established. The error includes the address and the reason.
            Unauthorized: If the server rejects the credentials.
            Forbidden: If the server doesn't admit this client.
            Unsupported: If the protocol cannot be used over this transport.
            LocalProtocolError: If the options include headers or TLS but the transport doesn't support them, or if a header is
                reserved for the handshake.
        """
        ...


class ListenOptions(Struct, frozen=True, weakref=True, kw_only=True):
    """Options for listening."""

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
    """True if clients aren't authenticated. The listener must then reject connections from other machines if it knows the local
    or remote address of a connection."""
    adapter: ProtocolAdapter | None = None
    """The protocol, for transports such as HTTP that depend on it."""
    framing: Framing | None = None
    """The protocol's framing, as in `DialOptions`."""
    sockets: tuple[socket.socket, ...] = ()
    """Sockets already bound by `EndpointFeatures.bind`, possibly in another process. The listener closes the sockets but
    doesn't clean up the address, such as the file of a Unix socket."""
    turned_away: Callable[[str, str, str], None] = lambda address, why, about: None
    """``turned_away(address, why, about)`` logs a client rejected by a rule of the listener, such as `origins`. Log entries
    with the same `about` are rate-limited together."""


class Listening(Protocol):
    """A listener bound to an address."""

    @property
    def url(self) -> str:
        """Actual address, without the protocol, for example ``tcp://127.0.0.1:40123``."""
        ...

    async def aclose(self) -> None:
        """Stop accepting connections and release the address. Open connections aren't affected."""


class TransportAdapter(Protocol):
    """A transport that can be named in URLs, for connecting and listening.

    Optional features are listed in `EndpointFeatures`.
    """

    def connector(self, url: str) -> Connector:
        """Create a connector for an address without the protocol, for example ``ws://host/path``.

        Raises:
            ValueError: If part of the address is missing or not supported by this transport. The message names the part.
        """
        ...

    def is_private(self, url: str) -> bool:
        """Return True if only this machine can reach the address, as with loopback, Unix sockets and memory."""
        ...

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        """Bind to the address and accept connections.

        Raises:
            OSError: If the address is in use or doesn't belong to this machine.
            ValueError: If part of the address is missing, or an entry in `origins` or `hosts` is invalid.
            LocalProtocolError: If `tls` is required but missing, or given but not supported.
            Unsupported: If the protocol cannot be used over this transport.
        """
        ...


AsgiApp: TypeAlias = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[MutableMapping[str, Any]], Awaitable[None]]],
    Awaitable[None],
]
"""``await app(scope, receive, send)``"""


class WebRoute(Struct, frozen=True, weakref=True):
    """A route of a protocol in a web application.

    Attributes:
        path: Path relative to the attached path: either empty or starting with ``/``.
        app: Application called for each connection or request, with the full `scope["path"]`.
        methods: HTTP methods, such as ``("GET", "POST")``; None for WebSockets.
    """

    path: str
    app: AsgiApp
    methods: tuple[str, ...] | None = None


class WebEndpoint(Protocol):
    """Server side of a protocol in a web application.

    `polybus.fastapi.attach` calls ``web_endpoint(path)`` on the protocol's adapter or, failing that, on its `HttpBinding`. A
    protocol without either accepts WebSockets at the path.
    """

    def routes(self) -> Sequence[WebRoute]:
        """Return all routes of the endpoint."""
        ...

    async def listen(self, options: ListenOptions) -> Listening:
        """Pass connections to `options.gate` until `Listening.aclose` is called.

        Raises:
            ValueError: If an option is invalid, for example an origin.
            LocalProtocolError: If the endpoint is already in use.
        """
        ...


class HttpBinding(Protocol):
    """A protocol over HTTP, for clients and servers.

    An adapter names the class in its ``http_binding`` attribute, and polybus creates one instance per URL.
    ``connect("lines+http://host/path")`` calls `connect`; ``serve()`` with such a URL and `polybus.fastapi.attach` call
    `web_endpoint`, unless the adapter defines it itself.
    """

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Create an instance from the query parameters that are listed in ``option_names``.

        Clients send all other parameters to the server (`Handshake.query`). Server URLs cannot have any.

        Raises:
            ValueError: If a value is not known.
        """
        ...

    @property
    def option_names(self) -> Collection[str]:
        """Query parameters that are options of this binding."""
        ...

    async def connect(self, url: str, options: DialOptions) -> Transport:
        """Connect to ``http://host/path`` or ``https://host/path``, like `Connector.connect`.

        Raises:
            ConnectFailed: If no connection can be established. The error includes the address and the reason.
            Unauthorized: If the server rejects the credentials.
            Forbidden: If the server doesn't admit this client.
        """
        ...

    def web_endpoint(self, path: str) -> WebEndpoint:
        """Return the server's endpoint for a path."""
        ...
