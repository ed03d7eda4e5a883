"""Interfaces for protocols: codec, session, session events, and the adapter that creates them."""

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
"""``client`` for the side that opened the connection, ``server`` for the side that accepted it."""


class Capabilities(Struct, frozen=True, weakref=True, kw_only=True):
    """Features of a protocol itself, without the extensions that polybus peers use.

    A *bare* peer is a program that doesn't run polybus.
    """

    publish: bool = True
    """True if the protocol has publications."""
    subscribe: bool = True
    """True if the protocol has subscriptions. Otherwise bare peers receive every publication."""
    filters: bool = False
    """True if the session filters messages by telling its transport what to receive. The remote side then doesn't know the
    subscriptions and is sent every publication."""
    many_senders: bool = False
    """True if many unidentified programs send over one connection, as through a message broker or a fabric. Malformed messages
    are then dropped and counted, but never end the connection."""
    patterns: bool = False
    """True if bare peers understand wildcard patterns."""
    numbers: bool = False
    """True if subjects can be integers."""
    headers: bool = True
    bare_headers: bool = True
    """True if the specification of the protocol defines headers, so that bare peers can read them. Otherwise the bus sends its
    own headers and the headers from outgoing hooks to polybus peers only."""
    own_headers: frozenset[str] = frozenset()
    """Lower-case names of the headers with a fixed place, in a protocol without general headers. Outgoing hooks can add only
    these, and the session may reject others that an application sets."""
    destinations: bool = False
    """True if the peer represents many programs, each with its own address. Notifications are sent to the address in ``to`` of
    the message's `attributes`."""
    answer_headers: bool = True
    """True if answers carry headers. Otherwise headers set by a handler are dropped."""
    deadlines: bool = True
    """True if requests carry the caller's timeout."""
    extensions: bool = True
    """True if the session can send cancel, open, item, credit and end messages to a polybus peer."""
    built_in: bool = False
    """True if the protocol itself defines the extensions, so the bus doesn't need to find out whether the peer runs polybus."""
    announce: Literal["client", "both"] = "client"
    """Side that announces its subscriptions: ``client`` for the side that opened the link, or ``both``."""
    handlers: bool = False
    """True if peers send requests only for announced subjects. The bus then announces handlers like subscriptions."""
    groups: bool = False
    """True if the handlers of a subject share its requests. Requires `handlers`. The bus announces them separately from
    subscriptions, in subscribe and unsubscribe messages with ``handler`` in their `attributes`."""
    many_peers: bool = False
    """True if a connection carries several peers, which `PeerOpened` and `PeerClosed` report. Otherwise `Ready` opens its
    peer."""
    shared_publish: bool = False
    """True if a publication has the same frame on all sessions of this codec, so that fan-out encodes it only once."""
    asks_before_publishing: bool = False
    """True if publications and subscriptions are extensions as well, which raise `Unsupported` for bare peers. The bus sends
    `_polybus.hello` before the first one."""
    asks_before_headers: bool = False
    """True if headers are an extension that makes requests unreadable for bare peers. Bridges then don't add their own."""
    scarce_ids: bool = False
    """True if ids are reused. Cancelled requests are then answered as well, to free their ids immediately."""
    answers_duplicates: bool = False
    """True if a request with an id that is still in flight can be answered with an error. Otherwise it is only counted, because
    the peer would take the error for the answer to the first request."""
    initiates: bool = True
    """True if this side may send requests and publications. If that depends on the connection, as with a plain HTTP server, use
    `TransportFeatures.initiates` instead."""


class Codec(Protocol):
    """Converts between frames and messages, without role or state.

    Optional features are listed in `CodecFeatures`.
    """

    @property
    def formats(self) -> tuple[BodyFormat, ...]:
        """Supported body formats, starting with the default."""
        ...

    @property
    def reads(self) -> frozenset[Literal["text", "binary"]]:
        """Kinds of frames that `decode` accepts, for transports that distinguish text and binary."""
        ...

    @property
    def writes(self) -> Literal["text", "binary"]:
        """Kind of frames that `encode` returns. Text frames are bytes in UTF-8."""
        ...

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        """Return the body format to use for a value."""
        ...

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        """Return the messages in a frame, with an error in place of each message that is invalid.

        The codec checks bodies: a JSON body in the result is exactly one valid JSON value.

        Raises:
            RemoteProtocolError: If the whole frame is invalid. No input raises any other exception.
        """
        ...

    def encode(self, messages: Sequence[Message]) -> bytes:
        """Return a frame with these messages. Most protocols support only one message per frame.

        Raises:
            EncodeError: If a body cannot be encoded.
            Unsupported: If the protocol doesn't have this kind of message, or cannot join several messages.
            LocalProtocolError: If a subject, header or id cannot be encoded, or a message violates the protocol.
            ReservedSubject: If a subject is reserved for the protocol.
        """
        ...


