"""The interfaces for third parties: protocols and transports that polybus does not know.

They are `typing.Protocol` classes: nothing has to be inherited. A distribution offers its own by entry points in the groups
``polybus.protocols`` and ``polybus.transports``; the name of the entry point is the word in the URL.

A **codec** translates between one frame and messages. It is pure: no role, no state, no clock; so recorded traffic, the
command line and relays use it alone. A **session** stands on a codec and knows one connection: who asks, which ids are
pending, the handshake. It does no I/O either: the link calls it with frames and the time and takes frames and events away.
A **transport** is one connection that carries whole frames, and calls its **receiver**.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

from attrs import field, frozen

from .body import BodyFormat
from .errors import BusError, Code, RemoteProtocolError
from .limits import Limits
from .message import Message

if TYPE_CHECKING:
    import ssl

__all__ = [
    "Admission",
    "AsgiApp",
    "Capabilities",
    "CloseWanted",
    "Closed",
    "Codec",
    "Connector",
    "DialOptions",
    "Dissector",
    "FrameField",
    "Gate",
    "Handshake",
    "Host",
    "Identity",
    "ListenOptions",
    "Listening",
    "PeerClosed",
    "PeerOpened",
    "ProtocolAdapter",
    "Ready",
    "Receiver",
    "Refused",
    "Role",
    "Session",
    "SessionEvent",
    "Transport",
    "TransportAdapter",
    "Undelivered",
    "WebEndpoint",
    "WebRoute",
]

Role: TypeAlias = Literal["client", "server"]
"""``client`` opened the connection, ``server`` accepted it."""


# -- protocols -----------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Capabilities:
    """What a session's wire can carry by itself, without the extensions between our own buses."""

    publish: bool = True
    """Publications have a form of their own."""
    subscribe: bool = True
    """Subscriptions have a form of their own; without it every publication is sent to a bare peer."""
    patterns: bool = False
    """A bare peer understands our wildcard patterns."""
    numbers: bool = False
    """Subjects may be ``int``."""
    headers: bool = True
    deadlines: bool = True
    """A request carries how long its asker waits."""
    extensions: bool = True
    """The session can write cancel, open, item, credit and end to a peer of ours."""
    announce: Literal["client", "both"] = "client"
    """Who tells the other side of its subscriptions: the side that opened the link, or both."""
    handlers: bool = False
    """The peer asks only for subjects that it was told of: those of handlers are announced to it like subscriptions."""
    many_peers: bool = False
    """One connection carries several peers (`PeerOpened`, `PeerClosed`); otherwise it has one, opened at `Ready`."""
    shared_publish: bool = False
    """A publication's frame is the same on every session of this codec, so fan-out encodes it once."""
    asks_before_publishing: bool = False
    """Publications and subscriptions are extensions too: a bare peer reads none, so that they are `Unsupported` with it. The
    bus finds out by `_polybus.hello` before the first one."""
    initiates: bool = True
    """This side may begin requests and publications. Where that depends on the connection (a plain HTTP server only answers),
    the transport says it: see `Transport`."""


class Codec(Protocol):
    """Frames to messages and back. Pure: options, but no role and no state."""

    @property
    def formats(self) -> tuple[BodyFormat, ...]:
        """Body formats that this wire carries; the first is the default."""
        ...

    @property
    def reads(self) -> frozenset[Literal["text", "binary"]]:
        """Kinds of frames that `decode` accepts, for transports that tell them apart."""
        ...

    @property
    def writes(self) -> Literal["text", "binary"]:
        """The kind of frames that `encode` gives. Text frames are UTF-8 bytes too."""
        ...

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        """The format in which a value is written to a subject."""
        ...

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        """The messages of one frame; an error in the list stands for one refused message among good ones.

        Raises:
            RemoteProtocolError: The frame is not of this protocol. Nothing else is ever raised, whatever the bytes.
        """
        ...

    def encode(self, messages: Sequence[Message]) -> bytes:
        """One frame with these messages. Only wires with `join` take more than one.

        Raises:
            EncodeError: A body does not fit the wire.
            Unsupported: The wire has no form for this kind of message.
            LocalProtocolError: A subject or id does not fit the wire.
        """
        ...


@frozen
class Ready:
    """The handshake is over: the link may carry traffic.

    Attributes:
        bare: The handshake has shown that the peer is none of ours: it need not be asked for the extensions.
    """

    bare: bool = False


