"""Optional features of plugins, with their defaults.

A plugin provides a feature by defining an attribute or method with that name. It doesn't need to inherit from or declare
anything.

Fabrics are one such feature. A fabric is a network that delivers each message by its key to all interested nodes. Nodes cannot
be distinguished from each other. A transport for a fabric defines `TransportFeatures.hear`, which the protocol's `Fabric`
passes to its sessions so that they can choose which keys to receive.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias

from msgspec import Struct

from ..body import BodyFormat
from ..errors import RemoteProtocolError
from ..limits import Limits
from ..message import Message
from .transports import Closed, Framing

if TYPE_CHECKING:
    import socket

    from .protocols import FrameField, Frames, ProtocolAdapter, Role, Session
    from .transports import HttpBinding, WebEndpoint

Hear: TypeAlias = Callable[[Sequence[str]], None]
"""Replaces the key expressions to receive. ``*`` matches one segment. Messages that match several expressions arrive once."""
LEVELS: Final = 7
"""Number of priorities on a fabric, from 0 (lowest) to 6."""


class Sample(Struct, frozen=True, weakref=True):
    """A message on a fabric.

    Attributes:
        key: Key for delivering the message, in segments separated by slashes.
        attachment: Data sent along with the payload, or None.
        payload: Content of the message.
        level: Priority from 0 to 6.
    """

    key: str
    attachment: bytes | None
    payload: bytes
    level: int

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return len(self.key) + len(self.attachment or b"") + len(self.payload)


class Fabric(Protocol):
    """A protocol's support for fabrics: converts between frames and samples, and creates sessions that choose keys."""

    def session(self, role: Role, limits: Limits, rng: random.Random | None, hear: Hear) -> Session:
        """Create a session on a fabric, like `ProtocolAdapter.session`.

        Args:
            role: Rarely makes a difference on a fabric.
            limits: Limits of the bus.
            rng: Source of ids.
            hear: Called by the session when it starts, and whenever the keys to receive change.
        """
        ...

    def sample(self, frame: bytes) -> Sample:
        """Convert a frame of a session to a sample."""
        ...

    def sender(self, key: str) -> str:
        """Return the part of a key that identifies the sender, to limit the backlog per sender. Called in any thread."""
        ...

    def frame(self, sample: Sample, limits: Limits) -> bytes | None:
        """Convert a sample to a frame, or return None to ignore a sample from an unrelated program on the same fabric.

        Raises:
            RemoteProtocolError: If the sample is too large or truncated, or its key doesn't match its content.
        """
        ...


def _nothing(*_: object) -> None:
    pass


class _Features(Struct, frozen=True, weakref=True):
    @classmethod
    def of(cls, plugin: object) -> Self:
        """Return the features of an object."""
        given: dict[str, Any] = {}
        for name in cls.__struct_fields__:
            if (ability := getattr(plugin, name, _Features)) is not _Features:
                given[name] = ability
        return cls(**given)


class TransportFeatures(_Features, frozen=True, kw_only=True):
    """Optional features of a `Transport`."""

    initiates: bool = True
    """False if this side can only answer. Starting requests or publications then raises `Unsupported`."""
    admitted: bool = True
    """False if the server hasn't admitted the client yet and won't report when it does. If the protocol has no handshake, the
    first connect then waits briefly for a rejection."""
    framed: Callable[[bytes], bytes | None] | None = None
    """``framed(frame)`` returns the bytes to write for a frame, so that fan-out prepares them once for all connections. It
    returns None if this connection writes frames differently."""
    send_framed: Callable[[bytes, int], None] | None = None
    """``send_framed(data, turn)`` sends the result of `framed`. `turn` counts event loop iterations, so that the first write of
    an iteration can be flushed immediately."""
    send_alone: Callable[[bytes], None] | None = None
    """``send_alone(frame)`` sends a frame that is the last in this event loop iteration, and flushes it."""
    keep_short: Callable[[], None] = _nothing
    """Called before ``start`` if the protocol has priorities. The transport should then keep socket buffers small, because
    urgent messages cannot overtake others there."""
    pause_reading: Callable[[], None] = _nothing
    """Stops reading, to slow down the peer. Without this feature, the bus buffers input up to a limit and then disconnects."""
    resume_reading: Callable[[], None] = _nothing
    """Starts reading again."""
    written: Callable[[], Awaitable[None]] | None = None
    """Waits until everything has been written, on transports with slow writes."""
    slow_arrival: Callable[[], int] | None = None
    """Returns the bytes of frames that arrive slowly: those not delivered yet, or incomplete since the last `tick`. They count
    in `Limits.total_bytes`."""
    idle: Callable[[], float] | None = None
    """Returns the seconds since the peer's last request, or 0 if it is waiting for something, on transports without permanent
    connections. If there are too many peers, the bus drops one that has been idle for ten seconds."""
    hear: Hear | None = None
    """Sets the keys to receive from a fabric. Sessions of such a transport come from `ProtocolFeatures.fabric`."""


