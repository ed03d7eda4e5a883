"""What waits for a link that is slow or down: bounded in messages and bytes, in order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .limits import Limits
    from .message import Message
    from .peer import Peer
    from .reply import Reply
    from .runtime import Runtime

__all__ = ["Outbox", "Waiting"]

_OVERHEAD = 200
"""Bytes that a waiting message costs besides its body."""


class Waiting:
    """One message in an outbox. `message` is None once it was dropped or given up."""

    __slots__ = ("deadline", "droppable", "message", "peer", "reply", "size")

    def __init__(self, message: Message, peer: Peer, reply: Reply[Any] | None, deadline: float, droppable: bool) -> None:
        self.message: Message | None = message
        self.peer: Peer = peer
        self.reply: Reply[Any] | None = reply
        self.deadline: float = deadline
        self.droppable: bool = droppable
        self.size: int = _OVERHEAD + (len(message.raw) if message.raw is not None else 0)


class Outbox:
    """A queue of `Waiting`, with its own limits and a share in the bus's `total_bytes`."""

    __slots__ = ("_bytes", "_count", "_droppable", "_entries", "_kept", "_kept_bytes", "_limits", "_runtime")

    def __init__(self, limits: Limits, runtime: Runtime) -> None:
        self._limits = limits
        self._runtime = runtime
        self._entries: deque[Waiting] = deque()
        self._droppable: deque[Waiting] = deque()
        self._count = 0
        self._bytes = 0
        # What must not be dropped: requests, answers, items, control.
        self._kept = 0
        self._kept_bytes = 0

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """Bytes that wait."""
        return self._bytes

    def has_room(self, size: int) -> bool:
        """Whether one more message of this size fits. An empty outbox takes any message."""
        if self._count == 0:
            return True
        limits = self._limits
        return (
            self._count < limits.outbox
            and self._bytes + size <= limits.outbox_bytes
            and self._runtime.buffered + size <= limits.total_bytes
        )

    @property
    def takes_answers(self) -> bool:
        """Whether an answer should be added now, or had better wait: half is left to what cannot wait."""
        if self._count == 0:
            return True
        limits = self._limits
        return (
            2 * self._kept < limits.outbox
            and 2 * self._kept_bytes < limits.outbox_bytes
            and self._runtime.buffered < limits.total_bytes
        )

    def add(self, entry: Waiting) -> None:
        """Queue, without a look at the limits."""
        self._entries.append(entry)
        if entry.droppable:
            self._droppable.append(entry)
        else:
            self._kept += 1
            self._kept_bytes += entry.size
        self._count += 1
        self._bytes += entry.size
        self._runtime.buffered += entry.size

    def pop(self) -> Waiting | None:
        """The oldest message that is still wanted, or None."""
        while self._entries:
            entry = self._entries.popleft()
            if entry.message is not None:
                heads = self._droppable  # the same order: all before this entry have been given up
                while entry.droppable and heads.popleft() is not entry:
                    pass
                self._release(entry)
                return entry
        return None

    def drop(self, entry: Waiting) -> None:
        """Give one up; its place in the order goes when its turn comes."""
        if entry.message is not None:
            self._release(entry)
            entry.message = None
            self._compact()

    def drop_oldest(self) -> bool:
        """Give up the oldest message that may be dropped. False if there is none."""
        while self._droppable:
            entry = self._droppable.popleft()
            if entry.message is not None:
                self.drop(entry)
                return True
        return False

    def drop_expired(self, now: float) -> int:
        """Give up publications whose time has passed. How many."""
        expired = [e for e in self._droppable if e.message is not None and e.deadline <= now]
        for entry in expired:
            self.drop(entry)
        return len(expired)

    def drop_bound(self) -> None:
        """The connection is gone: answers and control belonged to it. Requests and publications wait for the next one."""
        for entry in list(self._entries):
            if entry.message is not None and entry.reply is None and not entry.droppable:
                self.drop(entry)

    def clear(self) -> list[Waiting]:
        """Empty it; what was still wanted."""
        left = []
        while (entry := self.pop()) is not None:
            left.append(entry)
        self._droppable.clear()
        return left

    def _release(self, entry: Waiting) -> None:
        self._count -= 1
        self._bytes -= entry.size
        if not entry.droppable:
            self._kept -= 1
            self._kept_bytes -= entry.size
        self._runtime.buffered -= entry.size

    def _compact(self) -> None:
        """Dropped entries must not pile up behind one that cannot be dropped."""
        if len(self._entries) > 2 * self._count + 64:
            self._entries = deque(e for e in self._entries if e.message is not None)
            self._droppable = deque(e for e in self._entries if e.droppable)
