"""The worker pool: coroutine handlers run on a few real tasks.

A worker runs one job after the other; as long as handlers do not wait, that costs no task switch per message. When a handler
suspends, its worker waits with it and spares take the rest of the queue. Handlers so run inside a real task, where timeouts,
task groups and `current_task` work (started by hand from a callback they do not).

Jobs run in the order of their submission, but where a row of them takes longer than a turn, one of each network address comes
next, and of each of its links: who asks for much waits for itself.

A spare begins a turn of the event loop later, and while much arrives a turn is long. So there are the more spares the more jobs
have suspended in a row: with one for each turn, a job behind a hundred of them would wait for seconds.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
from attrs import define, field

from ..._util.log_fields import log_fields
from ..._util.priority_queue import PriorityQueue
from ..._util.sources import sources

if TYPE_CHECKING:
    from ..._util.event_loop import Loop

logger: logging.Logger = logging.getLogger("polybus.handlers")

_MAX_IDLE = 64
_MOST_AT_ONCE = 32
"""Workers that are woken in one turn of the event loop."""
_TURN = 0.05
"""Seconds after which a worker lets the event loop do something else. What waits for a place comes in as others leave, so a row
of jobs can be as long as all peers together like."""
_LONG: Final = 1.0
"""Seconds without a wait, from which on a handler is named."""
_SILENCE: Final = 60.0
"""Seconds for which the same handler is not named again."""


class Job(Protocol):
    """Something for a worker to do."""

    scope: anyio.CancelScope | None
    """While it waits: cancel this to stop it."""
    ended: bool
    """True once it was stopped."""

    waited: int
    """Set to 0 each time that it goes on: counts how often somebody has looked and found it waiting."""

    @property
    def function(self) -> str:
        """Name of what runs in it, for the log: a handler with the subject that it was registered for, or a hook."""
        ...

    @property
    def party(self) -> tuple[object, object]:
        """Owner of the job: a network address, and one of its links."""
        ...

    @property
    def run_plain(self) -> Callable[[], bool] | None:
        """Runs it at once where it is no more than a function to call, else gives False; None where it never is."""
        ...

    def run(self) -> Coroutine[Any, Any, None] | None:
        """The coroutine to run, or None if there is nothing to do any more."""
        ...


class StallWarnings:
    """Warns of handlers that block the event loop. They are measured afterwards, between two of their waits: until then nothing
    else could run anyway.
    """

    def __init__(self) -> None:
        self.clock: Callable[[], float] = sources.get().monotonic
        self._told: dict[str, tuple[float, int]] = {}

    def ended(self, job: Job, began: float) -> None:
        """Warn of a job that has run longer than `_LONG` without a wait."""
        now = self.clock()
        function = job.function
        last, unsaid = self._told.get(function, (0.0, -1))
        if unsaid >= 0 and now - last < _SILENCE:
            self._told[function] = last, unsaid + 1
            return
        self._told[function] = now, 0
        logger.warning(
            "%.400s has blocked the event loop for %.1f s%s: in this time nobody else was answered, nothing "
            "was sent, and deadlines passed unseen. Make it a plain def without inline=True, which runs in a thread, or give "
            "what blocks to anyio.to_thread.run_sync",
            function,
            now - began,
            f" (and {unsaid} times more since this was last said)" if unsaid > 0 else "",
            extra=log_fields(handler=function),
        )


class Workers:
    """Runs jobs, each until its first suspension before the next begins; those of one link in the order of submission."""

    def __init__(self, loop: Loop, spawn: Callable[..., None]) -> None:
        self._loop = loop
        self._spawn = spawn
        self.stalls: StallWarnings = StallWarnings()
        self._ready: deque[Job] = deque()
        self._idle: list[Any] = []
        self._taken = False
        """True while a worker that is awake will look at the queue."""
        self._coming = 0
        """Workers that have been woken and have not looked yet."""
        self._spares = 1
        """The number of workers that take the queue from one whose job suspends."""
        self._look_at = -math.inf
        """Time from which on the end of a job is looked at: `_TURN` after the last look."""

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._ready.append(job)
        if not self._taken:
            self._summon()

    def _summon(self) -> None:
        self._taken = True
        self._coming += 1
        if self._idle:
            self._loop.wake(self._idle.pop())
        else:
            self._spawn(self._work)

    async def _work(self) -> None:
        self._coming -= 1
        baseline = contextvars.copy_context()
        try:
            await self._serve(baseline)
        finally:
            # However this worker ended, its queue goes on.
            if self._ready and not self._taken:
                self._summon()

    async def _serve(self, baseline: contextvars.Context) -> None:
        with anyio.CancelScope() as scope:
            while await self._drain(scope, baseline) and len(self._idle) < _MAX_IDLE:
                waiter = self._loop.waiter()
                self._idle.append(waiter)
                try:
                    await waiter
                except BaseException:
                    if waiter in self._idle:
                        self._idle.remove(waiter)
                    else:  # woken and cancelled in one turn: another worker must take the queue
                        self._coming -= 1
                        self._taken = False
                    raise
                self._coming -= 1

    async def _drain(self, scope: anyio.CancelScope, baseline: contextvars.Context) -> bool:
        """Take jobs until there are none or another worker has taken over. True if this worker may go on."""
        ready, clock = self._ready, self.stalls.clock
        turn = began = clock()
        while ready:
            job = ready.popleft()
            coroutine = job.run()
            if coroutine is None:
                continue
            suspended = False
            yielded = None
            try:
                yielded = coroutine.send(None)
            except StopIteration:
                pass
            except BaseException:
                self._taken = False
                raise
            else:
                suspended = True
            since, began = began, clock()
            if began > self._look_at:
                self._look(job, since, began)
            if suspended:
                job.scope = scope
                if job.ended:  # stopped by what it has just called
                    scope.cancel()
                self._hand_over()
                try:
                    await _Rest(coroutine, yielded, job, self.stalls)
                finally:
                    job.scope = None
                turn = began = clock()
            try:  # as `context_changed`, without the call
                changed = contextvars.copy_context() != baseline
            except Exception:
                changed = True
            if changed or (suspended and scope.cancel_called):  # else nobody had the scope
                if not suspended:
                    self._taken = False
                return False
            if suspended:
                if self._taken:
                    return True
                self._taken = True
            elif began - turn > _TURN and ready:
                self._summon()
                return True
        self._taken = False
        self._spares = 1
        return True

    def _look(self, job: Job, began: float, now: float) -> None:
        """Look at a job that has run, and put the others in turn."""
        self._look_at = now + _TURN
        if now - began > _LONG:
            self.stalls.ended(job, began)
        ready = self._ready
        if len({job.party for job in ready}) > 1:
            rest = in_turn(ready)
            ready.clear()
            ready.extend(rest)

    def _hand_over(self) -> None:
        """Give the queue to other workers: the job of this one waits."""
        left = len(self._ready)
        self._taken = left > 0
        if left:
            for _ in range(min(left, self._spares) - self._coming):
                self._summon()
            self._spares = min(2 * self._spares, _MOST_AT_ONCE)


def in_turn(jobs: Iterable[Job]) -> list[Job]:
    """One job of each network address after the other, and of each of its links. Those of one link keep their order."""
    return _round_by_round(_round_by_round(jobs, lambda job: job.party), lambda job: job.party[0])


def _round_by_round(jobs: Iterable[Job], whose: Callable[[Job], object]) -> list[Job]:
    rounds: Counter[object] = Counter()

    def round_of(job: Job) -> int:
        party = whose(job)
        rounds[party] += 1
        return rounds[party]

    return sorted(jobs, key=round_of)


def context_changed(baseline: contextvars.Context) -> bool:
    """Check for changed context variables. Values that cannot be compared count as different."""
    try:
        return contextvars.copy_context() != baseline
    except Exception:
        return True


@define(eq=False, weakref_slot=False)
class _Rest:
    """Awaits a coroutine that has begun and suspended: passes on what it yields and what it is sent."""

    _coroutine: Coroutine[Any, Any, None]
    _yielded: Any
    _job: Job
    _stalls: StallWarnings

    def __await__(self) -> Generator[Any, Any, None]:
        coroutine, yielded, job, clock = self._coroutine, self._yielded, self._job, self._stalls.clock
        began = math.inf
        try:
            while True:
                if clock() - began > _LONG:
                    self._stalls.ended(job, began)
                began = math.inf  # what passes now is not the job's
                try:
                    value = yield yielded
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as error:
                    began, job.waited = clock(), 0
                    yielded = coroutine.throw(error)
                else:
                    began, job.waited = clock(), 0
                    yielded = coroutine.send(value)
        except StopIteration:
            return
        finally:
            if clock() - began > _LONG:
                self._stalls.ended(job, began)


class EagerWorkers(Workers):
    """Workers for the event loop of a browser, where a hop costs more than a request: plain functions run in the event that
    brings their request.

    The order is that of `Workers`: a function runs at once only where nothing has been submitted before that has not begun.
    Inside a task the job waits for a worker, so that no other code is interrupted.

    Args:
        context: The one in which the bus was entered.
    """

    def __init__(self, loop: Loop, spawn: Callable[..., None], context: contextvars.Context) -> None:
        super().__init__(loop, spawn)
        self._context = context

    def submit(self, job: Job) -> None:
        """Run it, or queue it."""
        run_plain = job.run_plain
        if self._taken or run_plain is None or asyncio.current_task() is not None or not self._run(job, run_plain):
            super().submit(job)

    def _run(self, job: Job, run_plain: Callable[[], bool]) -> bool:
        self._taken = True  # what the function itself submits waits
        began = self.stalls.clock()
        try:
            return self._context.copy().run(run_plain)
        finally:
            if self.stalls.clock() - began > _LONG:
                self.stalls.ended(job, began)
            self._taken = False
            if self._ready:
                self._summon()


class PlacedCall(Protocol):
    """A call of a handler that takes only so many at once."""

    @property
    def party(self) -> tuple[object, object]:
        """Owner of the call: a network address, and one of its links."""
        ...

    def proceed(self) -> None:
        """Begin, or wait for a place of its peer: the handler has one now."""


@define(eq=False)
class Places:
    """The places of one handler of one bus. A call takes one when it is about to begin, never while it waits for anything else.

    Places that become free go round among those who ask, so that one of them who asks for much waits for himself.
    """

    most: int
    _taken: set[PlacedCall] = field(factory=set, init=False)
    _waiting: OrderedDict[object, PriorityQueue[PlacedCall]] = field(factory=OrderedDict, init=False)

    @property
    def full(self) -> bool:
        """True if no place is free."""
        return len(self._taken) >= self.most

    def take(self, call: PlacedCall) -> bool:
        """Take a place, if there is one."""
        if len(self._taken) >= self.most:
            return False
        self._taken.add(call)
        return True

    def wait(self, call: PlacedCall, level: int = 0, *, first: bool = False) -> None:
        """Let a call wait for a place; `first` is for one whose turn it was already."""
        party = call.party[1]
        queue = self._waiting.get(party)
        if queue is None:
            queue = self._waiting[party] = PriorityQueue()
        if first:
            queue.appendleft(call, level)
        else:
            queue.append(call, level)

    def waits(self, call: PlacedCall) -> bool:
        """Check whether a call waits here."""
        queue = self._waiting.get(call.party[1])
        return queue is not None and call in queue

    def drop(self, call: PlacedCall) -> bool:
        """Take out a call that waits here. False where it does not."""
        party = call.party[1]
        queue = self._waiting.get(party)
        if queue is None or not queue.remove(call):
            return False
        if not queue:
            del self._waiting[party]
        return True

    def leave(self, call: PlacedCall) -> None:
        """Give a place back, if the call has one, and let the next begin."""
        if call not in self._taken:
            return
        self._taken.discard(call)
        # One that has no place of its peer yet takes none here, so another has its turn.
        while self._waiting and len(self._taken) < self.most:
            party, queue = next(iter(self._waiting.items()))
            following = queue.popleft()
            if queue:
                self._waiting.move_to_end(party)
            else:
                del self._waiting[party]
            following.proceed()