@frozen
class PeerOpened:
    """A peer appeared on a connection that carries many, after `Ready`. `key` is how the session names it in `Message.peer`.

    It is a stranger like any other: `Bus(authenticate=...)` is asked, with `params` in the handshake.
    """

    key: Any
    address: str = ""
    params: Mapping[str, str] = field(factory=dict)


@frozen
class PeerClosed:
    """A peer of a connection that carries many has gone."""

    key: Any
    reason: str = ""


@frozen
class Refused:
    """Something was malformed. The session has already queued an answer where one is possible."""

    error: RemoteProtocolError
    peer_key: Any = None


@frozen
class Undelivered:
    """A good message that must not be delivered, because it has expired on its way. The session has told whom it must."""

    message: Message
    code: Code
    reason: str
    """A short word: ``expired``."""
    text: str = ""


@frozen
class CloseWanted:
    """The session wants the connection closed, with a WebSocket close code and a reason.

    A link that was opened comes back after it, unless `error` is a refusal.
    """

    code: int
    reason: str
    error: BusError | None = None
    """Why, for the local side: an `Unauthorized` or `Forbidden` here stops reconnecting."""


SessionEvent: TypeAlias = Ready | PeerOpened | PeerClosed | Refused | Undelivered | CloseWanted


class Session(Protocol):
    """One connection of a protocol, without I/O. Time is monotonic seconds, always passed in."""

    @property
    def codec(self) -> Codec:
        """The codec that the session stands on."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this wire can carry. May change only before `Ready`."""
        ...

    def start(self, now: float) -> None:
        """The connection is there: queue the first frames of the handshake, or `Ready` where there is none."""
        ...

    def receive(self, frame: bytes, now: float) -> None:
        """One frame has come in. Never raises: what is wrong with it becomes `Refused` or `CloseWanted`."""
        ...

    def events(self) -> list[Message | SessionEvent]:
        """What has happened since the last call, in order. Of a message from one of many peers, `Message.peer` is its key.

        Answers carry in `Message.id` the key that `send` gave for the request; incoming requests and opens carry an id that
        must be handed back in `Message.id` of the answer.
        """
        ...

    def send(self, message: Message, now: float, peer_key: Any = None) -> Any:
        """Queue a message for writing. For a request or an open: the key by which its answers will be known; else None.

        `Message.id` must be set for everything that belongs to an earlier message (response, error, cancel, item, credit,
        end): to the id of the request or open, or to the key that `send` gave for it.

        Keys are hashable, differ from the ids of what the peer has opened, and are never given twice: a cancel may be sent for
        a key after `forget`, when its id on the wire already belongs to another request. The message is not changed: it may
        go to other peers too.

        Raises:
            EncodeError: The body does not fit the wire.
            Unsupported: The wire has no form for this kind of message.
            LocalProtocolError: A subject does not fit the wire.
            TooLarge: The frame would exceed `Limits.message`.
            QueueFull: No id is free.
            Disconnected: The peer of `peer_key` has gone.
        """
        ...

    def forget(self, key: Any, now: float) -> None:
        """Nobody waits for the answer to `key` any more (deadline, cancel), or the channel with this key or id is over.

        The session may quarantine the id.
        """
        ...

    def frames_to_send(self) -> list[bytes]:
        """Frames queued since the last call, in order."""
        ...

    def next_tick(self) -> float | None:
        """When `tick` wants to be called (heartbeat, handshake deadline), or None."""
        ...

    def tick(self, now: float) -> None:
        """Time has passed."""
        ...

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> None:
        """Queue whatever the protocol says when it leaves (or, with `peer_key`, when it sends one of many peers away).

        A peer that was sent away counts as gone at once; `PeerClosed` for it may follow or not.
        """
        ...

    def connection_lost(self, reason: str) -> None:
        """The connection is gone; nothing will be written any more."""
        ...


class ProtocolAdapter(Protocol):
    """A protocol with its options set; an immutable value. `polybus.protocols.Ubre(format="binary")` is one.

    One that wants several connections to one place offers ``connections()``, which gives the adapter of each.
    """

    @property
    def name(self) -> str:
        """The word in the URL."""
        ...

    @property
    def url_options(self) -> Mapping[str, str]:
        """The options that differ from the defaults, as they stand in a URL's query."""
        ...

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """From a URL's query.

        On transports whose handshake shows a query to the server, only the members that are options come here: those in the
        class's ``option_names`` (any collection of names), if it has that, else those named as its attrs fields.

        Raises:
            ValueError: An option or its value is not known; the text lists those that are.
        """
        ...

    def codec(self, limits: Limits = ...) -> Codec:
        """The codec; the same object for equal adapters and limits."""
        ...

    def session(self, role: Role, limits: Limits = ..., rng: random.Random | None = None) -> Session:
        """A session for one connection. `rng` makes ids; the default is `random.SystemRandom`."""
        ...