class ReceiverFeatures(_Features, frozen=True, kw_only=True):
    """Optional features of a `Receiver`."""

    closing: Callable[[Closed], None] = _nothing
    """Called before `closed` if closing takes a while, for example until the peer has read the reason. Nothing more is sent or
    received, so pending requests fail now."""
    lost: Callable[[int, str], None] = _nothing
    """``lost(count, why)`` reports messages that this side dropped, in either direction, and logs the reason, if any."""
    malformed: Callable[[RemoteProtocolError], None] = _nothing
    """``malformed(error)`` reports input that is not a frame."""


class EndpointFeatures(_Features, frozen=True, kw_only=True):
    """Optional features of a `Connector` or a `TransportAdapter`, and (`load` only) of an `HttpBinding`."""

    spent: bool = False
    """True if the connector cannot connect again, so that ``connect(..., wait=)`` doesn't retry."""
    other_servers: Callable[[Sequence[str], bool], None] = _nothing
    """``other_servers(addresses, leaving)`` adds addresses (``host:port``) of the same service, to try in turn if a server goes
    down. `leaving` is True if the current server is about to stop."""
    carries_query: bool = False
    """True if the transport sends the query to the server. Parameters that the protocol doesn't use then stay in the
    address."""
    bind: Callable[[str], Awaitable[list[socket.socket]]] | None = None
    """``await bind(url)`` binds the address and returns sockets for ``ListenOptions.sockets``, so that several processes can
    serve the same address. May raise `OSError`."""
    keeps_sessions: bool = False
    """True if a client uses a series of connections that must all reach the same process."""
    load: Callable[[bool], None] = _nothing
    """``load(serves)`` imports the modules for listening or connecting. Called when a URL names the transport, usually before
    the event loop starts, so that imports don't block it."""


class FramingFeatures(_Features, frozen=True, kw_only=True):
    """Optional features of a `Framing`."""

    gathers: bool = False
    """True to write all frames of an event loop iteration together, for peers that only relay messages."""


class CodecFeatures(_Features, frozen=True, kw_only=True):
    """Optional features of a `Codec`."""

    item_formats: tuple[BodyFormat, ...] | None = None
    """Body formats of stream, channel and tunnel items, if other messages have different ones. Tunnels pass frames
    through unchanged as `body.OCTETS` or, in text protocols, `body.JSON`, if listed, and otherwise as a value in the default
    format."""
    one_format: bool = False
    """True if every value uses the first of `Codec.formats`, so that the bus need not call `Codec.format_for`."""
    urgency: Callable[[Message], int] | None = None
    """``urgency(message)`` returns the priority of a message. Messages with a higher priority are sent first."""


class SessionMoves(Protocol):
    """Optional methods that let a session move to another server.

    When a server announces in `OtherServers` that it is about to stop, the link connects to another one and uses both
    connections until the first has finished.
    """

    def beside(self, other: Any) -> None:
        """Introduce the session of the other connection, which belongs to the same bus. Called on both before the handshake."""

    def retire(self) -> Frames:
        """Withdraw all subscriptions, because the other connection has them now.

        Messages in transit are still delivered. The session returns `CloseWanted` after the last answer.
        """
        ...

    def holds(self, key: Any) -> bool:
        """Return True if a request or channel with this id or key belongs to this connection."""
        ...

    def asked(self) -> list[Any]:
        """Return the keys of this side's unanswered requests."""
        ...


