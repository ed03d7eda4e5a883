"""Interfaces of transports: connections, framings, dialling and listening, the gate that is asked, and protocols over HTTP.

Without a framing, a transport over a byte stream writes a length before each frame, and a WebSocket carries each frame as a
message. A protocol that has had a form of its own on TCP before, by line ends or lengths in its text, brings it along: its
adapter has an attribute ``framing`` (see `ProtocolFeatures`).
"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

from attrs import field, frozen

from ..errors import BusError, RemoteProtocolError
from ..limits import Limits
from ..secrets import shown_members

if TYPE_CHECKING:
    import socket
    import ssl

    from .protocols import ProtocolAdapter


class FrameCutter(Protocol):
    """One direction of one connection: cuts what comes in into frames, without I/O."""

    @property
    def partial(self) -> str:
        """Arrived part of the frame that has begun, for people; empty between two frames."""
        ...

    @property
    def arrived(self) -> int:
        """The same in bytes; 0 between two frames."""
        ...

    @property
    def broken(self) -> RemoteProtocolError | None:
        """Why nothing more is cut: what came is not of this protocol. Its `close_code` ends the connection."""
        ...

    def feed(self, data: bytes) -> Sequence[bytes]:
        """The frames that this chunk completes. Never raises: see `broken`."""
        ...


class Framing(Protocol):
    """Form in which a protocol's frames lie in a stream of bytes.

    On ``tcp``, ``tls`` and ``unix`` the stream is the connection; on ``ws`` and ``wss`` it comes in binary messages, each a
    chunk of any size. In memory frames stay as they are.
    """

    def cutter(self, limits: Limits, transport: str) -> FrameCutter:
        """Make the cutter of one connection, which keeps to `Limits.message`.

        Args:
            limits: Of the bus.
            transport: Its word in the URL: ``tcp``, ``tls``, ``ws``...
        """
        ...

    def pack(self, frame: bytes, /) -> bytes:
        """The bytes of a frame in the stream."""
        ...

    def plain_preface(self, data: bytes) -> int | None:
        """Length of a server's first words, which come in plain before the TLS handshake on ``tls``.

        Args:
            data: What has come so far.

        Returns:
            0 as long as more of them must come; None where TLS begins at once.

        Raises:
            RemoteProtocolError: The server does not speak this protocol, or without TLS alone.
        """
        ...


@frozen
class Closed:
    """Why a connection ended."""

    code: int = 1006
    """A WebSocket close code: 1000 orderly, 1001 going away, 1006 without a word, 4401 unauthorized, 4403 forbidden..."""
    reason: str = ""
    error: BusError | None = None
    """Error for waiting callers where it is more than a `Disconnected`: `Unauthorized`, `Forbidden`, ..."""
    stalled: bool = False
    """True where this side has cut a connection whose peer took nothing: a server logs that."""


class Receiver(Protocol):
    """The user of a transport. All methods are synchronous, are called on the event loop, and never raise.

    It may offer more: see `ReceiverFeatures`.
    """

    def frames_received(self, frames: Sequence[bytes]) -> None:
        """Whole frames, in order, as many as one read gave."""

    def closed(self, why: Closed) -> None:
        """The last call: nothing is sent or received any more."""

    def pause_writing(self) -> None:
        """The peer is slow: send nothing more until `resume_writing`. (A frame sent all the same is kept.)"""

    def resume_writing(self) -> None:
        """There is room again."""


class Transport(Protocol):
    """One established connection that carries whole frames.

    Frames are handed on as they are, in both directions. So a session and a transport that know each other may mark them: a
    subclass of ``bytes`` can say in which exchange a frame came, and in which one its answer leaves.

    It may offer more: see `TransportFeatures`.
    """

    @property
    def name(self) -> str:
        """The word in the URL: ``tcp``, ``ws``, ..."""
        ...

    @property
    def max_frame(self) -> int:
        """The largest frame in bytes that `send` takes."""
        ...

    @property
    def hops(self) -> int:
        """Number of tunnels that this connection already runs through: 0 on a network."""
        ...

    @property
    def address(self) -> str:
        """Of the other end, for people and logs."""
        ...

    def start(self, receiver: Receiver) -> None:
        """Deliver from the next turn of the event loop on, first what has already come in. Called once."""

    def send(self, frame: bytes) -> None:
        """Hand over a frame without waiting; those of one turn of the event loop leave in one write. After the end: ignored.

        Raises:
            TooLarge: The frame is over `max_frame`, which is `Limits.message`.
        """

    def write_backlog(self) -> int:
        """Bytes handed over that the operating system has not taken yet."""
        ...

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Write what was sent, tell the peer, close; after `Limits.close_timeout` cut. `Receiver.closed` follows."""

    def abort(self, why: Closed) -> None:
        """Cut at once. `Receiver.closed` follows with this reason."""

    def tick(self, now: float) -> None:
        """About once a second: pings, frame and write deadlines, close timeout."""


