"""The interfaces of transports: connections, framings, dialling and listening, admission, and protocols over HTTP.

Without a framing, a transport over a byte stream writes the length before each frame, and a WebSocket carries each frame as a
message. If a protocol frames its messages in its own way on TCP, for example with line ends, its adapter has an attribute
``framing`` (see `ProtocolFeatures`).
"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

from attrs import field, frozen
from msgspec import Struct

from .._validation import shown
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
        """A description of the unfinished frame for people; empty between two frames."""
        ...

    @property
    def arrived(self) -> int:
        """The number of bytes of the unfinished frame that have arrived; 0 between two frames."""
        ...

    @property
    def broken(self) -> RemoteProtocolError | None:
        """The error after input that does not belong to this protocol. No more frames are cut, and the connection ends with the
        `close_code` of the error."""
        ...

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Return the frames that this chunk completes. This method never raises; see `broken`."""
        ...


class Framing(Protocol):
    """The way in which a protocol separates its frames in a byte stream.

    With ``tcp``, ``tls`` and ``unix`` the connection is the stream. With ``ws`` and ``wss`` binary messages carry the stream in
    chunks of any size. In memory, whole frames are passed.
    """

    def cutter(self, limits: Limits, transport: str) -> FrameCutter:
        """Create the cutter for one connection. It enforces `Limits.message`.

        Args:
            limits: The limits of the bus.
            transport: The word for the transport in the URL: ``tcp``, ``tls``, ``ws``...
        """
        ...

    def pack(self, frame: bytes, /) -> bytes:
        """Return the bytes of a frame as they are written to the stream."""
        ...

    def plain_preface(self, data: bytes) -> int | None:
        """Return the length of the server's first message if it arrives in plain text before the TLS handshake of ``tls``.

        Args:
            data: The input so far.

        Returns:
            The length; 0 if more input is needed; None if TLS begins at once.

        Raises:
            RemoteProtocolError: The server does not use this protocol, or uses it only without TLS.
        """
        ...


class Closed(Struct, frozen=True, weakref=True):
    """The reason why a connection ended."""

    code: int = 1006
    """A WebSocket close code: 1000 for an orderly end, 1001 going away, 1006 without a close message, 4401 unauthorized, 4403
    forbidden..."""
    reason: str = ""
    error: BusError | None = None
    """The error that waiting callers receive instead of `Disconnected`: `Unauthorized`, `Forbidden`, ..."""
    stalled: bool = False
    """True if this side cut the connection because the peer read nothing. Servers log this."""


class Receiver(Protocol):
    """Receives the frames of a transport. All methods are synchronous, are called on the event loop, and never raise.

    Optional abilities: `ReceiverFeatures`.
    """

    def frames_received(self, frames: Sequence[bytes]) -> None:
        """Receive whole frames, in order: all those that one read completed."""

    def closed(self, why: Closed) -> None:
        """Learn that the connection has ended. This is the last call: nothing more is sent or received."""

    def pause_writing(self) -> None:
        """Send nothing until `resume_writing`, because the peer is slow. (The transport keeps a frame that is sent anyway.)"""

    def resume_writing(self) -> None:
        """Resume sending, because there is room again."""


