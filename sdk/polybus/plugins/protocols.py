"""Interfaces of a protocol: codec, session, the adapter that creates both, and the events of a session."""

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


class Capabilities(Struct, frozen=True, kw_only=True):
    """Abilities of a session's wire, without the extensions between polybus peers."""

    publish: bool = True
    """The wire has a form for publications."""
    subscribe: bool = True
    """The wire has a form for subscriptions; without it a peer that is not polybus gets every publication."""
    filters: bool = False
    """The session itself filters and tells its transport what to receive; the other end knows no subscriptions and gets every
    publication."""
    many_senders: bool = False
    """Many unidentified programs send over this connection (a message broker, a fabric). Malformed messages are dropped and
    counted, but never end it."""
    patterns: bool = False
    """A peer that is not polybus understands our wildcard patterns."""
    numbers: bool = False
    """Subjects may be ``int``."""
    headers: bool = True
    bare_headers: bool = True
    """A peer that is not polybus reads headers, as the wire's specification defines them. Otherwise headers added by the bus
    and its outgoing hooks go to polybus peers only."""
    own_headers: frozenset[str] = frozenset()
    """Headers, in lower case, with fixed places on a wire without general headers. Outgoing hooks may add these only; a
    session may refuse others that an application sets."""
    destinations: bool = False
    """The peer stands for many, each with an address: a notification goes to the address in ``to`` of its `attributes`."""
    answer_headers: bool = True
    """Answers carry headers; otherwise those set by a handler are left out."""
    deadlines: bool = True
    """A request carries how long its caller waits."""
    extensions: bool = True
    """The session can write cancel, open, item, credit and end to a polybus peer."""
    built_in: bool = False
    """The extensions belong to the wire itself: no need to ask whether the peer is polybus."""
    announce: Literal["client", "both"] = "client"
    """Side that announces its subscriptions: the side that opened the link, or both."""
    handlers: bool = False
    """The peer sends requests only for announced subjects: handlers are announced like subscriptions."""
    groups: bool = False
    """Handlers of a subject share its requests, and are announced separately from subscriptions to the same subject: by a
    subscribe or unsubscribe with ``handler`` in its `attributes`. Requires `handlers`."""
    many_peers: bool = False
    """One connection carries several peers (`PeerOpened`, `PeerClosed`); otherwise one, opened at `Ready`."""
    shared_publish: bool = False
    """A publication's frame is the same on every session of this codec, so fan-out encodes it once."""
    asks_before_publishing: bool = False
    """Publications and subscriptions are extensions, too: with a peer that is not polybus they are `Unsupported`. The bus
    asks by `_polybus.hello` before the first one."""
    asks_before_headers: bool = False
    """Headers are an extension, too: a peer that is not polybus does not understand a request with headers, so a bridge
    leaves its own out."""
    scarce_ids: bool = False
    """Ids are reused: even a cancelled request is answered, so that its id is free at once."""
    answers_duplicates: bool = False
    """A request with an id in flight is answered with an error under that id. Otherwise it is only counted, because the
    answer would be taken for that of the first."""
    initiates: bool = True
    """This side may begin requests and publications. If that depends on the connection (a plain HTTP server only answers),
    see `TransportFeatures`."""


class Codec(Protocol):
    """Converts frames to messages and back. Pure: it has options, but no role and no state.

    Optional abilities: `CodecFeatures`.
    """

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
        """Kind of frames that `encode` returns. Text frames are UTF-8 bytes, too."""
        ...

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        """Format for a value sent to a subject."""
        ...

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        """Messages of one frame; an error in the list replaces one refused message among valid ones.

        A body in JSON is exactly one JSON value, already checked; an invalid one is refused.

        Raises:
            RemoteProtocolError: The frame is not of this protocol. No bytes cause any other error.
        """
        ...

    def encode(self, messages: Sequence[Message]) -> bytes:
        """Frame with these messages. Only wires that can join messages take more than one.

        Raises:
            EncodeError: A body does not fit the wire.
            Unsupported: The wire has no form for this kind of message, or for so many.
            LocalProtocolError: A subject, a header or the id does not fit the wire, or a message violates the protocol.
            ReservedSubject: A subject belongs to the protocol.
        """
        ...


