"""Messages that wait for a link which is slow or down: bounded in number and bytes, in order, or by the wire's priorities."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from .._core.memory import Account, cost
from .._util.priority_queue import PriorityQueue

if TYPE_CHECKING:
    from .._core.memory import Share
    from .._core.runtime import Runtime
    from .._rpc.reply import Reply
    from ..limits import Limits
    from ..message import Message
    from .ports import PeerPort

__all__ = ["Outbox", "WaitingMessage"]


class WaitingMessage:
    """One message in an outbox. `message` is None once it was dropped or given up."""

    __slots__ = ("deadline", "droppable", "level", "message", "peer", "reply", "size", "waits")

    def __init__(
        self, message: Message, peer: PeerPort, reply: Reply[Any] | None, deadline: float, droppable: bool, level: int = 0
    ) -> None:
        self.message: Message | None = message
        self.peer: PeerPort = peer
        self.reply: Reply[Any] | None = reply
        self.deadline: float = deadline
        self.droppable: bool = droppable
        self.size: int = cost(message)
        self.level: int = level
        """The priority: the highest goes first."""
        self.waits: bool = True


class _PeerEntries:
    """The messages that wait for one of the peers of a link."""

    __slots__ = ("bytes", "count", "droppable")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.droppable: deque[WaitingMessage] = deque()
        """In order; entries that wait no more are taken off when they come to the front."""


class Outbox:
    """A queue of `WaitingMessage`, with its own limits and a share in the bus's `total_bytes`.

    Of a link with many peers all are in one queue, in order; when it is full, room is made at the cost of the peer with most in
    it.
    """

    __slots__ = ("_account", "_count", "_earliest", "_entries", "_kept", "_kept_bytes", "_limits", "_shares", "last")

    def __init__(self, limits: Limits, runtime: Runtime, share: Share | None = None) -> None:
        self._limits = limits
        self._account = Account(runtime, limits.outbox_bytes, share)
        self._entries: PriorityQueue[WaitingMessage] = PriorityQueue()
        self._shares: dict[PeerPort, _PeerEntries] = {}
        self._earliest = math.inf
        self._count = 0
        # Of messages that must not be dropped: requests, answers, items, control.
        self._kept = 0
        self._kept_bytes = 0
        self.last: WaitingMessage | None = None
        """The entry that was added last; perhaps it waits no more."""

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """Bytes that wait."""
        return self._account.held

    def has_room(self, size: int) -> bool:
        """Check that one more message of this size fits. An empty outbox takes any message."""
        return self._count == 0 or (self._count < self._limits.outbox and self._account.has_room(size))

    @property
    def kept_bytes(self) -> int:
        """Bytes of messages that must not be dropped."""
        return self._kept_bytes

    @property
    def takes_answers(self) -> bool:
        """True if an answer may be added now, and need not wait: half is left to what cannot wait."""
        if self._count == 0:
            return True
        limits = self._limits
        return 2 * self._kept < limits.outbox and 2 * self._kept_bytes < limits.outbox_bytes and self._account.has_room(0)

    def add(self, entry: WaitingMessage) -> None:
        """Add an entry, without a look at the limits."""
        share = self._shares.get(entry.peer)
        if share is None:
            share = self._shares[entry.peer] = _PeerEntries()
        self._entries.append(entry, entry.level)
        self.last = entry
        if entry.droppable:
            share.droppable.append(entry)
            self._earliest = min(self._earliest, entry.deadline)
        self._count_in(entry, share, 1)

    def pop(self) -> WaitingMessage | None:
        """Take the next entry that still waits, or None: the oldest of the highest priority."""
        while self._entries:
            entry = self._entries.popleft()
            if entry.waits:
                self._release(entry)
                return entry
        return None

    def drop(self, entry: WaitingMessage) -> None:
        """Give an entry up; its place in the order goes when its turn comes."""
        if entry.waits:
            self._release(entry)
            entry.message = None
            # Dropped entries must not pile up behind one that cannot be dropped.
            if len(self._entries) > 2 * self._count + 64:
                self._entries.retain(lambda entry: entry.waits)

    def greediest(self) -> PeerPort:
        """Find the peer with most in a box that is not empty: in messages or in bytes, by what is nearer to its limit."""
        limits = self._limits

        def part(peer: PeerPort) -> float:
            share = self._shares[peer]
            return max(share.count / limits.outbox, share.bytes / limits.outbox_bytes)

        return max(self._shares, key=part)

    def drop_oldest(self, peer: PeerPort) -> bool:
        """Give up the oldest message for a peer that may be dropped. False if there is none."""
        share = self._shares.get(peer)
        if share is None or not share.droppable:
            return False
        self.drop(share.droppable[0])
        return True

    @property
    def next_expiry(self) -> float:
        """The earliest time at which a publication may expire."""
        return self._earliest

    def drop_expired(self, now: float) -> int:
        """Give up the expired publications, and count them. Looks at all only when one may have expired."""
        if now < self._earliest:
            return 0
        droppable = [entry for share in self._shares.values() for entry in share.droppable if entry.waits]
        expired = [entry for entry in droppable if entry.deadline <= now]
        for entry in expired:
            self.drop(entry)
        self._earliest = min((entry.deadline for entry in droppable if entry.waits), default=math.inf)
        return len(expired)

    def drop_bound(self) -> None:
        """Give up what belonged to a lost connection: answers and control. Requests and publications wait for the next one."""
        for entry in list(self._entries):
            if entry.reply is None and not entry.droppable:
                self.drop(entry)

    def drop_all(self, peer: PeerPort) -> None:
        """Give up what waits for a peer that has gone: it must not reach another under its key."""
        if peer in self._shares:
            for entry in list(self._entries):
                if entry.peer is peer:
                    self.drop(entry)

    def clear(self) -> list[WaitingMessage]:
        """Empty the outbox, and give the entries that still waited."""
        left = []
        while (entry := self.pop()) is not None:
            left.append(entry)
        return left

    def _count_in(self, entry: WaitingMessage, share: _PeerEntries, step: int) -> None:
        size = step * entry.size
        self._count += step
        share.count += step
        share.bytes += size
        if not entry.droppable:
            self._kept += step
            self._kept_bytes += size
        self._account.charge(size)

    def _release(self, entry: WaitingMessage) -> None:
        entry.waits = False
        share = self._shares[entry.peer]
        self._count_in(entry, share, -1)
        heads = share.droppable
        while heads and not heads[0].waits:
            heads.popleft()
        if len(heads) > 2 * share.count + 64:  # urgent entries have left from behind one that still waits
            share.droppable = deque(e for e in heads if e.waits)
        if not share.count:
            del self._shares[entry.peer]
