"""The runtime of a running bus: a task group, workers, a timer and a housekeeping task."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import sys
from collections.abc import Awaitable, Callable
from io import BufferedReader, BytesIO
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import anyio.abc
from anyio.lowlevel import RunVar

from ..._util.cancel_scopes import effective_deadline
from ..._util.event_loop import Loop, Notifier, is_foreign_exception, running_loop, wrong_event_loop
from ..._util.logs import Warnings
from .context import current_call
from .deadline_timer import DeadlineTimer
from .loop_prevention import BusIdentities
from .memory_budgets import AddressBudget
from .workers import EagerWorkers, Workers

if TYPE_CHECKING:
    from ...errors import BusError
    from ...limits import Limits
    from .injection import Provider
    from .memory_budgets import Address

ALL_ANSWERED: Final = "the bus is leaving"
"""Close reason that the bus sends when it has answered all requests that it has read, so that the others weren't handled."""


_MAPPED: Final = 128 * 1024
"""glibc maps blocks of this many bytes or more separately, and returns them to the kernel when they are freed."""
_MOST: Final = 32 * 1024 * 1024 - 64 * 1024
"""Maximum of that threshold (`DEFAULT_MMAP_THRESHOLD_MAX`, mallopt(3)), with a margin."""
_IN_FLIGHT: Final = 4
"""Number of copies of a large message that exist in this process: read, assembled, decoded and encoded."""


def keep_freed_blocks(size: int) -> None:
    """Make glibc keep freed blocks of the size of a few messages with `size` bytes instead of returning them to the kernel.

    Otherwise the kernel clears new pages for each large message, which takes more than half of the CPU time for a message of
    1 MiB. glibc raises its threshold to the size of the largest mapped block ever freed (mallopt(3), `M_MMAP_THRESHOLD`), so
    this function allocates and frees such a block without touching its memory. Other allocators aren't affected.
    """
    if size >= _MAPPED:
        BufferedReader(BytesIO(), min(size * _IN_FLIGHT, _MOST))


inside: contextvars.ContextVar[tuple[Runtime, ...]] = contextvars.ContextVar("polybus_inside", default=())
"""Runtimes that own the current task, the outermost first. A task cannot wait until they have stopped."""

_here: RunVar[int] = RunVar("polybus_here", 0)
"""Number of buses running in this event loop."""

logger: logging.Logger = logging.getLogger("polybus")


def buses_here() -> int | None:
    """Return the number of buses that run in the event loop of this thread, or None without an event loop."""
    try:
        return _here.get()
    except RuntimeError:
        return None


_IN_A_BROWSER = sys.platform == "emscripten"

_AT_ONCE = 250
"""Number of links to check in an event loop iteration, which takes less than a millisecond."""