class Ready(Struct, frozen=True):
    """The handshake is complete: the link may carry traffic.

    Attributes:
        bare: The handshake showed that the peer is not polybus: no need to ask for the extensions.
        node: Name of this node on a wire between the nodes of a mesh.
    """

    bare: bool = False
    node: str = ""


class PeerOpened(Struct, frozen=True):
    """A peer appeared, after `Ready`, on a connection that carries many. `key` is its name in `Message.peer`.

    It is not admitted yet: `Bus(authenticate=...)` decides, with `params` in the handshake.
    """

    key: Any
    address: str = ""
    params: Mapping[str, str] = {}


class PeerClosed(Struct, frozen=True):
    """A peer left a connection that carries many."""

    key: Any
    reason: str = ""


class Refused(Struct, frozen=True):
    """Something was malformed. The session also answers it where possible, or leaves that to the bus.

    Attributes:
        answer: Answer for the bus to send, unless a request or channel of the peer is in flight with its id: for wires where
            the peer would take the answer for that one's.
    """

    error: RemoteProtocolError
    peer_key: Any = None
    answer: Message | None = None


class Undelivered(Struct, frozen=True):
    """A valid message that must not be delivered because it has expired. The session has informed the peer if necessary."""

    message: Message
    code: Code
    reason: str
    """Short word: ``expired``."""
    text: str = ""


class CloseWanted(Struct, frozen=True):
    """The session wants the connection closed, with a WebSocket close code and a reason.

    A link that this side opened reconnects afterwards, unless `error` is a refusal.
    """

    code: int
    reason: str
    error: BusError | None = None
    """Error for the local side: an `Unauthorized` or `Forbidden` stops reconnecting."""


class Confirmed(Struct, frozen=True):
    """The other end has handled everything sent before a request of `SessionFeatures.confirm`."""

    key: Any
    refused: Collection[str | int] = ()
    """Patterns of subscriptions that it has refused on this connection."""


class OtherServers(Struct, frozen=True):
    """Other addresses of the same service, to try if this one does not answer and the transport can."""

    addresses: Sequence[str]
    """Each ``host:port``."""
    leaving: bool = False
    """The server at this end is about to leave: prefer another for the next connection."""


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
"""Usually one frame for the transport; or several, in order; or an empty sequence."""

SessionOutput: TypeAlias = Message | Iterable[Message | SessionEvent | bytes]
"""Result of an incoming frame or a tick: usually one message; or several messages, events and frames for the transport. The
bus handles each before it takes the next, so an iterator may depend on messages that the bus sends in between. Any other
value is a fault of the protocol: it ends the link, and the log names it."""


