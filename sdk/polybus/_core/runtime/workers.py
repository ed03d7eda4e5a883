"""The worker pool, which runs coroutine handlers in a small number of real tasks.

A worker runs one job after another, without switching tasks, as long as handlers don't wait. When a handler suspends, its
worker waits with it, and another worker takes over the queue. This means that handlers run in real tasks, with working
timeouts, task groups and `current_task`.

Jobs run in order of submission. If that takes longer than `_TURN`, network addresses and their links take turns, so that a busy
client delays only itself.

A new worker starts in the next event-loop iteration, which can take a while under load. For this reason, the number of workers
to wake doubles with each job that suspends. Otherwise, a job behind a hundred suspending jobs would wait for seconds.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import anyio
from attrs import define, field

from ..._util.logs import Warnings, log_fields
from ..._util.priority_queue import PriorityQueue
from ..._util.sources import sources

if TYPE_CHECKING:
    from ..._util.event_loop import Loop

logger: logging.Logger = logging.getLogger("polybus.handlers")

T = TypeVar("T")

_MAX_IDLE = 64
_MOST_AT_ONCE = 32
"""Maximum number of workers to wake in an event loop iteration."""
_TURN = 0.05
"""Seconds after which a worker yields to the event loop, because peers can send new calls as fast as old ones finish."""
_ENDED: Final = object()
_LONG: Final = 1.0
"""Seconds after which a handler that has not waited is logged."""


class Job(Protocol):
    scope: anyio.CancelScope | None
    """Cancel scope of the job while it waits."""
    ended: bool

    waited: int
    """Number of checks that found the job waiting since it last resumed."""

    @property
    def function(self) -> str:
        """Description of the hook or handler, for the log."""
        ...

    @property
    def owner(self) -> tuple[object, object]:
        """Network address and link that the job runs for."""
        ...

    @property
    def run_plain(self) -> Callable[[], bool] | None:
        """Function that runs the job without a task, and returns False if the job needs one. None if it always does."""
        ...

    def run(self) -> Coroutine[Any, Any, None] | None:
        """Return the coroutine to run, or None if there is nothing to do."""
        ...


class Line(Generic[T]):
    """A queue. Network addresses take turns, and so do the peers of each address. A peer's items have priorities.

    Items must be unique.
    """

    def __init__(self) -> None:
        self._addresses: OrderedDict[object, OrderedDict[object, PriorityQueue[T]]] = OrderedDict()
        self._owners: dict[T, tuple[object, object]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, one: object) -> bool:
        return one in self._owners

    def append(self, one: T, owner: tuple[object, object], level: int = 0, *, first: bool = False) -> None:
        """Add an item, with `first` at the front of its level. The owner is a network address and a peer."""
        self._owners[one] = address, peer = owner
        queue = self._addresses.setdefault(address, OrderedDict()).setdefault(peer, PriorityQueue())
        if first:
            queue.appendleft(one, level)
        else:
            queue.append(one, level)

    def remove(self, one: T) -> bool:
        """Remove an item. Returns False if it is not in the queue."""
        owner = self._owners.pop(one, None)
        if owner is None:
            return False
        address, peer = owner
        self._addresses[address][peer].remove(one)
        self._tidy(address, peer)
        return True

    def pop(self) -> T:
        """Remove and return the next item. Raises `StopIteration` if the queue is empty."""
        address, peers = next(iter(self._addresses.items()))
        peer, queue = next(iter(peers.items()))
        one = queue.popleft()
        del self._owners[one]
        peers.move_to_end(peer)
        self._addresses.move_to_end(address)
        self._tidy(address, peer)
        return one

    def _tidy(self, address: object, peer: object) -> None:
        peers = self._addresses[address]
        if not peers[peer]:
            del peers[peer]
        if not peers:
            del self._addresses[address]


class Workers:
    """Runs jobs up to their first suspension. The jobs of a link start in order."""

    def __init__(self, loop: Loop, spawn: Callable[..., None], warnings: Warnings) -> None:
        self._loop = loop
        self._spawn = spawn
        self.warnings: Warnings = warnings
        self.clock: Callable[[], float] = sources.get().monotonic
        self._ready: deque[Job] = deque()
        self._idle: list[Any] = []
        self._taken = False
        """True if a worker is awake and will check the queue."""
        self._coming = 0
        """Number of woken workers that haven't run yet."""
        self._spares = 1
        """Number of workers to wake when a job suspends."""
        self._look_at = -math.inf
        """Time at which to check the duration of a job again."""

    def submit(self, job: Job) -> None:
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
        try:
            await self._serve()
        finally:
            # Another worker must take over the queue, even if this one failed.
            if self._ready and not self._taken:
                self._summon()

    async def _serve(self) -> None:
        with anyio.CancelScope() as scope:
            while await self._drain(scope) and len(self._idle) < _MAX_IDLE:
                waiter = self._loop.waiter()
                self._idle.append(waiter)
                try:
                    await waiter
                except BaseException:
                    if waiter in self._idle:
                        self._idle.remove(waiter)
                    else:  # woken, but cancelled before it ran, so another worker must take over the queue
                        self._coming -= 1
                        self._taken = False
                    raise
                self._coming -= 1

    async def _drain(self, scope: anyio.CancelScope) -> bool:
        """Run jobs until the queue is empty or another worker takes over. Returns True if this worker can be reused.

        Each job has its own context. This is cheaper than undoing the changes that it makes to a shared one.
        """
        ready, clock = self._ready, self.clock
        turn = began = clock()
        while ready:
            job = ready.popleft()
            coroutine = job.run()
            if coroutine is None:
                continue
            context = contextvars.copy_context()
            try:  # with `send`, the end would be an exception, at the cost of 70 bytecodes
                yielded = context.run(next, coroutine.__await__(), _ENDED)
            except BaseException:
                self._taken = False
                raise
            suspended = yielded is not _ENDED
            since, began = began, clock()
            if began > self._look_at:
                self._look(job, since, began)
            if suspended:
                job.scope = scope
                if job.ended:  # it stopped itself before it suspended
                    scope.cancel()
                self._hand_over()
                try:
                    await _Rest(context, coroutine, yielded, job, self)
                finally:
                    job.scope = None
                turn = began = clock()
                if scope.cancel_called:
                    return False
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
        """Warn about a long job, and reorder the queue so that owners take turns."""
        self._look_at = now + _TURN
        if now - began > _LONG:
            self.warn_of_stall(job, now - began)
        ready = self._ready
        if len({job.owner for job in ready}) > 1:
            line: Line[Job] = Line()
            while ready:
                line.append(job := ready.popleft(), job.owner)
            while line:
                ready.append(line.pop())

    def warn_of_stall(self, job: Job, seconds: float) -> None:
        function = job.function
        self.warnings.warn(
            logger,
            "%.400s has blocked the event loop for %.1f s: in this time no other request was answered, nothing was sent, and "
            "deadlines were missed. Make it a plain def without inline=True, which runs in a thread, or move the blocking "
            "call to anyio.to_thread.run_sync",
            function,
            seconds,
            about=function,
            lines=1,
            extra=log_fields(handler=function),
        )

    def _hand_over(self) -> None:
        left = len(self._ready)
        self._taken = left > 0
        if left:
            for _ in range(min(left, self._spares) - self._coming):
                self._summon()
            self._spares = min(2 * self._spares, _MOST_AT_ONCE)


