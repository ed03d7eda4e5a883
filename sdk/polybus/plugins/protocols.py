"""Interfaces of a protocol: a codec, a session on it, an adapter that makes both, and the events of a session."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, Self, TypeAlias

from attrs import field, frozen

from ..body import BodyFormat
from ..errors import BusError, Code, RemoteProtocolError
from ..limits import Limits
from ..message import Message
from .mesh import Due, Lost, NodeJoined, NodeLeft

Role: TypeAlias = Literal["client", "server"]
"""``client`` opened the connection, ``server`` accepted it."""


@frozen(kw_only=True)
class Capabilities:
    """Abilities of a session's wire by itself, without the extensions between our own buses."""

    publish: bool = True
    """Publications have a form of their own."""
    subscribe: bool = True
    """Subscriptions have a form of their own; without it every publication is sent to a bare peer."""
    filters: bool = False
    """Subscriptions are for the session itself, which says to its transport what is to be heard; the other end knows none, and
    every publication is sent."""
    many_senders: bool = False
    """Many programs send over this connection, and nobody knows which of them sent a malformed message: a message broker, a
    fabric. Malformed messages are dropped and counted, and however many there are the connection stays."""
    patterns: bool = False
    """A bare peer understands our wildcard patterns."""
    numbers: bool = False
    """Subjects may be ``int``."""
    headers: bool = True
    bare_headers: bool = True
    """A bare peer reads headers: they are of the wire's own specification. Otherwise those that the bus adds by itself, and its
    outgoing hooks, go to polybus peers alone."""
    own_headers: frozenset[str] = frozenset()
    """Headers, in lower case, that have a place of their own on a wire that has no others: of what outgoing hooks add, these go
    on, and a session may refuse the rest of what an application sets."""
    destinations: bool = False
    """The peer stands for many, each with an address: a notification whose `attributes` have ``to`` goes to that one."""
    answer_headers: bool = True
    """Answers carry headers too; otherwise those that a handler sets are left out."""
    deadlines: bool = True
    """A request carries how long its asker waits."""
    extensions: bool = True
    """The session can write cancel, open, item, credit and end to a peer of ours."""
    built_in: bool = False
    """These are of the wire itself: the peer need not be asked whether it is ours."""
    announce: Literal["client", "both"] = "client"
    """Side that tells the other one of its subscriptions: the side that opened the link, or both."""
    handlers: bool = False
    """The peer asks only for subjects that it was told of: those of handlers are announced to it like subscriptions."""
    groups: bool = False
    """Handlers of a subject share its requests, on this wire, and are announced in a form of their own: a subscribe or
    unsubscribe whose `attributes` have ``handler``, beside that of a subscription to the same subject. With `handlers`."""
    many_peers: bool = False
    """One connection carries several peers (`PeerOpened`, `PeerClosed`); otherwise it has one, opened at `Ready`."""
    shared_publish: bool = False
    """A publication's frame is the same on every session of this codec, so fan-out encodes it once."""
    asks_before_publishing: bool = False
    """Publications and subscriptions are extensions too: a bare peer reads none, so that they are `Unsupported` with it. The
    bus finds out by `_polybus.hello` before the first one."""
    asks_before_headers: bool = False
    """Headers are an extension too, and a bare peer does not understand a request that has some: what a bridge adds of its own
    is left out with it."""
    scarce_ids: bool = False
    """Ids come round again: a request that was cancelled is answered all the same, so that its id is free at once."""
    answers_duplicates: bool = False
    """A request whose id is still in flight is answered, with an error under that id. Otherwise it is only counted: the answer
    would be taken for that of the first one."""
    initiates: bool = True
    """This side may begin requests and publications. Where that depends on the connection (a plain HTTP server only answers),
    the transport says it: see `TransportFeatures`."""


class Codec(Protocol):
    """Frames to messages and back. Pure: options, but no role and no state.

    It may offer more: see `CodecFeatures`.
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
        """The kind of frames that `encode` gives. Text frames are UTF-8 bytes too."""
        ...

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        """The format in which a value is written to a subject."""
        ...

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        """The messages of one frame; an error in the list stands for one refused message among good ones.

        A body that is given as JSON is one JSON value, and has been read: what is none is refused.

        Raises:
            RemoteProtocolError: The frame is not of this protocol. Nothing else is ever raised, whatever the bytes.
        """
        ...

    def encode(self, messages: Sequence[Message]) -> bytes:
        """One frame with these messages. Only wires with `join` take more than one.

        Raises:
            EncodeError: A body does not fit the wire.
            Unsupported: The wire has no form for this kind of message, or for so many.
            LocalProtocolError: A subject, a header or the id does not fit the wire, or a message breaks a rule of the protocol.
            ReservedSubject: A subject belongs to the protocol.
        """
        ...


@frozen
class Ready:
    """The handshake is over: the link may carry traffic.

    Attributes:
        bare: The handshake has shown that the peer is none of ours: it need not be asked for the extensions.
        node: Of a wire between the nodes of a mesh: the name of this one on it.
    """

    bare: bool = False
    node: str = ""


@frozen
class PeerOpened:
    """A peer appeared on a connection that carries many, after `Ready`. `key` is how the session names it in `Message.peer`.

    It is not admitted yet: `Bus(authenticate=...)` is asked, with `params` in the handshake.
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
    """Something was malformed. The session answers it beside this, where it can, or leaves it to the bus.

    Attributes:
        answer: What the bus is to send, unless the peer has a request or a channel in flight under its id: for wires where
            it would be taken for the answer to that.
    """

    error: RemoteProtocolError
    peer_key: Any = None
    answer: Message | None = None


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