class Session(Protocol):
    """One connection of a protocol, without I/O. Time is in monotonic seconds, always passed in.

    `Message.peer` is the key of the peer if there are many. Optional abilities: `SessionFeatures`.
    """

    @property
    def codec(self) -> Codec:
        """The session's codec."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """Abilities of this wire. They may change only before `Ready`."""
        ...

    def start(self, now: float) -> SessionOutput:
        """Begin: returns the first frames of the handshake, or `Ready` without one."""
        ...

    def receive(self, frame: bytes, now: float) -> SessionOutput:
        """Handle an incoming frame. Never raises: faults become `Refused` or `CloseWanted`.

        Answers have in `Message.id` the key that `send` returned for the request; incoming requests and opens have an id that
        the answer must repeat in its `Message.id`.
        """
        ...

    def send(self, message: Message, now: float, peer_key: Any = None) -> tuple[Any, Frames]:
        """Key and frames of a message. Answers to a request or an open arrive under this key; it is None for other messages.

        A message that belongs to an earlier one (response, error, cancel, item, credit, end) needs in `Message.id` the id of
        that request or open, or the key that `send` returned for it.

        Keys are hashable, differ from the peer's ids, and are never reused: a cancel may use a key after `forget`, when its
        id on the wire already belongs to another request. The message is not changed, since it may go to other peers.

        Raises:
            EncodeError: The body does not fit the wire.
            Unsupported: The wire has no form for this kind of message.
            LocalProtocolError: The subject, a header or the id does not fit the wire, or a required deadline is missing.
            ReservedSubject: The subject belongs to the protocol.
            TooLarge: The frame would exceed `Limits.message`.
            QueueFull: No id is free.
            Disconnected: The peer of `peer_key` has gone.
        """
        ...

    def forget(self, key: Any, now: float) -> Frames:
        """Forget a request after its deadline or cancellation, or a finished channel, by its key or id.

        The session may quarantine the id. The returned frames are for the peer.
        """
        ...

    def next_tick(self) -> float | None:
        """Time of the next `tick` (heartbeat, handshake deadline), or None."""
        ...

    def tick(self, now: float) -> SessionOutput:
        """Handle the passage of time."""
        ...

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> Frames:
        """Frames to send at the end (with `peer_key`: to disconnect one of many peers).

        A disconnected peer counts as gone at once; `PeerClosed` for it may follow or not.
        """
        ...

    def connection_lost(self, reason: str) -> None:
        """The connection is gone; nothing more can be written."""


_READY: Final = (Ready(),)


class QuietSession:
    """Base for sessions of protocols without handshake, heartbeat, goodbye and reuse of ids.

    Subclasses add `codec`, `capabilities`, `receive` and `send`.
    """

    __slots__ = ()

    def start(self, now: float) -> SessionOutput:
        """Ready at once: there is no handshake."""
        return _READY

    def forget(self, key: Any, now: float) -> Frames:
        """Nothing to forget."""
        return ()

    def next_tick(self) -> float | None:
        """None: the protocol has no clock."""
        return None

    def tick(self, now: float) -> SessionOutput:
        """Nothing depends on time."""
        return ()

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> Frames:
        """No goodbye; the transport closes."""
        return ()

    def connection_lost(self, reason: str) -> None:
        """Nothing to clean up."""


class ProtocolAdapter(Protocol):
    """A protocol with its options set; an immutable value. `polybus.protocols.Ubre(format="binary")` is one.

    Optional abilities: `ProtocolFeatures`.
    """

    @property
    def name(self) -> str:
        """The word in the URL."""
        ...

    @property
    def url_options(self) -> Mapping[str, str]:
        """Options that differ from their defaults, as in a URL's query."""
        ...

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Create an adapter from a URL's query.

        If the transport's handshake shows the query to the server, `options` has only those in the class's ``option_names``
        (any collection of names), by default its attrs fields.

        Raises:
            ValueError: An option or its value is not known; the text lists the known ones.
        """
        ...

    def codec(self, limits: Limits = ...) -> Codec:
        """Codec; the same object for equal adapters and limits."""
        ...

    def session(self, role: Role, limits: Limits = ..., rng: random.Random | None = None) -> Session:
        """Session for one connection. `rng` generates ids; default: `random.SystemRandom`."""
        ...


class FrameField(Struct, frozen=True):
    """Part of a frame, for people: position, name in the specification, and value."""

    offset: int
    """In bytes from the start of the frame."""
    length: int
    """In bytes."""
    name: str
    value: str
    """In readable form."""
    note: str = ""
    """Its meaning, or its fault."""


class Dissector(Protocol):
    """Optional ability of an adapter: a view of frames, field by field, for `polybus inspect` and similar tools.

    Works on the bytes only, so also for frames that do not decode.
    """

    def dissect(self, frame: bytes) -> Sequence[FrameField]:
        """Fields of a frame in order. Never raises: for a frame that is cut off or wrong, returns the fields up to the fault,
        which the note of the last one describes. Empty for a form without fields (JSON)."""
        ...

    @property
    def inspect_options(self) -> Mapping[str, str]:
        """Default options for frames to inspect: the most tolerant ones."""
        ...