class Transport(Protocol):
    """An established connection that carries whole frames.

    Frames are passed on unchanged in both directions. A session and a transport that know each other may therefore mark frames
    with a subclass of ``bytes``, for example to show which exchange a frame and its answer belong to.

    Optional abilities: `TransportFeatures`.
    """

    @property
    def name(self) -> str:
        """The word in the URL: ``tcp``, ``ws``, ..."""
        ...

    @property
    def max_frame(self) -> int:
        """The size of the largest frame that `send` accepts, in bytes."""
        ...

    @property
    def hops(self) -> int:
        """The number of tunnels that this connection runs through; 0 for a network connection."""
        ...

    @property
    def address(self) -> str:
        """The address of the other end, for people and logs."""
        ...

    def start(self, receiver: Receiver) -> None:
        """Start to deliver frames in the next iteration of the event loop, beginning with earlier input. Called once."""

    def send(self, frame: bytes) -> None:
        """Queue a frame without waiting. All frames of one event loop iteration are sent in one write. Ignored after the end.

        Raises:
            TooLarge: The frame is larger than `max_frame`, which is `Limits.message`.
        """

    def write_backlog(self) -> int:
        """The number of queued bytes that the operating system has not yet accepted."""
        ...

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Write the queue, inform the peer and close the connection, or abort it after `Limits.close_timeout`. Then
        `Receiver.closed` is called."""

    def abort(self, why: Closed) -> None:
        """Close the connection at once. Then `Receiver.closed` is called with this reason."""

    def tick(self, now: float) -> None:
        """Send pings and check the deadlines for reading, writing and closing. Called about once a second."""


class Reservation(Protocol):
    """Memory that is reserved for a client before it is admitted, within `Limits.total_bytes` and the share of its address."""

    def hold(self, size: int) -> bool:
        """Reserve more bytes. Returns False, and reserves nothing, if there is no room."""
        ...

    def give_back(self, size: int) -> None:
        """Reserve fewer bytes."""

    def release(self) -> None:
        """Release all the memory. Call this once, at the end."""


class Host(Protocol):
    """The services that a bus offers to a transport."""

    @property
    def backend(self) -> Literal["asyncio", "trio"]: ...

    @property
    def limits(self) -> Limits: ...

    def time(self) -> float:
        """Return the time in monotonic seconds. All `now` arguments use this clock."""
        ...

    def reserve(self, address: str) -> Reservation:
        """Reserve memory for a client that is not yet admitted.

        Args:
            address: The address of the client with its port.
        """
        ...

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function in the next iteration of the event loop. It must not raise."""

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a coroutine function as a task of the bus. It is cancelled when the bus is left, and its errors are logged."""


@frozen(kw_only=True)
class Handshake:
    """Information about a peer that is not yet admitted, for `Bus(authenticate=...)`."""

    protocol: str = ""
    transport: str = ""
    url: str = ""
    """The URL of the listener."""
    path: str = "/"
    query: Mapping[str, str] = field(factory=dict, repr=shown_members)
    headers: Mapping[str, str] = field(factory=dict, repr=shown_members)
    """The headers, with names in lower case; empty if the transport has no headers."""
    cookies: Mapping[str, str] = field(factory=dict, repr=lambda cookies: f"<{len(cookies)}>")
    origin: str | None = None
    address: str = ""
    tls_peer: Mapping[str, Any] | None = None
    """The verified client certificate, as returned by `ssl.SSLSocket.getpeercert`."""
    outer: Any = None
    """The outer peer, if the connection is a tunnel."""
    params: Mapping[str, str] = field(factory=dict, repr=shown_members)
    """Values from the handshake of the protocol or from a tunnel."""
    scope: Mapping[str, Any] | None = field(default=None, repr=False)
    """The ASGI scope in a web application, with what middleware added to it (``session``, ``user``, ``path_params``)."""


class Identity(Struct, frozen=True, weakref=True):
    """The identity of a peer.

    Attributes:
        value: Any object. It becomes `Peer.identity` and `Context.identity`.
        key: A key for the user, which is the same for all connections of the user, for `Bus.peers_of`.
        expires_at: An aware datetime at which the link ends (WebSocket close code 4401), unless the peer presents a new token
            before that.

    Raises:
        TypeError: The key is not a string.
    """

    value: Any = None
    key: str | None = None
    expires_at: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.key, str | None):
            raise TypeError(
                f"Identity(key={shown(self.key)}): text, for example key=str(user.id), not {type(self.key).__name__}"
            )

    def ends(self, now: float) -> float | None:
        """Return the time at which the identity expires, on the clock of `now`; None if it never expires."""
        if self.expires_at is None:
            return None
        return now + float((self.expires_at - datetime.datetime.now(datetime.UTC)).total_seconds())


class Admission(Struct, frozen=True, weakref=True):
    """The result of `Gate.admit` for a peer that is admitted."""

    identity: Identity
    handshake: Handshake


class Gate(Protocol):
    """Access control of a bus for its transports."""

    def knock(self, address: str) -> BusError | None:
        """Ask whether to reject a new connection from which nothing has been read. Returns the error to reject it with, because
        of a limit or a drain, or None."""
        ...

    def left(self, address: str) -> None:
        """Report that a connection ended after `knock` and before `opened`."""

    def admit(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> None:
        """Ask whether a peer is admitted. `decided` is called once, now or later."""

    def opened(self, transport: Transport, admission: Admission) -> None:
        """Report that a connection is established. The bus calls `transport.start`."""


@frozen(kw_only=True)
class DialOptions:
    """Options for the connection of a client."""

    host: Host
    reads: frozenset[Literal["text", "binary"]]
    writes: Literal["text", "binary"]
    subprotocol: str
    headers: Mapping[str, str] = field(factory=dict, repr=shown_members)
    tls: ssl.SSLContext | None = None
    adapter: ProtocolAdapter | None = None
    """The protocol, for transports with a special form of its messages (HTTP)."""
    framing: Framing | None = None
    """The framing of the protocol, for transports over byte streams and WebSockets; None for that of the transport."""


class Connector(Protocol):
    """Connects to one address. `connect()` accepts a connector instead of a URL.

    Optional abilities: `EndpointFeatures`.
    """

    @property
    def url(self) -> str:
        """The URL for people and error texts."""
        ...

    @property
    def reconnects(self) -> bool:
        """True if the connector can connect again after a connection was lost."""
        ...

    async def connect(self, options: DialOptions) -> Transport:
        """Make one attempt to connect, limited by `Limits.connect_timeout` and `Limits.handshake_timeout`.

        Raises:
            ConnectFailed: The attempt failed. The error has the address and the reason.
            Unauthorized: The server rejects the credentials.
            Forbidden: The server does not admit this client.
            Unsupported: The protocol cannot be used over this transport.
            LocalProtocolError: The options have headers or TLS although the connection has none, or a header that is reserved
                for the handshake.
        """
        ...


def _unheard(address: str, why: str, about: str) -> None:
    """Do nothing."""


class ListenOptions(Struct, frozen=True, weakref=True, kw_only=True):
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
    """Every peer is admitted, so connections from other machines must be refused. A listener checks this if it knows the
    address at which a connection arrived, or the address of the client."""
    adapter: ProtocolAdapter | None = None
    """The protocol, for transports with a special form of its messages (HTTP)."""
    framing: Framing | None = None
    """The framing of the protocol, as in `DialOptions`."""
    sockets: tuple[socket.socket, ...] = ()
    """Sockets that `EndpointFeatures.bind` has already bound, perhaps in another process. The listener owns the sockets, but
    not what belongs to the address, such as the file of a Unix socket."""
    turned_away: Callable[[str, str, str], None] = _unheard
    """``turned_away(address, why, about)`` logs a client that violates a rule of this listener, such as `origins`. Entries with
    the same `about` are counted together."""


class Listening(Protocol):
    """A listener that is bound to its address."""

    @property
    def url(self) -> str:
        """The actual address, without the protocol: ``tcp://127.0.0.1:40123``."""
        ...

    async def aclose(self) -> None:
        """Stop accepting connections and release the address. Existing connections stay open."""


