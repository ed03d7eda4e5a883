"""Replies, which are the futures of requests, and retries."""

from __future__ import annotations

import contextvars
import logging
import math
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

import anyio
from msgspec import Struct, field

from ..._util.cancel_scopes import EARLY, let_scope_fire
from ..._util.event_loop import wrong_event_loop
from ..._util.logs import log_fields
from ..._util.misuse import awaited_first
from ..._util.sources import sources
from ..._util.typed_body import body_of, misfit, typed_body
from ..._validation import check_type, type_name
from ...errors import BadReply, BusError, Code, DeadlineExceeded, Disconnected, RequestCancelled, RequestError
from ...message import MISSING, Message
from ...retry import Retry, covers, pause_after

if TYPE_CHECKING:
    from ..._util.event_loop import Loop
    from ..runtime.outgoing_hooks import Departure
    from ..runtime.runtime import Runtime
    from .channel import Channel

logger: logging.Logger = logging.getLogger("polybus")

T_co = TypeVar("T_co", covariant=True)

_PENDING, _ANSWERED, _FAILED = 0, 1, 2


@awaited_first
class Reply(Struct, Generic[T_co], eq=False, weakref=True):
    """The reply to a request, returned by `Bus.request`. You can await a reply several times and in any task.

    Awaiting it returns the body of the answer, converted to ``returns=``. If ``returns`` is `Message` or ``Message[User]``, it
    returns the whole answer with its headers.

    Raises:
        RequestError: If the peer rejects the request or its handler fails. The subclass depends on the reason.
        DeadlineExceeded: If no answer arrives within ``timeout``, or the peer gives up.
        Disconnected: If the link goes down. ``sent`` is False if the request wasn't sent.
        BadReply: If the answer doesn't fit ``returns``.
        QueueFull: If the outbox of the link is full.
        RequestCancelled: If the request was cancelled.
    """

    _tells_failure: ClassVar[bool] = True
    """True to log a failure if the reply is never awaited."""

    _loop: Loop
    subject: str | int
    _returns: Any
    started: float
    deadline: float
    ttl: float | None = None
    """Timeout that was sent to the peer, in seconds."""
    on_cancel: Any = None
    sent: bool = False
    key: Any = None
    _state: int = _PENDING
    _value: Any = None
    _error: BusError | None = None
    _waiters: Any = None
    """None, a single waiter, or a list of waiters."""
    message: Message | None = None
    """The answer with its headers. None until it arrives."""

    def done(self) -> bool:
        """Return True if the request has succeeded or failed."""
        return self._state != _PENDING

    def cancel(self) -> bool:
        """Cancel the request and, if the protocol supports it, the remote handler. Awaiting then raises `RequestCancelled`.

        Returns:
            False if the request has already ended.
        """
        if self._state != _PENDING:
            return False
        self.fail(RequestCancelled(f"the request to {self.subject!r} was cancelled"))
        if self.on_cancel is not None:
            self.on_cancel(self)
        return True

    async def wait(self) -> T_co:
        """Await the reply, for APIs that require a coroutine, such as task groups.

        Raises:
            BusError: As when awaiting the reply.
        """
        return await self

    def __await__(self) -> Generator[Any, Any, T_co]:
        if self._state == _PENDING:
            waiter = self._loop.waiter()
            held = self._waiters
            if held is None:
                self._waiters = waiter
            elif isinstance(held, list):
                held.append(waiter)
            else:
                self._waiters = [held, waiter]
            try:
                yield from waiter  # faster than its `__await__`, which is not a Python function
            except BaseException as error:
                self._waiter_left(waiter)
                if isinstance(error, RuntimeError) and not self._loop.is_here():
                    raise wrong_event_loop() from None
                raise
        if self._state == _ANSWERED and self._returns is Any:
            return self._value  # type: ignore[no-any-return]
        if self._state == _FAILED and is_remote_deadline(self._error):
            yield from let_scope_fire(end_of_scope(self)).__await__()
        return self._result()

    def _result(self) -> T_co:
        if self._state == _FAILED:
            error = self._error
            assert error is not None
            if self._value is not None:
                self._value.told = True
            # The exception is shared by all awaits, so start a new traceback.
            raise error.with_traceback(None)
        if self._returns is Any or self.message is None:
            return self._value  # type: ignore[no-any-return]
        return self._converted(self.message)

    def _converted(self, message: Message) -> T_co:
        returns = self._returns
        whole = None if isinstance(returns, type) and returns is not Message else body_of(returns)
        try:
            value = self._value = typed_body(message, returns if whole is None else whole)
        except Exception as error:  # may come from a validator of the application
            why = misfit(error)[0]
            self._error = BadReply(
                f"the answer to {self.subject!r} does not match {type_name(returns)}: {why}; "
                "does returns= match the handler's return type?"
            )
            self._state = _FAILED
            self._value = None
            raise self._error from error
        if whole is not None:
            message.decoded = value
            self._value = message
        self._returns = Any
        return self._value  # type: ignore[no-any-return]

    def _waiter_left(self, waiter: Any) -> None:
        """Remove a cancelled waiter. If there are no other waiters, cancel the request."""
        held = self._waiters
        if isinstance(held, list):
            held.remove(waiter)
            if held:
                return
        self._waiters = None
        self.cancel()

    # -- for the link, not public ----------------------------------------------------------------------------------------

    def resolve(self, message: Message) -> None:
        if self._state != _PENDING:
            return
        self.message = message
        try:
            self._value = message.body if message.decoded is MISSING else message.decoded
        except BusError as error:
            self._error = BadReply(f"the answer to {self.subject!r} does not decode: {error}")
            self._state = _FAILED
        else:
            self._state = _ANSWERED
        self._wake()

    def reject(self, message: Message, now: float, *, own: bool = False) -> None:
        """Fail the request with an error message from a peer. With `own`, the message is from a handler of this bus."""
        if self._state == _PENDING:
            self.message = message
            self.fail(error_of(message, self.subject, now - self.started, own=own))

    def fail(self, error: BusError) -> None:
        if self._state == _PENDING:
            self._error = error
            self._state = _FAILED
            if self._waiters is None and self._tells_failure and not self._given_up(error):
                self._value = UnawaitedFailure(self.subject, error)
            self._wake()

    def _given_up(self, error: BusError) -> bool:
        """Return True if the caller has cancelled the request or its cancel scope has ended."""
        over = is_remote_deadline(error) and end_of_scope(self) <= self._loop.time() + EARLY
        return over or isinstance(error, RequestCancelled)

    def pass_over(self, text: str) -> None:
        """Record an unusable answer. Another answer may still arrive."""
        if self._state == _PENDING:
            self._error = DeadlineExceeded(self.subject, 0.0, "local", text)

    def expire(self, now: float, remark: str = "") -> None:
        """Fail the request because no usable answer has arrived. If there was no answer, `remark` says why."""
        passed_over = self._error
        text = passed_over.text if isinstance(passed_over, DeadlineExceeded) else remark
        self.fail(DeadlineExceeded(self.subject, now - self.started, "local", text))

    def _wake(self) -> None:
        held, self._waiters = self._waiters, None
        if held is None:
            return
        loop = self._loop
        if type(held) is list:
            for waiter in held:
                loop.wake(waiter)
        else:
            loop.wake(held)

    def __repr__(self) -> str:
        state = ("pending", "answered", "failed")[self._state]
        return f"<Reply {self.subject!r} {state}: await it; a task takes reply.wait()>"


