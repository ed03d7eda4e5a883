"""The threads of `def` handlers and `def` dependencies: `Limits.threads` of them run at the same time.

A call waits for a thread only while it has nothing that others may wait for: before its first thread. A connection that its
dependency has taken, or a handler of this bus that asks it and waits, would else wait for a thread which waits for them. So its
further threads, clean-ups among them, begin at once; they count, and calls that begin wait the longer. For the same reason a
thread that waits in a blocking verb gives its place up, and takes it back without waiting.

A thread cannot be stopped. A handler that is cancelled while its thread runs is answered for at once, but keeps its places,
among the threads and among the running requests, until the thread returns; so their number stays bounded.
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
from attrs import define, field

from .context import current_call

if TYPE_CHECKING:
    from .runtime import Runtime

T = TypeVar("T")


class Line(Generic[T]):
    """One of each network address comes next, and of each of its peers; the calls of one peer keep their order."""

    def __init__(self) -> None:
        self._addresses: OrderedDict[object, OrderedDict[object, deque[T]]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, one: T, party: tuple[object, object]) -> None:
        """Let one wait. Its party is a network address, and one of its peers."""
        address, peer = party
        self._addresses.setdefault(address, OrderedDict()).setdefault(peer, deque()).append(one)
        self._size += 1

    def remove(self, one: T, party: tuple[object, object]) -> bool:
        """Take one out that waits. False where it does not."""
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
        """Take the next one out. May raise `StopIteration`: nobody waits."""
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
"""Seconds for which calls wait in a row before that is told."""

logger: logging.Logger = logging.getLogger("polybus.handlers")

holding: contextvars.ContextVar[CallThreads | None] = contextvars.ContextVar("polybus_holding", default=None)
"""The call that may hold something that others wait for: set in its threads, and once a dependency has been made."""
_in_thread: contextvars.ContextVar[_ThreadCall | None] = contextvars.ContextVar("polybus_in_thread", default=None)
"""In the thread of a call: that."""


def holds() -> bool:
    """Tell whether the caller, or a handler that asks it and waits, may hold something that others wait for: whom it asks gets
    threads at once.

    Tasks that a call leaves behind inherit both; for them they count no more once the call has ended.
    """
    call, asked = holding.get(), current_call.get()
    return (call is not None and not call.over) or (asked is not None and asked.asked_by_holder and not asked.ended)


class Threads:
    """Places for the threads of one bus. Made anew each time the bus is entered.

    Args:
        runtime: Of the bus.
        limit: How many run at the same time.
        abandoned: Calls of an earlier run of the bus, whose threads may run still.
    """

    def __init__(self, runtime: Runtime, limit: int, abandoned: list[_ThreadCall]) -> None:
        self.loop = runtime.loop
        self.abandoned: list[_ThreadCall] = [work for work in abandoned if not work.returned]
        self.unlimited = anyio.CapacityLimiter(math.inf)  # anyio gives its token back when the caller is cancelled
        self._runtime = runtime
        self._limit = limit
        self._free = max(1, limit - len(self.abandoned))
        """Places left; less than none where calls that hold something have begun all the same."""
        self._line: Line[Any] = Line()
        """Waiters of calls that begin."""
        self._full_since = 0.0
        self._waits: set[anyio.CancelScope] = set()
        self._deadline = math.inf

    async def take(self, party: tuple[object, object]) -> None:
        """Wait for a place. Places go round among the parties: who asks for much waits for itself."""
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
            if not self._line.remove(waiter, party):  # it had come, and the call was cancelled in the same turn
                self.give()
            raise

    def take_at_once(self) -> None:
        """Take a place, whether or not one is free."""
        self._free -= 1

    def give(self) -> None:
        """Give a place back. The next call takes it a turn later: its last one may go on with another thread at once."""
        self._free += 1
        if self._line:
            self.loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        while self._free > 0 and self._line:
            self._free -= 1
            self.loop.wake(self._line.pop())

    def _expire(self, now: float) -> float:
        """Tell that calls wait. Called by the runtime."""
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
        """Wait for a thread whose call is over, for as long as the bus may wait."""
        with anyio.CancelScope(shield=True, deadline=self._deadline) as scope:
            self._waits.add(scope)
            try:
                await work.wait()
            finally:
                self._waits.discard(scope)
        if not work.returned:
            self.abandoned.append(work)

    def leave(self, deadline: float) -> None:
        """End: the bus is left, and callers wait for their threads until the deadline at the most."""
        self._deadline = deadline
        for scope in self._waits:
            scope.deadline = deadline


@define(eq=False)
class CallThreads:
    """The threads of one call of a handler, of which it has one at a time."""

    _threads: Threads
    name: str
    """Of the handler, for the log."""
    party: tuple[object, object]
    """Owner of the call: a network address, and one of its peers."""
    holds: bool
    """True where it may hold something that others wait for: then it does not wait for a thread."""
    over: bool = field(default=False, init=False)
    """True once the call has ended."""
    _work: _ThreadCall | None = field(default=None, init=False)
    """The thread that it has now."""

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a function in a thread. When cancelled, it still waits for the thread.

        Raises:
            Exception: As the function raises it; in place of one that would end the event loop, RuntimeError.
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
        """Give the place to others while a blocking verb of the handler waits, in its thread or in one that it has started.

        Called on the event loop.
        """
        work = self._work
        if work is None:  # it has returned, and has left a thread of its own behind
            yield
            return
        work.wait_begins()
        try:
            yield
        finally:
            work.wait_ends()


@contextmanager
def waiting_in_thread() -> Iterator[None]:
    """`CallThreads.waiting`, for a thread that waits for another event loop than that of its call; without a call it does
    nothing.
    """
    work = _in_thread.get()
    if work is None:
        yield
        return
    work.tell(work.wait_begins)
    try:
        yield
    finally:
        work.tell(work.wait_ends)


@define(eq=False)
class _ThreadCall:
    """One function in a thread, which has a place."""

    _threads: Threads
    _call: CallThreads
    _function: Callable[[], Any]
    _waiter: Any = None
    _called: bool = False
    _given_up: bool = False
    returned: bool = False
    waited_for: bool = False
    """True where the interpreter waits for its thread: it does for those of asyncio, and ends those of trio."""
    _waits: int = 0
    """Blocking verbs of it that wait: meanwhile others have its place."""
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
            # The real KeyboardInterrupt comes to the main thread, and this one would end the event loop. The others mean
            # something to each coroutine that they pass: its end.
            raise RuntimeError(f"{self.name} raised {type(error).__name__} in its thread") from error
        finally:
            self.returned = True
            if self._waiter is not None:
                self.tell(self._wake)

    @property
    def name(self) -> str:
        """The name of the handler."""
        return self._call.name

    def tell(self, function: Callable[[], None]) -> None:
        """Have the event loop call a function."""
        with suppress(RuntimeError):  # the loop is over
            self._threads.loop.call_from_thread(function)

    def give_up(self) -> bool:
        """Give the result up. True if no thread runs it, or will."""
        self._given_up = True
        return self.returned or not self._called

    async def wait(self) -> None:
        """Wait until it has returned."""
        self._waiter = self._threads.loop.waiter()
        if not self.returned:
            await self._waiter

    def _wake(self) -> None:
        self._threads.loop.wake(self._waiter)

    def wait_begins(self) -> None:
        """Give the place up, unless another verb has done so."""
        self._waits += 1
        if self._waits == 1 and not self._over:
            self._threads.give()

    def wait_ends(self) -> None:
        """Take the place back after the last verb. At once: others may wait for a lock that this thread has."""
        self._waits -= 1
        if self._waits == 0 and not self._over:
            self._threads.take_at_once()

    def leave(self) -> None:
        """Give the place back: the call is over."""
        self._over = True
        if self._waits == 0:
            self._threads.give()
