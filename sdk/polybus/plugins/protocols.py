"""The interfaces of a protocol: the codec, the session with its events, and the adapter that creates both."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, Self, TypeAlias

from msgspec import Struct

from ..body import BodyFormat
from ..errors import BusError, Code, RemoteProtocolError
from ..limits import Limits
from ..message import Message
from .mesh import Due, Lost, NodeJoined, NodeLeft

Role: TypeAlias = Literal["client", "server"]
"""``client`` opened the connection, ``server`` accepted it."""


class Capabilities(Struct, frozen=True, weakref=True, kw_only=True):
    """The abilities of the wire of a session, without the extensions between polybus peers."""

    publish: bool = True
    """The wire can carry publications."""
    subscribe: bool = True
    """The wire can carry subscriptions. Otherwise a peer that does not run polybus receives every publication."""
    filters: bool = False
    """The session itself filters, by telling its transport what to receive. The other end does not know the subscriptions and
    receives every publication."""
    many_senders: bool = False
    """Many unidentified programs send over this connection (through a message broker or a fabric). Malformed messages are
    dropped and counted, but never end the connection."""
    patterns: bool = False
    """A peer that does not run polybus understands wildcard patterns."""
    numbers: bool = False
    """Subjects may be ``int``."""
    headers: bool = True
    bare_headers: bool = True
    """A peer that does not run polybus reads headers, because the specification of the wire defines them. Otherwise headers
    that the bus and its outgoing hooks add are sent only to polybus peers."""
    own_headers: frozenset[str] = frozenset()
    """The headers, in lower case, that have fixed places on a wire without general headers. Outgoing hooks may add only these.
    A session may refuse other headers that an application sets."""
    destinations: bool = False
    """The peer represents many programs, each with an address. A notification is sent to the address in ``to`` of its
    `attributes`."""
    answer_headers: bool = True
    """Answers carry headers. Otherwise the headers that a handler sets are omitted."""
    deadlines: bool = True
    """A request carries its caller's timeout."""
    extensions: bool = True
    """The session can send cancel, open, item, credit and end messages to a polybus peer."""
    built_in: bool = False
    """The extensions are part of the protocol itself, so the bus does not ask whether the peer runs polybus."""
    announce: Literal["client", "both"] = "client"
    """The side that announces its subscriptions: the one that opened the link, or both."""
    handlers: bool = False
    """The peer sends requests only for announced subjects, so handlers are announced like subscriptions."""
    groups: bool = False
    """Handlers of a subject share its requests. They are announced separately from subscriptions to the same subject, by a
    subscribe or unsubscribe message with ``handler`` in its `attributes`. Requires `handlers`."""
    many_peers: bool = False
    """One connection carries several peers (`PeerOpened`, `PeerClosed`). Otherwise it carries one, which is opened at `Ready`.
    """
    shared_publish: bool = False
    """The frame of a publication is the same on every session of this codec, so fan-out encodes it once."""
    asks_before_publishing: bool = False
    """Publications and subscriptions are extensions too, and are `Unsupported` with a peer that does not run polybus. The bus
    asks with `_polybus.hello` before the first one."""
    asks_before_headers: bool = False
    """Headers are an extension too. A peer that does not run polybus does not understand a request with headers, so a bridge
    does not add its own headers."""
    scarce_ids: bool = False
    """Ids are reused. Even a cancelled request is answered, so that its id can be used again at once."""
    answers_duplicates: bool = False
    """A request whose id is already in flight is answered with an error under that id. Otherwise it is only counted, because
    the peer would mistake the error for the answer to the first request."""
    initiates: bool = True
    """This side may send requests and publications. If that depends on the connection (a plain HTTP server can only answer),
    see `TransportFeatures`."""


class Codec(Protocol):
    """Converts frames to messages and back. A codec is pure: it has options, but no role and no state.

    Optional abilities: `CodecFeatures`.
    """

    @property
    def formats(self) -> tuple[BodyFormat, ...]:
        """The body formats that this wire can carry; the first one is the default."""
        ...

    @property
    def reads(self) -> frozenset[Literal["text", "binary"]]:
        """The kinds of frames that `decode` accepts, for transports that distinguish them."""
        ...

    @property
    def writes(self) -> Literal["text", "binary"]:
        """The kind of frames that `encode` returns. Text frames are also bytes, in UTF-8."""
        ...

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        """Return the format for a value that is sent to a subject."""
        ...

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        """Return the messages in a frame. If one message among valid ones is refused, an error in the list replaces it.

        A body in JSON is exactly one JSON value and has already been checked. A message with an invalid body is refused.

        Raises:
            RemoteProtocolError: The frame does not belong to this protocol. No bytes cause any other error.
        """
        ...

    def encode(self, messages: Sequence[Message]) -> bytes:
        """Return a frame with these messages. Only wires that can join messages accept more than one.

        Raises:
            EncodeError: The wire cannot carry a body.
            Unsupported: The wire cannot represent this kind of message, or that many messages.
            LocalProtocolError: The wire cannot carry a subject, a header or the id, or a message violates the protocol.
            ReservedSubject: A subject is reserved for the protocol.
        """
        ...


