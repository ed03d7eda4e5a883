"""The life of a bus: entered, running, draining, left. Entering is counted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import anyio

from .distribution import Distribution
from .errors import LocalProtocolError
from .event_stream import EventHub
from .execution import Execution
from .limits import Limits
from .link import Link, State
from .loopback import Loopback
from .plugins import Closed
from .router import Listen, Router
from .runtime import Runtime
from .subscription import HandlerInbox, Subscription

if TYPE_CHECKING:
    from .bus import Bus
    from .serving import Listener

__all__ = ["Life", "Lifespan"]

Lifespan: TypeAlias = "Callable[[Bus], AbstractAsyncContextManager[Any]]"
"""``lifespan(bus)`` gives an async context manager; what it yields is `Bus.state`."""


class Life(Router):
    """What a `Bus` is made of while it runs, and how that begins and ends."""

    def __init__(self, bus: Bus, limits: Limits | None, lifespan: Lifespan | None) -> None:
        super().__init__()
        self.limits: Limits = limits if limits is not None else Limits()
        self.ready: bool = False
        """Whether new requests are taken: True while entered and not draining."""
        self.state: Any = None
        """What the lifespan yielded."""
        self._bus = bus
        self._lifespan = lifespan
        self._entered = 0
        self._runtime: Runtime | None = None
        self._context_of_lifespan: AbstractAsyncContextManager[Any] | None = None
        self._closed_event: anyio.Event | None = None
        self._execution = Execution(bus)
        self._loopback = Loopback(bus)
        self._events = EventHub(bus)
        self._distribution = Distribution(bus)
        self._inboxes: list[HandlerInbox] = []
        self._subscriptions: dict[Subscription, None] = {}
        self._listeners: dict[Listener, None] = {}
        self._opened: list[Link] = []

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(drain=error is None)

    async def _enter(self) -> None:
        self._entered += 1
        if self._runtime is not None:
            return
        runtime = self._runtime = Runtime(self.limits)
        self._closed_event = anyio.Event()
        self._execution.start()
        await runtime.open()
        for listen in self._listens:
            self._start_listen(listen)
        self.ready = True
        if self._lifespan is not None:
            manager = self._lifespan(self._bus)
            try:
                self.state = await manager.__aenter__()
            except BaseException:
                await self._leave(drain=False)
                raise
            self._context_of_lifespan = manager

    async def _leave(self, *, drain: bool) -> None:
        if self._entered == 0:
            return  # closed meanwhile
        self._entered -= 1
        if self._entered == 0:
            with anyio.CancelScope(shield=True):
                if drain:
                    await self.drain()
                await self._shut()

    async def drain(self, timeout: float = 20.0) -> None:
        """Stop taking requests, let running handlers finish, tell the peers, write what waits, close the links.

        Args:
            timeout: Seconds for all of it; what still runs then is cut.
        """
        runtime = self._runtime
        if runtime is None:
            return
        self.ready = False
        with anyio.move_on_after(timeout):
            await self._settled(lambda: not runtime.running and not self._loopback.calls and not runtime.crowded)
            await self._settled(lambda: not any(inbox._pumps or len(inbox) for inbox in self._inboxes))
            await self._settled(lambda: not any(link.outbox and link.state is State.UP for link in runtime.links))
        for link in list(runtime.links):
            link.close(1001 if not link.opened else 1000, "the bus is leaving")
        with anyio.move_on_after(self.limits.close_timeout + 1):
            await self._settled(lambda: not runtime.links)

    async def aclose(self) -> None:
        """Leave at once, whoever has entered: links are closed, handlers cancelled. May be called at any time, repeatedly."""
        if self._runtime is not None:
            self._entered = 0
            with anyio.CancelScope(shield=True):
                await self._shut()

    async def wait_closed(self) -> None:
        """Wait until the bus has been left.

        Raises:
            LocalProtocolError: It is not entered.
        """
        self._running  # noqa: B018  # raises when the bus is not entered
        assert self._closed_event is not None
        await self._closed_event.wait()

    async def _settled(self, done: Callable[[], bool]) -> None:
        """Wait for a condition that turns true in some turn of the loop."""
        pause = 0.0
        while not done():
            await anyio.sleep(pause)
            pause = min(pause + 0.001, 0.02)

    async def _shut(self) -> None:
        runtime = self._runtime
        if runtime is None:
            return
        self.ready = False
        manager, self._context_of_lifespan = self._context_of_lifespan, None
        try:
            if manager is not None:
                await manager.__aexit__(None, None, None)
        finally:
            for listener in list(self._listeners):
                await listener._listening.aclose()
            for link in list(runtime.links):
                link.close(1001, "the bus was closed")
            with anyio.move_on_after(self.limits.close_timeout + 1):
                await self._settled(lambda: not runtime.links)
            for link in list(runtime.links):
                link.abort(Closed(1001, "the bus was closed"))
            self._loopback.stop()
            for subscription in list(self._subscriptions):
                subscription.fail(None)
            await runtime.close()
            self._end()

    def _end(self) -> None:
        for inbox in self._inboxes:
            inbox.clear()
            self._distribution.local.remove(inbox.pattern, inbox)
            self._distribution.unwant(inbox.pattern)
        self._inboxes.clear()
        self._listeners.clear()
        self._opened.clear()
        self._distribution.upstream = ()
        self._runtime = None
        self.state = None
        self._events.close()
        if self._closed_event is not None:
            self._closed_event.set()

    @property
    def _running(self) -> Runtime:
        runtime = self._runtime
        if runtime is None:
            raise LocalProtocolError(
                "this bus is not running: enter it first, with `async with bus:`, connect() or bus.serve()"
            )
        return runtime

    def _start_listen(self, listen: Listen) -> HandlerInbox:
        inbox = HandlerInbox(self._bus, self._running, listen)
        self._inboxes.append(inbox)
        self._distribution.local.add(inbox.pattern, inbox)
        self._distribution.want(inbox.pattern)
        return inbox
