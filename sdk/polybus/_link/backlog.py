"""What a link keeps while its connection is slow or down: the state of what leaves, and the outbox half of it."""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio

from .._core.memory import Account, Share
from ..errors import BusError, Code
from ..events import PeerSlow
from ..plugins import Closed, CodecFeatures
from .outbox import Outbox, Waiting

if TYPE_CHECKING:
    from .._bus.bus import Bus
    from .._core.runtime import Runtime
    from .._core.services import Services
    from .._peer.peer import Peer
    from .._rpc.reply import Reply
    from ..body import BodyFormat
    from ..message import Message
    from ..plugins import Codec, ProtocolAdapter, Session, Transport
    from .multiplexer import Crowd

__all__ = ["Backlog", "State"]

logger: logging.Logger = logging.getLogger("polybus.link")


class State(enum.Enum):
    """Where a link stands."""

    CONNECTING = "connecting"
    UP = "up"
    DOWN = "down"
    CLOSED = "closed"


class Backlog:
    """The part of a link that holds back what its connection does not take."""

    __slots__ = (
        "_closing",
        "_peer",
        "_room",
        "_wanted",
        "adapter",
        "alike",
        "bodies",
        "bus",
        "carries_headers",
        "crowd",
        "flowing",
        "format",
        "format_for",
        "initiates",
        "opened",
        "outbox",
        "paused",
        "runtime",
        "send_framed",
        "services",
        "session",
        "share",
        "shared",
        "slow",
        "state",
        "stuck",
        "transport",
        "unwritten",
        "urgency",
        "url",
        "when_full",
    )

    def __init__(
        self,
        bus: Bus,
        services: Services,
        runtime: Runtime,
        adapter: ProtocolAdapter,
        url: str,
        opened: bool,
        when_full: str,
    ) -> None:
        self.bus: Bus = bus
        self.services: Services = services
        self.runtime: Runtime = runtime
        self.adapter: ProtocolAdapter = adapter
        self.url: str = url
        self.opened: bool = opened
        """Whether this bus has dialled (and not accepted) the connection."""
        self.when_full: str = when_full
        self.state: State = State.CONNECTING
        self.session: Session | None = None
        self.transport: Transport | None = None
        self.carries_headers: bool = True
        """Whether its wire has headers: known since the first session, also while the link is down."""
        self.shared: Codec | None = None
        """The codec, where a publication has the same frame on all its sessions."""
        self.alike: tuple[Codec, type[Transport], str] | None = None
        """What a publication's bytes depend on, where they are the same on all links alike: they are made once."""
        self.send_framed: Callable[[bytes, int], None] | None = None
        """Writes such bytes."""
        self.outbox: Outbox | None = None
        self.paused: bool = False
        self.flowing: bool = False
        """Up, not paused, and nothing waits: messages go straight to the session."""
        self.share: Share | None = None if opened else Share()
        """Of `Limits.total_bytes`. What this application itself has connected to is not held back for others."""
        self.slow: int = 0
        """Publications dropped since the peer was last keeping up."""
        self.unwritten: Account = Account(runtime, share=self.share)
        """What the connection held when it last asked for a pause."""
        self.bodies: Account = Account(runtime, share=self.share)
        """Large bodies of requests that run."""
        self.stuck: dict[Peer, None] = {}
        """Peers whose requests wait until this connection takes answers again."""
        self.crowd: Crowd | None = None
        """The peers of a connection that carries many."""
        self.initiates: bool = True
        """Whether this side may begin requests and publications."""
        self._peer: Peer | None = None
        self._room: list[Any] | None = None
        self._closing: Closed | None = None
        self._wanted = False  # the end was not this application's wish: an opened link comes back
        codec = adapter.codec(runtime.limits)
        self.format: BodyFormat = codec.formats[0]
        self.urgency: Callable[[Message], int] | None = CodecFeatures.of(codec).urgency
        """How urgent a message is, where the wire has priorities."""
        self.format_for: Callable[[Any, str | int], BodyFormat] = codec.format_for

    @property
    def upstream(self) -> bool:
        """Whether there is one peer and this bus has dialled it: a server of ours, not clients behind a broker."""
        return self.opened and self.crowd is None

    @property
    def address(self) -> str:
        """Of the other end."""
        return self.transport.address if self.transport is not None else self.url

    @property
    def takes_answers(self) -> bool:
        """Whether requests of its peers may begin: there is no more than a little that they have not read."""
        return self.outbox is None or self.outbox.takes_answers

    @property
    def unread(self) -> int:
        """Bytes of answers and the like that have not been taken, as far as that is known."""
        return self.unwritten.held + (0 if self.outbox is None else self.outbox.kept_bytes)

    # -- what the classes above do ---------------------------------------------------------------------------------------

    def abort(self, why: Closed, *, comes_back: bool = False) -> None:
        """Cut the connection."""
        raise NotImplementedError

    def flush(self) -> None:
        """Hand what the session has queued to the transport."""
        raise NotImplementedError

    def write(self, message: Message, peer: Peer) -> Any:
        """Give a message to the session now."""
        raise NotImplementedError

    def _send_request(self, message: Message, reply: Reply[Any], peer: Peer, now: float) -> None:
        raise NotImplementedError

    # -- the outbox ------------------------------------------------------------------------------------------------------

    def too_slow(self, peer: Peer, text: str) -> None:
        """End the link of a peer that does not read; one of many is sent away alone."""
        if self.crowd is not None and peer.gone:
            return
        self.services.emit(PeerSlow(peer=peer, policy="disconnect", dropped=self.slow))
        if self.crowd is not None:
            self.crowd.send_away(peer, 1013, f"too slow: {text}")
            return
        self.abort(Closed(1013, f"the peer is too slow: {text}"), comes_back=True)

    def _wait(self, message: Message, peer: Peer, reply: Reply[Any] | None, deadline: float, *, droppable: bool) -> bool:
        if self.state is State.CLOSED or (self._closing is not None and (reply is not None or not self._wanted)):
            return True  # nobody will read it; the caller learns from the link's end
        outbox = self.outbox
        if outbox is None:
            outbox = self.outbox = Outbox(self.runtime.limits, self.runtime, self.share)
        entry = self.entry(message, peer, deadline, reply, droppable)
        if not self.make_room(outbox, entry):
            return False
        outbox.add(entry)
        if reply is not None:

            def abandon(abandoned: Reply[Any]) -> None:
                outbox.drop(entry)
                self._wake_room()
                self.runtime.bell.ring()
                peer._abandoned(abandoned)

            reply._abandon = abandon
        return True

    def entry(
        self, message: Message, peer: Peer, deadline: float, reply: Reply[Any] | None = None, droppable: bool = True
    ) -> Waiting:
        """What waits for a peer: encoded, so that its size is known.

        Raises:
            EncodeError: The body does not fit the wire.
        """
        if message.raw is None and message.has_body:
            message.encoded(self.adapter.codec(self.runtime.limits).formats)
        level = 0 if self.urgency is None else self.urgency(message)
        return Waiting(message, peer, reply, deadline, droppable, level)

    def make_room(self, outbox: Outbox, entry: Waiting) -> bool:
        """Whether one more message may be added to an outbox, after what the policy has dropped for it."""
        if outbox.has_room(entry.size):
            return True
        self.services.counters.dropped += outbox.drop_expired(self.runtime.time())
        if outbox.has_room(entry.size):
            return True
        if self.upstream and (entry.droppable or entry.reply is not None):
            return False  # the publisher waits, the asker is told
        while not outbox.has_room(entry.size):
            greediest = entry.peer if self.crowd is None else outbox.greediest()
            if entry.droppable and greediest is entry.peer and self.when_full != "drop_oldest":
                if self.when_full == "disconnect":
                    self.too_slow(greediest, "its outbox is full")
                else:
                    self._dropped(greediest)
                return False
            if outbox.drop_oldest(greediest):
                self._dropped(greediest)
            elif greediest is entry.peer or entry.reply is not None:
                return False
            else:
                self.too_slow(greediest, "it has most in an outbox that is full")
        return True

    def _dropped(self, peer: Peer) -> None:
        self.services.counters.dropped += 1
        self.slow += 1
        if self.slow == 1:
            self.services.emit(PeerSlow(peer=peer, policy=self.when_full, dropped=1))

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
            self._wake_room()
            if not len(outbox):
                self.outbox = None
                self.runtime.bell.ring()
        self._update_flow()
        self._let_begin()

    def _wake_room(self) -> None:
        if self._room:
            waiting, self._room = self._room, None
            for waiter in waiting:
                self.runtime.loop.wake(waiter)
        self._let_begin()

    def _let_begin(self) -> None:
        """Somebody has read: requests that waited for that may begin."""
        if self.stuck:
            stuck, self.stuck = self.stuck, {}
            for peer in stuck:
                peer.turn_again()

    def _expire(self, now: float) -> float:
        """The outbox's part of `Runtime._sweep`: what has expired makes room for who waits."""
        outbox = self.outbox
        if outbox is None or not self._room:
            return math.inf
        if expired := outbox.drop_expired(now):
            self.services.counters.dropped += expired
            self._wake_room()
        return outbox.next_expiry

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
                self._send_request(message, reply, peer, now)
            except BusError as error:
                reply._fail(error)
        elif entry.droppable and entry.deadline <= now:
            self.services.counters.dropped += 1
            self.services.dead_letter(peer, message, Code.DEADLINE_EXCEEDED, "expired before it could be sent")
            return
        else:
            if message.expires is not None:
                message.ttl = message.expires - now
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
            if self.outbox is not None and self.outbox.next_expiry < deadline:
                self.runtime.watch(self, self.outbox.next_expiry)
            try:
                await waiter
            finally:
                waiting = self._room  # another list, or none, once it has been drained
                if waiter in (waiting or ()):
                    waiting.remove(waiter)
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
        self.unwritten.charge(size - self.unwritten.held)
