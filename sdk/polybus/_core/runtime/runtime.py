"""The runtime of an entered bus: a task group, workers, one timer, one housekeeping task."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import sys
from collections.abc import Awaitable, Callable
from heapq import heapify, heappop, heappush
from io import BufferedReader, BytesIO
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import anyio
import anyio.abc
from anyio.lowlevel import RunVar

from ..._util.cancel_scopes import effective_deadline
from ..._util.event_loop import Loop, Notifier, is_foreign_exception, running_loop, wrong_event_loop
from ..._util.repeated_warnings import Warnings
from .context import current_call
from .memory import AddressBudget
from .via import BusIdentities
from .workers import EagerWorkers, Workers

if TYPE_CHECKING:
    from ...errors import BusError
    from ...limits import Limits
    from .injection import Provider
    from .memory import Address

ALL_ANSWERED: Final = "the bus is leaving"
"""Every request that the bus had read was answered before this was said: one that has no answer has not been read."""


_MAPPED: Final = 128 * 1024
"""Bytes from which glibc maps a block by itself, and gives it back to the kernel as soon as it is free."""
_MOST: Final = 32 * 1024 * 1024 - 64 * 1024
"""Bytes of the largest block from whose end it learns (`DEFAULT_MMAP_THRESHOLD_MAX`, mallopt(3)), and a little less."""
_IN_FLIGHT: Final = 4
"""Blocks of the size of a message that its way through this process takes: as it is read, put together, decoded, encoded."""


def keep_freed_blocks(size: int) -> None:
    """Have glibc keep freed blocks as large as messages of so many bytes, up to twice what one needs on its way.

    Otherwise each page of each large message is a new one, which the kernel has to clear: more than half of the processor time
    for a mebibyte. Its threshold follows the largest mapped block that was ever freed (mallopt(3), `M_MMAP_THRESHOLD`): one is
    taken and freed here. It is never touched, so that it costs no memory: bytes were cleared, as soon as glibc has such a block
    at hand. Other allocators take no notice.
    """
    if size >= _MAPPED:
        BufferedReader(BytesIO(), min(size * _IN_FLIGHT, _MOST))


inside: contextvars.ContextVar[tuple[Runtime, ...]] = contextvars.ContextVar("polybus_inside", default=())
"""The runtimes whose tasks run here, the outermost first: a task cannot wait for its own end."""

_here: RunVar[int] = RunVar("polybus_here", 0)
"""The number of buses that run in an event loop."""

logger: logging.Logger = logging.getLogger("polybus")


def runs_here() -> bool:
    """Check that the calling thread runs an event loop with a bus in it."""
    try:
        return _here.get() > 0
    except RuntimeError:  # no event loop at all
        return False


class Timed(Protocol):
    """Something with deadlines."""

    def _expire(self, now: float) -> float:
        """End what is past its deadline. The earliest deadline that remains."""
        ...


_IN_A_BROWSER = sys.platform == "emscripten"

_AGAIN = 0.1
"""Seconds after which deadlines are looked at again that could not be kept because something failed."""

_STALE = 64
"""Entries of the heap of deadlines that hold no more, and are kept beside as many that do."""

_AT_ONCE = 250
"""Links that are looked at in one turn of the event loop: less than a millisecond."""

_PRECISION = 0.01
"""Seconds by which a deadline may fire late, so that one timer serves many."""


class Runtime:
    """The running half of a bus. Made anew each time the bus is entered; implements `plugins.Host` for transports."""

    def __init__(self, limits: Limits) -> None:
        self.loop: Loop = running_loop()
        self.limits: Limits = limits
        self.effective_deadline: Callable[[], float] = effective_deadline(self.loop)
        self.backend: Literal["asyncio", "trio"] = self.loop.backend
        self.time: Callable[[], float] = self.loop.time
        self.call_soon: Callable[..., Any] = self.loop.call_soon
        self.thread: int = get_ident()
        """The loop's thread: compared on hot paths, because asyncio asks the system for the process id as well."""
        self.notifier: Notifier = Notifier(self.loop)
        """Signalled when a request, a publication's handler, an outbox or a link has come to its end."""
        self.links: dict[Any, None] = {}
        """Each a `Link`, which only the rooms above know."""
        self.timed: dict[Timed, float] = {}
        """Owners of requests, handlers or channels with a deadline, and the earliest."""
        self._owners: dict[int, Timed] = {}
        """The owners by their ids."""
        self._due: list[tuple[float, int]] = []
        """Deadlines and ids of owners in the order of a heap, with some that hold no more: it keeps no owner that has gone."""
        self.backlogged: dict[Any, None] = {}
        """The `InboundCalls` of peers of which requests wait for a place."""
        self.buffered: int = 0
        """Bytes in all outboxes and held-back queues."""
        self.bus_identities: BusIdentities = BusIdentities()
        """The identities of the buses at the other ends."""
        self.addresses: dict[str, Address] = {}
        """Network addresses of the accepted links."""
        self.warnings: Warnings = Warnings(self.time, self.watch)
        """Warnings that peers can cause."""
        self.gone: BusError | None = None
        """The reason why the last link that this bus opened is gone for good."""
        self.overriding: list[Callable[[Callable[..., Any]], Provider | None]] = []
        """Applications in which the bus runs: they say what stands in for a function of `Depends`."""
        self.running: int = 0
        """Requests whose handlers run."""
        self.answering: int = 0
        """Requests whose handlers are over, and whose answers wait until their peer reads."""
        self.stopping: int = 0
        """Requests among `running` that were cancelled, and whose handlers have not returned."""
        self._turn = 0
        self._turn_ends = False
        self._armed = math.inf
        self._alarm: Any = None
        self._context = contextvars.copy_context()
        if self.backend == "asyncio" and (sniffio := sys.modules.get("sniffio")) is not None:
            # anyio asks sniffio, where it is installed, which library runs; in a callback of a socket only the context tells.
            self._context.run(sniffio.current_async_library_cvar.set, "asyncio")
        self._context.run(lambda: inside.set((*inside.get(), self)))
        self.workers: Workers = (
            EagerWorkers(self.loop, self.spawn, self._context) if _IN_A_BROWSER else Workers(self.loop, self.spawn)
        )
        keep_freed_blocks(limits.message)
        self._owner: asyncio.Task[None] | None = None
        self._detached: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None
        """The exception that has closed the bus, or that of the lifespan's end, until a caller is told."""
        self.on_failure: Callable[[], Awaitable[None]] | None = None
        """Closes the bus."""
        self._stop = anyio.Event()
        self._finished = anyio.Event()
        self.closing: bool = False

    # -- life ------------------------------------------------------------------------------------------------------------

    def check_here(self) -> None:
        """
        Raises:
            LocalProtocolError: The caller runs in another event loop, or in a thread without one.
        """
        if not self.loop.is_here():
            raise wrong_event_loop()

    def check_thread(self) -> None:
        """`check_here` at a tenth of the cost, for what is done per message: another loop in the same thread is not seen.

        Raises:
            LocalProtocolError: The caller runs in another thread.
        """
        if get_ident() != self.thread:
            raise wrong_event_loop()

    async def open(self) -> None:
        """Start the task group, in a task of its own: so a bus may be entered in one task and left in another."""
        started = anyio.Event()
        self._owner = self._start_task("polybus", self._own, started)
        await started.wait()
        self.spawn(self._keep_time)
        self.spawn(self._keep_house)

    async def _own(self, started: anyio.Event) -> None:
        _here.set(_here.get() + 1)
        try:
            async with anyio.create_task_group() as self._group:
                started.set()
                await self._stop.wait()
                self._group.cancel_scope.cancel()
        except BaseExceptionGroup as error:
            if error.subgroup(KeyboardInterrupt) is not None:
                raise
            self._failed(error)
        finally:
            self.closing = True
            self._finished.set()
            if runs_here():  # not where the garbage collector ends what a loop has left behind
                _here.set(_here.get() - 1)

    def _failed(self, error: BaseException) -> None:
        """Close the bus: one of its tasks has failed, and all others have ended with it."""
        if self._stop.is_set():
            logger.error("a task of a bus has failed while the bus was left", exc_info=error)
            return
        logger.error("a task of a bus has failed, which closes the bus", exc_info=error)
        failure = RuntimeError("a task of this bus has failed, which has closed the bus: its cause says which exception it was")
        failure.__cause__ = error
        self.failure = failure
        if self.on_failure is not None:
            self.detach(self.on_failure)

    async def close(self) -> None:
        """Cancel and await every task. Bounded by what tasks do in their own shielded clean-up."""
        self.closing = True
        self.warnings.tell()
        self._stop.set()
        with anyio.CancelScope(shield=True):
            await self._finished.wait()
            if self._owner is not None:
                await asyncio.wait([self._owner])
        self._owner = None

    def reserve(self, address: str) -> AddressBudget:
        """Bytes for a client that has no link, such as one that has not been let in."""
        return AddressBudget(self, address)

    def detach(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run what drains or closes this runtime, outside of its own tasks. Errors are logged."""
        if (task := self._start_task("polybus closing", self._guard, function, args)) is not None:
            self._detached.add(task)
            task.add_done_callback(self._detached.discard)

    def _start_task(self, name: str, function: Callable[..., Any], *args: Any) -> asyncio.Task[None] | None:
        """Start a task that is none of the task group's; None on trio, where the system owns it."""
        if self.backend == "asyncio":
            return asyncio.get_running_loop().create_task(function(*args), name=name)
        import trio

        trio.lowlevel.spawn_system_task(function, *args, name=name)
        return None

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a coroutine function as a task of the bus, in the context in which the bus was entered. Errors are logged.

        While the bus is being left, the task begins all the same and is cancelled at its first wait: so a caller that
        hands it something to close may rely on that.
        """
        if not self._finished.is_set():
            _ = self._context.run(self._group.start_soon, self._guard, function, args)

    async def _guard(self, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        try:
            await function(*args)
        except BaseException as error:
            # Whatever it is, the other tasks must not end with it; but for our own end.
            if isinstance(error, KeyboardInterrupt) and not self._stop.is_set() and self.loop.interrupt(error):
                return
            if self._was_cancelled_alone(error):
                return
            if self._stop.is_set() or not (isinstance(error, Exception) or is_foreign_exception(error)):
                raise
            name = getattr(function, "__qualname__", function)
            logger.exception("a background task failed (%s); the bus goes on", name)

    def _was_cancelled_alone(self, error: BaseException) -> bool:
        """Check that this task of asyncio's was cancelled, and no other: by a handler in it, or by another task of the
        application. A task group would end all its tasks for that.

        Where an event loop goes down, all are cancelled, with the one that owns them.
        """
        return (
            isinstance(error, asyncio.CancelledError)
            and not self._group.cancel_scope.cancel_called
            and self._owner is not None
            and not (self._owner.done() or self._owner.cancelling())
        )

    # -- deadlines -------------------------------------------------------------------------------------------------------

    def arm(self, when: float) -> None:
        """Make sure that `_sweep` runs soon after `when`."""
        if when < self._armed - _PRECISION:
            self._armed = when
            if self._alarm is not None:
                self.loop.wake(self._alarm)

    def ttl(self, now: float, deadline: float) -> float | None:
        """Seconds that go on the wire: what `timeout`, the enclosing scope and the current handler leave; None for ever.

        Raises:
            LocalProtocolError: As `check_here`.
        """
        if get_ident() != self.thread:
            raise wrong_event_loop()
        call = current_call.get()
        if call is not None and call.deadline < deadline and not call.ended:
            deadline = call.deadline
        try:
            scope = self.effective_deadline()
        except RuntimeError:  # no event loop runs here now
            raise wrong_event_loop() from None
        if scope < deadline:
            deadline = scope
        return None if deadline == math.inf else max(0.0, deadline - now)

    def watch(self, owner: Timed, deadline: float) -> None:
        """Have `owner._expire` called soon after a deadline."""
        timed, due = self.timed, self._due
        if deadline < timed.get(owner, math.inf):
            timed[owner] = deadline
            self._owners[id(owner)] = owner
            heappush(due, (deadline, id(owner)))
            if len(due) > 2 * len(timed) + _STALE:
                due[:] = [(when, id(one)) for one, when in timed.items()]
                heapify(due)
            self.arm(deadline)

    def forget(self, owner: Timed) -> None:
        """Watch an owner no more: it has gone."""
        self.timed.pop(owner, None)
        self._owners.pop(id(owner), None)

    async def _keep_time(self) -> None:
        while True:
            self._alarm = self.loop.waiter()
            delay = self._armed - self.time()
            if delay > 0:
                with anyio.move_on_after(delay + _PRECISION / 2):
                    await self._alarm
            if self._armed <= self.time():
                self._sweep()

    def _sweep(self) -> None:
        """End what is past its deadline, and arm the timer for the earliest of the rest."""
        now, timed, due = self.time(), self.timed, self._due
        self._armed = math.inf
        ready = []
        while due and due[0][0] <= now:
            when, place = heappop(due)
            owner = self._owners.get(place)
            if owner is not None and timed.get(owner) == when:
                timed[owner] = math.inf
                ready.append(owner)
        for owner in ready:
            if owner not in timed:
                continue  # it has gone meanwhile
            try:
                again = owner._expire(now)
            except Exception:  # a mistake of ours, or of a plugin: others must not lose their deadlines for it
                logger.exception("a deadline of %r could not be kept; it is tried again", owner)
                again = now + _AGAIN
            if timed.get(owner) == math.inf and again == math.inf:
                self.forget(owner)
            elif owner in timed:
                self.watch(owner, again)
        self.arm(due[0][0] if due else math.inf)

    def turn(self) -> int:
        """Number the current turn of the event loop, at the cost of one callback however often it is asked."""
        if not self._turn_ends:
            self._turn_ends = True
            self.call_soon(self._end_turn)
        return self._turn

    def _end_turn(self) -> None:
        self._turn_ends = False
        self._turn += 1

    # -- housekeeping ----------------------------------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        limits = self.limits
        pings = min(limits.ping_interval, limits.ping_timeout)
        shortest = min(pings, limits.write_timeout, limits.frame_timeout, limits.close_timeout, limits.handshake_timeout)
        pace = max(0.01, min(1.0, shortest / 4))
        while True:
            links = list(self.links)
            turns = -(-len(links) // _AT_ONCE) or 1
            for turn in range(turns):  # many in one go would be a pause for everybody
                await anyio.sleep(pace / turns)
                self._tick_links(links[turn::turns])

    def _tick_links(self, links: list[Any]) -> None:
        now = self.time()
        for link in links:
            if link in self.links:
                try:
                    link.tick(now)
                except Exception:
                    link.broken()