@define(eq=False, repr=False, weakref_slot=False)
class _Rest:
    _context: contextvars.Context
    _coroutine: Coroutine[Any, Any, None]
    _yielded: Any
    _job: Job
    _workers: Workers

    def __await__(self) -> Generator[Any, Any, None]:
        coroutine, yielded, job, clock = self._coroutine, self._yielded, self._job, self._workers.clock
        run, began = self._context.run, math.inf
        try:
            while True:
                if (seconds := clock() - began) > _LONG:
                    self._workers.warn_of_stall(job, seconds)
                began = math.inf  # the job doesn't run from here on
                try:
                    value = yield yielded
                except GeneratorExit:
                    run(coroutine.close)
                    raise
                except BaseException as error:
                    began, job.waited = clock(), 0
                    yielded = run(coroutine.throw, error)
                else:
                    began, job.waited = clock(), 0
                    yielded = run(coroutine.send, value)
        except StopIteration:
            return
        finally:
            if (seconds := clock() - began) > _LONG:
                self._workers.warn_of_stall(job, seconds)


class EagerWorkers(Workers):
    """Workers for the event loop of a browser, where switching tasks takes longer than a request.

    Plain functions run immediately, unless an earlier job is waiting or a task is running, which they would interrupt.
    """

    def __init__(self, loop: Loop, spawn: Callable[..., None], warnings: Warnings, context: contextvars.Context) -> None:
        super().__init__(loop, spawn, warnings)
        self._context = context

    def submit(self, job: Job) -> None:
        run_plain = job.run_plain
        if self._taken or run_plain is None or asyncio.current_task() is not None or not self._run(job, run_plain):
            super().submit(job)

    def _run(self, job: Job, run_plain: Callable[[], bool]) -> bool:
        self._taken = True  # so that jobs which the function submits wait
        began = self.clock()
        try:
            return self._context.copy().run(run_plain)
        finally:
            if (seconds := self.clock() - began) > _LONG:
                self.warn_of_stall(job, seconds)
            self._taken = False
            if self._ready:
                self._summon()


class PlacedCall(Protocol):
    @property
    def owner(self) -> tuple[object, object]: ...

    def proceed(self) -> None:
        """Start the call, or wait for a slot of its peer. Called once the call has a slot of its handler."""


@define(eq=False, repr=False)
class Places:
    """Concurrency slots of a handler. Waiting addresses and their links take turns, so that a busy link delays only itself."""

    most: int
    _taken: set[PlacedCall] = field(factory=set, init=False)
    _waiting: Line[PlacedCall] = field(factory=Line, init=False)

    @property
    def full(self) -> bool:
        return len(self._taken) >= self.most

    def take(self, call: PlacedCall) -> bool:
        if len(self._taken) >= self.most:
            return False
        self._taken.add(call)
        return True

    def wait(self, call: PlacedCall, level: int = 0, *, first: bool = False) -> None:
        """Queue a call for a slot, at the front with `first`."""
        self._waiting.append(call, call.owner, level, first=first)

    def waits(self, call: PlacedCall) -> bool:
        return call in self._waiting

    def drop(self, call: PlacedCall) -> bool:
        return self._waiting.remove(call)

    def leave(self, call: PlacedCall) -> None:
        """Return the slot of a call, if it has one, and pass it on."""
        if call not in self._taken:
            return
        self._taken.discard(call)
        # A call that must wait for a slot of its peer doesn't take one here, so go on with the next.
        while self._waiting and len(self._taken) < self.most:
            self._waiting.pop().proceed()