class Ready(Struct, frozen=True, weakref=True):
    """The handshake is complete, and the link may carry traffic.

    Attributes:
        bare: The handshake showed that the peer does not run polybus, so the bus does not ask for the extensions.
        node: The name of this node, on a wire between the nodes of a mesh.
    """

    bare: bool = False
    node: str = ""


class PeerOpened(Struct, frozen=True, weakref=True):
    """A peer appeared, after `Ready`, on a connection that carries many peers. `key` is its name in `Message.peer`.

    The peer is not yet admitted. `Bus(authenticate=...)` decides about that, with `params` in the handshake.
    """

    key: Any
    address: str = ""
    params: Mapping[str, str] = {}


class PeerClosed(Struct, frozen=True, weakref=True):
    """A peer left a connection that carries many peers."""

    key: Any
    reason: str = ""


class Refused(Struct, frozen=True, weakref=True):
    """The session received something malformed. If an answer is possible, the session sends it or leaves that to the bus.

    Attributes:
        answer: An answer for the bus to send, unless a request or channel of the peer with the same id is in flight. For wires
            where the peer would take it for the answer to that request.
    """

    error: RemoteProtocolError
    peer_key: Any = None
    answer: Message | None = None


class Undelivered(Struct, frozen=True, weakref=True):
    """A valid message must not be delivered, because it has expired. The session has informed the peer if necessary."""

    message: Message
    code: Code
    reason: str
    """A short word: ``expired``."""
    text: str = ""


class CloseWanted(Struct, frozen=True, weakref=True):
    """The session requests that the connection is closed, with a WebSocket close code and a reason.

    A link that this side opened then reconnects, unless `error` is a refusal.
    """

    code: int
    reason: str
    error: BusError | None = None
    """The error to raise on this side. After `Unauthorized` or `Forbidden` the link does not reconnect."""


class Confirmed(Struct, frozen=True, weakref=True):
    """The other end has handled everything that was sent before a request of `SessionFeatures.confirm`."""

    key: Any
    refused: Collection[str | int] = ()
    """The patterns of subscriptions that the other end has refused on this connection."""


class OtherServers(Struct, frozen=True, weakref=True):
    """Other addresses of the same service. The link tries them if this one does not answer and the transport supports it."""

    addresses: Sequence[str]
    """The addresses in the form ``host:port``."""
    leaving: bool = False
    """The current server is about to leave, so another one is preferred for the next connection."""


SessionEvent: TypeAlias = (
    Ready
    | PeerOpened
    | PeerClosed
    | Refused
    | Undelivered
    | CloseWanted
    | Confirmed
    | OtherServers
    | NodeJoined
    | NodeLeft
    | Lost
    | Due
)


Frames: TypeAlias = bytes | Sequence[bytes]
"""Frames for the transport: usually one, otherwise a sequence in order, which may be empty."""

SessionOutput: TypeAlias = Message | Iterable[Message | SessionEvent | bytes]
"""The result of an incoming frame or a tick: usually one message, otherwise several messages, events and frames for the
transport. The bus handles each of them before it asks for the next one, so an iterator may depend on messages that the bus
sends in between. Any other value is a fault of the protocol, which is logged and ends the link."""


