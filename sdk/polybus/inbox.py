"""A bounded queue of publications, and what happens to one more: what subscriptions and `on` handlers have in common."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import anyio

from .account import OVERHEAD, Account
from .errors import Code, SlowConsumer
from .plugins import Closed

if TYPE_CHECKING:
    from typing import Any

    from .bus import Bus
    from .link import Link
    from .message import Message
    from .router import WhenFull

__all__ = ["Inbox"]

_STEP = 16 * 1024
"""Bytes by which a queue may be larger than what is charged for it: a queue that is read costs no book-keeping."""


class Inbox:
    """A queue of publications, bounded in messages (`queue`) and in bytes (`Limits.queue_bytes`), with a policy for one more.

    It is full at either bound, so that the last message may be of any size. Of a full ``block`` queue, publishers in this
    process are held back; what arrives over a link is kept beyond the size and charged to that link, which ends when it holds
    back more than `Limits.queue_bytes`.
    """

    __slots__ = (
        "_account",
        "_bus",
        "_bytes",
        "_least_kept",
        "_most",
        "_most_free",
        "_overflow",
        "_queue",
        "_room",
        "dropped",
        "local",
        "pattern",
        "queue",
        "when_full",
    )

    leads_on = False
    """Whether it is the way to another bus."""

    def __init__(self, bus: Bus, pattern: str | int, queue: int, when_full: WhenFull, local: bool) -> None:
        self._bus = bus
        self.pattern: str | int = pattern
        self.queue: int = queue
        self.when_full: WhenFull = when_full
        self.local: bool = local
        """Whether the bus's own publications are taken too."""
        self.dropped: int = 0
        self._queue: deque[Message] = deque()
        self._overflow: deque[tuple[Link, int]] | None = None
        """Who pays for the last messages of the queue, which are not counted in `_bytes`, and how much."""
        self._room: list[Any] | None = None
        self._most: int = bus.limits.queue_bytes
        self._bytes: int = 0
        self._account: Account | None = None
        # As long as `_bytes` stays between these two, what is charged need not change.
        self._most_free: int = min(_STEP, self._most)
        self._least_kept: int = -_STEP

    def __len__(self) -> int:
        return len(self._queue)

    def offer(self, message: Message, link: Link | None) -> None:
        """Take a publication; `link` is None when this process published it (and has waited for room)."""
        if len(self._queue) >= self.queue or (self._bytes >= self._most_free and not self._charge()):
            if self.when_full == "block":
                if link is not None:
                    self._hold(message, link)
                    return
            elif not self._displace(message):
                return
        self._queue.append(message)
        if (raw := message.raw) is not None:
            self._bytes += len(raw)
        self._arrived()

    def _arrived(self) -> None:
        raise NotImplementedError

    def take(self) -> Message:
        """The oldest publication."""
        queue = self._queue
        message = queue.popleft()
        if (raw := message.raw) is not None:
            self._bytes -= len(raw)
        if not queue:
            self._bytes = 0
            if self._account is not None:
                self._settle()
        elif self._bytes < self._least_kept:
            self._settle()
        if self._overflow:
            self._take_in()
        if self._room:
            self._wake_one()
        return message

    def expired(self, message: Message) -> bool:
        """Whether a publication with an end was taken too late; then it is counted and told."""
        if message.expires is None or message.expires >= self._bus._running.time():
            return False
        self._count_dropped()
        self._bus._dead_letter(message.peer, message, Code.DEADLINE_EXCEEDED, "expired before it was read")
        return True

    # -- what is charged -------------------------------------------------------------------------------------------------

    def _charge(self) -> bool:
        """Pay for what has come since the last time. False if the queue is full, or the bus keeps too much already."""
        if self._bytes >= self._most:
            return False
        if self._account is None:
            self._account = Account(self._bus._running)
        if not self._account.hold(self._bytes - self._account.held):
            return False
        self._set_bounds(self._account.held)
        return True

    def _settle(self) -> None:
        """Pay for exactly what waits."""
        account = self._account
        if account is None:
            account = self._account = Account(self._bus._running)
        account.charge(max(self._bytes, 0) - account.held)
        self._set_bounds(account.held)

    def _set_bounds(self, paid: int) -> None:
        self._most_free = min(paid + _STEP, self._most)
        self._least_kept = paid - _STEP

    # -- what happens to one more ----------------------------------------------------------------------------------------

    def _displace(self, message: Message) -> bool:
        if self.when_full == "drop_newest":
            self._count_dropped()
            return False
        if self.when_full != "latest" or not self._replace(message.subject):
            self._drop_oldest()
        while self._queue and self._bytes >= self._most:
            self._drop_oldest()
        return True

    def _replace(self, subject: str | int) -> bool:
        for old in self._queue:
            if old.subject == subject:
                self._queue.remove(old)
                self._bytes -= len(old.raw or b"")
                self._count_dropped()
                return True
        return False

    def _drop_oldest(self) -> None:
        self._bytes -= len(self._queue.popleft().raw or b"")
        self._count_dropped()

    def _count_dropped(self) -> None:
        self.dropped += 1
        self._bus._counters.dropped += 1

    def _hold(self, message: Message, link: Link) -> None:
        size = OVERHEAD + (len(message.raw) if message.raw is not None else 0)
        if not link.held.hold(size):
            text = (
                f"{self.pattern!r} is read too slowly: {len(self._queue)} publications wait (queue={self.queue}) and "
                f"{link.held.held} bytes of {link.address} are held back (Limits.queue_bytes); "
                "read faster, or choose when_full="
            )
            self._overrun(SlowConsumer(text))
            link.abort(Closed(1013, "a subscription of this side is read too slowly"), comes_back=True)
            return
        message.forget_value()
        if self._overflow is None:
            self._overflow = deque()
        self._overflow.append((link, size))
        self._queue.append(message)
        self._arrived()

    def _overrun(self, error: SlowConsumer) -> None:
        raise NotImplementedError

    def _take_in(self) -> None:
        """There is room in the queue for what was held back: it is charged to the queue from now on."""
        overflow = self._overflow
        while overflow and len(self._queue) - len(overflow) < self.queue and self._bytes < self._most:
            link, size = overflow.popleft()
            link.held.release(size)
            self._bytes += size - OVERHEAD
        if not self._least_kept <= self._bytes <= self._most_free:
            self._settle()

    # -- publishers of this process --------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether a publisher of this process has to wait."""
        return self.when_full == "block" and (len(self._queue) >= self.queue or self._bytes >= self._most)

    async def room(self, deadline: float) -> bool:
        """Wait until there is room. False when the deadline passed."""
        while self.full:
            waiter = self._bus._waiter()
            self._room = self._room if self._room is not None else []
            self._room.append(waiter)
            try:
                with anyio.move_on_at(deadline) as scope:
                    await waiter
            finally:
                if waiter in self._room:
                    self._room.remove(waiter)
                else:
                    self._wake_one()  # woken, and perhaps cancelled in the same turn: there is room for one more
            if scope.cancelled_caught:
                return False
        return True

    def _wake_one(self) -> None:
        if self._room and not self.full:
            self._bus._wake(self._room.pop(0))

    def clear(self) -> None:
        """Forget what waits, and let publishers go on."""
        self._queue.clear()
        self._bytes = 0
        if self._account is not None:
            self._settle()
            self._account = None  # a subscription may be entered again, while the bus runs anew
        while self._overflow:
            link, size = self._overflow.popleft()
            link.held.release(size)
        while self._room:
            self._bus._wake(self._room.pop())