class TransportAdapter(Protocol):
    """A transport that URLs name. It dials and listens.

    Optional abilities: `EndpointFeatures`.
    """

    def connector(self, url: str) -> Connector:
        """Create a connector for an address without the protocol, for example ``ws://host/path``.

        Raises:
            ValueError: A part of the address is missing, or has no meaning for this transport. The text names the part.
        """
        ...

    def is_private(self, url: str) -> bool:
        """True if only this machine can reach that address (loopback, Unix socket, memory)."""
        ...

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        """Bind the address and accept connections.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
            ValueError: A part of the address is missing, or an entry in `origins` or `hosts` is invalid.
            LocalProtocolError: `tls` is missing, or is set although the transport does not use it.
            Unsupported: The protocol cannot be used over this transport.
        """
        ...


AsgiApp: TypeAlias = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[MutableMapping[str, Any]], Awaitable[None]]],
    Awaitable[None],
]
"""``await app(scope, receive, send)``"""


class WebRoute(Struct, frozen=True, weakref=True):
    """An address of a protocol in a web application.

    Attributes:
        path: The path relative to the attached path. It is empty for the attached path itself, or begins with ``/``.
        app: The application that is called for every connection or request there, with the full `scope["path"]`.
        methods: The HTTP methods, such as ``("GET", "POST")``; None for WebSockets.
    """

    path: str
    app: AsgiApp
    methods: tuple[str, ...] | None = None


class WebEndpoint(Protocol):
    """The server side of a protocol in a web application. Its routes accept connections.

    `polybus.fastapi.attach` calls ``adapter.web_endpoint(path)`` of the protocol, or the method of its `HttpBinding`. If there
    is neither, the protocol uses WebSockets at the path.
    """

    def routes(self) -> Sequence[WebRoute]:
        """All addresses of the endpoint."""
        ...

    async def listen(self, options: ListenOptions) -> Listening:
        """Pass connections to `options.gate` until `Listening.aclose` is called.

        Raises:
            ValueError: An option is invalid, for example an origin.
            LocalProtocolError: The endpoint is already served.
        """
        ...


class HttpBinding(Protocol):
    """A protocol over HTTP, for clients and servers. An adapter has the class as ``http_binding``. Each URL has an instance.

    ``connect("lines+http://host/path")`` calls `connect`. ``serve()`` with such a URL, and `polybus.fastapi.attach`, call
    `web_endpoint`, unless the adapter has a method of that name.
    """

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Create an instance from those members of a URL's query that are in ``option_names`` of the class.

        The server sees the other members (`Handshake.query`). The URL of a server has no other members.

        Raises:
            ValueError: A value is unknown.
        """
        ...

    @property
    def option_names(self) -> Collection[str]:
        """The members of a URL's query that are options; any collection of names."""
        ...

    async def connect(self, url: str, options: DialOptions) -> Transport:
        """Connect to ``http://host/path`` or ``https://host/path``, like `Connector.connect`.

        Raises:
            ConnectFailed: The attempt failed. The error has the address and the reason.
            Unauthorized: The server rejects the credentials.
            Forbidden: The server does not admit this client.
        """
        ...

    def web_endpoint(self, path: str) -> WebEndpoint:
        """Return the endpoint of a server at this path."""
        ...
