"""Where publications end: subscriptions that are iterated over, and the queues of `on` handlers."""

from __future__ import annotations

import contextvars
import copy
import logging
import math
from collections import deque
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

import anyio

from .._core.workers import context_changed
from .._handlers.handler import Misfit
from .._util.iteration import receive
from .._util.typed_body import misfit, typed_body
from ..errors import BadRequest, BusError, LocalProtocolError, SlowConsumer
from .queue import Inbox

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from .._bus.bus import Bus
    from .._core.runtime import Runtime
    from .._core.services import Services
    from .._handlers.router import Listen, WhenFull
    from .._peer.peer import Peer
    from ..message import Message

    T_co = TypeVar("T_co", default=Any, covariant=True)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)

__all__ = ["HandlerInbox", "Subscription"]

logger: logging.Logger = logging.getLogger("polybus")


class Subscription(Inbox, Generic[T_co]):
    """Publications to be read, from `Bus.subscribe` or `Peer.subscribe`: ``async with`` it, then iterate over it.

    Iteration gives a `Message` each; with ``returns=`` its body is of that type, and one that does not fit is skipped and
    counted in `skipped`.

    Raises:
        SlowConsumer: (by iterating) It is a ``block`` subscription, and was read too slowly.
        Disconnected, Unauthorized, Forbidden: (by iterating) The bus's only link, or the peer that was asked, is gone for good.
    """

    __slots__ = ("_active", "_bus", "_entered", "_error", "_readers", "_returns", "peer", "skipped")

    def __init__(
        self,
        bus: Bus,
        services: Services,
        pattern: str | int,
        returns: Any,
        queue: int,
        when_full: WhenFull,
        local: bool,
        peer: Peer | None = None,
    ) -> None:
        super().__init__(services, pattern, queue, when_full, local)
        self._bus = bus
        self.peer: Peer | None = peer
        """The one that is asked; None where all are."""
        self._returns = returns
        self._readers: deque[Any] = deque()
        self._active = False
        self._entered = False
        self._error: BusError | None = None
        self.skipped: int = 0

    async def __aenter__(self) -> Self:
        if self._active:
            raise LocalProtocolError("this subscription is entered already: make another one")
        self._active = self._entered = True
        try:
            await self._bus._subscribe(self)
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self._active = False
        self._bus._unsubscribe(self)
        self.clear()
        self._wake_all()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T_co]:
        while True:
            while not self._queue:
                if self._error is not None:
                    raise self._error.with_traceback(None)
                if not self._active:
                    if not self._entered:
                        raise LocalProtocolError("this subscription was never entered: iterate inside of its `with` block")
                    raise StopAsyncIteration
                waiter = self._services.waiter()
                self._readers.append(waiter)
                try:
                    await waiter
                except BaseException:
                    if waiter in self._readers:
                        self._readers.remove(waiter)
                    else:
                        self._coming = False
                        if self._queue:  # woken and cancelled in one turn: the message is another reader's
                            self._arrived()
                    raise
                self._coming = False
                if self._overflow:
                    self._has_come()
            message = self.take()
            if message.expires is not None and self.expired(message):
                continue
            if self._returns is Any:
                return message
            try:
                body = typed_body(message, self._returns)
            except Exception as error:  # also what a check of the application's own raises
                self.skipped += 1
                self._services.counters.dropped += 1
                self._skipped(message, f"returns={getattr(self._returns, '__name__', self._returns)}", misfit(error))
                continue
            typed = copy.copy(message)  # other subscriptions share the message
            typed.decoded = body
            return typed

    async def receive(self, timeout: float | None = None) -> Message[T_co]:
        """The next publication.

        Args:
            timeout: Seconds to wait for it; None waits as long as it takes.

        Raises:
            TimeoutError: Nothing came in time.
            EOFError: There will be no more.
            BusError: As iterating does.
            TypeError, ValueError: `timeout` is no number of seconds.
        """
        message: Message[T_co] = await receive(self, timeout)
        return message

    def _arrived(self) -> None:
        if self._readers:
            self._coming = True
            self._services.wake(self._readers.popleft())

    def _overrun(self, message: Message) -> None:
        self._count_dropped(1)
        self.fail(
            SlowConsumer(
                f"{self.pattern!r} is read too slowly: {len(self._queue)} publications wait (queue={self.queue}), and those "
                f"beyond the queue cost {self._most} bytes (Limits.queue_bytes); read faster, or choose another when_full="
            )
        )

    def fail(self, error: BusError | None) -> None:
        """End the subscription; with None orderly. What nobody has read is lost, and counted where that is an error."""
        if error is not None:
            self._count_dropped(len(self._queue))
        self._error = self._error or error
        self._leave()

    def end(self, error: BusError | None) -> None:
        """Nothing more comes: iterating gives what has come, and then raises, or with None stops."""
        self._error = self._error or error
        self._active = False
        self._wake_all()

    def _wake_all(self) -> None:
        while self._readers:
            self._services.wake(self._readers.popleft())


