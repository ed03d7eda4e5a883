"""Optional abilities of plugins, with the defaults for objects that lack them.

A plugin offers an ability by an attribute or method of that name, without inheritance or declaration. One of them is a
fabric: a network that delivers a message by its key to all nodes interested in the key. Its peers cannot be told apart. A
transport to a fabric has a method `TransportFeatures.hear`, which the `Fabric` of a protocol passes to its sessions, so that
they can say which keys to receive.
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
"""Sets the expressions of all keys to receive from now on, in place of earlier ones. In an expression ``*`` matches one
segment. A message that matches several expressions is received once."""
LEVELS: Final = 7
"""Priorities of a fabric, from 0, the lowest, to 6."""


class Sample(Struct, frozen=True, weakref=True):
    """One message on a fabric.

    Attributes:
        key: Its name for receivers: segments between slashes.
        attachment: Data beside the payload; None without any.
        payload: The content.
        level: Its priority, 0 to 6.
    """

    key: str
    attachment: bytes | None
    payload: bytes
    level: int

    @property
    def size(self) -> int:
        """Bytes of all its parts while it waits."""
        return len(self.key) + len(self.attachment or b"") + len(self.payload)


class Fabric(Protocol):
    """Protocol on a fabric: frames as samples, and sessions that choose what to receive."""

    def session(self, role: Role, limits: Limits, rng: random.Random | None, hear: Hear) -> Session:
        """Session on a fabric, as `ProtocolAdapter.session`.

        Args:
            role: Both ends of a fabric usually behave alike.
            limits: Limits of the bus.
            rng: Source of ids.
            hear: The session calls it at its start, and to change the keys to receive.
        """
        ...

    def sample(self, frame: bytes) -> Sample:
        """Sample for a frame of a session."""
        ...

    def sender(self, key: str) -> str:
        """Sender of a sample as far as the key tells: the transport limits its backlog per sender. Called from any thread."""
        ...

    def frame(self, sample: Sample, limits: Limits) -> bytes | None:
        """Frame of a sample; None for a sample of other programs on the same fabric, which is ignored silently.

        Raises:
            RemoteProtocolError: Invalid: too large, cut off, or its key does not match its content.
        """
        ...


_NOTHING: Final[Mapping[str, str]] = {}


def _nothing(*_: object) -> None:
    """No-op default."""


class _Features(Struct, frozen=True, weakref=True):
    @classmethod
    def of(cls, plugin: object) -> Self:
        """Current abilities of an object."""
        given: dict[str, Any] = {}
        for name in cls.__struct_fields__:
            if (ability := getattr(plugin, name, _Features)) is not _Features:
                given[name] = ability
        return cls(**given)


class TransportFeatures(_Features, frozen=True, kw_only=True):
    """Optional abilities of a `Transport`."""

    initiates: bool = True
    """This end may begin requests and publications. If it may only answer, they are `Unsupported`."""
    admitted: bool = True
    """The server has admitted the client. If the connection can precede admission, without a later signal, and the protocol
    has no handshake either, a first connect waits briefly for a refusal."""
    framed: Callable[[bytes], bytes | None] | None = None
    """``framed(frame)`` returns the bytes of a frame if they are the same on every connection, so that fan-out makes them
    once; None if this connection differs."""
    send_framed: Callable[[bytes, int], None] | None = None
    """``send_framed(data, turn)`` sends such bytes. `turn` counts the iterations of the event loop, so that the first write
    of an iteration can leave at once."""
    send_alone: Callable[[bytes], None] | None = None
    """Send and flush now: no other frame follows in this iteration of the event loop."""
    keep_short: Callable[[], None] = _nothing
    """Called before ``start`` on wires with priorities: keep queues of the operating system short, because urgent messages
    cannot overtake there."""
    pause_reading: Callable[[], None] = _nothing
    """Stop reading from a peer because its receiver is slow. Without it the bus keeps input up to a limit, then ends the
    connection."""
    resume_reading: Callable[[], None] = _nothing
    """Resume reading."""
    written: Callable[[], Awaitable[None]] | None = None
    """Returns when all sent data has left, where writing takes a while."""
    slow_arrival: Callable[[], int] | None = None
    """Bytes of frames that arrive slowly: frames unfinished since the last `tick`, or not yet passed on. Charged to
    `Limits.total_bytes`."""
    idle: Callable[[], float] | None = None
    """Seconds since the peer's last request; 0 while it waits for something. On transports without a connection of their own:
    if there are too many peers, one that is idle for ten seconds gives way."""
    hear: Hear | None = None
    """Sets the keys to receive: this transport leads to a fabric and receives nothing else. `ProtocolFeatures.fabric` makes
    its sessions."""


class ReceiverFeatures(_Features, frozen=True, kw_only=True):
    """Optional abilities of a `Receiver`."""

    closing: Callable[[Closed], None] = _nothing
    """Called when nothing more is sent or received but the end takes a while, for example until the peer has read the reason.
    Unanswered requests end now; `closed` follows."""
    lost: Callable[[int, str], None] = _nothing
    """``lost(count, why)`` reports messages that this end dropped, in either direction, and the reason; an empty one is not
    logged."""
    malformed: Callable[[RemoteProtocolError], None] = _nothing
    """``malformed(error)`` reports input that is not a frame."""


class EndpointFeatures(_Features, frozen=True, kw_only=True):
    """Optional abilities of a `Connector`, of a `TransportAdapter`, and (`load` only) of an `HttpBinding`."""

    spent: bool = False
    """The connector cannot be used again: ``connect(..., wait=)`` does not wait for another attempt."""
    other_servers: Callable[[Sequence[str], bool], None] = _nothing
    """``other_servers(addresses, leaving)`` gives a connector more addresses (``host:port``) of its service, to try in turn
    if one does not answer. With `leaving` the current server is about to stop."""
    carries_query: bool = False
    """The handshake shows the server a query: members of a URL's query that are not options of the protocol stay in the
    address."""
    bind: Callable[[str], Awaitable[list[socket.socket]]] | None = None
    """``await bind(url)`` binds the address and returns sockets for ``ListenOptions.sockets``, so that several processes can
    serve at sockets bound by one of them. May raise `OSError`."""
    keeps_sessions: bool = False
    """A client uses several connections in succession, which must all reach the same process."""
    load: Callable[[bool], None] = _nothing
    """``load(serves)`` imports the modules for listeners, or for connections. Called when a URL names the transport, if
    possible before the event loop starts, so that no import blocks it."""


class FramingFeatures(_Features, frozen=True, kw_only=True):
    """Optional abilities of a `Framing`."""

    gathers: bool = False
    """The peer only relays: frames of one event loop iteration leave together, without waking the peer for parts of them."""


class CodecFeatures(_Features, frozen=True, kw_only=True):
    """Optional abilities of a `Codec`."""

    item_formats: tuple[BodyFormat, ...] | None = None
    """Body formats of items (of streams, channels and tunnels) if they differ from other bodies. In a tunnel frames travel
    untouched as `body.OCTETS` if listed, on a wire of text also as `body.JSON`; otherwise as a value of the wire."""
    one_format: bool = False
    """True if every value is written in the first of `Codec.formats`, so that `Codec.format_for` need not be called."""
    urgency: Callable[[Message], int] | None = None
    """``urgency(message)`` returns its urgency on wires with priorities; higher goes first."""


class SessionMoves(Protocol):
    """Abilities of a session for a server that can announce its end and other servers in `OtherServers`: the link dials one
    of these, and has both connections for a while."""

    def beside(self, other: Any) -> None:
        """Register the session on the other connection; its messages are also of this bus. Called on both, before the
        handshake."""

    def retire(self) -> Frames:
        """Withdraw all subscriptions, since the other connection has them. Messages sent before the other end knows are
        delivered as before; `CloseWanted` follows when all is answered."""
        ...

    def holds(self, key: Any) -> bool:
        """True if this connection has a request or channel with that id or key."""
        ...

    def asked(self) -> list[Any]:
        """Keys of this side's unanswered requests."""
        ...