class Reservation(Protocol):
    """Bytes that are kept for a client before it has a connection: within `Limits.total_bytes` and the share of its address."""

    def hold(self, size: int) -> bool:
        """Keep so much more. False, and nothing more is kept, if there is no room."""
        ...

    def give_back(self, size: int) -> None:
        """Keep so much less."""

    def release(self) -> None:
        """Keep nothing any more. To be called once, at the end."""


class Host(Protocol):
    """Services of a bus for a transport."""

    @property
    def backend(self) -> Literal["asyncio", "trio"]: ...

    @property
    def limits(self) -> Limits: ...

    def time(self) -> float:
        """Monotonic seconds: the clock of all `now` arguments."""
        ...

    def reserve(self, address: str) -> Reservation:
        """Bytes for a client whom the bus has not let in.

        Args:
            address: Where it comes from, with its port.
        """
        ...

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call in the next turn of the event loop. The function must not raise."""

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a coroutine function as a task of the bus, cancelled when the bus is left. What it raises is logged."""


@frozen(kw_only=True)
class Handshake:
    """Facts about a peer that is not admitted yet; `Bus(authenticate=...)` decides on them."""

    protocol: str = ""
    transport: str = ""
    url: str = ""
    """Of the listener."""
    path: str = "/"
    query: Mapping[str, str] = field(factory=dict, repr=shown_members)
    headers: Mapping[str, str] = field(factory=dict, repr=shown_members)
    """Lower-case names; empty where the transport has none."""
    cookies: Mapping[str, str] = field(factory=dict, repr=lambda cookies: f"<{len(cookies)}>")
    origin: str | None = None
    address: str = ""
    tls_peer: Mapping[str, Any] | None = None
    """The verified client certificate, as `ssl.SSLSocket.getpeercert` gives it."""
    outer: Any = None
    """Of a tunnel: the outer peer."""
    params: Mapping[str, str] = field(factory=dict, repr=shown_members)
    """Facts that the protocol's own handshake or a tunnel passed along."""
    scope: Mapping[str, Any] | None = field(default=None, repr=False)
    """In a web application: its ASGI scope, with what middleware has put there (``session``, ``user``, ``path_params``)."""


@frozen
class Identity:
    """Identity of a peer.

    Attributes:
        value: Anything: shown as `Peer.identity` and `Context.identity`.
        key: For `Bus.peers_of`: all connections of one user share it.
        expires_at: An aware datetime at which the link ends (WebSocket close code 4401).
    """

    value: Any = None
    key: str | None = None
    expires_at: Any = None

    def ends(self, now: float) -> float | None:
        """Tell when it ends, on the clock of which this is the time; None where it does not."""
        if self.expires_at is None:
            return None
        return now + float((self.expires_at - datetime.datetime.now(datetime.UTC)).total_seconds())


@frozen
class Admission:
    """The outcome of `Gate.admit` for a peer that is admitted."""

    identity: Identity
    handshake: Handshake


class Gate(Protocol):
    """The bus's side of accepting: transports ask it."""

    def knock(self, address: str) -> BusError | None:
        """A connection was accepted, nothing is read yet. None lets it go on; an error says why not (limits, draining)."""
        ...

    def left(self, address: str) -> None:
        """A connection that knocked went away before `opened`."""

    def admit(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> None:
        """Ask for admission of a peer. `decided` is called once, at once or later."""

    def opened(self, transport: Transport, admission: Admission) -> None:
        """The connection is established; the bus calls `transport.start`."""


def cookies_of(text: str) -> dict[str, str]:
    """The cookies in the value of a Cookie header, for `Handshake.cookies`; none where it is malformed."""
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(text).items()}
    except CookieError:
        return {}


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
    """The protocol, for transports that carry its messages in a form of their own (HTTP)."""
    framing: Framing | None = None
    """The protocol's own framing, for transports over byte streams and WebSockets; None for theirs."""


class Connector(Protocol):
    """Makes connections to one place; what `connect()` takes in place of a URL.

    It may offer more: see `EndpointFeatures`.
    """

    @property
    def url(self) -> str:
        """For people and errors."""
        ...

    @property
    def reconnects(self) -> bool:
        """True if it can be asked again after a connection was lost."""
        ...

    async def connect(self, options: DialOptions) -> Transport:
        """One attempt, bounded by `Limits.connect_timeout` and `Limits.handshake_timeout`.

        Raises:
            ConnectFailed: With the address and the reason.
            Unauthorized: The server refuses who we are.
            Forbidden: The server does not let us in.
            Unsupported: The protocol has no form over this transport.
            LocalProtocolError: Headers or TLS options for a connection that has none, or a header of the handshake's own.
        """
        ...