class HandlerInbox(Inbox):
    """The queue of one `on` handler while the bus is entered."""

    __slots__ = ("_concurrency", "_handler", "_pumps", "_runtime")

    def __init__(self, services: Services, runtime: Runtime, listen: Listen) -> None:
        super().__init__(services, listen.handler.subject, listen.queue, listen.when_full, True)
        self._runtime = runtime
        self._handler = listen.handler
        self._concurrency = listen.concurrency
        self._pumps = 0

    def offer(self, message: Message) -> None:
        queue = self._queue
        if len(queue) < self._mark and self._bytes < self._most_free:  # the usual case
            queue.append(message)
            if (raw := message.raw) is not None:
                self._bytes += len(raw)
            if self._pumps < self._concurrency:
                self._arrived()
        else:
            super().offer(message)

    def _arrived(self) -> None:
        if self._pumps < self._concurrency:
            self._pumps += 1
            self._coming = True
            self._runtime.workers.submit(_Pump(self))

    @property
    def busy(self) -> bool:
        """Whether publications wait or are being handled."""
        return self._pumps > 0 or len(self._queue) > 0

    def _overrun(self, message: Message) -> None:
        while self._queue:
            self._drop_oldest()
            if self._hold(message):
                break
        else:
            self._count_dropped(1)
        self._tell(message.peer, len(self._queue))

    def skip(self, message: Message, why: BadRequest) -> None:
        """Leave out a publication that does not fit the handler: whoever sends it must not be able to fill the log."""
        self._count_dropped(1)
        self._skipped(message, self._handler.name, why.text)


class _Pump:
    """Runs the handler for one publication after the other, as long as some wait. A `workers.Job`."""

    __slots__ = ("_inbox", "scope")
    ended = False
    run_plain = None

    def __init__(self, inbox: HandlerInbox) -> None:
        self._inbox = inbox
        self.scope: anyio.CancelScope | None = None

    @property
    def function(self) -> str:
        return f"the handler {self._inbox._handler.name}"

    @property
    def subject(self) -> str | int:
        return self._inbox.pattern

    def run(self) -> Coroutine[Any, Any, None]:
        return self._run()

    async def _run(self) -> None:
        inbox = self._inbox
        services, handler, queue = inbox._services, inbox._handler, inbox._queue
        execution = services.executor
        function, only_body = handler.function, handler.only_body
        if handler.style != "async" or execution.middleware:
            only_body = None
        baseline = contextvars.copy_context()
        inbox._coming = False
        if inbox._overflow:
            inbox._has_come()
        try:
            while queue:
                message = inbox.take()
                if message.expires is not None and inbox.expired(message):
                    continue
                try:
                    if only_body is None:
                        await execution.run(handler, message, None)
                    else:  # the usual case, without the layers between
                        try:
                            body = only_body(message)
                        except BadRequest as error:
                            raise Misfit.of(error) from error.__cause__
                        await function(body)
                except Misfit as error:
                    inbox.skip(message, error)
                except Exception as error:
                    execution.publication_failed(message, error)
                except BaseException as error:
                    if not execution.ours(error, self.scope):
                        execution.publication_failed(message, error)
                    if execution.must_pass(error, self.scope):
                        raise
                if context_changed(baseline):
                    break  # the handler changed context variables: the next message gets a fresh worker
        finally:
            inbox._pumps -= 1
            if queue:
                inbox._arrived()
            services.ring()

    @property
    def deadline(self) -> float:
        """Publications have none."""
        return math.inf
