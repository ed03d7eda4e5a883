"""Enters, runs, drains and leaves a bus. Entries are counted, and the lifespan runs in its own task."""

from __future__ import annotations

import contextvars
import enum
import inspect
import logging
import traceback
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
from attrs import define, field

from ..._util.cancel_scopes import to_the_end
from ..._validation import check_callable, seconds, shown
from ...errors import Code, LocalProtocolError
from ...plugins import Closed
from ..rpc.call import Call, ChannelCall
from ..runtime.runtime import ALL_ANSWERED, Runtime, inside

if TYPE_CHECKING:
    from ..._util.broadcast import EventStream
    from ..handlers.handler import Handler, SubscriberSpec
    from ..handlers.lookup import HandlerLookup
    from ..pubsub.pubsub import PubSub
    from ..rpc.loopback import Loopback
    from ..runtime.services import Services
    from .bus import Bus
    from .links import LinkRegistry

logger: logging.Logger = logging.getLogger("polybus")

_within: contextvars.ContextVar[tuple[Runtime, ...]] = contextvars.ContextVar("polybus_within", default=())


def check_lifespan(function: Any) -> None:
    if inspect.isasyncgenfunction(function):
        raise TypeError(f"lifespan={shown(function)}: decorate it with @asynccontextmanager from contextlib")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(
            f"lifespan={shown(function)}: it does not return an async context manager; decorate it with @asynccontextmanager"
        )
    check_callable(function, "lifespan", "lifespan(bus)", 1)


def within(runtime: Runtime | None) -> bool:
    """Return True if the caller is the lifespan of a running bus or one of its tasks."""
    return runtime in _within.get()


def raised_by_lifespan(error: BaseException) -> bool:
    own = LifespanTask._run.__code__
    return any(frame.f_code is own for frame, _ in traceback.walk_tb(error.__traceback__))


@define(eq=False, repr=False)
class LifespanTask:
    _bus: Any
    _runtime: Runtime
    _function: Callable[[Any], AbstractAsyncContextManager[Any]]
    _failed: Callable[[], Awaitable[None]]
    """Called if the lifespan fails before it is asked to exit."""
    _scope: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    _changed: anyio.Event = field(factory=anyio.Event, init=False)
    _stop: anyio.Event = field(factory=anyio.Event, init=False)
    _over: anyio.Event = field(factory=anyio.Event, init=False)
    _yielded: bool = field(default=False, init=False)
    _state: Any = field(default=None, init=False)
    error: BaseException | None = field(default=None, init=False)

    async def start(self) -> Any:
        """Run the lifespan until it yields, and return the value. Raises `LocalProtocolError` if the bus is closed first."""
        self._runtime.spawn(self._run)
        try:
            await self._changed.wait()
            if self._scope.cancel_called:  # the lifespan may still have yielded
                await self._over.wait()
        except BaseException:
            await self.abort()
            raise
        if self.error is not None:
            raise self.error
        if self._scope.cancel_called or not self._yielded:
            raise LocalProtocolError("the bus was closed while its lifespan was starting")
        return self._state

    async def stop(self, patience: float) -> None:
        """Let the lifespan exit, and cancel it after `patience` seconds. Raises its error if it failed."""
        self._stop.set()
        with anyio.move_on_after(patience):
            await self._over.wait()
        if not self._over.is_set():
            logger.error("the lifespan of a bus has not ended in %g s and is cancelled", patience)
            await self.abort()
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        self._scope.cancel()

    async def abort(self) -> None:
        self.cancel()
        with anyio.CancelScope(shield=True):
            await self._over.wait()

    async def _run(self) -> None:
        _within.set((*_within.get(), self._runtime))
        try:
            with self._scope:
                async with self._function(self._bus) as self._state:
                    self._yielded = True
                    self._changed.set()
                    await self._stop.wait()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            self.error = error
            if self._yielded and not self._stop.is_set():
                logger.error("the lifespan of a bus has failed, which closes the bus", exc_info=error)
                await self._failed()
        finally:
            self._over.set()
            self._changed.set()


Lifespan: TypeAlias = "Callable[[Bus], AbstractAsyncContextManager[Any]]"
"""Function ``lifespan(bus)`` that returns an async context manager, which yields `Bus.state`."""


