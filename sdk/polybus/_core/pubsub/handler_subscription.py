"""Subscriptions of `on` handlers, and queue groups, which share a pattern's publications among their members."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import anyio
from msgspec import Struct, field

from ...outcomes import Misfit
from ...plugins.extensions import core_of
from ..peer.subscription import SubscriptionQueue
from ..runtime.memory_budgets import OVERHEAD

if TYPE_CHECKING:
    from ...errors import BadRequest
    from ...message import Message
    from ...plugins.extensions import PublicationQueue
    from ..handlers.handler import SubscriberSpec
    from ..runtime.runtime import Runtime
    from ..runtime.services import Services


class HandlerSubscription(SubscriptionQueue):
    __slots__ = ("_concurrency", "_handler", "_peers", "_workers", "_runtime")

    def __init__(self, services: Services, runtime: Runtime, spec: SubscriberSpec) -> None:
        super().__init__(services, spec.handler.subject, spec.queue, spec.when_full, True, spec.group)
        self._runtime = runtime
        self._handler = spec.handler
        self._concurrency = spec.concurrency
        self._peers = spec.peers
        self._workers = 0

    def offer(self, message: Message) -> None:
        queue = self._queue
        if len(queue) < self._mark and self._bytes < self._most_free:  # the fast path
            queue.append(message)
            self._bytes += OVERHEAD if (raw := message.raw) is None else OVERHEAD + len(raw)
            if self._workers < self._concurrency:
                self._arrived()
        else:
            super().offer(message)

    def _arrived(self) -> None:
        if self._workers < self._concurrency:
            self._workers += 1
            self._reader_woken = True
            self._runtime.workers.submit(_HandlerJob(self))

    @property
    def peers(self) -> bool:
        return self._peers

    @property
    def name(self) -> str:
        return self._handler.name

    @property
    def busy(self) -> bool:
        return (self._workers > 0 or len(self._queue) > 0) and self._runtime is self._services.runtime

    def _overrun(self, message: Message) -> None:
        while self._queue:
            self._drop_oldest()
            if self._hold(message):
                break
        else:
            self._count_dropped(1)
        self._tell(message.peer, len(self._queue))

    def skip(self, message: Message, why: BadRequest) -> None:
        self._count_dropped(1)
        self._skipped(message, self._handler.name, why.text)

    async def handle(self, job: _HandlerJob) -> None:
        handler, queue, execution = self._handler, self._queue, self._services.executor
        direct = handler.only_body is not None and handler.style == "async" and not execution.middleware
        baseline = contextvars.copy_context()
        self._reader_woken = False
        if self._overflow:
            self._begin_turn()
        try:
            while queue:
                message = self.take()
                if message.expires is not None and self.expired(message):
                    continue
                try:
                    if direct:  # the fast path
                        await handler.invoke(self._services, message, None)
                    else:
                        await execution.run(handler, message, None)
                except Misfit as error:
                    self.skip(message, error)
                except Exception as error:
                    execution.failed(message, error)
                except BaseException as error:
                    if not execution.is_own_cancellation(error, job.scope):
                        execution.failed(message, error)
                    if execution.must_propagate(error, job.scope):
                        raise
                if _context_changed(baseline):
                    break  # the next message gets a new job, which has a context of its own
        finally:
            self._workers -= 1
            if queue:
                self._arrived()
            self._services.signal()


def _context_changed(baseline: contextvars.Context) -> bool:
    """Return True if context variables have changed, or cannot be compared."""
    try:
        return contextvars.copy_context() != baseline
    except Exception:  # raised by `__eq__` of a value that the application has set
        return True


class _HandlerJob:
    __slots__ = ("_subscription", "scope", "waited")
    ended = False
    run_plain = None

    def __init__(self, subscription: HandlerSubscription) -> None:
        self._subscription = subscription
        self.scope: anyio.CancelScope | None = None
        self.waited: int = 0

    @property
    def function(self) -> str:
        return f"the handler {self._subscription.name} of {self._subscription.pattern!r}"

    @property
    def owner(self) -> tuple[object, object]:
        return self._subscription, self._subscription

    def run(self) -> Coroutine[Any, Any, None]:
        return self._subscription.handle(self)


class SubscriptionGroup(Struct, eq=False):
    """The members of a queue group in this bus. They take turns. Implements `plugins.extensions.PublicationQueue`."""

    pattern: str | int
    group: str
    _shared: Callable[[], bool]
    """Returns True if an engine distributes this bus's publications among the members on all nodes."""
    _relayed: Callable[[Message], bool]
    """Returns True if a publication is relayed. It may then reach an engine."""
    members: deque[PublicationQueue] = field(default_factory=deque)
    leads_on: bool = False
    peers: bool = True

    @property
    def queue(self) -> int:
        return self.members[0].queue

    @property
    def local(self) -> bool:
        """True if this bus's own publications arrive directly, without going through an engine."""
        return not self._shared()

    @property
    def full(self) -> bool:
        """True if no member has room. Otherwise, moves a member with room to the front."""
        for _ in range(len(self.members)):
            if not self.members[0].full:
                return False
            self.members.rotate(-1)
        return True

    async def room(self, deadline: float) -> bool:
        return await self.members[0].room(deadline)

    def offer(self, message: Message) -> None:
        """Pass a publication to the next member, unless an engine sends a separate copy to the group."""
        peer = message.peer
        if peer is None or not (core_of(peer).link.has_groups or (self._shared() and self._relayed(message))):
            self.give(message)

    def offer_shared(self, message: Message) -> None:
        self.offer(message.for_another())

    def give(self, message: Message) -> None:
        member = self.members[0]
        self.members.rotate(-1)
        member.offer(message)
