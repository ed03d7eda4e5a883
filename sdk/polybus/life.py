"""The life of a bus: entered, running, draining, left. Entering is counted."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import anyio

from .arguments import seconds
from .distribution import Distribution
from .errors import LocalProtocolError
from .event_stream import EventHub
from .events import BusEvent
from .execution import Execution
from .limits import Limits
from .link import Link, State
from .loopback import Loopback
from .plugins import Closed
from .router import Listen, Router
from .runtime import Runtime, inside
from .subscription import HandlerInbox, Subscription

if TYPE_CHECKING:
    from .bus import Bus
    from .handlers import Handler
    from .serving import Listener

__all__ = ["Life", "Lifespan"]

T = TypeVar("T")

Lifespan: TypeAlias = "Callable[[Bus], AbstractAsyncContextManager[Any]]"
"""``lifespan(bus)`` gives an async context manager; what it yields is `Bus.state`."""

_lifespans: contextvars.ContextVar[tuple[Life, ...]] = contextvars.ContextVar("polybus_lifespans", default=())
"""The buses whose lifespan runs here: what it enters does not keep its own bus alive."""


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
        self._inner = 0
        """How many of those who entered did so in the lifespan."""
        self._changing: anyio.Event | None = None
        """Set when the start, or the end, that is under way is over."""
        self._farewell: anyio.CancelScope | None = None
        """The drain of the last one out, which `aclose` cuts short."""
        self._runtime: Runtime | None = None
        self._context_of_lifespan: AbstractAsyncContextManager[Any] | None = None
        self._closed_event: anyio.Event | None = None
        self._execution = Execution(bus)
        self._loopback = Loopback(bus)
        self._events: EventHub[BusEvent] = EventHub(bus)
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
        while self._changing is not None and not self._is_own_task():
            await self._changing.wait()
        self._entered += 1
        self._inner += self in _lifespans.get()
        if self._runtime is None:
            try:
                await self._start()
            except BaseException:
                await self._leave(drain=False)
                raise

    async def _start(self) -> None:
        changing = self._changing = anyio.Event()
        try:
            runtime = self._runtime = Runtime(self.limits)
            self._closed_event = anyio.Event()
            self._execution.start()
            await runtime.open()
            for listen in self._listens:
                self._start_listen(listen)
            self.ready = True
        finally:
            self._changed(changing)
        if self._lifespan is not None:
            manager = self._lifespan(self._bus)
            self.state = await self._in_lifespan(manager.__aenter__)
            self._context_of_lifespan = manager

    async def _leave(self, *, drain: bool) -> None:
        if self._entered == 0:
            return  # closed meanwhile
        self._entered -= 1
        self._inner -= self in _lifespans.get()
        if self._entered == self._inner and self._runtime is not None:
            await self._finish(drain=drain)

    @property
    def _last(self) -> bool:
        """Whether only one has entered, besides the lifespan."""
        return self._entered - self._inner == 1

    def _is_own_task(self) -> bool:
        """Whether this is a task of the bus itself, or of its lifespan: it cannot wait for the bus's start or end."""
        return self._runtime in inside.get() or self in _lifespans.get()

    def _changed(self, changing: anyio.Event) -> None:
        self._changing = None
        changing.set()

    async def _in_lifespan(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        token = _lifespans.set((*_lifespans.get(), self))
        try:
            return await function(*args)
        finally:
            _lifespans.reset(token)

    async def _finish(self, *, drain: bool) -> None:
        """End the bus, and wait for that; a handler of its own returns at once and is cancelled at its next wait."""
        runtime = self._runtime
        assert runtime is not None
        changing = self._changing
        if changing is not None:
            if not self._is_own_task():
                await changing.wait()
            return
        changing = self._changing = anyio.Event()

        async def end() -> None:
            try:
                if drain:
                    with anyio.CancelScope() as self._farewell:
                        await self.drain()
                await self._shut()
            finally:
                self._farewell = None
                self._changed(changing)

        if self._is_own_task():
            runtime.detach(end)
        else:
            with anyio.CancelScope(shield=True):
                await end()

    async def drain(self, timeout: float = 20.0) -> None:
        """Stop taking requests, let running handlers finish, tell the peers, write what waits, close the links.

        Args:
            timeout: Seconds for all of it; what still runs then is cut.

        Raises:
            TypeError, ValueError: `timeout` is no number of seconds.
        """
        timeout = seconds(timeout)
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
        """Leave at once, whoever has entered: links are closed, handlers cancelled. May be called at any time, repeatedly.

        A handler that calls it is cancelled at its next wait.
        """
        if self._runtime is not None:
            self._entered = self._inner = 0
            if self._farewell is not None:
                self._farewell.cancel()
            await self._finish(drain=False)

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
                await self._in_lifespan(manager.__aexit__, None, None, None)
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
        self._events.close()
        self._runtime = None
        self._entered = self._inner = 0
        self.state = None
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

    def _add_handler(self, handler: Handler) -> None:
        super()._add_handler(handler)
        if self._runtime is not None:
            self._distribution.handled(handler.subject)

    def _start_listen(self, listen: Listen) -> HandlerInbox:
        inbox = HandlerInbox(self._bus, self._running, listen)
        self._inboxes.append(inbox)
        self._distribution.local.add(inbox.pattern, inbox)
        self._distribution.want(inbox.pattern)
        return inbox
