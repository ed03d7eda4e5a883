"""The life of a bus: entered, running, draining, left. Entering is counted."""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio

from .._core.lifespan import Lifespan, LifespanTask, within
from .._core.runtime import Runtime, inside
from .._core.services import Services
from .._handlers.router import Router
from .._link.link import Link
from .._rpc.loopback import Loopback
from .._validation import seconds
from ..limits import Limits
from ..plugins import Closed
from . import drain as draining

if TYPE_CHECKING:
    from .._handlers.handler import Handler
    from .._pubsub.pubsub import PubSub
    from .acceptor import Listener
    from .bus import Bus

__all__ = ["DRAIN", "Life", "Lifespan", "Phase"]

logger: logging.Logger = logging.getLogger("polybus")

DRAIN = 20.0
"""Seconds for a drain where nobody says how long."""


class Phase(enum.Enum):
    """Where a bus stands in its life."""

    LEFT = "left"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    DRAINED = "drained"
    """It takes nothing, but has not been left."""
    CLOSING = "closing"


class Life(Router):
    """What a `Bus` is made of while it runs, and how that begins and ends."""

    def __init__(self, bus: Bus, services: Services, lifespan: Lifespan | None, pubsub: PubSub) -> None:
        super().__init__()
        self.limits: Limits = services.limits
        self.ready: bool = False
        """Whether new requests are taken: True from the lifespan's yield to the beginning of a drain."""
        self.state: Any = None
        """What the lifespan yielded."""
        self._bus = bus
        self._services = services
        self._phase = Phase.LEFT
        self._changing: anyio.Event | None = None
        """Set when the start, drain or end that is under way is over."""
        self._entered = 0
        """How many have entered. The lifespan does not count: what it enters does not keep its own bus."""
        self._holders: deque[Runtime] = deque()
        """What those have entered who wrote ``async with bus``."""
        self._lifespan = lifespan
        self._lifespan_task: LifespanTask | None = None
        self._own_links: set[Link] = set()
        """Links that the lifespan has opened: they end after it."""
        self._cut: anyio.CancelScope | None = None
        """The drain under way, which `aclose` cuts short."""
        self._patience = DRAIN
        """Seconds for the end of the lifespan: those of the last drain."""
        self._closed_event: anyio.Event | None = None
        self._loopback = Loopback(services)
        self._pubsub = pubsub
        self._listeners: dict[Listener, None] = {}
        self._opened: list[Link] = []
        self._guests: dict[Bus, Runtime | None] = {}
        """Other buses that this one has entered, because tunnels to it lead there: they are left together with it."""

    # -- entering --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._holders.append(await self._enter())
        return self

    async def _enter(self) -> Runtime:
        """Count one more, and start the bus if it is the first. What to hand to `_leave`."""
        if within(self._services.runtime):
            return self._services.running
        await self._settled()
        if self._phase is Phase.LEFT:
            await self._start()
        elif self._phase is Phase.DRAINED and not self._is_inside():
            self._move(Phase.RUNNING)
        self._entered += 1
        return self._services.running

    async def _settled(self) -> None:
        """Wait for the start, drain or end that is under way; not where that waits for the caller.

        Raises:
            LocalProtocolError: The bus runs in another event loop.
        """
        while (runtime := self._services.runtime) is not None:
            if runtime.loop.is_over():
                self._services.runtime = None  # that loop went down with it, and nothing of it can be told any more
                self._end()
                return
            runtime.check_here()
            if self._changing is None or self._is_inside():
                return
            await self._changing.wait()

    async def _start(self) -> None:
        with self._change(Phase.STARTING):
            runtime = self._services.runtime = Runtime(self.limits)
            self._closed_event = anyio.Event()
            self._patience = DRAIN
            try:
                await runtime.open()
                self._services.executor.start(runtime)
                self._pubsub.start(runtime.ends)
                for spec in self._subscribers:
                    self._pubsub.subscribe_handler(spec)
                if self._lifespan is not None:
                    task = self._lifespan_task = LifespanTask(self._bus, runtime, self._lifespan, self.aclose)
                    self.state = await task.start()
            except BaseException:
                self._lifespan_task = None
                with anyio.CancelScope(shield=True):
                    await self._shut(runtime)
                raise
            self._move(Phase.RUNNING)

    async def _take_in(self, guest: Bus) -> None:
        """Enter another bus, until this one ends."""
        before = self._guests.pop(guest, None)
        if before is not None:  # it was closed meanwhile
            await guest._leave(before, None)
        self._guests[guest] = await guest._enter()

    # -- leaving ---------------------------------------------------------------------------------------------------------

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(self._holders.popleft(), error)

    async def _leave(self, runtime: Runtime | None, error: BaseException | None) -> None:
        """Count one less; the last one out drains, or with an error closes, the bus.

        Args:
            runtime: What `_enter` gave: who entered before an `aclose` does not leave what others have entered since.
            error: What was raised in the block. It goes on, whatever else fails.
        """
        if runtime is None or within(runtime):
            return
        with anyio.CancelScope(shield=True):
            try:
                await self._leave_one(runtime, drain=error is None)
            except BaseException:
                if error is None:
                    raise
                logger.exception("polybus: the lifespan failed as well when its bus was left by %r", error)

    async def _leave_one(self, runtime: Runtime, *, drain: bool) -> None:
        if runtime is self._services.runtime and self._entered > 0:
            self._entered -= 1
            if self._entered == 0:
                await self._finish(runtime, drain=drain)
        elif runtime is self._services.runtime and not self._is_inside():
            await self._close(runtime)  # somebody else is at it
        if runtime is not self._services.runtime:
            _raise_failure(runtime)

    def _is_last(self, holders: int = 1) -> bool:
        """Whether nobody else has entered than the caller, which did so that often."""
        return self._entered == holders and not within(self._services.runtime)

    async def _finish(self, runtime: Runtime, *, drain: bool) -> None:
        """End the bus, and wait for that. A handler of its own returns at once and is cancelled at its next wait."""

        async def end() -> None:
            if drain:
                await self._drain(runtime, DRAIN)
            await self._close(runtime)

        if self._is_inside():
            runtime.detach(end)
        else:
            await end()

    async def drain(self, timeout: float = DRAIN) -> None:
        """Stop taking requests, let running handlers finish, tell the peers, write what waits, close the links.

        Streams and channels get a quarter of the time to come to their end by themselves; then they are ended as `Unavailable`.

        In a handler, a middleware or the lifespan of this very bus it returns at once, while the bus drains: they are among
        those that the drain waits for.

        Who cancels it gives it no more time: what still runs then is cut, the peers are told, and the bus is drained.

        Args:
            timeout: Seconds for all of it; what still runs then is cut. The end of the lifespan then gets as many.

        Raises:
            TypeError, ValueError: `timeout` is no number of seconds.
            LocalProtocolError: The bus runs in another event loop.
        """
        timeout = seconds(timeout)
        runtime = self._services.runtime
        if runtime is None:
            return
        runtime.check_here()
        if self._is_inside():
            runtime.detach(self._drain, runtime, timeout)
        else:
            await self._drain(runtime, timeout)

    async def _drain(self, runtime: Runtime, timeout: float) -> None:
        while self._changing is not None and runtime is self._services.runtime:
            with anyio.move_on_after(timeout) as scope:
                await self._changing.wait()
            if scope.cancelled_caught:
                return
        if self._phase is Phase.RUNNING and runtime is self._services.runtime:
            self._patience = timeout
            with self._change(Phase.DRAINING), anyio.CancelScope() as cut:
                self._cut = cut
                try:
                    await draining.drain(self._bus, runtime, timeout)
                except anyio.get_cancelled_exc_class():
                    if not cut.cancel_called:
                        with anyio.CancelScope(shield=True):
                            await draining.close_links(self._bus, runtime, draining.LEAVING)
                    raise
                finally:
                    self._cut = None
                    self._move(Phase.DRAINED)

    async def aclose(self) -> None:
        """Leave at once, whoever has entered: links are closed, handlers cancelled. May be called at any time, repeatedly.

        In a handler, a middleware or the lifespan of this very bus it returns at once; the caller is cancelled at its next
        wait.

        Raises:
            LocalProtocolError: The bus runs in another event loop.
            BaseException: What the lifespan raises at its end.
        """
        runtime = self._services.runtime
        if runtime is None:
            return
        runtime.check_here()
        self._entered = 0
        if self._cut is not None:
            self._cut.cancel()
        if self._phase is Phase.STARTING and self._lifespan_task is not None:
            self._lifespan_task.cancel()
        if self._is_inside():
            runtime.detach(self._close, runtime)
            return
        with anyio.CancelScope(shield=True):
            await self._close(runtime)
        _raise_failure(runtime)

    async def wait_closed(self) -> None:
        """Wait until the bus has been left.

        Raises:
            LocalProtocolError: It is not entered, or runs in another event loop.
        """
        self._services.running.check_here()
        assert self._closed_event is not None
        await self._closed_event.wait()

    async def _close(self, runtime: Runtime) -> None:
        while self._changing is not None and runtime is self._services.runtime:
            await self._changing.wait()
        if runtime is not self._services.runtime:
            return
        with self._change(Phase.CLOSING):
            try:
                await self._shut(runtime)
            except BaseException as error:
                runtime.failure = error

    async def _shut(self, runtime: Runtime) -> None:
        """Handlers end before the lifespan, whose state they use, and the lifespan before its own links.

        Raises:
            BaseException: What the lifespan raises.
        """
        try:
            for listener in list(self._listeners):
                await listener._listening.aclose()
            await draining.close_links(self._bus, runtime, "the bus was closed")
            self._loopback.stop()
            self._services.executor.leave(runtime.time() + self.limits.close_timeout)
            task, self._lifespan_task = self._lifespan_task, None
            if task is not None:
                await task.stop(max(self._patience, self.limits.close_timeout))
        finally:
            await draining.close_links(self._bus, runtime, "the bus was closed", all_of_them=True)
            while self._guests:
                guest, entered = self._guests.popitem()
                await guest._leave(entered, None)
            for link in list(runtime.links):
                link.abort(Closed(1001, "the bus was closed"))
            self._pubsub.fail_subscriptions(None)
            await runtime.close()
            self._end()

    def _end(self) -> None:
        self._pubsub.stop()
        self._listeners.clear()
        self._opened.clear()
        self._own_links.clear()
        self._services.events.close()
        self._services.runtime = self._changing = None
        self._entered = 0
        self.state = None
        self._move(Phase.LEFT)
        if self._closed_event is not None:
            self._closed_event.set()

    # -- where it stands -------------------------------------------------------------------------------------------------

    def _move(self, phase: Phase) -> None:
        self._phase = phase
        self.ready = phase is Phase.RUNNING

    @contextmanager
    def _change(self, phase: Phase) -> Iterator[None]:
        """A phase that others wait for the end of."""
        changing = self._changing = anyio.Event()
        self._move(phase)
        try:
            yield
        finally:
            if self._changing is changing:
                self._changing = None
            changing.set()

    def _is_inside(self) -> bool:
        """Whether this is a task of the bus itself, its lifespan among them: it cannot wait for the bus's drain or end."""
        return self._services.runtime in inside.get()

    @property
    def leaving(self) -> bool:
        """Whether this bus itself is at its end: from the beginning of a drain."""
        return self._phase in (Phase.DRAINING, Phase.DRAINED, Phase.CLOSING)

    def _add_handler(self, handler: Handler) -> None:
        super()._add_handler(handler)
        if self._services.runtime is not None:
            self._pubsub.announcer.add_handler(handler.subject)


def _raise_failure(runtime: Runtime) -> None:
    """The lifespan's failure is raised once."""
    failure, runtime.failure = runtime.failure, None
    if failure is not None:
        raise failure