class Ready(Struct, frozen=True, weakref=True):
    """The handshake is complete, and the link can be used.

    Attributes:
        bare: True if the handshake showed that the peer doesn't run polybus. The bus then doesn't send a hello.
        node: Name of this node, in a protocol between the nodes of a mesh.
    """

    bare: bool = False
    node: str = ""


class PeerOpened(Struct, frozen=True, weakref=True):
    """A peer appeared on a connection that carries many peers. Sent only after `Ready`.

    The bus then authenticates the peer, with `params` in the handshake.

    Attributes:
        key: Identifies the peer in `Message.peer`.
    """

    key: Any
    address: str = ""
    params: Mapping[str, str] = {}


class PeerClosed(Struct, frozen=True, weakref=True):
    """A peer left a connection that carries many peers."""

    key: Any
    reason: str = ""


class Refused(Struct, frozen=True, weakref=True):
    """The session received something malformed. It may have sent an error answer itself.

    Attributes:
        answer: Error answer for the bus to send, unless the peer has another request or channel with the same id in flight and
            would take this for its answer.
    """

    error: RemoteProtocolError
    peer_key: Any = None
    answer: Message | None = None


class Undelivered(Struct, frozen=True, weakref=True):
    """A valid message must not be delivered, for example because it expired. The session has answered it if necessary."""

    message: Message
    code: Code
    reason: str
    """A short identifier, such as ``expired``."""
    text: str = ""


class CloseWanted(Struct, frozen=True, weakref=True):
    """The session asks the link to close the connection."""

    code: int
    """WebSocket close code."""
    reason: str
    error: BusError | None = None
    """Error to raise in local callers. A client's link reconnects unless this is `Unauthorized` or `Forbidden`."""


class Confirmed(Struct, frozen=True, weakref=True):
    """The peer has handled everything that was sent before the request of `SessionFeatures.confirm`."""

    key: Any
    refused: Collection[str | int] = ()
    """Patterns that the peer refused to subscribe to on this connection."""


class OtherServers(Struct, frozen=True, weakref=True):
    """Other addresses of the same service, to try if the current server goes down. Not all transports support this."""

    addresses: Sequence[str]
    """Addresses in the form ``host:port``."""
    leaving: bool = False
    """True if the current server is about to stop, so that the next connection should go to another one."""


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
"""Frames for the transport: a single frame, or a sequence that may be empty."""

SessionOutput: TypeAlias = Message | Iterable[Message | SessionEvent | bytes]
"""Result of an incoming frame or a tick, which is a message, or an iterable of messages, events and frames for the transport.
The bus handles each item before it requests the next one, so a generator can depend on messages that the bus sends in between.
If a session returns anything else, the bus logs an error and closes the link."""


