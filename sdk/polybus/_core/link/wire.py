"""The abilities of a link's protocol and connection, and the writing of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import define, field

from ..._util.log_fields import log_fields
from ...errors import Disconnected, QueueFull, RequestError, TooLarge, Unsupported
from ...plugins import SessionFeatures, TransportFeatures
from .state import State

if TYPE_CHECKING:
    from ...body import BodyFormat
    from ...message import Message
    from ...plugins import Codec, Frames, ProtocolAdapter, Session, Transport
    from ..rpc.reply import Reply
    from ..runtime.runtime import Runtime
    from ..runtime.services import Services
    from .multiplexer import MultiplexedPeers
    from .ports import LinkOwner, PeerPort


@define(init=False, eq=False, repr=False, weakref_slot=False)
class LinkWire:
    """A session on its transport, for writing."""

    owner: LinkOwner
    services: Services
    adapter: ProtocolAdapter
    url: str
    runtime: Runtime = field(init=False)
    opened: bool = field(init=False)
    """True if this bus dialled."""
    state: State = field(default=State.CONNECTING, init=False)
    session: Session | None = field(default=None, init=False)
    transport: Transport | None = field(default=None, init=False)
    peer: Any = field(default=None, init=False)
    """The peer of a point-to-point link: a `PeerPort`, in higher layers a `Peer`."""
    multiplexed: MultiplexedPeers | None = field(default=None, init=False)
    carries_headers: bool = field(default=True, init=False)
    """True if the wire carries headers; known from the first session on."""
    bare_headers: bool = field(default=False, init=False)
    """True if bare peers read them too."""
    own_headers: frozenset[str] = field(default=frozenset(), init=False)
    """Headers that a wire without general headers carries."""
    destinations: bool = field(default=False, init=False)
    """True if a notification may go to an address behind the peer."""
    has_groups: bool = field(default=False, init=False)
    """True if queue groups on this wire get their own copies; known from the first session on."""
    format: BodyFormat = field(init=False)
    format_for: Callable[[Any, str | int], BodyFormat] = field(init=False)
    one_format: bool = field(init=False)
    """True if `format_for` always returns `format`."""
    urgency: Callable[[Message], int] | None = field(init=False)
    """Priority of a message, on wires with priorities."""
    shared: Codec | None = field(default=None, init=False)
    """Set if a publication has the same frame on all the codec's sessions."""
    framing: tuple[Codec, type[Transport], str] | None = field(default=None, init=False)
    """Cache key for a publication's bytes, shared by links with the same key."""
    send_framed: Callable[[bytes, int], None] | None = field(default=None, init=False)
    """Writes bytes made by `framed`."""
    send_alone: Callable[[bytes], None] | None = field(default=None, init=False)
    ask: Callable[[str | int, bytes | None, float], tuple[Any, bytes]] | None = field(default=None, init=False)
    """Sends a request without a `Message`, if the session can; `tell` does so for an answer."""
    tell: Callable[[Any, bytes | None], bytes] | None = field(default=None, init=False)
    flowing: bool = field(default=False, init=False)
    """Up, not paused, nothing waits: messages go straight to the session."""
    initiates: bool = field(default=True, init=False)
    """True if this side may send requests and publications."""

    @property
    def address(self) -> str:
        return self.transport.address if self.transport is not None else self.url

    @property
    def stands(self) -> bool:
        """True while messages are exchanged, even while closing."""
        state = self.state
        return state is State.UP or state is State.CLOSING

    @property
    def upstream(self) -> bool:
        """True for a dialled link with one peer: a server, not clients behind a broker."""
        return self.opened and self.multiplexed is None

    @property
    def crowded(self) -> bool:
        """True if several programs send over this link, behind a broker or on a fabric: what one says must concern only it."""
        return self.multiplexed is not None or (self.session is not None and self.session.capabilities.many_senders)

    def log_fields(self, message: Message | None = None) -> dict[str, object]:
        fields = log_fields(address=self.address, protocol=self.adapter.name)
        if message is not None:
            fields |= log_fields(subject=message.subject)
        if self.peer is not None:
            fields["peer"] = self.peer.id
        return fields

    def set_shared(self) -> None:
        """Update the sharing of publications with other links: for a new session, or a known peer."""
        session, transport = self.session, self.transport
        assert session is not None and transport is not None
        can = session.capabilities
        self.carries_headers, self.bare_headers, self.own_headers = can.headers, can.bare_headers, can.own_headers
        self.destinations, self.has_groups = can.destinations, can.groups
        # If publications are an extension, bare subscribers get a form of their own: see the session.
        known = self.opened or not can.asks_before_publishing or (self.peer is not None and self.peer.speaks_extensions)
        self.shared = session.codec if can.shared_publish and known else None
        features = TransportFeatures.of(transport)
        self.initiates = can.initiates and features.initiates
        self.send_framed = features.send_framed
        self.send_alone = features.send_alone
        self.ask = self.tell = None
        if self.one_format and self.multiplexed is None:
            short = SessionFeatures.of(session)
            self.ask, self.tell = short.ask, short.tell
        self.framing = None
        if self.shared is not None and self.send_framed is not None and transport.framed(b"") is not None:  # type: ignore[attr-defined]
            self.framing = self.shared, type(transport), session.codec.writes

    def framed(self, message: Message) -> bytes:
        """Encode a publication for all links with the same `framing`.

        Raises:
            EncodeError, Unsupported, TooLarge: The wire cannot carry it.
        """
        framing, transport = self.framing, self.transport
        assert framing is not None and transport is not None
        data: bytes = transport.framed(framing[0].encode((message,)))  # type: ignore[attr-defined]  # present together with `send_framed`
        message.shared[framing] = data
        return data

    def _too_large(self, frame: bytes) -> TooLarge:
        return TooLarge(f"a publication of {len(frame)} bytes: the limit is {self.runtime.limits.message} (Limits.message)")

    def _shared_frame(self, message: Message, codec: Any) -> bytes:
        frame: bytes = codec.encode((message,))
        if len(frame) > self.runtime.limits.message:
            raise self._too_large(frame)
        message.shared[codec] = frame
        return frame

    def send_frames(self, frames: Frames) -> None:
        send = self.transport.send  # type: ignore[union-attr]  # a session implies a transport
        for frame in (frames,) if isinstance(frames, bytes) else frames:
            send(frame)

    def forget(self, key: Any) -> None:
        if self.session is not None:
            self.send_frames(self.session.forget(key, self.runtime.time()))

    def write(self, message: Message, peer: PeerPort) -> Any:
        """Pass a message to the session now, in any state of the connection.

        On a multiplexed link, nothing is written to a peer that has left, or after goodbye: its key may be reused.

        Raises:
            EncodeError, Unsupported, LocalProtocolError, TooLarge, QueueFull: As `Session.send`.
        """
        session = self.session
        assert session is not None
        if self.multiplexed is not None and (peer.gone or self.state is State.CLOSING):
            return None
        self.services.counters.sent += 1
        key, frames = session.send(message, self.runtime.time(), peer.key)
        if isinstance(frames, bytes):
            self.transport.send(frames)  # type: ignore[union-attr]  # a session implies a transport
        else:
            self.send_frames(frames)
        return key

    def check_initiates(self, peer: PeerPort) -> None:
        """Check that this side may send requests and publications.

        Raises:
            Unsupported: This side may only answer (a plain HTTP server).
        """
        if not self.initiates:
            raise Unsupported(f"{peer!r} can only be answered: on this connection its server cannot send first")

    def publish_alone(self, message: Message, peer: PeerPort) -> None:
        """`publish` on a flowing link for a single receiver: no frame is cached."""
        codec = self.shared
        if codec is None:
            self.write(message, peer)
            return
        frame = codec.encode((message,))
        if len(frame) > self.runtime.limits.message:
            raise self._too_large(frame)
        self.services.counters.sent += 1
        self.transport.send(frame)  # type: ignore[union-attr]  # a flowing link has a transport

    def send_request(
        self, message: Message | None, reply: Reply[Any], peer: PeerPort, now: float, raw: bytes | None = None
    ) -> None:
        """Write a request ahead of the queue; without a message, through `ask`.

        Raises:
            EncodeError, Unsupported, LocalProtocolError: Misuse; other errors fail the reply.
        """
        pending = peer.pending
        if len(pending) >= self.runtime.limits.pending:
            reply.fail(QueueFull(f"{len(pending)} requests to {self.address} already wait for their answer"))
            return
        try:
            if message is None:
                key, frames = self.ask(reply.subject, raw, reply.ttl)  # type: ignore[misc,arg-type]
            else:
                key, frames = self.session.send(message, now, peer.key)  # type: ignore[union-attr]  # there is a session
        except (RequestError, QueueFull, Disconnected) as error:
            reply.fail(error)
            return
        self.services.counters.sent += 1
        reply.key = key
        reply.sent = True
        pending[key] = reply
        if reply.deadline < peer.until:
            peer.watch_reply(reply)
        try:
            if isinstance(frames, bytes):
                ((len(pending) == 1 and self.send_alone) or self.transport.send)(frames)  # type: ignore[union-attr]
            else:
                self.send_frames(frames)
        except TooLarge as error:  # the connection, a tunnel, takes less than the session
            pending.pop(key, None)
            reply.fail(error)
