"""One connection: a session joined to a transport, with its peers, its outbox and its ups and downs.

The link is the transport's receiver. On the way in it hands messages to its peers, on the way out it takes them from the peers
to the session; there is no queue and no task in between, unless the connection is slow or down: then messages wait in the
outbox.
"""

from __future__ import annotations

import datetime
import enum
import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import anyio

from . import incoming
from .crowd import Crowd
from .errors import BusError, Disconnected, Forbidden, QueueFull, RequestError, TooLarge, Unauthorized, Unsupported
from .events import FrameRefused, LinkDown, LinkUp, PeerSlow
from .message import Message
from .outbox import Outbox, Waiting
from .peer import Peer
from .plugins import Closed, CloseWanted, Handshake, Identity, PeerClosed, PeerOpened, Ready, Refused

if TYPE_CHECKING:
    from .body import BodyFormat
    from .bus import Bus
    from .plugins import Codec, ProtocolAdapter, Role, Session, Transport
    from .reply import Reply
    from .runtime import Runtime

__all__ = ["Link", "State"]

logger: logging.Logger = logging.getLogger("polybus.link")


class State(enum.Enum):
    """Where a link stands."""

    CONNECTING = "connecting"
    UP = "up"
    DOWN = "down"
    CLOSED = "closed"


