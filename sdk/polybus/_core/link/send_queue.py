"""A queue for messages that wait for a slow or disconnected link."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import anyio
from msgspec import Struct, field

from ..._util.deadlines import Deadlines
from ..._util.event_loop import Notifier
from ..._util.logs import log_fields
from ..._util.priority_queue import PriorityQueue
from ...errors import BusError, Code, Disconnected, another
from ...message import Message
from ..runtime.memory_budgets import MemoryBudget, cost, trim

if TYPE_CHECKING:
    from ..rpc.reply import Reply
    from .flow import LinkFlow
    from .ports import PeerPort

logger: logging.Logger = logging.getLogger("polybus.link")


class WaitingMessage(Struct, eq=False):
    """A message in a send queue.

    Attributes:
        level: Priority. Messages with a higher priority are sent first.
        waits: False once the message has left the queue.
    """

    message: Message
    peer: PeerPort
    reply: Reply[Any] | None
    deadline: float
    droppable: bool
    size: int
    level: int = 0
    waits: bool = True


class _PeerEntries(Struct, eq=False):
    """One peer's messages in a queue.

    Attributes:
        droppable: Droppable messages in order.
    """

    count: int = 0
    bytes: int = 0
    requests: int = 0
    droppable: OrderedDict[WaitingMessage, None] = field(default_factory=OrderedDict)


class SendQueue:
    """A queue of messages that wait for a link. They are sent in order or by priority.

    The queue is bounded in messages and bytes. A link has a queue only while its connection is slow or down. The peers of a
    multiplexed link share one queue. When it is full, the peer that uses the largest part of it loses messages.
    """

    def __init__(self, link: LinkFlow) -> None:
        self._link = link
        self._budget = MemoryBudget(link.runtime, link.runtime.limits.outbox_bytes, link.share)
        self._entries: PriorityQueue[WaitingMessage] = PriorityQueue()
        self._shares: dict[PeerPort, _PeerEntries] = {}
        self._earliest = math.inf
        """Earliest deadline of a publication."""
        self._requests: dict[int, WaitingMessage] = {}
        """Requests by the `id` of their reply, because they don't have a key yet."""
        self._deadlines = Deadlines()
        self._kept = 0
        """Number of requests, answers, items and control messages, which cannot be dropped."""
        self.kept_bytes: int = 0
        self.last: WaitingMessage | None = None
        """Message that was added last, even if it has left the queue."""
        self._room = Notifier(link.runtime.loop.waiter, link.runtime.loop.wake)

    def __len__(self) -> int:
        return len(self._entries)

    def __str__(self) -> str:
        return f"{len(self)} messages, {self.bytes} bytes (Limits.outbox, outbox_bytes)"

    @property
    def bytes(self) -> int:
        return self._budget.held

    def requests_of(self, peer: PeerPort) -> int:
        """Return the number of a peer's requests."""
        return self._shares[peer].requests if peer in self._shares else 0

    def has_room(self, size: int) -> bool:
        """Return True if a message fits. An empty queue accepts messages of any size."""
        count = len(self._entries)
        return count == 0 or (count < self._link.runtime.limits.outbox and self._budget.has_room(size))

    @property
    def takes_answers(self) -> bool:
        """True if answers may be added. Half of the queue is reserved for senders that cannot wait."""
        if not self._entries:
            return True
        limits = self._link.runtime.limits
        return 2 * self._kept < limits.outbox and 2 * self.kept_bytes < limits.outbox_bytes and self._budget.has_room(0)

    def add(self, entry: WaitingMessage) -> None:
        share = self._shares.get(entry.peer)
        if share is None:
            share = self._shares[entry.peer] = _PeerEntries()
        self._entries.append(entry, entry.level)
        self.last = entry
        if entry.droppable:
            share.droppable[entry] = None
            self._earliest = min(self._earliest, entry.deadline)
        self._count_in(entry, share, 1)

    def pop(self) -> WaitingMessage | None:
        """Remove and return the oldest message of the highest priority. Returns None if the queue is empty."""
        if not self._entries:
            return None
        entry = self._entries.popleft()
        self._release(entry)
        return entry

    def drop(self, entry: WaitingMessage) -> None:
        if self._entries.remove(entry):
            self._release(entry)

    def greediest(self) -> PeerPort:
        """Return the peer that uses the largest part of the queue, in messages or bytes relative to the limits."""
        limits = self._link.runtime.limits

        def part(peer: PeerPort) -> float:
            share = self._shares[peer]
            return max(share.count / limits.outbox, share.bytes / limits.outbox_bytes)

        return max(self._shares, key=part)

    def drop_oldest(self, peer: PeerPort) -> bool:
        """Drop a peer's oldest droppable message. Returns False if there is no such message."""
        share = self._shares.get(peer)
        if share is None or not share.droppable:
            return False
        self.drop(next(iter(share.droppable)))
        return True

    def drop_expired(self, now: float) -> int:
        """Drop expired publications, and return how many there were."""
        if now < self._earliest:
            return 0
        droppable = [entry for share in self._shares.values() for entry in share.droppable]
        expired = [entry for entry in droppable if entry.deadline <= now]
        for entry in expired:
            self.drop(entry)
        self._earliest = min((entry.deadline for entry in droppable if entry.waits), default=math.inf)
        return len(expired)

    def drop_bound(self) -> None:
        """Drop answers and control messages, which belong to the lost connection."""
        for entry in list(self._entries):
            if entry.reply is None and not entry.droppable:
                self.drop(entry)

    def lost(self, reason: str, error: BusError | None, peer: PeerPort | None = None) -> None:
        """Drop all messages, or those to a peer that has left, and fail their requests."""
        for entry in list(self._entries) if peer is None or peer in self._shares else ():
            if peer is None or entry.peer is peer:
                self.drop(entry)
                if entry.reply is not None:
                    entry.reply.fail(another(error) if error is not None else Disconnected(reason, entry.peer.address, False))

    def clear(self) -> list[WaitingMessage]:
        left = []
        while (entry := self.pop()) is not None:
            left.append(entry)
        return left

    def _count_in(self, entry: WaitingMessage, share: _PeerEntries, step: int) -> None:
        size = step * entry.size
        share.count += step
        share.bytes += size
        if entry.reply is not None:
            share.requests += step
        if not entry.droppable:
            self._kept += step
            self.kept_bytes += size
        self._budget.charge(size)

    def _release(self, entry: WaitingMessage) -> None:
        entry.waits = False
        share = self._shares[entry.peer]
        self._count_in(entry, share, -1)
        share.droppable.pop(entry, None)
        self._requests.pop(id(entry.reply), None)
        if not share.count:
            del self._shares[entry.peer]

    # -- adding ----------------------------------------------------------------------------------------------------------

    def entry(
        self, message: Message, peer: PeerPort, deadline: float, reply: Reply[Any] | None = None, droppable: bool = True
    ) -> WaitingMessage:
        """Create the entry for a message. Encodes the message to determine its size."""
        link = self._link
        if message.raw is None and message.has_body:
            message.encoded(link.adapter.codec(link.runtime.limits).formats)
        level = 0 if link.urgency is None else link.urgency(message)
        return WaitingMessage(message, peer, reply, deadline, droppable, cost(message), level)

    def wait(self, message: Message, peer: PeerPort, reply: Reply[Any] | None, deadline: float, *, droppable: bool) -> bool:
        """Add a message to the queue. Returns False if the queue is full."""
        if not droppable:  # the body of a publication is shared with other peers
            trim(message)
        entry = self.entry(message, peer, deadline, reply, droppable)
        if not self.make_room(entry):
            return False
        self.add(entry)
        if reply is not None:
            self._requests[id(reply)] = entry
            reply.on_cancel = self._abandoned
            if deadline < self._deadlines.until:
                self._deadlines.add(deadline, id(reply))
            self._link.runtime.deadlines.watch(self, deadline)
        return True

    def _abandoned(self, reply: Reply[Any]) -> None:
        entry = self._requests.get(id(reply))
        if entry is not None:
            self.drop(entry)
            self.wake()
            self._link.runtime.notifier.signal()

    def make_room(self, entry: WaitingMessage) -> bool:
        """Make room for a message as the policy allows. Returns False if that is not possible."""
        link, size = self._link, entry.size
        if self.has_room(size):
            return True
        link.services.counters.dropped += self.drop_expired(link.runtime.time())
        if self.has_room(size):
            return True
        if link.upstream and (entry.droppable or entry.reply is not None):
            return False  # the publisher waits, or the request fails
        while not self.has_room(size):
            greediest = entry.peer if link.multiplexed is None else self.greediest()
            if entry.droppable and greediest is entry.peer and link.when_full != "drop_oldest":
                if link.when_full == "disconnect":
                    link.too_slow(greediest, "its outbox is full")
                else:
                    link.dropped(greediest)
                return False
            if self.drop_oldest(greediest):
                link.dropped(greediest)
            elif greediest is entry.peer or entry.reply is not None:
                return False
            else:
                link.too_slow(greediest, "it has the largest part of a full outbox")
        return True

    # -- room ------------------------------------------------------------------------------------------------------------

    async def room(self, deadline: float) -> bool:
        """Wait until the queue may have room. Returns False if the deadline passes."""
        runtime = self._link.runtime
        with anyio.move_on_at(deadline) as scope:
            if self._earliest < deadline:
                runtime.deadlines.watch(self, self._earliest)
            await self._room.wait()
        return not scope.cancelled_caught

    def wake(self) -> None:
        """Wake publishers that wait for room, and start requests that wait until answers have been written."""
        self._room.signal()
        self._link.let_begin()

    def expire(self, now: float) -> float:
        for entry in self._deadlines.due(now, self._requests):
            if entry.reply is not None:
                entry.peer.timed_out(entry.reply, now)
            self.drop(entry)
        if not self._room.waiting:
            return self._deadlines.next
        if expired := self.drop_expired(now):
            self._link.services.counters.dropped += expired
            self.wake()
        return min(self._earliest, self._deadlines.next)

    # -- writing ---------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        link = self._link
        now = link.runtime.time()
        while link.takes_more and (entry := self.pop()) is not None:
            self._write(entry, now)
        self.wake()

    def _write(self, entry: WaitingMessage, now: float) -> None:
        link, message, reply, peer = self._link, entry.message, entry.reply, entry.peer
        if reply is not None:
            if reply.done():
                return
            if message.ttl is not None:  # minus the time spent in the queue
                message.ttl = max(0.0, message.ttl - (now - reply.started))
            reply.on_cancel = peer.abandoned
            try:
                link.send_request(message, reply, peer, now)
            except BusError as error:
                reply.fail(error)
        elif entry.droppable and entry.deadline <= now:
            link.services.counters.dropped += 1
            link.services.dead_letter(peer.public, message, Code.DEADLINE_EXCEEDED, "expired before it could be sent")
            return
        else:
            if message.expires is not None:
                message.ttl = message.expires - now
            try:
                link.write(message, peer)
            except BusError as error:
                logger.warning("a waiting message could not be written: %s", error, extra=log_fields(peer, message=message))