def failed_reply(runtime: Runtime, subject: str | int, returns: Any, timeout: float, error: BusError) -> Reply[Any]:
    now = runtime.time()
    reply: Reply[Any] = Reply(runtime.loop, subject, returns, now, now + timeout)
    reply.fail(error)
    return reply


class ObservedReply(Reply[T_co], eq=False):
    departure: Departure | None = None

    def _wake(self) -> None:
        super()._wake()
        if self.departure is not None:
            self.departure.end(self._error, received=int(self._state == _ANSWERED))


class UnawaitedFailure(Struct, eq=False):
    """A failure that is logged if its `Reply` is deleted without having been awaited."""

    subject: str | int
    error: BusError
    told: bool = False

    def __del__(self) -> None:
        if not self.told:
            error = self.error
            text = "the request %r was never awaited, and failed: %s: %s"
            logger.error(text, self.subject, type(error).__name__, error, extra=log_fields(subject=self.subject))


def error_of(message: Message, subject: str | int, elapsed: float, *, own: bool = False) -> BusError:
    """Return the exception for an error message from a peer. With `own`, the message is from a handler of this bus."""
    code = message.code if message.code is not None else Code.UNKNOWN
    facts = message.attributes
    text, reason, detail = str(facts.get("text") or ""), facts.get("reason"), facts.get("detail")
    if code is Code.DEADLINE_EXCEEDED:
        return DeadlineExceeded(subject, elapsed, "remote", text, reason, detail)
    if code is Code.OK:
        code = Code.UNKNOWN
    error = RequestError(code, text, reason=reason, detail=detail)
    error.subject = subject
    error._received, error.foreign = True, not own
    return error


