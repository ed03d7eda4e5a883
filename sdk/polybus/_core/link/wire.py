"""The wire of a link: what its protocol and its connection carry, and how messages are written there."""

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


@define(eq=False, repr=False, weakref_slot=False)
class LinkWire:
    """The session of a link on its transport, as far as messages are written there."""

    owner: LinkOwner
    services: Services
    adapter: ProtocolAdapter
    url: str
    runtime: Runtime = field(init=False)
    opened: bool = field(init=False)
    """True of a connection that this bus has dialled, not accepted."""
    state: State = field(default=State.CONNECTING, init=False)
    session: Session | None = field(default=None, init=False)
    transport: Transport | None = field(default=None, init=False)
    peer: Any = field(default=None, init=False)
    """The one peer of a point-to-point link, or None: a `PeerPort`, which the rooms above know as a `Peer`."""
    multiplexed: MultiplexedPeers | None = field(default=None, init=False)
    """The peers of a connection that carries many."""
    carries_headers: bool = field(default=True, init=False)
    """True where the wire has headers: known since the first session, also while the link is down."""
    bare_headers: bool = field(default=False, init=False)
    """True where a bare peer reads them too."""
    own_headers: frozenset[str] = field(default=frozenset(), init=False)
    """Headers that the wire has a place for, where it has none for others."""
    destinations: bool = field(default=False, init=False)
    """True where a notification may go to an address behind the peer."""
    has_groups: bool = field(default=False, init=False)
    """True where groups share handlers and publications on this wire, each with a copy of its own; known while it is down."""
    format: BodyFormat = field(init=False)
    format_for: Callable[[Any, str | int], BodyFormat] = field(init=False)
    one_format: bool = field(init=False)
    """True where `format_for` need not be asked: it always says `format`."""
    urgency: Callable[[Message], int] | None = field(init=False)
    """Tells the priority of a message, where the wire has priorities."""
    shared: Codec | None = field(default=None, init=False)
    """The codec, where a publication has the same frame on all its sessions."""
    framing: tuple[Codec, type[Transport], str] | None = field(default=None, init=False)
    """The key of a publication's bytes, where they are the same on all links with that key: they are made once."""
    send_framed: Callable[[bytes, int], None] | None = field(default=None, init=False)
    """Writes bytes that `framed` has made."""
    send_alone: Callable[[bytes], None] | None = field(default=None, init=False)
    ask: Callable[[str | int, bytes | None, float], tuple[Any, bytes]] | None = field(default=None, init=False)
    """Makes a request without a `Message`, where the session can; as `tell` makes an answer."""
    tell: Callable[[Any, bytes | None], bytes] | None = field(default=None, init=False)
    flowing: bool = field(default=False, init=False)
    """Up, not paused, and nothing waits: messages go straight to the session."""
    initiates: bool = field(default=True, init=False)
    """True where this side may begin requests and publications."""

    @property
    def address(self) -> str:
        """The address of the other end."""
        return self.transport.address if self.transport is not None else self.url

    @property
    def stands(self) -> bool:
        """True while messages are exchanged, also while it is being closed."""
        state = self.state
        return state is State.UP or state is State.CLOSING

    @property
    def upstream(self) -> bool:
        """True where there is one peer, which this bus has dialled: a server, not clients behind a broker."""
        return self.opened and self.multiplexed is None

    def log_fields(self, message: Message | None = None) -> dict[str, object]:
        fields = log_fields(address=self.address, protocol=self.adapter.name)
        if message is not None:
            fields |= log_fields(subject=message.subject)
        if self.peer is not None:
            fields["peer"] = self.peer.id
        return fields

    def set_shared(self) -> None:
        """Find out what of a publication this link shares with others: for a new session, or once the peer is known."""
        session, transport = self.session, self.transport
        assert session is not None and transport is not None
        can = session.capabilities
        self.carries_headers, self.bare_headers, self.own_headers = can.headers, can.bare_headers, can.own_headers
        self.destinations, self.has_groups = can.destinations, can.groups
        # Where publications are an extension, what a stranger asked for has a form that strangers read: see the session.
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
        """Make the bytes of a publication on all links with the same `framing`.

        Raises:
            EncodeError, Unsupported, TooLarge: The wire cannot carry it.
        """
        framing, transport = self.framing, self.transport
        assert framing is not None and transport is not None
        data: bytes = transport.framed(framing[0].encode((message,)))  # type: ignore[attr-defined]  # it goes with `send_framed`
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
        """Hand frames of the session to the transport."""
        send = self.transport.send  # type: ignore[union-attr]  # a session stands on a transport
        for frame in (frames,) if isinstance(frames, bytes) else frames:
            send(frame)

    def forget(self, key: Any) -> None:
        """Tell the session that nobody waits for the answer to this key."""
        if self.session is not None:
            self.send_frames(self.session.forget(key, self.runtime.time()))

    def write(self, message: Message, peer: PeerPort) -> Any:
        """Give a message to the session now, whatever the state of the connection.

        Nothing is written to one of many peers that has gone, or to which goodbye has been said with all of them: its key may
        be another's by now.

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
            self.transport.send(frames)  # type: ignore[union-attr]  # a session stands on a transport
        else:
            self.send_frames(frames)
        return key

    def check_initiates(self, peer: PeerPort) -> None:
        """
        Raises:
            Unsupported: This side may only answer (a plain HTTP server).
        """
        if not self.initiates:
            raise Unsupported(f"{peer!r} can only be answered: on this connection its server begins nothing")

    def publish_alone(self, message: Message, peer: PeerPort) -> None:
        """`publish` for a link that is flowing and a publication that goes nowhere else: nothing is kept for others."""
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
        """Write a request now, before anything that waits; without a message the one that `reply` and `raw` say, by `ask`.

        Raises:
            EncodeError, Unsupported, LocalProtocolError: Misuse; anything else fails the reply.
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
        except TooLarge as error:  # for a connection that takes less than the session does: a tunnel
            pending.pop(key, None)
            reply.fail(error)
