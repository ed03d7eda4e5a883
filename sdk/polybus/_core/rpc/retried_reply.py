"""Requests that are asked again: one `Reply` over several attempts."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
from attrs import define, field

from ..._util.sources import sources
from ..._validation import check_type
from ...errors import BusError, DeadlineExceeded, Disconnected
from ...retry import Retry
from .reply import Reply

if TYPE_CHECKING:
    from ..runtime.runtime import Runtime

Ask: TypeAlias = Callable[[float], Reply[Any]]
"""Sends the request, with so many seconds left."""


def retried(runtime: Runtime, retry: Retry, subject: str | int, timeout: float, returns: Any, ask: Ask) -> Reply[Any]:
    """Ask, and ask again while `retry` and the time allow.

    Raises:
        TypeError: `retry` is none.
        BusError, TypeError, ValueError: As the first attempt raises them at its call.
    """
    check_type(retry, Retry, "retry", "Retry(attempts=3)")
    now = runtime.time()
    deadline = now + timeout
    ttl = runtime.ttl(now, deadline)
    reply: Reply[Any] = Reply(runtime.loop, subject, returns, now, deadline, ttl)
    attempts = Attempts(runtime, retry, reply, ask, deadline if ttl is None else now + ttl, ask(timeout))
    reply.on_cancel = lambda _: attempts.scope.cancel()
    runtime.spawn(attempts.run)
    return reply


@define(eq=False)
class Attempts:
    """The attempts of one request: a task of the bus."""

    _runtime: Runtime
    _retry: Retry
    _reply: Reply[Any]
    _ask: Ask
    _until: float
    """The deadline of all: that of `timeout`, of the scope around the call, or of the handler that asks."""
    _current: Reply[Any]
    _context: contextvars.Context = field(factory=contextvars.copy_context, init=False)
    """The context of the call, in which each attempt is made: the spans of a trace are children of the same one."""
    _last: BusError | None = None
    _failed: int = 0
    scope: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)

    async def run(self) -> None:
        """Wait for an attempt to succeed, or for the last to fail."""
        reply = self._reply
        try:
            with self.scope:
                while not reply.done():
                    await self._step()
        finally:
            if not reply.done():  # the bus is left
                self._fail(self._last or Disconnected("the bus was left", "", self._current.sent))

    async def _step(self) -> None:
        """Wait for one attempt; begin the next where that has failed."""
        current, reply = self._current, self._reply
        try:
            await current
        except BusError as error:
            self._failed += 1
            if isinstance(error, DeadlineExceeded):
                error.elapsed = self._runtime.time() - reply.started
                error.__cause__ = self._last
            if self._failed < self._retry.attempts and self._retry.covers(error) and await self._again(error):
                return
            reply.message = current.message
            self._fail(error)
        else:
            assert current.message is not None
            reply.resolve(current.message)

    async def _again(self, error: BusError) -> bool:
        """Begin the next attempt after a pause. False where there is no time for it."""
        self._last = error
        time, until = self._runtime.time, self._until
        pause = self._retry.pause(self._failed, sources.get().rng.random)
        if time() + pause >= until:
            return False
        await anyio.sleep(pause)
        if (now := time()) >= until:
            return False
        try:
            # It ends nothing here: it is what travels with the request.
            with anyio.CancelScope(deadline=until):  # noqa: ASYNC100
                self._current = self._context.run(self._ask, self._reply.deadline - now)
        except BusError as refusal:  # there are two links now, for example
            self._fail(refusal)
        return True

    def _fail(self, error: BusError) -> None:
        error.attempts = max(1, self._failed)
        self._reply.fail(error)