class Link:
    """A connection that this bus opened (it may come back) or accepted (it ends once)."""

    __slots__ = (
        "_bad",
        "_bad_since",
        "_closing",
        "_peer",
        "_room",
        "_since",
        "_wanted",
        "adapter",
        "bus",
        "crowd",
        "expires",
        "flowing",
        "format",
        "format_for",
        "handshake",
        "held",
        "identity",
        "initiates",
        "on_down",
        "on_up",
        "opened",
        "outbox",
        "paused",
        "renews",
        "runtime",
        "serves",
        "session",
        "shared",
        "slow",
        "state",
        "transport",
        "unwritten",
        "url",
        "was_up",
        "when_full",
    )

    def __init__(
        self,
        bus: Bus,
        runtime: Runtime,
        adapter: ProtocolAdapter,
        url: str,
        *,
        opened: bool,
        serves: tuple[str | int, ...] = (),
        when_full: str = "drop_oldest",
        identity: Identity | None = None,
        handshake: Handshake | None = None,
    ) -> None:
        self.bus: Bus = bus
        self.runtime: Runtime = runtime
        self.adapter: ProtocolAdapter = adapter
        self.url: str = url
        self.opened: bool = opened
        self.serves: tuple[str | int, ...] = serves
        self.when_full: str = when_full
        self.identity: Identity | None = identity
        self.handshake: Handshake | None = handshake
        self.state: State = State.CONNECTING
        self.session: Session | None = None
        self.transport: Transport | None = None
        self.shared: Codec | None = None
        """The codec, where a publication has the same frame on all its sessions."""
        self.outbox: Outbox | None = None
        self.paused: bool = False
        self.flowing: bool = False
        """Up, not paused, and nothing waits: messages go straight to the session."""
        self.held: int = 0
        """Bytes of publications from this link that full `block` subscriptions hold back."""
        self.slow: int = 0
        """Publications dropped since the peer was last keeping up."""
        self.unwritten: int = 0
        """Bytes that the connection held when it last asked for a pause."""
        self.was_up: bool = False
        self.renews: bool = False
        """Whether every attempt asks for credentials anew."""
        self.on_up: Callable[[], None] | None = None
        self.on_down: Callable[[Closed], None] | None = None
        self._peer: Peer | None = None
        self.crowd: Crowd | None = None
        """The peers of a connection that carries many."""
        self.initiates: bool = True
        """Whether this side may begin requests and publications."""
        self._room: list[Any] | None = None
        self._bad = 0
        self._bad_since = 0.0
        self._closing: Closed | None = None
        self._wanted = False  # it was the session that wanted the connection closed, not this bus
        self._since = 0.0
        codec = adapter.codec(runtime.limits)
        self.format: BodyFormat = codec.formats[0]
        self.format_for: Callable[[Any, str | int], BodyFormat] = codec.format_for
        self.expires = _expiry(identity, runtime)
        runtime.links[self] = None

    # -- peers -----------------------------------------------------------------------------------------------------------

    @property
    def peer(self) -> Peer | None:
        """The one peer of a point-to-point link."""
        return self._peer

    @property
    def peers(self) -> list[Peer]:
        """All peers."""
        if self.crowd is not None:
            return list(self.crowd.peers.values())
        return [self._peer] if self._peer is not None else []

    @property
    def upstream(self) -> bool:
        """Whether there is one peer and this bus has dialled it: a server of ours, not clients behind a broker."""
        return self.opened and self.crowd is None

    @property
    def address(self) -> str:
        """Of the other end."""
        return self.transport.address if self.transport is not None else self.url

    # -- life ------------------------------------------------------------------------------------------------------------

    def attach(self, transport: Transport) -> None:
        """A connection is there: begin the session."""
        role: Role = "client" if self.opened else "server"
        now = self.runtime.time()
        self.session = self.adapter.session(role, self.runtime.limits)
        self.transport = transport
        self.paused = False
        self._closing = None
        self._wanted = False
        self._since = now
        self.state = State.CONNECTING
        self.session.start(now)
        transport.start(self)
        self._take_events(now)
        self.flush()

    def _ready(self) -> None:
        assert self.session is not None
        capabilities = self.session.capabilities
        if capabilities.many_peers:
            self.crowd = self.crowd or Crowd(self)
        elif self._peer is None:
            self._peer = Peer(self, None, self.identity or Identity())
        self.shared = self.session.codec if capabilities.shared_publish else None
        self.initiates = capabilities.initiates and getattr(self.transport, "initiates", True)
        self.state = State.UP
        again, self.was_up = self.was_up, True
        self.bus._link_up(self)
        self._update_flow()
        self._drain_outbox()
        if self.on_up is not None:
            self.on_up()
        self.bus._emit(LinkUp(peer=self._peer, url=self.url, again=again))

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye and close; what waits in the outbox is written first where the connection takes it."""
        if self.state is State.CLOSED:
            return
        self._closing = self._closing or Closed(code, reason)
        self._wanted = self.flowing = False
        transport, session = self.transport, self.session
        if transport is None or session is None or self.state is State.DOWN:
            self._ended(Closed(code, reason))
            return
        session.close(code, reason, self.runtime.time())
        self.flush()
        transport.close(code, reason)

    def abort(self, why: Closed) -> None:
        """Cut the connection."""
        self._closing = self._closing or why
        self._wanted = False
        if self.transport is not None and self.state in (State.UP, State.CONNECTING):
            # Nothing more of what has already come in is looked at, and nothing more is written.
            self.flowing = False
            self.paused = True
            if self.session is not None:
                self.session.connection_lost(why.reason)
                self.session = None
            self.transport.abort(why)
        else:
            self._ended(why)

    # -- plugins.Receiver ------------------------------------------------------------------------------------------------

    def frames_received(self, frames: Sequence[bytes]) -> None:
        session = self.session
        if session is None:
            return
        now = self.runtime.time()
        receive = session.receive
        for frame in frames:
            receive(frame, now)
        self._take_events(now)
        self.flush()

    def pause_writing(self) -> None:
        self.paused = True
        self.flowing = False
        self._charge(self.transport.write_backlog() if self.transport is not None else 0)

    def resume_writing(self) -> None:
        self.paused = False
        self._charge(0)
        if self.slow:
            self.slow = 0
        self._drain_outbox()

    def _charge(self, size: int) -> None:
        """What a stuck connection holds counts in `Limits.total_bytes` like what waits for it."""
        self.runtime.buffered += size - self.unwritten
        self.unwritten = size

    def closed(self, why: Closed) -> None:
        if self._closing is not None and why.error is None:
            why = self._closing if self._closing.error is not None or why.code == 1006 else why
        self._ended(why)

    # -- incoming --------------------------------------------------------------------------------------------------------

    def _take_events(self, now: float) -> None:
        session = self.session
        assert session is not None
        receive = incoming.receive
        for event in session.events():
            if event.__class__ is Message:
                peer = self._peer or self._peer_of(event.peer)
                if peer is None:  # it was sent away, has never been opened, or waits to be let in
                    if self.crowd is not None:
                        self.crowd.hold(event)
                    continue
                event.peer = peer
                receive(peer, event, now)
            else:
                self._session_event(event, now)
                if self._closing is not None:
                    return  # what came after the offence is not looked at
            if self.session is not session:
                return

    def _peer_of(self, key: Any) -> Peer | None:
        if self.crowd is None:
            return self._peer
        return self.crowd.peers.get(key)

    def receive_all(self, messages: list[Message]) -> None:
        """What one of many has said before it was let in."""
        now = self.runtime.time()
        for message in messages:
            peer = self._peer_of(message.peer)
            if peer is not None:
                message.peer = peer
                incoming.receive(peer, message, now)
        self.flush()

    def _session_event(self, event: Any, now: float) -> None:
        if isinstance(event, Ready):
            self._ready()
        elif isinstance(event, Refused):
            self.refused(event.error.reason, str(event.error), now)
            if event.error.reply_id is not None and (peer := self._peer_of(event.peer_key)) is not None:
                peer.answered_badly(event.error)
        elif isinstance(event, PeerOpened):
            if self.crowd is not None:
                self.crowd.opened(event, now)
        elif isinstance(event, PeerClosed):
            if self.crowd is not None:
                self.crowd.closed(event.key, event.reason)
        elif isinstance(event, CloseWanted):
            self.flush()
            if self._closing is None:
                self._closing = Closed(event.code, event.reason, event.error)
                self._wanted = True
            self.flowing = False
            if self.transport is not None:
                self.transport.close(event.code, event.reason)

    def refused(self, reason: str, text: str, now: float) -> None:
        """Count one malformed message; too many in a minute end the link."""
        counters = self.bus._counters
        counters.malformed += 1
        if now - self._bad_since > 60:
            self._bad, self._bad_since = 0, now
        self._bad += 1
        if self._bad == 1:
            logger.warning("polybus: malformed message from %s dropped: %.200r", self.address, text)
        self.bus._emit(FrameRefused(peer=self._peer, reason=reason, text=text))
        if self._bad > self.runtime.limits.bad_messages and self._closing is None:
            self._closing = Closed(1008, f"more than {self.runtime.limits.bad_messages} malformed messages in a minute")
            self.flowing = False
            if self.transport is not None:
                self.transport.close(1008, self._closing.reason)

    # -- outgoing --------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Hand what the session has queued to the transport."""
        session = self.session
        if session is not None and (frames := session.frames_to_send()):
            send = self.transport.send  # type: ignore[union-attr]  # a session stands on a transport
            for frame in frames:
                send(frame)

    def write(self, message: Message, peer: Peer) -> Any:
        """Give a message to the session now, whatever the state of the connection.

        Raises:
            EncodeError, Unsupported, LocalProtocolError, TooLarge, QueueFull: As `Session.send`.
        """
        assert self.session is not None
        self.bus._counters.sent += 1
        key = self.session.send(message, self.runtime.time(), peer.key)
        self.flush()
        return key

    def publish(self, message: Message, peer: Peer, deadline: float) -> bool:
        """Send a publication or let it wait; False if there is no room (then nothing has happened)."""
        session = self.session
        if self.flowing and session is not None:
            self.bus._counters.sent += 1
            codec = self.shared
            if codec is not None:
                shared = message.shared
                frame = shared.get(codec)
                if frame is None:
                    frame = self._shared_frame(message, codec)
                self.transport.send(frame)  # type: ignore[union-attr]  # a session stands on a transport
            else:
                session.send(message, self.runtime.time(), peer.key)
                self.flush()
            return True
        self.check_initiates(peer)
        return self._wait(message, peer, None, deadline, droppable=True)

    def check_initiates(self, peer: Peer) -> None:
        """
        Raises:
            Unsupported: This side may only answer (a plain HTTP server).
        """
        if not self.initiates:
            raise Unsupported(f"{peer!r} can only be answered: on this connection its server begins nothing")

    def publish_alone(self, message: Message, peer: Peer) -> None:
        """`publish` for a link that is flowing and a publication that goes nowhere else: nothing is kept for others."""
        codec = self.shared
        if codec is None:
            self.write(message, peer)
            return
        frame = codec.encode((message,))
        if len(frame) > self.runtime.limits.message:
            raise self._too_large(frame)
        self.bus._counters.sent += 1
        self.transport.send(frame)  # type: ignore[union-attr]  # a flowing link has a transport

    def _too_large(self, frame: bytes) -> TooLarge:
        return TooLarge(f"a publication of {len(frame)} bytes: the limit is {self.runtime.limits.message} (Limits.message)")

    def _shared_frame(self, message: Message, codec: Any) -> bytes:
        frame: bytes = codec.encode((message,))
        if len(frame) > self.runtime.limits.message:
            raise self._too_large(frame)
        message.shared[codec] = frame
        return frame

    def request(self, message: Message, reply: Reply[Any], peer: Peer) -> None:
        """Send a request or let it wait.

        Raises:
            EncodeError, Unsupported, LocalProtocolError: Misuse; anything else fails the reply.
        """
        if not self.flowing:
            self.check_initiates(peer)
            if self.state is State.CLOSED or self._closing is not None:
                reply._fail(self._disconnected(sent=False))
            elif self._wait(message, peer, reply, reply.deadline, droppable=False):
                peer._unsent_reply(reply)
            else:
                reply._fail(QueueFull(f"the outbox to {self.address} is full: {self._outbox_state()}"))
            return
        self._send_request(message, reply, peer)
        self.flush()

    def _send_request(self, message: Message, reply: Reply[Any], peer: Peer) -> None:
        if len(peer.pending) >= self.runtime.limits.pending:
            reply._fail(QueueFull(f"{len(peer.pending)} requests to {self.address} already wait for their answer"))
            return
        try:
            key = self.session.send(message, self.runtime.time(), peer.key)  # type: ignore[union-attr]
        except (RequestError, QueueFull, Disconnected) as error:
            reply._fail(error)
            return
        self.bus._counters.sent += 1
        reply.key = key
        reply.sent = True
        peer.pending[key] = reply

    def answer(self, message: Message, peer: Peer) -> None:
        """Send what must not be dropped: answers, items, control. A peer that does not read even these loses its link."""
        if self.flowing or (self.state is State.UP and not self.paused and not self.outbox):
            self.write(message, peer)
        elif self.state is State.UP and self._closing is None and not self._wait(message, peer, None, 0.0, droppable=False):
            self.too_slow("its outbox is full of answers")

    def too_slow(self, text: str) -> None:
        """End the link of a peer that does not read."""
        self.bus._emit(PeerSlow(peer=self._peer, policy="disconnect", dropped=self.slow))
        self.abort(Closed(1013, f"the peer is too slow: {text}"))

    # -- the outbox ------------------------------------------------------------------------------------------------------

    def _wait(self, message: Message, peer: Peer, reply: Reply[Any] | None, deadline: float, *, droppable: bool) -> bool:
        if self.state is State.CLOSED or self._closing is not None:
            return True  # nobody will read it; the caller learns from the link's end
        outbox = self.outbox
        if outbox is None:
            outbox = self.outbox = Outbox(self.runtime.limits, self.runtime)
        if message.raw is None and message.has_body:
            message.encoded(self.adapter.codec(self.runtime.limits).formats)
        entry = Waiting(message, peer, reply, deadline, droppable)
        if not outbox.has_room(entry.size) and not self._make_room(outbox, entry):
            return False
        outbox.add(entry)
        if reply is not None:

            def abandon(abandoned: Reply[Any]) -> None:
                outbox.drop(entry)
                peer._abandoned(abandoned)

            reply._abandon = abandon
        return True

    def _make_room(self, outbox: Outbox, entry: Waiting) -> bool:
        self.bus._counters.dropped += outbox.drop_expired(self.runtime.time())
        if outbox.has_room(entry.size):
            return True
        if self.upstream and entry.droppable:
            return False  # the publisher waits, or is told
        if entry.droppable and self.when_full == "drop_newest":
            self._dropped()
            return False
        if entry.droppable and self.when_full == "disconnect":
            self.too_slow("its outbox is full")
            return False
        while not outbox.has_room(entry.size):
            if not outbox.drop_oldest():
                return False
            self._dropped()
        return True

    def _dropped(self) -> None:
        self.bus._counters.dropped += 1
        self.slow += 1
        if self.slow == 1:
            self.bus._emit(PeerSlow(peer=self._peer, policy=self.when_full, dropped=1))

    def _update_flow(self) -> None:
        ready = self.state is State.UP and not self.paused and not self.outbox and self._closing is None
        self.flowing = ready and self.initiates

    def _drain_outbox(self) -> None:
        """Write what waits, as far as the connection takes it."""
        outbox = self.outbox
        if outbox is not None:
            now = self.runtime.time()
            while self.state is State.UP and not self.paused and (entry := outbox.pop()) is not None:
                self._write_waiting(entry, now)
            if self._room:
                waiting, self._room = self._room, None
                for waiter in waiting:
                    self.runtime.loop.wake(waiter)
            if not len(outbox):
                self.outbox = None
        self._update_flow()

    def _write_waiting(self, entry: Waiting, now: float) -> None:
        message, reply, peer = entry.message, entry.reply, entry.peer
        assert message is not None
        if reply is not None:
            if reply.done():
                return
            if message.ttl is not None:  # part of it has passed here
                message.ttl = max(0.0, message.ttl - (now - reply.started))
            peer._sending(reply)
            try:
                self._send_request(message, reply, peer)
            except BusError as error:
                reply._fail(error)
        elif entry.droppable and entry.deadline <= now:
            self.bus._counters.dropped += 1
            return
        else:
            try:
                self.write(message, peer)
            except BusError as error:
                logger.warning("polybus: a waiting message could not be written: %s", error)
        self.flush()

    async def room(self, size: int, deadline: float) -> bool:
        """Wait until the outbox may have room again. False when the deadline passed or the link ended."""
        if self.state is State.CLOSED:
            return False
        with anyio.move_on_at(deadline) as scope:
            waiter = self.runtime.loop.waiter()
            self._room = self._room or []
            self._room.append(waiter)
            await waiter
        return not scope.cancelled_caught

    async def room_for_answer(self) -> None:
        """Let the answer of a handler wait as long as too many others do: it keeps the handler's place meanwhile.

        So a peer that reads gets all it has asked for, however much that is. One that does not read ends at `write_timeout`.
        """
        while self.state is State.UP and self.outbox is not None and not self.outbox.takes_answers:
            await self.room(0, math.inf)

    def _outbox_state(self) -> str:
        outbox = self.outbox
        return "empty" if outbox is None else f"{len(outbox)} messages, {outbox.bytes} bytes (Limits.outbox, outbox_bytes)"

    # -- the end ---------------------------------------------------------------------------------------------------------

    def _disconnected(self, *, sent: bool) -> BusError:
        why = self._closing
        if why is not None and why.error is not None:
            return why.error
        return Disconnected(why.reason if why is not None else "the link is closed", self.address, sent)

    def _ended(self, why: Closed) -> None:
        """The connection is gone. An opened link may come back (`on_down` decides), an accepted one is over."""
        if self.state is State.CLOSED:
            return
        before = self.state
        # An identity that expires is no refusal where the next attempt brings a new one.
        renewed = self.renews and self.was_up and isinstance(why.error, Unauthorized)
        refused = isinstance(why.error, (Unauthorized, Forbidden)) and not renewed
        final = refused or (self._closing is not None and not self._wanted)
        returns = self.opened and self.on_down is not None and not final
        self.state = State.DOWN if returns else State.CLOSED
        self.flowing = False
        self._charge(0)
        self._closing = None if returns else why
        session, self.session = self.session, None
        if session is not None:
            session.connection_lost(why.reason)
        if self.crowd is not None:
            self.crowd.lost(why.reason, why.error)
        if self._peer is not None:
            self._peer._lost(why.reason, going_on=returns, error=why.error)
        if not returns:
            self._finish(why)
        if before is State.UP or before is State.CONNECTING:
            self.bus._emit(LinkDown(peer=self._peer, url=self.url, code=why.code, reason=why.reason))
        if self.on_down is not None:
            self.on_down(why)

    def _finish(self, why: Closed) -> None:
        if self.outbox is not None:
            for entry in self.outbox.clear():
                if entry.reply is not None:
                    entry.reply._fail(self._disconnected(sent=False))
            self.outbox = None
        if self._room:
            waiting, self._room = self._room, None
            for waiter in waiting:
                self.runtime.loop.wake(waiter)
        self.runtime.links.pop(self, None)
        self.bus._link_gone(self, why)

    def tick(self, now: float) -> None:
        """About once a second."""
        transport, session = self.transport, self.session
        if self.expires is not None and self.expires <= now:
            self.expires = None
            self._closing = Closed(4401, "the identity has expired", Unauthorized("the identity has expired"))
            self.close(4401, "the identity has expired: authenticate again")
        if transport is not None and self.state is not State.DOWN:
            transport.tick(now)
        limit = self.runtime.limits.handshake_timeout
        if self.state is State.CONNECTING and not self.opened and now - self._since > limit:
            self.abort(Closed(1002, f"the {self.adapter.name} handshake did not complete in {limit:g} s"))
        if session is not None and self.session is session:
            due = session.next_tick()
            if due is not None and due <= now:
                session.tick(now)
                self._take_events(now)
                self.flush()


def _expiry(identity: Identity | None, runtime: Runtime) -> float | None:
    """When the identity ends, on the loop's clock."""
    if identity is None or identity.expires_at is None:
        return None
    left = identity.expires_at - datetime.datetime.now(datetime.UTC)
    return runtime.time() + float(left.total_seconds())