def _unheard(address: str, why: str, about: str) -> None:
    """Tell nobody."""


@frozen(kw_only=True)
class ListenOptions:
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
    """Every peer is admitted, so none may come from another machine. Checked by listeners that learn from a connection at which
    address it came in, or where its client is."""
    adapter: ProtocolAdapter | None = None
    """The protocol, for transports that carry its messages in a form of their own (HTTP)."""
    framing: Framing | None = None
    """The protocol's own framing, as in `DialOptions`."""
    sockets: tuple[socket.socket, ...] = ()
    """Bound already, by `EndpointFeatures.bind` in another process too, and now the listener's: it binds nothing, and leaves
    what belongs to the address, such as the file of a Unix socket, to others."""
    turned_away: Callable[[str, str, str], None] = _unheard
    """``turned_away(address, why, about)`` is told of a client that breaks a rule of this listener, such as `origins`: for the
    log, in which those with the same word `about` are counted together."""


class Listening(Protocol):
    """A bound listener."""

    @property
    def url(self) -> str:
        """The real address, without the protocol: ``tcp://127.0.0.1:40123``."""
        ...

    async def aclose(self) -> None:
        """Stop accepting and release the address; connections stay."""


class TransportAdapter(Protocol):
    """One transport of the URL: how to dial and how to listen.

    It may offer more: see `EndpointFeatures`.
    """

    def connector(self, url: str) -> Connector:
        """For an address without the protocol, for example ``ws://host/path``.

        Raises:
            ValueError: The address lacks something, or has what means nothing here; the text says what.
        """
        ...

    def is_private(self, url: str) -> bool:
        """True if only this machine can reach that address when it is bound (loopback, Unix socket, memory)."""
        ...

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        """Bind and accept.

        Raises:
            OSError: The address is taken or not ours.
            ValueError: The address lacks something, or something in `origins` or `hosts` is none.
            LocalProtocolError: `tls` is given without need, or is missing.
            Unsupported: The protocol has no form over this transport.
        """
        ...


AsgiApp: TypeAlias = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[MutableMapping[str, Any]], Awaitable[None]]],
    Awaitable[None],
]
"""``await app(scope, receive, send)``"""


@frozen
class WebRoute:
    """One address of a protocol in a web application.

    Attributes:
        path: Relative to the path that was attached: empty for that path itself, or beginning with ``/``.
        app: Called for every connection or request there; the application's own routing has cut nothing off `scope["path"]`.
        methods: Of HTTP, such as ``("GET", "POST")``; None for WebSockets.
    """

    path: str
    app: AsgiApp
    methods: tuple[str, ...] | None = None


class WebEndpoint(Protocol):
    """Server side of a protocol in a web application: its routes, which hand over the connections that are made there.

    `polybus.fastapi.attach` asks the protocol's adapter for one: ``adapter.web_endpoint(path)``, or that of its `HttpBinding`.
    An adapter with neither gets WebSockets at the path, which any protocol can use.
    """

    def routes(self) -> Sequence[WebRoute]:
        """All addresses."""
        ...

    async def listen(self, options: ListenOptions) -> Listening:
        """Hand connections to `options.gate` from now on, until `Listening.aclose`.

        Raises:
            ValueError: Something in the options is wrong, for example no origin.
            LocalProtocolError: It is served already.
        """
        ...


class HttpBinding(Protocol):
    """A protocol over HTTP, at both ends. An adapter offers the class as ``http_binding``; each URL gets an object of it.

    ``connect("lines+http://host/path")`` calls `connect`; ``serve()`` with such a URL, and `polybus.fastapi.attach`, call
    `web_endpoint`, unless the adapter itself has a method of that name.
    """

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Make one from those members of a URL's query that are in the class's ``option_names``, any collection of names.

        The server is shown the others (`Handshake.query`). A server's own URL has none.

        Raises:
            ValueError: A value is not known.
        """
        ...

    @property
    def option_names(self) -> Collection[str]:
        """Members of a URL's query that are options."""
        ...

    async def connect(self, url: str, options: DialOptions) -> Transport:
        """Make one connection to ``http://host/path`` or ``https://host/path``, as `Connector.connect`.

        Raises:
            ConnectFailed: With the address and the reason.
            Unauthorized: The server refuses who we are.
            Forbidden: The server does not let us in.
        """
        ...

    def web_endpoint(self, path: str) -> WebEndpoint:
        """Make the endpoint of a server at this path."""
        ...