class SessionFeatures(_Features, frozen=True, kw_only=True):
    """Optional features of a `Session`."""

    pieces: Callable[[bytes], Sequence[bytes]] | None = None
    """``pieces(frame)`` splits a huge batch into frames that take a few milliseconds each. The bus does other work in
    between."""
    confirm: Callable[[float], tuple[Any, Frames]] | None = None
    """``confirm(now)`` returns a key and the frames of a request. The session returns `Confirmed` with that key when the peer
    has handled all earlier messages. Entering a subscription waits for it."""
    ask: Callable[[str | int, bytes | None, float], tuple[Any, bytes]] | None = None
    """``ask(subject, raw, ttl)`` is a faster `Session.send` for requests without headers, with a body (if any) in the first of
    `Codec.formats` and a timeout below 10^12 seconds. It raises `TooLarge` if the frame would exceed `Limits.message`. The bus
    uses `ask`, `tell` and `usual` only if the codec sets `one_format`, and no short method on connections with `many_peers`."""
    tell: Callable[[Any, bytes | None], bytes] | None = None
    """``tell(id, raw)`` returns the frame of a response in the same way. It also raises `TooLarge`."""
    publication: Callable[[str | int, bytes], bytes | None] | None = None
    """``publication(subject, raw)`` is a faster `Session.send` for publications that have a body in the first of
    `Codec.formats` but no headers. It returns None for a publication that needs `send`. The bus checks `Limits.message`
    afterwards."""
    usual: Callable[[bytes, Mapping[Any, Any]], Message | None] | None = None
    """``usual(frame, pending)`` is a faster `Session.receive` for requests, publications, and responses with an id in
    `pending`. It returns None for any other frame, which the bus then passes to `receive`."""
    moves: SessionMoves | None = None
    """Set if the session can move to another connection."""


class ProtocolFeatures(_Features, frozen=True, kw_only=True):
    """Optional features of a `ProtocolAdapter`."""

    connections: Callable[[], Sequence[ProtocolAdapter]] | None = None
    """Returns an adapter for each connection, if the protocol needs several connections to the same address."""
    dials: bool = False
    """True if servers connect to a broker instead of listening."""
    keeps: bool = False
    """True if the peer may be a store that handlers and subscriptions can read from."""
    web_endpoint: Callable[[str], WebEndpoint] | None = None
    """``web_endpoint(path)`` returns the endpoint for `polybus.fastapi.attach` and ``http`` servers; see `WebEndpoint`."""
    http_binding: type[HttpBinding] | None = None
    """The protocol over HTTP, for clients and servers. `web_endpoint` of the adapter takes precedence over the binding's."""
    option_names: Collection[str] | None = None
    """Query parameters that are options of the protocol. Defaults to the attrs fields of the adapter."""
    actions: Sequence[tuple[str, int]] = ()
    """Subjects and their numbers, for captures, because URLs cannot contain them."""
    dissect: Callable[[bytes], Sequence[FrameField]] | None = None
    """Returns the fields of a frame; see `Dissector`."""
    framing: Framing | None = None
    """The protocol's own framing on byte streams and WebSockets."""
    fabric: Fabric | None = None
    """Support for fabrics such as Zenoh."""
    user_options: Callable[[str, str | None], Mapping[str, str]] | None = None
    """``user_options(user, password)`` converts a URL's user and password to options, for transports that cannot send them."""
    files: Mapping[str, str] = {}
    """Paths of files to read before each connection, such as rotated keys, with a description of each file. The bus reads them
    and calls `with_files`."""
    with_files: Callable[[Mapping[str, str]], ProtocolAdapter] | None = None
    """``with_files(texts)`` returns the adapter for one connection, given the content of each path. It raises `ValueError` for
    an invalid file. The link keeps reconnecting while files are unreadable or the server rejects their contents."""
    default_port: int | None = None
    """Default port for ``tcp`` and ``tls``. WebSockets and HTTP use 80 and 443."""
    spellings: Callable[[str | int], tuple[str, ...]] | None = None
    """``spellings(subject)`` returns other names of a local publication: the address for a name, or the name for an address."""
    unhandled: str | None = None
    """A valid subject without a handler, for `polybus doctor`. Set this if the protocol doesn't accept every name as a
    subject."""
    inspect_options: Mapping[str, str] | None = None
    """Options for inspecting frames; see `Dissector`."""