@frozen
class FrameField:
    """A part of a frame, for people: where it stands, what the specification calls it, and what it says."""

    offset: int
    """Bytes from the start of the frame."""
    length: int
    """Bytes."""
    name: str
    value: str
    """As people read it."""
    note: str = ""
    """What it means, or what is wrong with it."""


class Dissector(Protocol):
    """What an adapter may offer besides: a view of its frames, field by field, for `polybus inspect` and the like.

    It looks at the bytes alone and is for frames that do not decode, too.
    """

    def dissect(self, frame: bytes) -> Sequence[FrameField]:
        """The fields of a frame, in the order in which they stand. Never raises: a frame that is cut off or wrong gives the
        fields up to there, the last one with a note that says what is wrong. Nothing for a form without fields (JSON).
        """
        ...

    @property
    def inspect_options(self) -> Mapping[str, str]:
        """Options with which recorded frames are read where nobody names any: those that accept the most."""
        ...


# -- transports ----------------------------------------------------------------------------------------------------------


@frozen
class Closed:
    """Why a connection ended."""

    code: int = 1006
    """A WebSocket close code: 1000 orderly, 1001 going away, 1006 without a word, 4401 unauthorized, 4403 forbidden..."""
    reason: str = ""
    error: BusError | None = None
    """What waiting callers should see where that is more than a `Disconnected`: `Unauthorized`, `Forbidden`, ..."""


class Receiver(Protocol):
    """What a transport calls. All of it is synchronous, on the event loop, and never raises."""

    def frames_received(self, frames: Sequence[bytes]) -> None:
        """Whole frames, in order, as many as one read gave."""
        ...

    def closed(self, why: Closed) -> None:
        """The last call: nothing is sent or received any more."""
        ...

    def pause_writing(self) -> None:
        """The peer is slow: send nothing more until `resume_writing`. (A frame sent all the same is kept.)"""
        ...

    def resume_writing(self) -> None:
        """There is room again."""
        ...


class Transport(Protocol):
    """One established connection that carries whole frames.

    A transport whose end may only answer has ``initiates = False``; requests and publications are then `Unsupported`.

    One that is established before the server has let the client in, without a word when it does, has ``admitted = False``:
    where the protocol has no handshake either, a first connect then waits for a moment whether a refusal comes.

    Frames are handed on as they are, in both directions. So a session and a transport that know each other may mark them: a
    subclass of ``bytes`` can say in which exchange a frame came, and in which one its answer leaves.

    A transport may offer ``pause_reading()`` and ``resume_reading()``, by which a broker holds back a peer whose other end is
    slow; where it does not, what comes in is kept up to a limit, and then the connection ends.

    A transport whose frames have the same bytes on every connection may offer two more methods, and fan-out makes the bytes
    once: ``framed(frame) -> bytes | None`` (None: not on this one after all) and ``send_framed(data, turn)``, where `turn` is a
    number of the current turn of the event loop, so that the first write of a turn can leave at once.
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
        """How many tunnels this connection already runs through: 0 on a network."""
        ...

    @property
    def address(self) -> str:
        """Of the other end, for people and logs."""
        ...

    def start(self, receiver: Receiver) -> None:
        """Deliver from now on, first what has already come in. Called once."""
        ...

    def send(self, frame: bytes) -> None:
        """Hand over a frame without waiting; those of one turn of the event loop leave in one write. After the end: ignored."""
        ...

    def write_backlog(self) -> int:
        """Bytes handed over that the operating system has not taken yet."""
        ...

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Write what was sent, tell the peer, close; after `Limits.close_timeout` cut. `Receiver.closed` follows."""
        ...

    def abort(self, why: Closed) -> None:
        """Cut at once. `Receiver.closed` follows with this reason."""
        ...

    def tick(self, now: float) -> None:
        """About once a second: pings, frame and write deadlines, close timeout."""
        ...