@frozen
class Confirmed:
    """The other end has handled all that was sent before a question; see `SessionFeatures.confirm`."""

    key: Any
    refused: Collection[str | int] = ()
    """Patterns whose subscriptions it does not allow, as far as it has said so on this connection."""


@frozen
class OtherServers:
    """The same service is at other addresses too: they are tried where this one does not answer, if the transport can."""

    addresses: Sequence[str]
    """Each ``host:port``."""
    leaving: bool = False
    """The server at this end is about to leave: the next connection had better go to another."""


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
"""One frame for the transport, as nearly always; or several, in order; or none, an empty sequence."""

SessionOutput: TypeAlias = Message | Iterable[Message | SessionEvent | bytes]
"""The outcome of a frame that came in, or of the time: one message, as nearly always; or several messages, events and
frames for the transport. The bus does one after the other and asks for the next only then: so an iterator may wait for what
the bus sends meanwhile. Anything else is a mistake of the protocol: it costs the link, and the log names it."""


class Session(Protocol):
    """One connection of a protocol, without I/O. Time is monotonic seconds, always passed in.

    It may offer more: see `SessionFeatures`. Of a message from one of many peers, `Message.peer` is its key.
    """

    @property
    def codec(self) -> Codec:
        """The codec that the session stands on."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """Abilities of this wire. They may change only before `Ready`."""
        ...

    def start(self, now: float) -> SessionOutput:
        """The connection is there: the first frames of the handshake, or `Ready` where there is none."""
        ...

    def receive(self, frame: bytes, now: float) -> SessionOutput:
        """One frame has come in. Never raises: what is wrong with it becomes `Refused` or `CloseWanted`.

        Answers carry in `Message.id` the key that `send` gave for the request; incoming requests and opens carry an id that
        must be handed back in `Message.id` of the answer.
        """
        ...

    def send(self, message: Message, now: float, peer_key: Any = None) -> tuple[Any, Frames]:
        """The key and the frames of a message. For a request or an open the key by which its answers will be known; else None.

        `Message.id` must be set for everything that belongs to an earlier message (response, error, cancel, item, credit,
        end): to the id of the request or open, or to the key that `send` gave for it.

        Keys are hashable, differ from the ids of what the peer has opened, and are never given twice: a cancel may be sent for
        a key after `forget`, when its id on the wire already belongs to another request. The message is not changed: it may
        go to other peers too.

        Raises:
            EncodeError: The body does not fit the wire.
            Unsupported: The wire has no form for this kind of message.
            LocalProtocolError: The subject, a header or the id does not fit the wire, or a deadline is missing that it wants.
            ReservedSubject: The subject belongs to the protocol.
            TooLarge: The frame would exceed `Limits.message`.
            QueueFull: No id is free.
            Disconnected: The peer of `peer_key` has gone.
        """
        ...

    def forget(self, key: Any, now: float) -> Frames:
        """Forget a request that is not awaited any more (deadline, cancel), or a channel that is over, by its key or id.

        The session may quarantine the id. What it gives is said to the peer.
        """
        ...

    def next_tick(self) -> float | None:
        """Time at which `tick` is to be called (heartbeat, handshake deadline), or None."""
        ...

    def tick(self, now: float) -> SessionOutput:
        """Time has passed."""
        ...

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> Frames:
        """Whatever the protocol says when it leaves (or, with `peer_key`, when it sends one of many peers away).

        A peer that was sent away counts as gone at once; `PeerClosed` for it may follow or not.
        """
        ...

    def connection_lost(self, reason: str) -> None:
        """The connection is gone; nothing will be written any more."""


_READY: Final = (Ready(),)


class QuietSession:
    """A base for sessions of protocols without handshake, heartbeat and goodbye, whose ids are never used again.

    `codec`, `capabilities`, `receive` and `send` are the session's own.
    """

    __slots__ = ()

    def start(self, now: float) -> SessionOutput:
        """There is no handshake: ready at once."""
        return _READY

    def forget(self, key: Any, now: float) -> Frames:
        """There is nothing to set aside."""
        return ()

    def next_tick(self) -> float | None:
        """Never: the protocol has no clock."""
        return None

    def tick(self, now: float) -> SessionOutput:
        """Time has passed; nothing depends on it."""
        return ()

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> Frames:
        """The protocol has no goodbye; the transport closes."""
        return ()

    def connection_lost(self, reason: str) -> None:
        """Nothing is kept."""


class ProtocolAdapter(Protocol):
    """A protocol with its options set; an immutable value. `polybus.protocols.Ubre(format="binary")` is one.

    It may offer more: see `ProtocolFeatures`.
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
    """Its meaning, or what is wrong with it."""


class Dissector(Protocol):
    """An ability that an adapter may have besides: a view of its frames, field by field, for `polybus inspect` and the like.

    It looks at the bytes alone and is for frames that do not decode, too.
    """

    def dissect(self, frame: bytes) -> Sequence[FrameField]:
        """The fields of a frame, in the order in which they stand. Never raises: a frame that is cut off or wrong gives the
        fields up to there, the last one with a note that says what is wrong. Nothing for a form without fields (JSON).
        """
        ...

    @property
    def inspect_options(self) -> Mapping[str, str]:
        """Options with which frames that are only looked at are read, unless others are named: those that accept the most."""
        ...
