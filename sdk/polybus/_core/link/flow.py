"""The sending side of a link. Writes messages to the connection, or queues them while it is slow or down."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, field

from ..._util.logs import log_fields
from ...errors import BusError, Disconnected, QueueFull, RequestError, TooLarge, Unsupported, another
from ...events import PeerSlow
from ...message import Kind, Message
from ...plugins import Closed, SessionFeatures, TransportFeatures
from ..runtime.memory_budgets import MemoryBudget, Share
from .send_queue import SendQueue
from .state import Ending, State

if TYPE_CHECKING:
    from ...body import BodyFormat
    from ...plugins import Codec, Frames, ProtocolAdapter, Session, Transport
    from ..rpc.reply import Reply
    from ..runtime.runtime import Runtime
    from ..runtime.services import Services
    from .multiplexer import MultiplexedPeers
    from .ports import LinkOwner, PeerPort

logger: logging.Logger = logging.getLogger("polybus.link")


@define(init=False, eq=False, repr=False, weakref_slot=False)
class LinkFlow(ABC):
    """Sends messages over a session and its transport. Messages that cannot be written yet wait in a queue."""

    owner: LinkOwner
    services: Services
    adapter: ProtocolAdapter
    url: str
    runtime: Runtime = field(init=False)
    opened: bool = field(init=False)
    """True if this bus opened the link."""
    state: State = field(default=State.CONNECTING, init=False)
    session: Session | None = field(default=None, init=False)
    transport: Transport | None = field(default=None, init=False)
    peer: Any = field(default=None, init=False)
    """The peer of a point-to-point link, a `PeerPort`."""
    multiplexed: MultiplexedPeers | None = field(default=None, init=False)
    carries_headers: bool = field(default=True, init=False)
    """Value of `Capabilities.headers`, once there has been a session."""
    bare_headers: bool = field(default=False, init=False)
    own_headers: frozenset[str] = field(default=frozenset(), init=False)
    destinations: bool = field(default=False, init=False)
    has_groups: bool = field(default=False, init=False)
    """Value of `Capabilities.groups`, once there has been a session."""
    format: BodyFormat = field(init=False)
    format_for: Callable[[Any, str | int], BodyFormat] = field(init=False)
    one_format: bool = field(init=False)
    """True if `format_for` always returns `format`."""
    urgency: Callable[[Message], int] | None = field(init=False)
    """Returns the priority of a message, if the protocol has priorities."""
    shared: Codec | None = field(default=None, init=False)
    """Codec, if a publication has the same frame on all sessions of the codec."""
    framing: tuple[Codec, type[Transport], str] | None = field(default=None, init=False)
    """Cache key for the encoded bytes of a publication, which are the same on all links with this key."""
    send_framed: Callable[[bytes, int], None] | None = field(default=None, init=False)
    """Function that writes the result of `framed`."""
    send_alone: Callable[[bytes], None] | None = field(default=None, init=False)
    ask: Callable[[str | int, bytes | None, float], tuple[Any, bytes]] | None = field(default=None, init=False)
    """Value of `SessionFeatures.ask`, if it can be used."""
    tell: Callable[[Any, bytes | None], bytes] | None = field(default=None, init=False)
    """Value of `SessionFeatures.tell`, if it can be used."""
    publication: Callable[[str | int, bytes], bytes | None] | None = field(default=None, init=False)
    """Value of `SessionFeatures.publication`, if it can be used."""
    usual: Callable[[bytes, Mapping[Any, Any]], Message | None] | None = field(default=None, init=False)
    """Value of `SessionFeatures.usual`, if it can be used."""
    flowing: bool = field(default=False, init=False)
    """True if messages can be passed to the session immediately, because the link is up and its queue is empty."""
    initiates: bool = field(default=True, init=False)
    """True if this side may send requests and publications."""
    when_full: str = field(default="drop_oldest", kw_only=True)
    outbox: SendQueue | None = field(default=None, init=False)
    paused: bool = field(default=False, init=False)
    share: Share | None = field(default=None, init=False)
    """Quota of `Limits.total_bytes`. None for a link to a server, which doesn't have a quota."""
    slow: int = field(default=0, init=False)
    unwritten: MemoryBudget = field(init=False)
    """Number of bytes that the connection had not written at its last pause."""
    bodies: MemoryBudget = field(init=False)
    stalled: dict[Callable[[], None], None] = field(factory=dict, init=False)
    """Functions that start the requests which wait until the peer has read earlier answers."""
    holds: bool = field(default=False, init=False)
    """True while the link queues everything except answers, until other links have reconnected."""
    _ending: Ending | None = field(default=None, init=False)
    _arriving: MemoryBudget | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        return self.transport.address if self.transport is not None else self.url

    @property
    def stands(self) -> bool:
        """True while messages can be exchanged, including while the link is closing."""
        state = self.state
        return state is State.UP or state is State.CLOSING

    @property
    def upstream(self) -> bool:
        """True if the link leads to a server, and not to clients behind a broker."""
        return self.opened and self.multiplexed is None

    @property
    def crowded(self) -> bool:
        """True if several programs send over this link, behind a broker or on a fabric, and must not affect each other."""
        return self.multiplexed is not None or (self.session is not None and self.session.capabilities.many_senders)

    def log_fields(self, message: Message | None = None) -> dict[str, object]:
        fields = log_fields(address=self.address, protocol=self.adapter.name)
        if message is not None:
            fields |= log_fields(subject=message.subject)
        if self.peer is not None:
            fields["peer"] = self.peer.id
        return fields

    def set_shared(self) -> None:
        session, transport = self.session, self.transport
        assert session is not None and transport is not None
        can = session.capabilities
        self.carries_headers, self.bare_headers, self.own_headers = can.headers, can.bare_headers, can.own_headers
        self.destinations, self.has_groups = can.destinations, can.groups
        # If publications are an extension, sessions send them to bare subscribers in another form.
        known = self.opened or not can.asks_before_publishing or (self.peer is not None and self.peer.speaks_extensions)
        self.shared = session.codec if can.shared_publish and known else None
        features = TransportFeatures.of(transport)
        self.initiates = can.initiates and features.initiates
        self.send_framed = features.send_framed
        self.send_alone = features.send_alone
        self.ask = self.tell = self.publication = self.usual = None
        if self.multiplexed is None:
            short = SessionFeatures.of(session)
            if self.shared is not None or not can.shared_publish:
                self.publication = short.publication
            if self.one_format:
                self.ask, self.tell, self.usual = short.ask, short.tell, short.usual
        self.framing = None
        if self.shared is not None and self.send_framed is not None and transport.framed(b"") is not None:  # type: ignore[attr-defined]  # present together with `send_framed`
            self.framing = self.shared, type(transport), session.codec.writes

    def framed(self, message: Message) -> bytes:
        """Encode a publication for all links with the same `framing`."""
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
        """Write a message, bypassing the queue. Raises the errors of `Session.send`.

        On multiplexed links, messages to peers that have left are dropped, because their keys may be reused.
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
        """Raise `Unsupported` if this side can only answer, like a plain HTTP server."""
        if not self.initiates:
            raise Unsupported(f"{peer!r} can only be answered: on this connection its server cannot send first")

    def publish_alone(self, blank: Message, body: Any, peer: PeerPort) -> None:
        """Write a publication for a single receiver, without caching its frame. The link must be flowing.

        `blank` is the `PublicationRoute.blank` of the subject: a publication without a body.
        """
        subject, codec, publication = blank.subject, self.shared, self.publication
        body_format = self.format if self.one_format else self.format_for(body, subject)
        raw = body_format.encode(body)
        frame = publication(subject, raw) if publication is not None and body_format is self.format else None
        if frame is None:
            if codec is None:  # the session may keep the message
                self.write(Message(Kind.PUBLISH, subject, None, raw, body_format, checked=raw), peer)
                return
            blank.format, blank.raw, blank.checked = body_format, raw, raw
            try:
                frame = codec.encode((blank,))
            finally:
                blank.raw = blank.checked = None  # so that the route doesn't keep the body in memory
        if len(frame) > self.runtime.limits.message:
            raise self._too_large(frame)
        self.services.counters.sent += 1
        self.transport.send(frame)  # type: ignore[union-attr]  # a flowing link has a transport

    def send_request(self, message: Message, reply: Reply[Any], peer: PeerPort, now: float) -> None:
        """Write a request, bypassing the queue."""
        pending = peer.pending
        if len(pending) >= self.runtime.limits.pending:
            reply.fail(QueueFull(f"{len(pending)} requests to {self.address} wait for an answer (Limits.pending)"))
            return
        try:
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
                send = self.send_alone if len(pending) == 1 else None
                (send or self.transport.send)(frames)  # type: ignore[union-attr]  # a session implies a transport
            else:
                self.send_frames(frames)
        except TooLarge as error:  # the limit of a tunnel may be lower than that of the session
            pending.pop(key, None)
            reply.fail(error)

    # -- sending ---------------------------------------------------------------------------------------------------------

    def publish(self, message: Message, peer: PeerPort, deadline: float) -> bool:
        """Send or queue a publication. Returns False if the queue is full."""
        session = self.session
        if self.multiplexed is not None and peer.gone:
            return True  # no peer will read it
        if self.flowing and session is not None:
            self.services.counters.sent += 1
            codec = self.shared
            if codec is not None:
                shared = message.shared
                frame = shared.get(codec)
                if frame is None:
                    frame = self._shared_frame(message, codec)
                self.transport.send(frame)  # type: ignore[union-attr]  # a session implies a transport
            else:
                self.send_frames(session.send(message, self.runtime.time(), peer.key)[1])
            return True
        self.check_initiates(peer)
        return self._wait(message, peer, None, deadline, droppable=True)

    def request(self, message: Message, reply: Reply[Any], peer: PeerPort) -> None:
        """Send or queue a request. Invalid requests raise an error. Other failures are reported through the reply."""
        if self.multiplexed is not None and peer.gone:
            reply.fail(Disconnected("the peer disconnected", peer.address, False))
            return
        if not self.flowing:
            self.check_initiates(peer)
            if not self._comes:
                reply.fail(self.disconnected(sent=False))
            elif not self._wait(message, peer, reply, reply.deadline, droppable=False):
                reply.fail(QueueFull(f"the outbox to {self.address} is full: {self.outbox or 'empty'}"))
            return
        self.send_request(message, reply, peer, reply.started)

    def answer(self, message: Message, peer: PeerPort, *, alone: bool = False) -> None:
        """Send or queue an answer, item or control message. These cannot be dropped, so a full queue closes the link.

        `alone` is True if no other message follows in this event loop iteration.
        """
        if self.flowing and self.multiplexed is None:
            self.services.counters.sent += 1
            frames = self.session.send(message, self.runtime.time(), peer.key)[1]  # type: ignore[union-attr]  # a flowing link has one
            if isinstance(frames, bytes):
                ((alone and self.send_alone) or self.transport.send)(frames)  # type: ignore[union-attr]  # and a transport
            else:
                self.send_frames(frames)
        elif self.flowing or (self.takes_more and (not self.outbox or self.holds)):
            self.write(message, peer)
        elif self.state is State.UP and not self._wait(message, peer, None, 0.0, droppable=False):
            self.too_slow(peer, "its outbox is full of answers")

    # -- the outbox ------------------------------------------------------------------------------------------------------

    @property
    def takes_answers(self) -> bool:
        """True if requests from peers may start, because few answers are unread."""
        return self.outbox is None or self.outbox.takes_answers

    @property
    def unread(self) -> int:
        """Number of bytes in answers and control messages that have not been written yet."""
        return self.unwritten.held + (0 if self.outbox is None else self.outbox.kept_bytes)

    def too_slow(self, peer: Any, text: str) -> None:
        """Close the link of a peer that doesn't read, or disconnect only the peer if the link is multiplexed."""
        if self.multiplexed is not None and peer.gone:
            return
        self.services.emit(PeerSlow(peer=peer.public, policy="disconnect", dropped=self.slow))
        if self.multiplexed is not None:
            self.multiplexed.send_away(peer, 1013, f"too slow: {text}")
            return
        slow = Closed(1013, f"the peer is too slow: {text}")
        if self._ending is None:
            self.tell_end(slow)
        self.abort(slow, comes_back=True)

    def tell_end(self, why: Closed) -> None:
        """Log the reason why a client's connection ends. For connections that this bus opened, the dialer logs it."""
        if not self.opened:
            template = "the connection of %s has ended: %.200s"
            self.runtime.warnings.warn(logger, template, self.address, why.reason, extra=self.log_fields())

    def dropped(self, peer: Any) -> None:
        self.services.counters.dropped += 1
        self.slow += 1
        if self.slow == 1:
            self.services.emit(PeerSlow(peer=None if peer is None else peer.public, policy=self.when_full, dropped=1))
            text = "%s reads too slowly: publications to it are dropped (when_full=%r), and counted in stats().dropped"
            self.runtime.warnings.warn(logger, text, peer or self.address, self.when_full, extra=self.log_fields())

    def _wait(self, message: Message, peer: PeerPort, reply: Reply[Any] | None, deadline: float, *, droppable: bool) -> bool:
        if not self._comes:
            return True  # there is no one to read it, and the caller fails when the link ends
        if self.outbox is None:
            self.outbox = SendQueue(self)
        return self.outbox.wait(message, peer, reply, deadline, droppable=droppable)

    @property
    def _comes(self) -> bool:
        """True if there is or will be a connection to write queued messages to."""
        ending = self._ending
        return self.state is not State.CLOSED and (ending is None or (self.opened and ending.returns))

    @property
    def takes_more(self) -> bool:
        return not self.paused and self.stands and not (self.opened and self._ending is not None and self._ending.returns)

    def update_flow(self) -> None:
        self.flowing = self.state is State.UP and not self.paused and not self.outbox and self.initiates and not self.holds

    def drain_outbox(self) -> None:
        outbox = self.outbox
        if outbox is not None and not self.holds:
            outbox.drain()
            if not len(outbox):
                self.outbox = None
                self.runtime.deadlines.forget(outbox)
                self.runtime.notifier.signal()
        self.update_flow()
        self.let_begin()

    def let_begin(self) -> None:
        if self.stalled:
            stalled, self.stalled = self.stalled, {}
            for resume in stalled:
                resume()

    async def room(self, deadline: float) -> bool:
        """Wait until the queue may have room. Returns False if the deadline passes or the link is closed."""
        if self.state is State.CLOSED:
            return False
        return self.outbox is None or await self.outbox.room(deadline)

    async def room_for_answer(self) -> None:
        """Delay a handler's answer while too many earlier answers are unread.

        The answer keeps the handler's slot, so that a peer that reads receives all its answers, no matter how large they are.
        If the peer doesn't read, the connection ends after `Limits.write_timeout`.
        """
        while self.stands and self.outbox is not None and not self.outbox.takes_answers:
            await self.room(math.inf)

    def hold(self) -> None:
        """Queue everything except answers until `release`."""
        self.holds = True
        self.update_flow()

    def release(self) -> None:
        if self.holds:
            self.holds = False
            self.drain_outbox()

    def pause_writing(self) -> None:
        self.paused = True
        self.flowing: bool = False
        self._charge(self.transport.write_backlog() if self.transport is not None else 0)

    def resume_writing(self) -> None:
        self.paused = False
        self._charge(0)
        if self.slow:
            self.slow = 0
        self.drain_outbox()

    def _charge(self, size: int) -> None:
        """Charge the connection's unwritten bytes like queued messages."""
        self.unwritten.charge(size - self.unwritten.held)

    # -- memory ----------------------------------------------------------------------------------------------------------

    def share_with(self, share: Share | None) -> None:
        self.share = share
        self.unwritten = MemoryBudget(self.runtime, share=share)
        self.bodies = MemoryBudget(self.runtime, share=share)

    def hold_back(self) -> None:
        """Set a quota for a link that this bus opened to a broker, because its peers are the broker's clients."""
        self._charge(0)
        self.share_with(Share())
        self.share.join(self.runtime.addresses, f"broker {self.address}")  # type: ignore[union-attr]  # not an address of a client

    def charge_arrival(self, transport: Transport) -> None:
        """Charge slowly arriving frames to `Limits.total_bytes`."""
        slow_arrival = getattr(transport, "slow_arrival", None)  # faster than `TransportFeatures.of`, since this runs often
        size: int = slow_arrival() if slow_arrival is not None else 0
        budget = self._arriving
        if budget is None:
            if not size:
                return
            budget = self._arriving = MemoryBudget(self.runtime, share=self.share)
        if size <= budget.held:
            budget.release(budget.held - size)
        elif not budget.hold(size - budget.held):
            text = f"the share of Limits.total_bytes leaves no room for the {size} bytes of a frame which comes slowly"
            self.abort(Closed(1013, text), comes_back=True)

    def discharge(self) -> None:
        self._charge(0)
        if self._arriving is not None:
            self._arriving.release(self._arriving.held)

    def disconnected(self, *, sent: bool) -> BusError:
        why = None if self._ending is None else self._ending.why
        if why is not None and why.error is not None:
            return another(why.error)
        return Disconnected(why.reason if why is not None else "the link is closed", self.address, sent)

    @abstractmethod
    def abort(self, why: Closed, *, comes_back: bool = False) -> None:
        """Abort the connection, and end the link."""