@frozen(kw_only=True)
class Handshake:
    """What is known of a stranger before it is let in; `Bus(authenticate=...)` decides on it."""

    protocol: str = ""
    transport: str = ""
    url: str = ""
    """Of the listener."""
    path: str = "/"
    query: Mapping[str, str] = field(factory=dict)
    headers: Mapping[str, str] = field(factory=dict)
    """Lower-case names; empty where the transport has none."""
    cookies: Mapping[str, str] = field(factory=dict)
    origin: str | None = None
    address: str = ""
    tls_peer: Mapping[str, Any] | None = None
    """The verified client certificate, as `ssl.SSLSocket.getpeercert` gives it."""
    outer: Any = None
    """Of a tunnel: the outer peer."""
    params: Mapping[str, str] = field(factory=dict)
    """What the protocol's own handshake or a tunnel passed along."""


@frozen
class Identity:
    """Who a peer is.

    Attributes:
        value: Anything: shown as `Peer.identity` and `Context.identity`.
        key: For `Bus.peers_of`: all connections of one user share it.
        expires_at: An aware datetime at which the link ends (WebSocket close code 4401).
    """

    value: Any = None
    key: str | None = None
    expires_at: Any = None


@frozen
class Admission:
    """The outcome of `Gate.admit` when the stranger may come in."""

    identity: Identity
    handshake: Handshake


class Gate(Protocol):
    """The bus's side of accepting: transports ask it."""

    def knock(self, address: str) -> BusError | None:
        """A connection was accepted, nothing is read yet. None lets it go on; an error says why not (limits, draining)."""
        ...

    def left(self, address: str) -> None:
        """A connection that knocked went away before `opened`."""
        ...

    def admit(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> None:
        """Ask whether the stranger may come in. `decided` is called once, at once or later."""
        ...

    def opened(self, transport: Transport, admission: Admission) -> None:
        """The connection is established; the bus calls `transport.start`."""
        ...


class Host(Protocol):
    """What the bus lends a transport."""

    @property
    def backend(self) -> Literal["asyncio", "trio"]: ...

    @property
    def limits(self) -> Limits: ...

    def time(self) -> float:
        """Monotonic seconds: the clock of all `now` arguments."""
        ...

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call in the next turn of the event loop. The function must not raise."""
        ...

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a coroutine function as a task of the bus, cancelled when the bus is left. What it raises is logged."""
        ...


@frozen(kw_only=True)
class DialOptions:
    """How a client connects."""

    host: Host
    reads: frozenset[Literal["text", "binary"]]
    writes: Literal["text", "binary"]
    subprotocol: str
    headers: Mapping[str, str] = field(factory=dict)
    tls: ssl.SSLContext | None = None


class Connector(Protocol):
    """Makes connections to one place; what `connect()` takes in place of a URL."""

    @property
    def url(self) -> str:
        """For people and errors."""
        ...

    @property
    def reconnects(self) -> bool:
        """Whether it can be asked again after a connection was lost."""
        ...

    async def connect(self, options: DialOptions) -> Transport:
        """One attempt, bounded by `Limits.connect_timeout` and `Limits.handshake_timeout`.

        Raises:
            ConnectFailed: With the address and the reason.
            Unauthorized: The server refuses who we are.
            Forbidden: The server does not let us in.
        """
        ...


@frozen(kw_only=True)
class ListenOptions:
    """How a server listens."""

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
    """Everybody is let in, so nobody may come from another machine. Checked by those who learn only from a connection at which
    address it came in."""


class Listening(Protocol):
    """A bound listener."""

    @property
    def url(self) -> str:
        """The real address, without the protocol: ``tcp://127.0.0.1:40123``."""
        ...

    async def aclose(self) -> None:
        """Stop accepting and release the address; connections stay."""
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
    """A protocol in a web application: its routes, and where they hand over whoever comes.

    `polybus.fastapi.attach` asks the protocol's adapter for one: ``adapter.web_endpoint(path)``. An adapter without that method
    gets WebSockets at the path, which any protocol can use.
    """

    def routes(self) -> Sequence[WebRoute]:
        """All addresses."""
        ...

    async def listen(self, options: ListenOptions) -> Listening:
        """From now on, connections are handed to `options.gate`; until `Listening.aclose`.

        Raises:
            ValueError: Something in the options is wrong.
        """
        ...


class TransportAdapter(Protocol):
    """One transport of the URL: how to dial and how to listen."""

    def connector(self, url: str) -> Connector:
        """For an address without the protocol, for example ``ws://host/path``.

        Raises:
            ValueError: The address lacks something; the text says what.
        """
        ...

    def is_private(self, url: str) -> bool:
        """Whether only this machine can reach that address when it is bound (loopback, Unix socket, memory)."""
        ...

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        """Bind and accept.

        Raises:
            OSError: The address is taken or not ours.
        """
        ...
