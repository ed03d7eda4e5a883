"""The threads of `def` handlers and `def` dependencies, at most `Limits.threads` at a time.

A call waits only for its first thread. Later its dependency may hold a connection, or another handler may wait for its answer:
waiting for a thread could deadlock. So further threads, clean-ups included, start at once; they count, and new calls wait
longer. For the same reason a thread in a blocking verb gives up its slot and takes it back without waiting.

A thread cannot be stopped. A cancelled handler is answered for at once, but keeps its slots until its thread returns; so the
number of threads stays bounded.
"""

from __future__ import annotations

import contextvars
import logging
import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import anyio
import anyio.to_thread
from msgspec import Struct

from .context import current_call

if TYPE_CHECKING:
    from .runtime import Runtime

T = TypeVar("T")


class Line(Generic[T]):
    """Round-robin queue over network addresses, then their peers. A peer's calls keep their order."""

    def __init__(self) -> None:
        self._addresses: OrderedDict[object, OrderedDict[object, deque[T]]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, one: T, party: tuple[object, object]) -> None:
        """Queue one for its party: a network address and a peer."""
        address, peer = party
        self._addresses.setdefault(address, OrderedDict()).setdefault(peer, deque()).append(one)
        self._size += 1

    def remove(self, one: T, party: tuple[object, object]) -> bool:
        """Remove one; False if absent."""
        address, peer = party
        peers = self._addresses.get(address)
        queue = None if peers is None else peers.get(peer)
        if queue is None or one not in queue:
            return False
        queue.remove(one)
        self._size -= 1
        self._tidy(address, peer)
        return True

    def pop(self) -> T:
        """Take the next one. May raise `StopIteration`: the queue is empty."""
        address, peers = next(iter(self._addresses.items()))
        peer, queue = next(iter(peers.items()))
        one = queue.popleft()
        self._size -= 1
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


_FULL: Final = 1.0
"""Seconds of uninterrupted waiting before a warning."""

logger: logging.Logger = logging.getLogger("polybus.handlers")

holding: contextvars.ContextVar[CallThreads | None] = contextvars.ContextVar("polybus_holding", default=None)
"""The call that may hold something that others wait for: set in its threads, and after its first dependency."""
_in_thread: contextvars.ContextVar[_ThreadCall | None] = contextvars.ContextVar("polybus_in_thread", default=None)


def holds() -> bool:
    """Check whether this caller, or a handler waiting for it, may hold something that others wait for: then its calls get
    threads at once.

    Tasks that outlive a call inherit both variables, but ignore ended calls.
    """
    call, asked = holding.get(), current_call.get()
    return (call is not None and not call.over) or (asked is not None and asked.asked_by_holder and not asked.ended)


class Threads:
    """Thread slots of one bus, new for each entry.

    Args:
        runtime: Runtime of the bus.
        limit: Threads that run at the same time.
        abandoned: Calls of an earlier run with unfinished threads.
    """

    def __init__(self, runtime: Runtime, limit: int, abandoned: list[_ThreadCall]) -> None:
        self.loop = runtime.loop
        self.abandoned: list[_ThreadCall] = [work for work in abandoned if not work.returned]
        self.unlimited = anyio.CapacityLimiter(math.inf)  # anyio returns its token when the caller is cancelled
        self._runtime = runtime
        self._limit = limit
        self._free = max(1, limit - len(self.abandoned))
        """Negative if calls that hold something started regardless."""
        self._line: Line[Any] = Line()
        self._full_since = 0.0
        self._waits: set[anyio.CancelScope] = set()
        self._deadline = math.inf

    async def take(self, party: tuple[object, object]) -> None:
        """Wait for a slot; round-robin among the parties, so that a busy party delays only itself."""
        if self._free > 0 and not self._line:
            self._free -= 1
            return
        if not self._line:
            self._full_since = self._runtime.time()
            self._runtime.watch(self, self._full_since + _FULL)
        waiter = self.loop.waiter()
        self._line.append(waiter, party)
        try:
            await waiter
        except BaseException:
            if not self._line.remove(waiter, party):  # woken, and cancelled in the same turn
                self.give()
            raise

    def take_at_once(self) -> None:
        self._free -= 1

    def give(self) -> None:
        """Return a slot. The next call gets it a turn later, since this call may start another thread at once."""
        self._free += 1
        if self._line:
            self.loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        while self._free > 0 and self._line:
            self._free -= 1
            self.loop.wake(self._line.pop())

    def _expire(self, now: float) -> float:
        """Warn that calls wait."""
        if not self._line:
            return math.inf
        if now < self._full_since + _FULL:
            return self._full_since + _FULL
        self._runtime.warnings.warn(
            logger,
            "all %d threads for def handlers and def dependencies have been taken for %.0f s, and %d calls wait for one: raise "
            "Limits.threads, make what waits for others an async def, or let fewer in (Limits.running, handle(running=))",
            self._limit,
            now - self._full_since,
            len(self._line),
            lines=1,
        )
        return math.inf

    async def returned(self, work: _ThreadCall) -> None:
        """Wait for an ended call's thread, as long as the bus may wait."""
        with anyio.CancelScope(shield=True, deadline=self._deadline) as scope:
            self._waits.add(scope)
            try:
                await work.wait()
            finally:
                self._waits.discard(scope)
        if not work.returned:
            self.abandoned.append(work)

    def leave(self, deadline: float) -> None:
        """Leave the bus: callers wait for threads until the deadline."""
        self._deadline = deadline
        for scope in self._waits:
            scope.deadline = deadline