class Runtime:
    """The state of a running bus, created anew whenever the bus is entered. Implements `plugins.Host`."""

    def __init__(self, limits: Limits) -> None:
        self.loop: Loop = running_loop()
        self.limits: Limits = limits
        self.effective_deadline: Callable[[], float] = effective_deadline(self.loop)
        self.backend: Literal["asyncio", "trio"] = self.loop.backend
        self.time: Callable[[], float] = self.loop.time
        self.call_soon: Callable[..., Any] = self.loop.call_soon
        self.deadlines: DeadlineTimer = DeadlineTimer(self.loop)
        self.thread: int = get_ident()
        """Id of the event loop's thread, because asyncio's own check is slower."""
        self.notifier: Notifier = Notifier(self.loop.waiter, self.loop.wake)
        """Signalled when a request, a publication's handler, an outbox or a link ends."""
        self.links: dict[Any, None] = {}
        self.backlogged: dict[Any, None] = {}
        """`InboundCalls` objects with waiting requests."""
        self.buffered: int = 0
        self.bus_identities: BusIdentities = BusIdentities()
        self.addresses: dict[str, Address] = {}
        self.warnings: Warnings = Warnings(self.time, self.deadlines.watch)
        self.gone: BusError | None = None
        """Error of the last link to a server, if it is gone for good."""
        self.overriding: list[Callable[[Callable[..., Any]], Provider | None]] = []
        """Look-ups of replacements for `Depends` functions, in applications with this bus."""
        self.running: int = 0
        self.few: int = limits.total_running // 16
        """While no more than this number of requests run, each peer may run half of the total."""
        self.answering: int = 0
        """Number of answers that wait until the peer has read earlier answers."""
        self.stopping: int = 0
        """Number of cancelled requests in `running`. Their handlers have not returned yet."""
        self._turn = 0
        self._turn_ends = False
        self._context = contextvars.copy_context()
        if self.backend == "asyncio" and (sniffio := sys.modules.get("sniffio")) is not None:
            # anyio uses sniffio, if installed, to find the current library. In callbacks, that requires a context variable.
            self._context.run(sniffio.current_async_library_cvar.set, "asyncio")
        self._context.run(lambda: inside.set((*inside.get(), self)))
        self.workers: Workers = (
            EagerWorkers(self.loop, self.spawn, self.warnings, self._context)
            if _IN_A_BROWSER
            else Workers(self.loop, self.spawn, self.warnings)
        )
        keep_freed_blocks(limits.message)
        self._owner: asyncio.Task[None] | None = None
        self._detached: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None
        """Exception that closed the bus or was raised at the end of the lifespan, until a caller has received it."""
        self.on_failure: Callable[[], Awaitable[None]] | None = None
        self._stop = anyio.Event()
        self._finished = anyio.Event()
        self.closing: bool = False

    # -- life ------------------------------------------------------------------------------------------------------------

    def check_here(self) -> None:
        """Raise `LocalProtocolError` unless the caller runs in this event loop."""
        if not self.loop.is_here():
            raise wrong_event_loop()

    def check_thread(self) -> None:
        """Raise `LocalProtocolError` unless the caller runs in this thread. This is ten times faster than `check_here`."""
        if get_ident() != self.thread:
            raise wrong_event_loop()

    async def open(self) -> None:
        """Start the task group in its own task, so that a bus can be entered in one task and left in another."""
        started = anyio.Event()
        self._owner = self._start_task("polybus", self._own, started)
        await started.wait()
        self.spawn(self.deadlines.run)
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
            if buses_here():  # not if the garbage collector closes an abandoned event loop
                _here.set(_here.get() - 1)

    def _failed(self, error: BaseException) -> None:
        if self._stop.is_set():
            logger.error("a task of a bus failed while the bus was closing", exc_info=error)
            return
        logger.error("a task of a bus has failed, which closes the bus", exc_info=error)
        failure = RuntimeError("a task of this bus failed, so the bus was closed: see the cause of this error")
        failure.__cause__ = error
        self.failure = failure
        if self.on_failure is not None:
            self.detach(self.on_failure)

    async def close(self) -> None:
        self.closing = True
        self.warnings.tell()
        self._stop.set()
        with anyio.CancelScope(shield=True):
            await self._finished.wait()
            if self._owner is not None:
                await asyncio.wait([self._owner])
        self._owner = None

    def reserve(self, address: str) -> AddressBudget:
        return AddressBudget(self, address)

    def detach(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a function outside the task group, for example because it closes the runtime. Errors are logged."""
        if (task := self._start_task("polybus closing", self._guard, function, args)) is not None:
            self._detached.add(task)
            task.add_done_callback(self._detached.discard)

    def _start_task(self, name: str, function: Callable[..., Any], *args: Any) -> asyncio.Task[None] | None:
        """Start a task outside of the task group. Returns None on trio, where it is a system task."""
        if self.backend == "asyncio":
            return asyncio.get_running_loop().create_task(function(*args), name=name)
        import trio

        trio.lowlevel.spawn_system_task(function, *args, name=name)
        return None

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a coroutine function in a task of the bus, with the bus's context. Errors are logged.

        While the bus is exiting, the task still starts but is cancelled at its first wait, so that it can close a resource.
        """
        if not self._finished.is_set():
            _ = self._context.run(self._group.start_soon, self._guard, function, args)

    def cancel_scope(self) -> anyio.CancelScope:
        """Create a cancel scope, even in callbacks of sockets, where anyio may not detect the event loop (see `_context`)."""
        return self._context.run(anyio.CancelScope)

    async def _guard(self, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        try:
            await function(*args)
        except BaseException as error:
            # Failures must not end the other tasks, except while the bus is exiting.
            if isinstance(error, KeyboardInterrupt) and not self._stop.is_set() and self.loop.interrupt(error):
                return
            if self._was_cancelled_alone(error):
                return
            if self._stop.is_set() or not (isinstance(error, Exception) or is_foreign_exception(error)):
                raise
            name = getattr(function, "__qualname__", function)
            logger.exception("a background task failed (%s); the bus goes on", name)

    def _was_cancelled_alone(self, error: BaseException) -> bool:
        """Return True if the application cancelled only this asyncio task, not the whole task group or event loop."""
        return (
            isinstance(error, asyncio.CancelledError)
            and not self._group.cancel_scope.cancel_called
            and self._owner is not None
            and not (self._owner.done() or self._owner.cancelling())
        )

    # -- deadlines -------------------------------------------------------------------------------------------------------

    def ttl(self, now: float, deadline: float) -> float | None:
        """Return the seconds until the earliest of a deadline, the caller's scope and the current handler's deadline, or None.

        None means that there is no limit. Raises `LocalProtocolError` like `check_here`.
        """
        if get_ident() != self.thread:
            raise wrong_event_loop()
        call = current_call.get()
        if call is not None and call.deadline < deadline and not call.ended:
            deadline = call.deadline
        try:
            scope = self.effective_deadline()
        except RuntimeError:  # no event loop is running here
            raise wrong_event_loop() from None
        left = (scope if scope < deadline else deadline) - now
        if left == math.inf:
            return None
        return left if left > 0.0 else 0.0

    def turn(self) -> int:
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
            for turn in range(turns):  # so that many links don't block everything else
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
