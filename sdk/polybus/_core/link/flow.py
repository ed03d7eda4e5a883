"""Outgoing messages of a link: sent at once while it flows, otherwise queued until the connection takes them."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from attrs import define, field

from ...errors import BusError, Disconnected, QueueFull, another
from ...events import PeerSlow
from ...plugins import Closed
from ..runtime.memory_budgets import MemoryBudget, Share
from .send_queue import SendQueue
from .state import Ending, State
from .wire import LinkWire

if TYPE_CHECKING:
    from ...message import Message
    from ...plugins import Transport
    from ..rpc.reply import Reply
    from .ports import PeerPort, StalledCalls

logger: logging.Logger = logging.getLogger("polybus.link")


@define(init=False, eq=False, repr=False, weakref_slot=False)
class LinkFlow(LinkWire, ABC):
    when_full: str = field(default="drop_oldest", kw_only=True)
    outbox: SendQueue | None = field(default=None, init=False)
    paused: bool = field(default=False, init=False)
    share: Share | None = field(default=None, init=False)
    """Its share of `Limits.total_bytes`; None for a single dialled peer, which needs no sharing."""
    slow: int = field(default=0, init=False)
    unwritten: MemoryBudget = field(init=False)
    """Bytes in the connection at its last pause."""
    bodies: MemoryBudget = field(init=False)
    stalled: dict[StalledCalls, None] = field(factory=dict, init=False)
    """Requests that wait until this connection takes answers again."""
    holds: bool = field(default=False, init=False)
    """True while all but answers wait for other links to return."""
    _ending: Ending | None = field(default=None, init=False)
    _arriving: MemoryBudget | None = field(default=None, init=False)

    # -- sending ---------------------------------------------------------------------------------------------------------

    def publish(self, message: Message, peer: PeerPort, deadline: float) -> bool:
        """Send or queue a publication. False, without effect, if there is no room."""
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
        """Send or queue a request.

        Raises:
            EncodeError, Unsupported, LocalProtocolError: Misuse; other errors fail the reply.
        """
        if self.multiplexed is not None and peer.gone:
            reply.fail(Disconnected("the peer has gone", peer.address, False))
            return
        if not self.flowing:
            self.check_initiates(peer)
            if not self._comes:
                reply.fail(self.disconnected(sent=False))
            elif self._wait(message, peer, reply, reply.deadline, droppable=False):
                peer.request_waits(reply)
            else:
                reply.fail(QueueFull(f"the outbox to {self.address} is full: {self.outbox or 'empty'}"))
            return
        self.send_request(message, reply, peer, reply.started)

    def answer(self, message: Message, peer: PeerPort, *, alone: bool = False) -> None:
        """Send a message that must not be dropped: an answer, item or control message. A peer that does not read them loses its
        link.

        `alone` marks an answer without a successor in this turn.
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
        """True while its peers' requests may begin: few answers are unread."""
        return self.outbox is None or self.outbox.takes_answers

    @property
    def unread(self) -> int:
        """Bytes of answers and control messages known to be unread."""
        return self.unwritten.held + (0 if self.outbox is None else self.outbox.kept_bytes)

    def too_slow(self, peer: Any, text: str) -> None:
        """End the link of a peer that does not read; on a multiplexed link disconnect only that peer."""
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
        """Log why an accepted connection ends; the dialer logs for dialled ones."""
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
            return True  # no peer will read it; the caller learns of that when the link ends
        if self.outbox is None:
            self.outbox = SendQueue(self)
        return self.outbox.wait(message, peer, reply, deadline, droppable=droppable)

    @property
    def _comes(self) -> bool:
        """True while a connection for queued messages exists, or will."""
        ending = self._ending
        return self.state is not State.CLOSED and (ending is None or (self.opened and ending.returns))

    @property
    def takes_more(self) -> bool:
        """True while the connection takes queued messages and is not being replaced."""
        return not self.paused and self.stands and not (self.opened and self._ending is not None and self._ending.returns)

    def update_flow(self) -> None:
        self.flowing = self.state is State.UP and not self.paused and not self.outbox and self.initiates and not self.holds

    def drain_outbox(self) -> None:
        outbox = self.outbox
        if outbox is not None and not self.holds:
            outbox.drain()
            if not len(outbox):
                self.outbox = None
                self.runtime.notifier.signal()
        self.update_flow()
        self.let_begin()

    def let_begin(self) -> None:
        if self.stalled:
            stalled, self.stalled = self.stalled, {}
            for calls in stalled:
                calls.resume()

    async def room(self, deadline: float) -> bool:
        """Wait until there may be room. False if the deadline passed or the link ended."""
        if self.state is State.CLOSED:
            return False
        return self.outbox is None or await self.outbox.room(deadline)

    async def room_for_answer(self) -> None:
        """Delay a handler's answer while too many wait; it keeps the handler's slot.

        So a reading peer gets all its answers, however large. One that does not read ends at `write_timeout`.
        """
        while self.stands and self.outbox is not None and not self.outbox.takes_answers:
            await self.room(math.inf)

    def hold(self) -> None:
        """Queue everything but answers, until `release`."""
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
        """Charge a stalled connection's bytes like queued messages."""
        self.unwritten.charge(size - self.unwritten.held)

    # -- memory ----------------------------------------------------------------------------------------------------------

    def share_with(self, share: Share | None) -> None:
        self.share = share
        self.unwritten = MemoryBudget(self.runtime, share=share)
        self.bodies = MemoryBudget(self.runtime, share=share)

    def hold_back(self) -> None:
        """Share memory and slots although this bus dialled: the peer relays other clients' requests."""
        self._charge(0)
        self.share_with(Share())
        self.share.join(self.runtime.addresses, f"broker {self.address}")  # type: ignore[union-attr]  # not an address of a client

    def charge_arrival(self, transport: Transport) -> None:
        """Charge a partly received, slow frame to `Limits.total_bytes`."""
        slow_arrival = getattr(transport, "slow_arrival", None)  # read alone: this runs every second on every connection
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
        """Cut the connection, and end the link."""