def is_remote_deadline(error: BusError | None) -> bool:
    """Return True if a peer reported the timeout. Its cause may still be a cancel scope in this process."""
    return isinstance(error, DeadlineExceeded) and error.where == "remote"


def end_of_scope(asked: Reply[Any] | Channel[Any, Any]) -> float:
    """Return the deadline of the surrounding scope or handler if it is before ``timeout=``, otherwise infinity.

    In that case, the deadline was also sent to the peer. The scope may belong to a different task than the one that awaits, as
    with `asyncio.gather`.
    """
    timeout = asked.deadline - asked.started  # the difference from which `ttl` was computed, so that they can be equal
    return math.inf if asked.ttl is None or asked.ttl >= timeout else asked.started + asked.ttl


class InternalReply(Reply[Any], eq=False):
    """A reply that does not have to be awaited. Used for bridges and notifications."""

    _tells_failure: ClassVar[bool] = False


Ask: TypeAlias = Callable[..., Reply[Any]]
"""Function that sends the request with a ``timeout=`` in seconds."""


def retried(runtime: Runtime, retry: Retry, subject: str | int, timeout: float, returns: Any, ask: Ask) -> Reply[Any]:
    """Send a request with retries.

    Raises:
        TypeError: If `retry` is not a `Retry`.
        BusError, TypeError, ValueError: If `ask` raises it on the first attempt.
    """
    check_type(retry, Retry, "retry", "Retry(attempts=3)")
    now = runtime.time()
    deadline = now + timeout
    ttl = runtime.ttl(now, deadline)
    reply: Reply[Any] = Reply(runtime.loop, subject, returns, now, deadline, ttl)
    # In the caller's context, so that the trace spans of all attempts have the same parent.
    again = partial(contextvars.copy_context().run, ask)
    attempts = Attempts(runtime, retry, reply, again, deadline if ttl is None else now + ttl, ask(timeout=timeout))
    reply.on_cancel = lambda _: attempts.scope.cancel()
    runtime.spawn(attempts.run)
    return reply


class Attempts(Struct, eq=False):
    """Sends a request repeatedly, in a task of the bus."""

    _runtime: Runtime
    _retry: Retry
    _reply: Reply[Any]
    _ask: Ask
    _until: float
    """Deadline for all attempts together."""
    _current: Reply[Any]
    _last: BusError | None = None
    _failed: int = 0
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def run(self) -> None:
        reply = self._reply
        try:
            with self.scope:
                while not reply.done():
                    await self._step()
        finally:
            if not reply.done():  # the bus is exiting
                self._fail(self._last or Disconnected("the bus was closed", "", self._current.sent))

    async def _step(self) -> None:
        current, reply = self._current, self._reply
        try:
            await current
        except BusError as error:
            self._failed += 1
            if isinstance(error, DeadlineExceeded):
                error.elapsed = self._runtime.time() - reply.started
                error.__cause__ = self._last
            if self._failed < self._retry.attempts and covers(self._retry, error) and await self._again(error):
                return
            reply.message = current.message
            self._fail(error)
        else:
            assert current.message is not None
            reply.resolve(current.message)

    async def _again(self, error: BusError) -> bool:
        """Start the next attempt after a pause. Returns False if there is no time left."""
        self._last = error
        time, until = self._runtime.time, self._until
        pause = pause_after(self._retry, self._failed, sources.get().rng.random)
        if time() + pause >= until:
            return False
        await anyio.sleep(pause)
        if (now := time()) >= until:
            return False
        try:
            self._current = self._ask(timeout=until - now)
        except BusError as refusal:  # for example because there are several links now
            self._fail(refusal)
        return True

    def _fail(self, error: BusError) -> None:
        error.attempts = max(1, self._failed)
        self._reply.fail(error)