class Session(Protocol):
    """State machine of a protocol for a single connection, without I/O. Times are passed as arguments, in monotonic seconds.

    On connections that carry many peers, `Message.peer` is the peer's key. Optional features are listed in `SessionFeatures`.
    """

    @property
    def codec(self) -> Codec: ...

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the protocol. They must not change after `Ready`."""
        ...

    def start(self, now: float) -> SessionOutput:
        """Start the session. Returns the first frames of the handshake, or `Ready` in a protocol without one."""
        ...

    def receive(self, frame: bytes, now: float) -> SessionOutput:
        """Handle an incoming frame. Never raises; errors are reported as `Refused` or `CloseWanted`.

        The `Message.id` of an answer is the key that `send` returned for the request. For incoming requests and opens, the
        session sets an id that the bus repeats in the answer's `Message.id`.
        """
        ...

    def send(self, message: Message, now: float, peer_key: Any = None) -> tuple[Any, Frames]:
        """Return a key and the frames for a message. The key identifies the answers to a request or open. Otherwise it is None.

        For responses, errors, cancels, items, credits and ends, `Message.id` is the id of the peer's request or open, or the
        key that `send` returned for a request or open from this side.

        Keys are hashable and differ from all ids of the peer. They must never be reused, even if ids on the wire are, because
        the bus may cancel a request by its key after `forget`. Don't modify the message, because it may be sent to other peers
        as well.

        Raises:
            EncodeError: If the body cannot be encoded.
            Unsupported: If the protocol doesn't have this kind of message.
            LocalProtocolError: If the subject, a header or the id cannot be encoded, or a required deadline is missing.
            ReservedSubject: If the subject is reserved for the protocol.
            TooLarge: If the frame would exceed `Limits.message`.
            QueueFull: If all ids are in use.
            Disconnected: If the peer with `peer_key` has left.
        """
        ...

    def forget(self, key: Any, now: float) -> Frames:
        """Forget a timed-out or cancelled request, or a finished channel, by its key or id.

        Returns frames to send to the peer. The session may delay the reuse of the id.
        """
        ...

    def next_tick(self) -> float | None:
        """Return the time at which `tick` must be called next, for example for a heartbeat, or None."""
        ...

    def tick(self, now: float) -> SessionOutput:
        """Do everything that is due at this time."""
        ...

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> Frames:
        """Return the frames that say goodbye on the connection or, with `peer_key`, disconnect one of many peers.

        The bus treats such a peer as gone immediately, whether or not `PeerClosed` follows.
        """
        ...

    def connection_lost(self, reason: str) -> None:
        """Handle the loss of the connection. Nothing more can be sent."""


_READY: Final = (Ready(),)


class QuietSession:
    """Base class for sessions without a handshake, heartbeat, goodbye or reuse of ids.

    Subclasses implement `codec`, `capabilities`, `receive` and `send`.
    """

    __slots__ = ()

    def start(self, now: float) -> SessionOutput:
        """Return `Ready`."""
        return _READY

    def forget(self, key: Any, now: float) -> Frames:
        """Do nothing."""
        return ()

    def next_tick(self) -> float | None:
        """Return None."""
        return None

    def tick(self, now: float) -> SessionOutput:
        """Do nothing."""
        return ()

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> Frames:
        """Return no frames. The transport closes the connection."""
        return ()

    def connection_lost(self, reason: str) -> None:
        """Do nothing."""


class ProtocolAdapter(Protocol):
    """An immutable object for a protocol and its options, such as `polybus.protocols.Ubre(format="binary")`.

    Optional features are listed in `ProtocolFeatures`.
    """

    @property
    def name(self) -> str:
        """Name of the protocol in URLs."""
        ...

    @property
    def url_options(self) -> Mapping[str, str]:
        """Options that differ from their defaults, as query parameters."""
        ...

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Create an adapter from the query parameters of a URL.

        Transports that send the query to the server pass only the parameters listed in ``option_names`` of the class, which
        defaults to its attrs fields.

        Raises:
            ValueError: If an option or its value is not known. The message lists the known ones.
        """
        ...

    def codec(self, limits: Limits = ...) -> Codec:
        """Return the codec, which must be the same object for equal adapters and limits."""
        ...

    def session(self, role: Role, limits: Limits = ..., rng: random.Random | None = None) -> Session:
        """Create the session for a connection. `rng` generates ids and defaults to `random.SystemRandom`."""
        ...


class FrameField(Struct, frozen=True, weakref=True):
    """A field of a frame, for display."""

    offset: int
    """Offset in bytes from the start of the frame."""
    length: int
    """Length in bytes."""
    name: str
    value: str
    """Human-readable value."""
    note: str = ""
    """Explanation of the field, or a description of its error."""


class Dissector(Protocol):
    """Shows the fields of frames in `polybus inspect` and similar tools. This is an optional feature of an adapter.

    It works on bytes, so it can show frames that fail to decode.
    """

    def dissect(self, frame: bytes) -> Sequence[FrameField]:
        """Return the fields of a frame in order, or an empty sequence for formats without fields, such as JSON.

        Never raises. For an invalid or truncated frame, the note of the last field describes the error.
        """
        ...

    @property
    def inspect_options(self) -> Mapping[str, str]:
        """Default options for inspecting frames. Choose the most tolerant ones."""
        ...
