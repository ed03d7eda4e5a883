"""Optional abilities of plugins: what an object may have besides its interface, and what holds where it does not.

A plugin offers one by having an attribute or method of that name, and nothing has to be inherited or declared. One of them is a
fabric: a net of nodes in which a message goes by its key to whoever has asked for such keys. It has no peers that could be told
apart. A transport that leads to one has a method `TransportFeatures.hear`, which the `Fabric` of a protocol hands to its
sessions there: they say with it what is to be heard.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias

from attrs import frozen

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
"""Takes the expressions of all keys that are to be heard from now on, in place of those before. In an expression ``*`` stands
for any one segment. What several of them let through is heard once."""
LEVELS: Final = 7
"""Priorities of a fabric, from 0, which waits for all others, to 6, which waits for none."""


@frozen
class Sample:
    """One message on a fabric.

    Attributes:
        key: Its name, by which it is heard: segments between slashes.
        attachment: What goes beside the payload; None where there is nothing.
        payload: The content.
        level: Its priority, 0 to 6.
    """

    key: str
    attachment: bytes | None
    payload: bytes
    level: int

    @property
    def size(self) -> int:
        """Bytes that it takes while it waits, all its parts together."""
        return len(self.key) + len(self.attachment or b"") + len(self.payload)


class Fabric(Protocol):
    """Form of a protocol on a fabric: its frames as samples, and sessions that say what they want to hear."""

    def session(self, role: Role, limits: Limits, rng: random.Random | None, hear: Hear) -> Session:
        """A session on a fabric; as `ProtocolAdapter.session`.

        Args:
            role: Both ends of a fabric speak alike, most often.
            limits: Of the bus.
            rng: Makes ids.
            hear: Called by the session when it starts, and whenever it wants to hear something else.
        """
        ...

    def sample(self, frame: bytes) -> Sample:
        """The sample of a frame that a session has made."""
        ...

    def sender(self, key: str) -> str:
        """Name of the sender of a sample, as far as its key says: what waits is limited for each. Called from any thread."""
        ...

    def frame(self, sample: Sample, limits: Limits) -> bytes | None:
        """The frame of a sample; None of one in a form of others on the same fabric, which is left out without a word.

        Raises:
            RemoteProtocolError: It is none: too large, cut off, or its key is not that of its content.
        """
        ...


_NOTHING: Final[Mapping[str, str]] = {}


def _nothing(*_: object) -> None:
    """Is called where an ability is not there."""


class _Features:
    __slots__ = ()

    @classmethod
    def of(cls, plugin: object) -> Self:
        """Abilities of an object, as they are now."""
        given: dict[str, Any] = {}
        for name in cls.__annotations__:
            if (ability := getattr(plugin, name, _Features)) is not _Features:
                given[name] = ability
        return cls(**given)


@frozen(kw_only=True)
class TransportFeatures(_Features):
    """Optional abilities of a `Transport`."""

    initiates: bool = True
    """This end may begin requests and publications. Where it may only answer, they are `Unsupported`."""
    admitted: bool = True
    """The server has let the client in. Where a connection is established before, without a word when it does, and the
    protocol has no handshake either, a first connect waits for a moment whether a refusal comes."""
    framed: Callable[[bytes], bytes | None] | None = None
    """``framed(frame)`` gives the bytes of a frame where they are the same on every connection, so that fan-out makes them
    once; None: not on this one after all."""
    send_framed: Callable[[bytes, int], None] | None = None
    """``send_framed(data, turn)`` takes such bytes; `turn` is a number of the current turn of the event loop, so that the
    first write of a turn can leave at once."""
    send_alone: Callable[[bytes], None] | None = None
    """`send` for a frame behind which no other is expected in this turn of the event loop: it need not wait for the end of
    that."""
    keep_short: Callable[[], None] = _nothing
    """Called on wires with priorities before ``start``: from then on as little as possible waits in a queue of the system,
    where no urgent message can overtake it."""
    pause_reading: Callable[[], None] = _nothing
    """Holds back a peer whose other end is slow. Without it what comes in is kept up to a limit, then the connection
    ends."""
    resume_reading: Callable[[], None] = _nothing
    """Reads on."""
    written: Callable[[], Awaitable[None]] | None = None
    """Returns when all that was sent so far has left, where writing takes a while."""
    slow_arrival: Callable[[], int] | None = None
    """Bytes that are there of frames which take long to arrive: of what has not come to its end since the last `tick`, or
    waits to be handed on. They are charged to `Limits.total_bytes`."""
    idle: Callable[[], float] | None = None
    """Seconds since the peer has asked for anything; 0 while it waits for something. On a transport without a connection of its
    own: where there are too many peers such a one gives way after ten seconds."""
    hear: Hear | None = None
    """Takes what is to be heard: this transport leads to a fabric, and hears nothing else. The sessions on it are made by
    `ProtocolFeatures.fabric`."""


@frozen(kw_only=True)
class ReceiverFeatures(_Features):
    """Optional abilities of a `Receiver`."""

    closing: Callable[[Closed], None] = _nothing
    """Told that nothing more comes in or is sent, where the end of the connection takes a while, for example until the peer
    has read why. Requests without an answer end then; `closed` follows."""
    lost: Callable[[int, str], None] = _nothing
    """``lost(count, why)`` tells how many messages this end has dropped, in either direction, and why; nothing is logged where
    that is empty."""
    malformed: Callable[[RemoteProtocolError], None] = _nothing
    """``malformed(error)`` tells of something that came in and is no frame."""


@frozen(kw_only=True)
class EndpointFeatures(_Features):
    """Optional abilities of a `Connector`, of a `TransportAdapter`, and, as far as `load` goes, of an `HttpBinding`."""

    spent: bool = False
    """The connector is used up: ``connect(..., wait=)`` does not wait for another attempt."""
    other_servers: Callable[[Sequence[str], bool], None] = _nothing
    """``other_servers(addresses, leaving)`` tells a connector of more addresses (``host:port``) of its service, which are tried
    in turn where one does not answer; with `leaving` the last one is about to go."""
    carries_query: bool = False
    """The handshake shows the server a query: the members of a URL's query that are no options of the protocol stay in the
    address."""
    bind: Callable[[str], Awaitable[list[socket.socket]]] | None = None
    """``await bind(url)`` binds the address; `listen` takes what it gives in ``ListenOptions.sockets``. So several processes
    serve at sockets that one of them has bound. May raise `OSError`."""
    keeps_sessions: bool = False
    """A client comes over several connections, one after the other, and all have to come to the same process."""
    load: Callable[[bool], None] = _nothing
    """``load(serves)`` imports the modules that listeners need, or else connections. It is called when a URL names the
    transport: before the event loop, where the program does so there, and then nothing is imported while others wait."""


@frozen(kw_only=True)
class FramingFeatures(_Features):
    """Optional abilities of a `Framing`."""

    gathers: bool = False
    """The peer only passes on what it gets: what is made in a turn leaves together, and it is not woken for parts of it."""


@frozen(kw_only=True)
class CodecFeatures(_Features):
    """Optional abilities of a `Codec`."""

    item_formats: tuple[BodyFormat, ...] | None = None
    """Body formats of items (of streams, channels and tunnels) where they may have others than the rest. In a tunnel frames
    travel as `body.OCTETS` where those are among them, on a wire of text also as `body.JSON`, untouched; where neither is,
    as a value of the wire."""
    one_format: bool = False
    """True where each value is written in the first of `Codec.formats`, so that nobody need ask `Codec.format_for`."""
    urgency: Callable[[Message], int] | None = None
    """``urgency(message)`` says how urgent it is, on wires with priorities; more is sooner."""


class SessionMoves(Protocol):
    """Abilities of a session whose other end may be about to end, and names others in `OtherServers`: the link dials one of
    these, and for a while has a connection to each."""

    def beside(self, other: Any) -> None:
        """Know a session on the other connection: what it says is of this bus, too. Called of both, before the handshake."""

    def retire(self) -> Frames:
        """Take back all subscriptions, since the other connection has them. What comes until the other end knows is told as
        before; when all is answered, `CloseWanted` follows."""
        ...

    def holds(self, key: Any) -> bool:
        """Tell whether a request or channel, by its id or key, is one of this connection."""
        ...

    def asked(self) -> list[Any]:
        """List the keys of the requests of this side that are not answered."""
        ...


@frozen(kw_only=True)
class SessionFeatures(_Features):
    """Optional abilities of a `Session`."""

    pieces: Callable[[bytes], Sequence[bytes]] | None = None
    """``pieces(frame)`` gives the same messages as several frames, each of which takes a few milliseconds to handle, where
    a frame may hold very many. The bus lets others run in between."""
    confirm: Callable[[float], tuple[Any, Frames]] | None = None
    """``confirm(now)`` gives a key and a question, the answer to which shows that the other end has handled all that was sent
    before; `Confirmed` with that key is the answer. On wires that have such a question, entering a subscription waits
    for it."""
    ask: Callable[[str | int, bytes | None, float], tuple[Any, bytes]] | None = None
    """``ask(subject, raw, ttl)`` is `Session.send` for a request as most are: with a time to live below 10^12 seconds, without
    headers, its body (if any) in the first of `Codec.formats`. No `Message` is made of one, if the codec has `one_format`."""
    tell: Callable[[Any, bytes | None], bytes] | None = None
    """``tell(id, raw)`` gives the frame of a response in the same way."""
    moves: SessionMoves | None = None
    """For a session whose link may go on over another connection, before this one is left."""


@frozen(kw_only=True)
class ProtocolFeatures(_Features):
    """Optional abilities of a `ProtocolAdapter`."""

    connections: Callable[[], Sequence[ProtocolAdapter]] | None = None
    """Gives the adapter of each connection, of a protocol that wants several to one place."""
    dials: bool = False
    """Servers do not listen but connect, because their clients come through a broker."""
    keeps: bool = False
    """Something may be kept behind its links, which handlers and subscriptions read."""
    web_endpoint: Callable[[str], WebEndpoint] | None = None
    """``web_endpoint(path)`` is what `polybus.fastapi.attach` and servers of ``http`` serve; see `WebEndpoint`."""
    http_binding: type[HttpBinding] | None = None
    """Form of the protocol over HTTP, at both ends; its `web_endpoint` is served where the adapter has none."""
    option_names: Collection[str] | None = None
    """Members of a URL's query that are options; without it the attrs fields of the adapter."""
    actions: Sequence[tuple[str, int]] = ()
    """Numbers of subjects' names, which no URL can say; captures keep them."""
    dissect: Callable[[bytes], Sequence[FrameField]] | None = None
    """Fields of a frame for people; see `Dissector`."""
    framing: Framing | None = None
    """Its own framing on byte streams and WebSockets, in place of those of the transports."""
    fabric: Fabric | None = None
    """Its form on fabrics such as Zenoh; without one it has none there."""
    user_options: Callable[[str, str | None], Mapping[str, str]] | None = None
    """``user_options(user, password)`` gives the options that the user and the password of a URL stand for: on transports that
    carry none, the protocol tells them to the server."""
    files: Mapping[str, str] = _NOTHING
    """Paths of files that each connection needs the text of, as it is then, such as keys that are replaced while the program
    runs; and for people a name of each. The bus reads them before it connects, and gives them to `with_files`."""
    with_files: Callable[[Mapping[str, str]], ProtocolAdapter] | None = None
    """``with_files(texts)`` gives the adapter of one connection, from the text of each path; `ValueError` says that a file is
    not what it should be. As long as files cannot be read, or a server refuses what is in them, a connection that has been
    lost is tried again."""
    default_port: int | None = None
    """Port of URLs with ``tcp`` and ``tls`` that name none. WebSockets and HTTP have those of the web."""
    spellings: Callable[[str | int], tuple[str, ...]] | None = None
    """``spellings(subject)`` gives what else a publication of this side is called, on wires with names and addresses: the
    address of a name, and the name of an address."""
    unhandled: str | None = None
    """A subject that nobody handles, for `polybus doctor`, on wires where not any name is a subject."""
    inspect_options: Mapping[str, str] | None = None
    """Options with which frames that are only looked at are read; see `Dissector`."""