DRAIN: Final = 20.0
"""Default timeout of a drain, in seconds."""
STREAMS_SHARE: Final = 0.25
"""Fraction of the drain timeout that streams and channels get. Most of them never end on their own."""
_TOO_LATE: Final = "%s: register durable=%r before you enter the bus, which then looks for its store"
_UNFINISHED: Final = "the bus is leaving, and what still ran was cut"


class Phase(enum.Enum):
    LEFT = "left"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    DRAINED = "drained"
    """The bus no longer accepts anything, but has not been left yet."""
    CLOSING = "closing"


@define(eq=False, repr=False)
class Lifecycle:
    _services: Services
    _lifespan: Lifespan | None
    _lookup: HandlerLookup
    _pubsub: PubSub
    _loopback: Loopback
    _links: LinkRegistry
    state: Any = field(default=None, init=False)
    _phase: Phase = field(default=Phase.LEFT, init=False)
    _changing: anyio.Event | None = field(default=None, init=False)
    _entered: int = field(default=0, init=False)
    """Number of open blocks, links and bridges. What the lifespan opens does not count, or it would keep its own bus alive."""
    _holders: deque[Runtime] = field(factory=deque, init=False)
    """Runtimes of open ``async with bus`` blocks, the oldest first."""
    _lifespan_task: LifespanTask | None = field(default=None, init=False)
    _cut: anyio.CancelScope | None = field(default=None, init=False)
    """Cancel scope of the current drain, which lets `aclose` stop it."""
    _patience: float = field(default=DRAIN, init=False)
    """Timeout in seconds for the exit of the lifespan, taken from the last drain."""
    _events_of_lifespan: weakref.WeakSet[EventStream[Any]] = field(factory=weakref.WeakSet, init=False)
    _closed_event: anyio.Event | None = field(default=None, init=False)
    _guests: dict[Lifecycle, Runtime | None] = field(factory=dict, init=False)
    """Buses behind tunnels that are left together with this bus."""

    def __attrs_post_init__(self) -> None:
        self._lookup.handler_check = self._check_handler
        self._lookup.handler_added = self._handler_added
        self._lookup.subscriber_added = self._subscriber_added

    # -- entering --------------------------------------------------------------------------------------------------------

    async def enter_block(self) -> None:
        self._holders.append(await self.enter())

    async def enter(self) -> Runtime:
        """Enter the bus, and start it if this is the first entry. Returns the argument for `leave`."""
        if within(self._services.runtime):
            return self._services.running
        await self._settled()
        if self._phase is Phase.LEFT:
            await self._start()
        elif self._phase is Phase.DRAINED and not self.is_inside():
            self._move(Phase.RUNNING)
            await self._begin()
        self._entered += 1
        return self._services.running

    async def _settled(self) -> None:
        """Wait until a phase change in progress is complete, unless the change itself waits for the caller."""
        while (runtime := self._services.runtime) is not None:
            if runtime.loop.is_over():
                self._services.runtime = None  # its event loop has ended: nothing can be saved
                self._end()
                return
            runtime.check_here()
            if self._changing is None or self.is_inside():
                return
            await self._changing.wait()

    async def _start(self) -> None:
        with self._change(Phase.STARTING):
            runtime = self._services.runtime = Runtime(self._services.limits)
            runtime.on_failure = partial(self._end_with, runtime)
            self._services.failed = ""
            self._services.access.warnings = runtime.warnings
            self._closed_event = anyio.Event()
            self._patience = DRAIN
            try:
                await runtime.open()
                self._services.executor.start(runtime)
                self._pubsub.recipients.start(runtime.bus_identities)
                for spec in self._lookup.subscribers:
                    if spec.reading is None:
                        self._pubsub.subscribe_handler(spec)
                if self._lifespan is not None:
                    task = self._lifespan_task = LifespanTask(
                        self._services.bus, runtime, self._lifespan, self._end_with_lifespan
                    )
                    self.state = await task.start()
                if self._lookup.subscribers and any(spec.reading is not None for spec in self._lookup.subscribers):
                    self._links.storage.check_handlers()
                self._move(Phase.RUNNING)
                await self._begin()
            except BaseException:
                self._lifespan_task = None
                await to_the_end(self._shut, runtime)
                raise

    async def _begin(self) -> None:
        for extension in self._links.extensions:
            await extension.begin()

    async def take_in(self, guest: Lifecycle) -> None:
        before = self._guests.pop(guest, None)
        if before is not None:  # the guest was closed in the meantime
            await guest.leave(before, None)
        self._guests[guest] = await guest.enter()

    # -- leaving ---------------------------------------------------------------------------------------------------------

    async def leave_block(self, error: BaseException | None) -> None:
        await self.leave(self._holders.popleft(), error)

    async def leave(self, runtime: Runtime | None, error: BaseException | None) -> None:
        """Leave the bus. The last exit drains the bus, or closes it after an error. `runtime` is the result of `enter`, so that
        an entry from before an `aclose` does not undo a later entry."""
        if runtime is None or within(runtime):
            return
        try:
            await self._leave_one(runtime, drain=error is None)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException:
            if error is None:
                raise
            logger.exception("the lifespan failed as well when its bus was left by %r", error)

    async def _leave_one(self, runtime: Runtime, *, drain: bool) -> None:
        if runtime is self._services.runtime and self._entered > 0:
            self._entered -= 1
            if self._entered == 0:
                await to_the_end(self._finish, runtime, drain)
        elif runtime is self._services.runtime and not self.is_inside():
            await to_the_end(self._close, runtime)  # another task is leaving
        if runtime is not self._services.runtime:
            _raise_failure(runtime)

    def is_last(self, holders: int = 1) -> bool:
        """Return True if only the caller has entered the bus, `holders` times."""
        return self._entered == holders and not within(self._services.runtime)

    async def _finish(self, runtime: Runtime, drain: bool) -> None:
        """Stop the bus. Returns immediately in a handler of the bus, which is then cancelled at its next await."""

        async def end() -> None:
            if drain:
                await self._drain(runtime, DRAIN)
            await self._close(runtime)

        if self.is_inside():
            runtime.detach(end)
        else:
            await end()

    async def drain(self, timeout: float = DRAIN) -> None:
        timeout = seconds(timeout)
        runtime = self._services.runtime
        if runtime is None:
            return
        runtime.check_here()
        if self.is_inside():
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
                    await self._drain_all(runtime, timeout)
                except anyio.get_cancelled_exc_class():
                    if not cut.cancel_called:
                        with anyio.CancelScope(shield=True):
                            await self._links.close_all(runtime, _UNFINISHED)
                    raise
                finally:
                    self._cut = None
                    self._move(Phase.DRAINED)
                    self._pubsub.end_subscriptions()

    async def _drain_all(self, runtime: Runtime, timeout: float) -> None:
        """Let all work finish within `timeout` seconds, then notify the peers. The lifespan's links stay open for now."""
        until = runtime.notifier.until
        reason = _UNFINISHED
        extensions = self._links.extensions
        for extension in extensions:
            extension.withdraw()
        with anyio.move_on_after(timeout) as scope:
            self._services.takes_requests = True  # some may already be assigned to this member
            try:
                await self._pubsub.announcer.withdraw()
            finally:
                self._services.takes_requests = False
            with anyio.move_on_after(timeout * STREAMS_SHARE):
                await until(lambda: not self._serves(runtime))
            for call in list(self._calls(runtime)):
                if isinstance(call, ChannelCall):
                    call.cut(Code.UNAVAILABLE, "this bus is draining: try another one, or retry later")
            await until(lambda: not self._serves(runtime))
            for guest in list(self._guests):  # send answers through tunnels before the tunnels end
                await guest.drain(timeout)
            for listener in self._lookup.listeners:  # including tunnels to buses that others run
                await listener.drain(ALL_ANSWERED)
            await until(lambda: not self._pubsub.busy and not any(extension.busy for extension in extensions))
            await self._links.all_sent(runtime, list(runtime.links))
            reason = ALL_ANSWERED
        if reason is _UNFINISHED:
            await self._links.close_all(runtime, reason)
            return
        for extension in extensions:
            extension.last_turn()
        await self._links.close_all(runtime, reason)
        for extension in extensions:
            await extension.finish(scope.deadline)

    def _serves(self, runtime: Runtime) -> bool:
        if runtime.running + runtime.answering > runtime.stopping or self._loopback.calls:
            return True
        return any(peer.waiting for link in runtime.links for peer in link.peers)

    def _calls(self, runtime: Runtime) -> Iterator[Call]:
        yield from self._loopback.calls.values()
        for link in runtime.links:
            for peer in link.peers:
                yield from peer.calls.values()

    async def aclose(self) -> None:
        runtime = self._services.runtime
        if runtime is None:
            return
        runtime.check_here()
        self._entered = 0
        if self._cut is not None:
            self._cut.cancel()
        if self._phase is Phase.STARTING and self._lifespan_task is not None:
            self._lifespan_task.cancel()
        if self.is_inside():
            runtime.detach(self._close, runtime)
            return
        await to_the_end(self._close, runtime)
        _raise_failure(runtime)

    def keep_events(self, events: EventStream[Any]) -> EventStream[Any]:
        """Remember an event reader if it belongs to the lifespan, because it must stop first."""
        if within(self._services.runtime):
            self._events_of_lifespan.add(events)
        return events

    async def _end_with(self, runtime: Runtime) -> None:
        """Close the bus after one of its tasks has failed. Leaving or closing the bus then raises the error."""
        if self._cut is not None:
            self._cut.cancel()
        self._services.failed = "one of its tasks failed"
        self._entered = 0
        await self._close(runtime)

    async def _end_with_lifespan(self) -> None:
        self._services.failed = "its lifespan has failed"
        await self.aclose()

    async def wait_closed(self) -> None:
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
                if runtime.failure is None:
                    runtime.failure = error

    async def _shut(self, runtime: Runtime) -> None:
        """Stop handlers, then the lifespan that they use, then the lifespan's links. Raises the lifespan's error."""
        try:
            for listening in list(self._links.gates.values()):
                await listening.aclose()
            for extension in self._links.extensions:
                extension.give_back()
            await self._links.close_all(runtime, "the bus was closed")
            self._loopback.stop()
            self._services.executor.leave(runtime.time() + runtime.limits.close_timeout)
            # A loop over these in the lifespan's task group would keep it from ending.
            self._pubsub.end_subscriptions()
            for events in list(self._events_of_lifespan):
                events.close()
            task, self._lifespan_task = self._lifespan_task, None
            if task is not None:
                await task.stop(max(self._patience, runtime.limits.close_timeout))
        finally:
            await self._links.close_all(runtime, "the bus was closed", of_lifespan=True)
            while self._guests:
                guest, entered = self._guests.popitem()
                await guest.leave(entered, None)
            for link in list(runtime.links):
                link.abort(Closed(1001, "the bus was closed"))
            self._pubsub.fail_subscriptions(None)
            await runtime.close()
            self._end()

    def _end(self) -> None:
        self._pubsub.stop()
        self._links.clear()
        self._services.events.close()
        self._services.runtime = self._changing = None
        self._services.was_running = True
        self._entered = 0
        self.state = None
        self._move(Phase.LEFT)
        if self._closed_event is not None:
            self._closed_event.set()

    # -- phases ----------------------------------------------------------------------------------------------------------

    def _move(self, phase: Phase) -> None:
        self._phase = phase
        self._services.ready = self._services.takes_requests = phase is Phase.RUNNING
        self._services.leaving = phase in (Phase.DRAINING, Phase.DRAINED, Phase.CLOSING)
        if self._services.leaving:
            for gate in self._links.gates:
                gate.refuse_waiting()

    @contextmanager
    def _change(self, phase: Phase) -> Iterator[None]:
        changing = self._changing = anyio.Event()
        self._move(phase)
        try:
            yield
        finally:
            if self._changing is changing:
                self._changing = None
            changing.set()

    def is_inside(self) -> bool:
        """Return True if the caller is a task of the bus. It cannot wait until the bus has drained or stopped."""
        return self._services.runtime in inside.get()

    # -- handlers registered at run time ---------------------------------------------------------------------------------

    def _check_handler(self, handler: Handler) -> None:
        if self._services.check_answers:
            handler.check_that_answers_are_checked()

    def _handler_added(self, handler: Handler) -> None:
        if self._services.runtime is not None:
            self._pubsub.announcer.add_handler(handler.subject)

    def _subscriber_added(self, spec: SubscriberSpec) -> None:
        if self._services.runtime is not None:
            if spec.reading is not None:
                raise LocalProtocolError(_TOO_LATE % (spec.handler.name, spec.reading.name))
            queue = self._pubsub.subscribe_handler(spec)
            if self._pubsub.hears_others(queue):
                self._pubsub.announcer.announce_later(queue.pattern)


def _raise_failure(runtime: Runtime) -> None:
    failure, runtime.failure = runtime.failure, None
    if failure is not None:
        raise failure
