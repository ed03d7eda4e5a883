"""Subscriptions to iterate over, and the bounded queue that `on` handlers use too."""

from __future__ import annotations

import copy
import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Self

import anyio
from attrs import define, field

from ..._util.cancel_scopes import receive
from ..._util.logs import ViolationCounter, log_fields
from ..._util.misuse import never_without_async
from ..._util.typed_body import misfit, typed_body
from ..._validation import type_name
from ...errors import BusError, Code, LocalProtocolError, SlowConsumer
from ...events import SubscriptionSlow
from ...message import Message, T_co
from ..runtime.memory_budgets import OVERHEAD, MemoryBudget

if TYPE_CHECKING:
    from ...plugins.extensions import Reading
    from ..handlers.handler import WhenFull
    from ..runtime.runtime import Runtime
    from ..runtime.services import Services
    from .peer_core import PeerCore
    from .ports import PeerPubSub

logger: logging.Logger = logging.getLogger("polybus")

_STEP = 16 * 1024
"""Number of queued bytes that are not charged, which saves fast readers the bookkeeping."""
_PAUSE = 1.0
"""Minimum number of seconds between two events about a queue."""


@define(eq=False, repr=False, weakref_slot=False)
class SubscriptionQueue(ABC):
    """A queue of publications with an overflow policy, bounded in messages (`queue`) and bytes (`Limits.queue_bytes`).

    Each publication counts as its body plus `OVERHEAD` bytes. The queue is full once it reaches either bound, which means that
    the last message may have any size.

    In addition, up to `Limits.queue_bytes` of publications from links can be delayed. With the policy ``block``, they are
    always delayed. With other policies, they are delayed until a woken reader has had its turn, because a single read from a
    connection can deliver thousands of small messages. The policy is then applied to the messages that remain.
    """

    leads_on = False
    """True if publications are forwarded to another bus."""

    _services: Services
    pattern: str | int
    _wanted: int | None = field(alias="queue")
    when_full: WhenFull
    local: bool
    """True if the queue accepts publications of this bus."""
    group: str | None = None
    paced: bool = field(default=False, kw_only=True)
    """True if producers check `full` first. The queue then accepts every message and never reports that it is full."""
    queue: int = field(init=False)
    dropped: int = field(default=0, init=False)
    _queue: deque[Message] = field(factory=deque, init=False)
    _reader_woken: bool = field(default=False, init=False)
    """True if a reader has been woken and has not had its turn yet."""
    _half: int = field(init=False)
    _mark: int = field(init=False)
    """Queue length at which the queue must act: first half of `queue`, then all of it."""
    _overflow: deque[int] | None = field(default=None, init=False)
    """Sizes of the delayed messages at the end of the queue, which are not included in `_bytes`."""
    _held: MemoryBudget | None = field(default=None, init=False)
    _tells_at: float = field(default=math.inf, init=False)
    """Earliest time of the next report."""
    _told: int = field(default=0, init=False)
    """Value of `dropped` at the time of the last report."""
    _lines: ViolationCounter = field(factory=ViolationCounter, init=False)
    _room: list[Any] | None = field(default=None, init=False)
    _most: int = field(init=False)
    _bytes: int = field(default=0, init=False)
    _budget: MemoryBudget | None = field(default=None, init=False)
    _most_free: int = field(init=False)
    """While `_bytes` is at most this, and at least `_least_kept`, the charge need not change."""
    _least_kept: int = field(default=-_STEP, init=False)

    def __attrs_post_init__(self) -> None:
        self._most = self._services.limits.queue_bytes
        self._most_free = min(_STEP, self._most)
        self.queue = max(1, self._most // OVERHEAD) if self._wanted is None else self._wanted
        self._half = self._mark = (self.queue + 1) // 2

    @property
    def peers(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self._queue)

    def offer(self, message: Message) -> None:
        """Add a publication. Publications from this process (without `Message.peer`) have already waited for room."""
        if (len(self._queue) < self._mark and self._bytes < self._most_free) or self._admits(message):
            self._queue.append(message)
            self._bytes += OVERHEAD if (raw := message.raw) is None else OVERHEAD + len(raw)
            self._arrived()

    def offer_shared(self, message: Message) -> None:
        """Add a copy of a publication that is also in other queues."""
        self.offer(message.for_another())

    @abstractmethod
    def _arrived(self) -> None:
        """Wake a reader because a publication has arrived."""

    def take(self) -> Message:
        queue = self._queue
        message = queue.popleft()
        self._bytes -= OVERHEAD if (raw := message.raw) is None else OVERHEAD + len(raw)
        if not queue:
            self._bytes = 0
            self._mark = self._half
            if self._budget is not None:
                self._settle()
        elif self._bytes < self._least_kept:
            self._settle()
        if self._overflow:
            self._move_held_in()
        if self._room:
            self._wake_one()
        return message

    def expired(self, message: Message) -> bool:
        """Return True if a publication has expired. Also counts and reports it."""
        if message.expires is None or message.expires >= self._host.time():
            return False
        self._count_dropped(1)
        self._services.dead_letter(message.peer, message, Code.DEADLINE_EXCEEDED, "expired before it was read")
        return True

    @property
    def _host(self) -> Runtime:
        return self._services.running

    # -- charges ---------------------------------------------------------------------------------------------------------

    def _charge(self) -> bool:
        """Charge the added bytes. Returns False if the queue is full or not enough memory is left."""
        if self._bytes >= self._most:
            return False
        if self._budget is None:
            self._budget = MemoryBudget(self._host)
        if not self._budget.hold(self._bytes - self._budget.held):
            return False
        self._set_bounds(self._budget.held)
        return True

    def _settle(self) -> None:
        budget = self._budget
        if budget is None:
            budget = self._budget = MemoryBudget(self._host)
        budget.charge(max(self._bytes, 0) - budget.held)
        self._set_bounds(budget.held)

    def _set_bounds(self, paid: int) -> None:
        self._most_free = min(paid + _STEP, self._most)
        self._least_kept = paid - _STEP

    # -- overflow --------------------------------------------------------------------------------------------------------

    def _admits(self, message: Message) -> bool:
        """Return True to add a publication. Called if the queue is at least half full or bytes must be charged."""
        if self.paced:
            self._settle()
            return True
        if len(self._queue) < self.queue and (self._bytes < self._most_free or self._charge()):
            half = len(self._queue) >= self._half or 2 * self._bytes >= self._most
            if half and self._mark < self.queue and not self._reader_woken:
                self._mark = self.queue
                self._tell(message.peer, len(self._queue) + 1)
            return True
        block = self.when_full == "block"
        if block and message.peer is None:
            return True
        if block or self._reader_woken:
            if not self._reader_woken:
                self._tell(message.peer, len(self._queue) + 1)
            if self._hold(message):
                return False
            if block:
                self._overrun(message)
                return False
        self._release_held()
        return self._displaces(message)

    def _displaces(self, message: Message) -> bool:
        """Drop a publication according to the policy. Returns True if the new publication should be added."""
        stays = self.when_full != "drop_newest"
        if not stays:
            self._count_dropped(1)
        else:
            if self.when_full != "latest" or not self._replace(message.subject):
                self._drop_oldest()
            while self._queue and self._bytes >= self._most:
                self._drop_oldest()
        self._tell(message.peer, len(self._queue) + stays)
        return stays

    def _replace(self, subject: str | int) -> bool:
        for old in self._queue:
            if old.subject == subject:
                self._queue.remove(old)
                self._bytes -= OVERHEAD + len(old.raw or b"")
                self._count_dropped(1)
                return True
        return False

    def _drop_oldest(self) -> None:
        self._bytes -= OVERHEAD + len(self._queue.popleft().raw or b"")
        self._count_dropped(1)
        if self._overflow:
            self._move_held_in()

    def _count_dropped(self, count: int) -> None:
        self.dropped += count
        self._services.counters.dropped += count

    # -- held-back publications ------------------------------------------------------------------------------------------

    def _hold(self, message: Message) -> bool:
        """Delay a publication. Returns False if there is no room."""
        if self._held is None:
            self._held = MemoryBudget(self._host, self._most)
        size = OVERHEAD + (len(message.raw) if message.raw is not None else 0)
        if not self._held.hold(size):
            return False
        message.forget_value()
        if self._overflow is None:
            self._overflow = deque()
        self._overflow.append(size)
        self._queue.append(message)
        self._arrived()
        return True

    @abstractmethod
    def _overrun(self, message: Message) -> None:
        """Handle a publication that exceeds the amount that ``block`` can delay."""

    def _begin_turn(self) -> None:
        """Start a reader's turn. After the turn, the policy is applied to messages that are still delayed."""
        if self.when_full != "block":
            self._host.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        if not self._reader_woken:
            self._release_held()

    def _release_held(self) -> None:
        """Apply the policy to delayed publications as if they had just arrived."""
        overflow = self._overflow
        if not overflow or self._held is None or self.when_full == "block":
            return
        late = [self._queue.pop() for _ in overflow]
        overflow.clear()
        self._held.release(self._held.held)
        for message in late[::-1]:
            has_room = len(self._queue) < self.queue and (self._bytes < self._most_free or self._charge())
            if has_room or self._displaces(message):
                self._queue.append(message)
                self._bytes += OVERHEAD + len(message.raw or b"")

    def _move_held_in(self) -> None:
        overflow, held = self._overflow, self._held
        assert held is not None
        while overflow and len(self._queue) - len(overflow) < self.queue and self._bytes < self._most:
            size = overflow.popleft()
            held.release(size)
            self._bytes += size
        if not self._least_kept <= self._bytes <= self._most_free:
            self._settle()

    # -- reports ---------------------------------------------------------------------------------------------------------

    def _tell(self, peer: Any, unread: int) -> None:
        """Report a slow reader, at most once a second."""
        if self._tells_at != math.inf:
            return
        runtime = self._host
        now = runtime.time()
        self._tells_at = now + _PAUSE
        self._told = self.dropped
        runtime.deadlines.watch(self, self._tells_at)
        self._services.emit(SubscriptionSlow(peer=peer, pattern=self.pattern, unread=unread, dropped=self.dropped))
        text = (
            "%.200r is read too slowly: %d publications wait (queue=%d, Limits.queue_bytes=%d, when_full=%r), %d were "
            "dropped. Read faster (move slow work to its own task), raise queue= or Limits.queue_bytes, or "
            "choose another when_full="
        )
        level = logging.INFO
        if (self.dropped or self._overflow) and self._lines.add(now) == 1:
            level = logging.WARNING
        fields = log_fields(peer, subject=self.pattern)
        logger.log(level, text, self.pattern, unread, self.queue, self._most, self.when_full, self.dropped, extra=fields)

    def _skipped(self, message: Message, what: str, why: str) -> None:
        """Log an invalid publication, with a rate limit."""
        text = "a publication of %.200r from %s has an invalid body for %.200s and is skipped: %.300r"
        sender = message.peer or "this bus"
        fields, about = log_fields(message=message, handler=what), (self.pattern, what)
        self._host.warnings.warn(logger, text, message.subject, sender, what, why, about=about, lines=1, extra=fields)

    def expire(self, now: float) -> float:
        """Report the publications dropped since the last report. Returns the time of the next call."""
        if now < self._tells_at:
            return self._tells_at
        self._tells_at = math.inf
        if self.dropped != self._told:
            self._tell(None, len(self._queue))
        return self._tells_at

    # -- publishers of this process --------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        return self.when_full == "block" and (len(self._queue) >= self.queue or self._bytes >= self._most)

    async def room(self, deadline: float) -> bool:
        """Wait for room. Returns False if the deadline passes."""
        while self.full:
            waiter = self._services.waiter()
            self._room = self._room if self._room is not None else []
            self._room.append(waiter)
            try:
                with anyio.move_on_at(deadline) as scope:
                    await waiter
            finally:
                if waiter in self._room:
                    self._room.remove(waiter)
                else:
                    self._wake_one()  # this task may have been cancelled, so another one can use the room
            if scope.cancelled_caught:
                return False
        return True

    def _wake_one(self) -> None:
        if self._room and not self.full:
            self._services.wake(self._room.pop(0))

    def clear(self) -> None:
        if self._tells_at != math.inf and self.dropped != self._told:  # don't lose the pending report
            self._tells_at = math.inf
            self._tell(None, len(self._queue))
        self._queue.clear()
        self._bytes = 0
        if self._budget is not None:
            self._settle()
            self._budget = None  # the subscription may be entered again in the next run of the bus
        if self._held is not None:
            self._held.release(self._held.held)
            self._held = self._overflow = None
        self._reader_woken = False
        self._mark = self._half
        self._tells_at = math.inf
        while self._room:
            self._services.wake(self._room.pop())


# Not kw_only as a class: attrs before 25.4 means the inherited fields too.
@define(eq=False, repr=False, weakref_slot=False)
class IteratedQueue(SubscriptionQueue):
    _pubsub: PeerPubSub = field(alias="pubsub", kw_only=True)
    _returns: Any = field(alias="returns", kw_only=True)
    peer: PeerCore | None = field(kw_only=True)
    """If set, the queue receives only publications of this peer."""
    reading: Reading | None = field(kw_only=True)
    """Arguments for reading a store. None for live publications."""
    _readers: deque[Any] = field(factory=deque, init=False)
    _active: bool = field(default=False, init=False)
    _entered: bool = field(default=False, init=False)
    _error: BusError | None = field(default=None, init=False)
    skipped: int = field(default=0, init=False)

    async def enter(self) -> None:
        """Start receiving. Raises the errors of `PubSub.subscribe`."""
        if self._active:
            raise LocalProtocolError("this subscription has already been entered: create another one")
        self._active = self._entered = True
        try:
            await self._pubsub.subscribe(self)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        self._active = False
        self._pubsub.unsubscribe(self)
        self.clear()
        self._wake_all()

    def _end(self) -> BaseException:
        if self._error is not None:
            return self._error.with_traceback(None)
        if self._entered:
            return StopAsyncIteration()
        return LocalProtocolError(
            "this subscription was never entered: iterate inside its block, "
            "`async with bus.subscribe(pattern) as messages:` (in threads `with`)"
        )

    def _interrupted(self, waiter: Any) -> None:
        """Pass a cancelled reader's turn to another reader."""
        if waiter in self._readers:
            self._readers.remove(waiter)
        else:
            self._reader_woken = False
            if self._queue:
                self._arrived()

    def _typed(self, message: Message) -> Message | None:
        """Return the message with its body converted. If the body is invalid, count and log the message and return None."""
        try:
            body = typed_body(message, self._returns)
        except Exception as error:  # may come from a validator of the application
            what = f"returns={type_name(self._returns)}"
            if self.reading is not None and self.reading.settled:
                self.skipped += 1
                message.reject(f"invalid body for {what}: {misfit(error)[0]}")
            else:
                self.skip(message, what, misfit(error)[0])
            return None
        typed = copy.copy(message)  # other subscriptions share the message
        typed.decoded = body
        return typed

    def skip(self, message: Message, by: str, why: str) -> None:
        self.skipped += 1
        self._services.counters.dropped += 1
        self._skipped(message, by, why)

    def _arrived(self) -> None:
        if self._readers:
            self._reader_woken = True
            self._services.wake(self._readers.popleft())

    def _overrun(self, message: Message) -> None:
        self._count_dropped(1)
        self.fail(
            SlowConsumer(
                f"{self.pattern!r} is read too slowly: {len(self._queue)} publications wait (queue={self.queue}), and those "
                f"outside the queue use {self._most} bytes (Limits.queue_bytes); read faster, or choose another when_full="
            )
        )

    def fail(self, error: BusError | None) -> None:
        """End the subscription and drop unread publications. If there is an error, they are counted as dropped."""
        if error is not None:
            self._count_dropped(len(self._queue))
        self._error = self._error or error
        self.leave()

    def end(self, error: BusError | None) -> None:
        """Stop receiving. Iteration yields the unread publications, then raises `error` or ends if `error` is None."""
        self._error = self._error or error
        self._active = False
        self._wake_all()

    def _wake_all(self) -> None:
        while self._readers:
            self._services.wake(self._readers.popleft())


@never_without_async("async with bus.subscribe(pattern) as messages:")
class Subscription(Generic[T_co]):
    """A subscription returned by `Bus.subscribe` or `Peer.subscribe`. Enter it with ``async with``, then iterate over it.

    Iteration yields `Message` objects. If you pass ``returns=``, their bodies are converted to that type. Publications with an
    invalid body are skipped and counted in `skipped`. When the bus drains or closes, iteration yields the unread publications
    and then ends.

    Settle each message of a durable subscription with `Message.ack`, `Message.retry` or `Message.reject`. The store redelivers
    messages that you have not settled when you leave the block. Messages with an invalid body become dead letters.

    Raises:
        SlowConsumer: While iterating, if a ``block`` subscription is read too slowly.
        Disconnected, Unauthorized, Forbidden: While iterating, if the only link of the bus, or the peer of this subscription,
            is gone for good.
    """

    __slots__ = ("_source",)

    def __init__(self, source: IteratedQueue) -> None:
        self._source = source

    @property
    def dropped(self) -> int:
        """Number of publications that were dropped because they were read too slowly or had expired."""
        return self._source.dropped

    @property
    def skipped(self) -> int:
        """Number of publications that were skipped because their body does not fit ``returns=``."""
        return self._source.skipped

    def __len__(self) -> int:
        return len(self._source)

    async def __aenter__(self) -> Self:
        await self._source.enter()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._source.leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T_co]:
        source = self._source
        while True:
            while not source._queue:
                if source._error is not None or not source._active:
                    raise source._end()
                waiter = source._services.waiter()
                source._readers.append(waiter)
                try:
                    await waiter
                except BaseException:
                    source._interrupted(waiter)
                    raise
                source._reader_woken = False
                if source._overflow:
                    source._begin_turn()
            message: Message | None = source.take()
            assert message is not None
            if source.reading is not None:
                message.attributes["delivery"].taken()
            if message.expires is not None and source.expired(message):
                continue
            if source._returns is not Any:
                message = source._typed(message)
            if message is not None:
                return message

    async def receive(self, timeout: float | None = None) -> Message[T_co]:
        """Wait for the next publication.

        Args:
            timeout: Seconds to wait, or None for no limit.

        Raises:
            TimeoutError: If no publication arrives in time.
            EOFError: If the subscription has ended.
            BusError: As while iterating.
            TypeError, ValueError: If `timeout` is not a valid number of seconds.
        """
        message: Message[T_co] = await receive(self, timeout)
        return message