class CallThreads(Struct, eq=False):
    """The threads of one handler call, one at a time."""

    _threads: Threads
    name: str
    party: tuple[object, object]
    """Owner of the call: a network address and one of its peers."""
    holds: bool
    """True if it may hold something that others wait for: it then waits for no thread."""
    over: bool = False
    _work: _ThreadCall | None = None

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a function in a thread. A cancelled caller still waits for it.

        Raises:
            Exception: Raised by the function; RuntimeError in place of one that would end the event loop.
        """
        threads = self._threads
        if self.holds:
            threads.take_at_once()
        else:
            await threads.take(self.party)
        work = self._work = _ThreadCall(threads, self, function)
        try:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=threads.unlimited)
        finally:
            try:
                if not work.give_up():
                    await threads.returned(work)
            finally:
                self._work = None
                work.leave()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Give up the slot while a blocking verb waits, in this thread or one that it started. Called on the event loop."""
        work = self._work
        if work is None:  # the thread has returned, and left one of its own behind
            yield
            return
        work.wait_begins()
        try:
            yield
        finally:
            work.wait_ends()


@contextmanager
def waiting_in_thread() -> Iterator[None]:
    """`CallThreads.waiting` for a thread that waits for another event loop; without a call it does nothing."""
    work = _in_thread.get()
    if work is None:
        yield
        return
    work.tell(work.wait_begins)
    try:
        yield
    finally:
        work.tell(work.wait_ends)


class _ThreadCall(Struct, eq=False):
    """A function in a thread, which occupies a slot."""

    _threads: Threads
    _call: CallThreads
    _function: Callable[[], Any]
    _waiter: Any = None
    _called: bool = False
    _given_up: bool = False
    returned: bool = False
    waited_for: bool = False
    """True if the interpreter joins its thread at exit: asyncio's, not trio's."""
    _waits: int = 0
    """Number of its waiting blocking verbs; others have its slot meanwhile."""
    _over: bool = False

    # Two threads meet here without a lock: each sets its own flag before it looks at the other's.

    def __call__(self) -> Any:
        self._called = True
        self.waited_for = not threading.current_thread().daemon
        _in_thread.set(self)  # in the copy of the context that this thread has
        holding.set(self._call)
        try:
            return None if self._given_up else self._function()
        except (KeyboardInterrupt, GeneratorExit, StopIteration) as error:
            # The real KeyboardInterrupt reaches the main thread; raised here it would end the event loop. The other two would
            # end each coroutine that they pass through.
            raise RuntimeError(f"{self.name} raised {type(error).__name__} in its thread") from error
        finally:
            self.returned = True
            if self._waiter is not None:
                self.tell(self._wake)

    @property
    def name(self) -> str:
        return self._call.name

    def tell(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is over
            self._threads.loop.call_from_thread(function)

    def give_up(self) -> bool:
        """Drop the result. True if the function will not run or has returned."""
        self._given_up = True
        return self.returned or not self._called

    async def wait(self) -> None:
        self._waiter = self._threads.loop.waiter()
        if not self.returned:
            await self._waiter

    def _wake(self) -> None:
        self._threads.loop.wake(self._waiter)

    def wait_begins(self) -> None:
        self._waits += 1
        if self._waits == 1 and not self._over:
            self._threads.give()

    def wait_ends(self) -> None:
        """Take the slot back after the last verb: at once, since this thread may hold a lock."""
        self._waits -= 1
        if self._waits == 0 and not self._over:
            self._threads.take_at_once()

    def leave(self) -> None:
        self._over = True
        if self._waits == 0:
            self._threads.give()