class Session(Protocol):
    """One connection of a protocol, without I/O. The time is always an argument, in monotonic seconds.

    If a connection carries many peers, `Message.peer` is the key of the peer. Optional abilities: `SessionFeatures`.
    """

    @property
    def codec(self) -> Codec:
        """The codec of the session."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of this wire. They may change only before `Ready`."""
        ...

    def start(self, now: float) -> SessionOutput:
        """Begin the session. Returns the first frames of the handshake, or `Ready` if there is no handshake."""
        ...

    def receive(self, frame: bytes, now: float) -> SessionOutput:
        """Handle an incoming frame. This method never raises: faults are reported as `Refused` or `CloseWanted`.

        The `Message.id` of an answer is the key that `send` returned for the request. An incoming request or open has an id,
        which the answer must repeat in its `Message.id`.
        """
        ...

    def send(self, message: Message, now: float, peer_key: Any = None) -> tuple[Any, Frames]:
        """Return the key and the frames for a message. Answers to a request or an open arrive under this key; for other
        messages it is None.

        A message that belongs to an earlier one (response, error, cancel, item, credit, end) needs the id of that request or
        open in its `Message.id`, or the key that `send` returned for it.

        Keys are hashable, differ from the ids of the peer, and are never reused: a cancel may use a key after `forget`, when
        the id on the wire already belongs to another request. The message is not changed, since it may also be sent to other
        peers.

        Raises:
            EncodeError: The wire cannot carry the body.
            Unsupported: The wire cannot represent this kind of message.
            LocalProtocolError: The wire cannot carry the subject, a header or the id, or a required deadline is missing.
            ReservedSubject: The subject is reserved for the protocol.
            TooLarge: The frame would exceed `Limits.message`.
            QueueFull: No id is free.
            Disconnected: The peer with `peer_key` has left.
        """
        ...

    def forget(self, key: Any, now: float) -> Frames:
        """Forget a request after its deadline or cancellation, or a finished channel, by its key or id.

        The session may keep the id unused for a while. The returned frames are sent to the peer.
        """
        ...

    def next_tick(self) -> float | None:
        """The time of the next `tick` (for a heartbeat or the deadline of the handshake), or None."""
        ...

    def tick(self, now: float) -> SessionOutput:
        """Do what is due at this time."""
        ...

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> Frames:
        """Return the frames to send at the end, or with `peer_key` the frames that disconnect one of many peers.

        The bus regards a disconnected peer as gone at once; `PeerClosed` may follow, but does not have to.
        """
        ...

    def connection_lost(self, reason: str) -> None:
        """Handle the loss of the connection. Nothing more can be sent."""


_READY: Final = (Ready(),)


class QuietSession:
    """Base class for sessions of protocols that have no handshake, heartbeat or goodbye and do not reuse ids.

    Subclasses add `codec`, `capabilities`, `receive` and `send`.
    """

    __slots__ = ()

    def start(self, now: float) -> SessionOutput:
        """Return `Ready` at once, because there is no handshake."""
        return _READY

    def forget(self, key: Any, now: float) -> Frames:
        """Do nothing, because there is nothing to forget."""
        return ()

    def next_tick(self) -> float | None:
        """Always None, because nothing depends on the time."""
        return None

    def tick(self, now: float) -> SessionOutput:
        """Do nothing, because nothing depends on the time."""
        return ()

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> Frames:
        """Return no frames, because there is no goodbye. The transport closes the connection."""
        return ()

    def connection_lost(self, reason: str) -> None:
        """Do nothing, because there is nothing to clean up."""


class ProtocolAdapter(Protocol):
    """A protocol with its options, for example `polybus.protocols.Ubre(format="binary")`. It is immutable.

    Optional abilities: `ProtocolFeatures`.
    """

    @property
    def name(self) -> str:
        """The word in the URL."""
        ...

    @property
    def url_options(self) -> Mapping[str, str]:
        """Return the options that differ from their defaults, as in the query of a URL."""
        ...

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Create an adapter from the query of a URL.

        If the handshake of the transport shows the query to the server, `options` contains only the names in ``option_names``
        of the class (any collection of names), by default its attrs fields.

        Raises:
            ValueError: An option or its value is unknown. The text lists the known ones.
        """
        ...

    def codec(self, limits: Limits = ...) -> Codec:
        """Return the codec. It is the same object for equal adapters and limits."""
        ...

    def session(self, role: Role, limits: Limits = ..., rng: random.Random | None = None) -> Session:
        """Create the session for one connection. `rng` generates ids; the default is `random.SystemRandom`."""
        ...


class FrameField(Struct, frozen=True, weakref=True):
    """A part of a frame, shown to people with its position, its name in the specification and its value."""

    offset: int
    """Offset in bytes from the start of the frame."""
    length: int
    """Length in bytes."""
    name: str
    value: str
    """The value in readable form."""
    note: str = ""
    """The meaning of the field, or what is wrong with it."""


class Dissector(Protocol):
    """Optional ability of an adapter to show frames field by field, in `polybus inspect` and similar tools.

    It needs only the bytes, so it also shows frames that cannot be decoded.
    """

    def dissect(self, frame: bytes) -> Sequence[FrameField]:
        """Return the fields of a frame in order; none for a format without fields (JSON).

        This method never raises. For a frame that is cut off or wrong, it returns the fields up to the fault, which the note of
        the last field describes.
        """
        ...

    @property
    def inspect_options(self) -> Mapping[str, str]:
        """The default options for inspecting frames, which are the most tolerant ones."""
        ...