class SessionFeatures(_Features, frozen=True, kw_only=True):
    """Optional abilities of a `Session`."""

    pieces: Callable[[bytes], Sequence[bytes]] | None = None
    """``pieces(frame)`` splits a frame with very many messages into several frames that each take a few
    milliseconds. The bus runs other work in between."""
    confirm: Callable[[float], tuple[Any, Frames]] | None = None
    """``confirm(now)`` returns a key and a request. Its answer, `Confirmed` with that key, shows that the other end has handled
    all earlier messages. Where it exists, entering a subscription waits for it."""
    ask: Callable[[str | int, bytes | None, float], tuple[Any, bytes]] | None = None
    """``ask(subject, raw, ttl)`` replaces `Session.send` for the usual request: a time to live below 10^12 seconds, no
    headers, and its body (if any) in the first of `Codec.formats`. With the codec's `one_format` no `Message` is created."""
    tell: Callable[[Any, bytes | None], bytes] | None = None
    """``tell(id, raw)`` does the same for the frame of a response."""
    moves: SessionMoves | None = None
    """For sessions that can move to another connection."""


class ProtocolFeatures(_Features, frozen=True, kw_only=True):
    """Optional abilities of a `ProtocolAdapter`."""

    connections: Callable[[], Sequence[ProtocolAdapter]] | None = None
    """Adapters of the connections, for a protocol that needs several to one place."""
    dials: bool = False
    """Servers connect instead of listening, because their clients come through a broker."""
    keeps: bool = False
    """Its links may lead to a store for handlers and subscriptions."""
    web_endpoint: Callable[[str], WebEndpoint] | None = None
    """``web_endpoint(path)`` returns the endpoint for `polybus.fastapi.attach` and servers of ``http``; see `WebEndpoint`."""
    http_binding: type[HttpBinding] | None = None
    """The protocol over HTTP, at both ends; its `web_endpoint` is the fallback for the adapter's."""
    option_names: Collection[str] | None = None
    """Members of a URL's query that are options; default: the attrs fields of the adapter."""
    actions: Sequence[tuple[str, int]] = ()
    """Numbers of named subjects, which no URL can contain; captures keep them."""
    dissect: Callable[[bytes], Sequence[FrameField]] | None = None
    """Fields of a frame for people; see `Dissector`."""
    framing: Framing | None = None
    """Its own framing on byte streams and WebSockets, instead of the transport's."""
    fabric: Fabric | None = None
    """The protocol on fabrics such as Zenoh; unsupported there without it."""
    user_options: Callable[[str, str | None], Mapping[str, str]] | None = None
    """``user_options(user, password)`` turns the user and password of a URL into options: the protocol sends them to the
    server if the transport cannot."""
    files: Mapping[str, str] = _NOTHING
    """Paths of files that each connection needs the current text of, such as keys that are replaced while the program runs,
    with a name for people. The bus reads them before it connects, and passes them to `with_files`."""
    with_files: Callable[[Mapping[str, str]], ProtocolAdapter] | None = None
    """``with_files(texts)`` returns the adapter of one connection for the text of each path; raises `ValueError` for an
    invalid file. A lost connection is retried as long as files cannot be read, or a server rejects their contents."""
    default_port: int | None = None
    """Default port of ``tcp`` and ``tls``. WebSockets and HTTP use the web's."""
    spellings: Callable[[str | int], tuple[str, ...]] | None = None
    """``spellings(subject)`` returns other names of a publication of this side, on wires with names and addresses: the
    address of a name, and the name of an address."""
    unhandled: str | None = None
    """Subject without a handler for `polybus doctor`, on wires where not every name is a subject."""
    inspect_options: Mapping[str, str] | None = None
    """Options for frames that are only inspected; see `Dissector`."""
