"""Runs the handlers of requests, streams and channels, and passes their results on."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import anyio.lowlevel
from msgspec import Struct

from ..._util.logs import log_fields
from ...errors import BusError, Code, RequestError
from ...message import Kind, Message
from ...outcomes import Denied, Misfit, answer_of, described, kind_of, only_of
from ..runtime.context import current_call
from ..runtime.injection import InjectedStream
from ..runtime.ports import RequestHandler
from .channel import Channel

if TYPE_CHECKING:
    from ..runtime.memory_budgets import AnswerSizes
    from ..runtime.ports import CallingPeer
    from ..runtime.services import Services
    from ..runtime.workers import Places


class ResponseSink(Protocol):
    """Receives the results of calls, either for a peer's connection or for a `Reply` of this bus."""

    def answer(self, call: Call, value: Any) -> None: ...
    async def answer_later(self, call: Call, value: Any) -> None:
        """Send the handler's result once a slow client has read earlier answers."""

    def refuse(self, call: Call, code: Code, text: str, reason: str | None, detail: Any) -> None: ...
    def put_off(self, call: Call) -> bool:
        """Requeue a call that has not started, if its client stopped reading. Returns True if the call was requeued."""
        ...

    def proceed(self, call: Call) -> None:
        """Start a call that has a slot of its handler, or queue it until its client has a free slot."""

    def finished(self, call: Call) -> None:
        """Called when both a call and its handler have ended."""

    def stopped(self, call: Call) -> None:
        """Called when a call has ended but its handler is still running. The handler keeps its slot until `returned`."""

    def returned(self, call: Call) -> None:
        """Called when the handler of a stopped call has ended."""


logger: logging.Logger = logging.getLogger("polybus")

_PLAIN: Final = frozenset({"inline", "thread"})


class Call(Struct, eq=False):
    """A request that is waiting for its handler or being handled. Implements `workers.Job`."""

    services: Services
    origin: ResponseSink
    peer: CallingPeer | None
    handler: RequestHandler
    message: Message
    deadline: float
    places: Places | None = None
    """Slots of the handler. None if their number is not limited."""
    scope: anyio.CancelScope | None = None
    started: bool = False
    ended: bool = False
    looks: int = 0
    """Total number of checks that found the call waiting."""
    waited: int = 0
    """Number of checks that found the call waiting since it last resumed."""
    put_off: bool = False
    """True if the call was requeued before it started, because its client stopped reading."""
    delivered: bool = False
    """True once the handler has started. Before that, and after the deadline, answers come from the bus itself."""
    asked_by_holder: bool = False
    """True if the caller may hold a resource that other calls are waiting for."""
    # Fields instead of class variables, because CPython 3.11 reads these ten times faster.
    forwards: bool = False
    """True if the result is a `Message` that contains another bus's answer."""
    of_channel: int = 0
    """Number to add to the count of streams and channels: 1 for these, otherwise 0."""
    answers_once: bool = True
    """True if a handler gives a single answer. It then records the sizes of its answers."""

    @property
    def function(self) -> str:
        handler = f"the handler {self.handler.name} of {self.message.subject!r}"
        if self.services.authorize is None or self.peer is None:
            return handler
        if not self.delivered:
            return "authorize"
        # Until the first wait, both run in the same step.
        return handler if self.scope is not None else f"authorize or {handler}"

    @property
    def owner(self) -> tuple[object, object]:
        if self.peer is None:
            return self.services, self.services
        link = self.peer.link
        return (link if link.share is None else link.share.address), link

    def run(self) -> Coroutine[Any, Any, None] | None:
        if self.ended:
            return None
        if (peer := self.peer) is not None and peer.link.outbox is not None and self.origin.put_off(self):
            return None
        self.started = True
        return self._run()

    async def _run(self) -> None:
        services, message, handler, deadline = self.services, self.message, self.handler, self.deadline
        timed = deadline != math.inf
        if timed or self.of_channel:
            _ = current_call.set(self)  # in the context of this job
        try:
            if services.authorize is not None and self.peer is not None:
                await self._authorized(kind_of(message))
            self.delivered = self.answers_once
            if not self.answers_once:
                result = await self._execute(deadline if timed else None)
            elif handler.style == "async" and not services.executor.middleware:
                result = await handler.invoke(services, message, deadline if timed else None)
                if services.check_answers and message.kind is Kind.REQUEST:
                    result = services.sent(result, handler.checked)
            else:
                result = await services.executor.run(handler, message, deadline if timed else None)
            if self.peer is not None and (outbox := self.peer.link.outbox) is not None and not outbox.takes_answers:
                later = self.origin.answer_later(self, result)
                result = None  # so that it is freed once it is encoded
                await later
            elif not self.ended:
                self.origin.answer(self, result)
        except Exception as error:
            if not self.ended:  # otherwise the client has left, which probably caused the error
                self._refuse(error)
        except BaseException as error:
            # The caller still needs an answer, for example after SystemExit or a cancellation that the handler itself caused.
            if not (self.ended or services.executor.is_own_cancellation(error, self.scope)):
                self._refuse(error)
            if self.ended or services.executor.must_propagate(error, self.scope):
                raise
        finally:
            self.end()

    async def _execute(self, deadline: float | None) -> Any:
        """Do what the call is for, if no handler gives a single answer."""

    def _refuse(self, error: BaseException) -> None:
        self.origin.refuse(self, *failure(error, self.services, self.message))

    def run_plain(self) -> bool:
        """Run a plain function without a task. Returns False if `run` has to await something."""
        if not self._is_plain():
            return False
        timed = self.deadline != math.inf
        if timed:
            current_call.set(self)
        self.started = self.delivered = True
        try:
            result = self.handler.invoke(self.services, self.message, self.deadline if timed else None)
            if inspect.isawaitable(result):
                handler = self.handler
                self.handler = AwaitableResult(result, handler.name, handler.answers, handler.subject, handler.checked)
                self.started = self.delivered = False
                return False
            if self.services.check_answers and self.message.kind is Kind.REQUEST:
                result = self.services.sent(result, self.handler.checked)
            if not self.ended:
                self.origin.answer(self, result)
        except BaseException as error:  # there is no task that it could end
            if not self.ended:
                self._refuse(error)
            if isinstance(error, KeyboardInterrupt):
                raise
        finally:
            if self.started:
                self.end()
        return True

    def _is_plain(self) -> bool:
        services, peer = self.services, self.peer
        return (
            self.answers_once
            and not self.ended
            and self.handler.style in _PLAIN
            and services.authorize is None
            and not services.executor.middleware
            and peer is not None
            and peer.link.takes_answers
        )

    async def _authorized(self, verb: str) -> None:
        peer, services = self.peer, self.services
        assert peer is not None
        if not await services.access.may(peer, verb, self.message.subject, self.message):
            services.counters.refused += 1
            services.access.denied(peer, verb, self.message.subject)
            raise Denied(f"{verb} on {self.message.subject!r} is not allowed to this peer")

    def end(self) -> None:
        if self.ended:
            self.origin.returned(self)
        else:
            self.ended = True
            self.origin.finished(self)

    def proceed(self) -> None:
        self.origin.proceed(self)

    def discard(self) -> None:
        """Drop unread input."""

    def stop(self) -> None:
        """Stop the handler without an answer."""
        if self.ended:
            return
        if not self.started:
            self.end()
            return
        self.ended = True
        self.origin.stopped(self)
        if self.scope is not None:
            self.scope.cancel()

    def expire(self) -> None:
        if not self.ended:
            self.delivered = False
            self.origin.refuse(self, Code.DEADLINE_EXCEEDED, "the deadline passed before the handler answered", None, None)
            self.stop()


class AwaitableResult(Struct, frozen=True):
    outcome: Awaitable[Any]
    name: str
    answers: AnswerSizes
    subject: str | int
    checked: Callable[[Any], Any]
    style: str = "async"
    places: None = None

    def invoke(self, *_: Any) -> Awaitable[Any]:
        return self.outcome


class RefusedCall(Call, eq=False, kw_only=True):
    """A request without a handler. The bus rejects it after calling `authorize`, so that clients cannot probe for subjects."""

    answers_once: bool = False
    outcome: RequestError

    @property
    def function(self) -> str:
        return "authorize"

    async def _execute(self, deadline: float | None) -> None:
        self.services.counters.refused += 1
        raise self.outcome


def refused_call(
    origin: ResponseSink, peer: CallingPeer, message: Message, deadline: float, code: Code, text: str
) -> RefusedCall:
    outcome = RequestError(code, text)
    no_handler: Any = None
    return RefusedCall(peer.link.services, origin, peer, no_handler, message, deadline, outcome=outcome)


def failure(error: BaseException, services: Services, message: Message) -> tuple[Code, str, str | None, Any]:
    """Convert an exception to an error answer. Unexpected exceptions are logged, and the client receives only an error id."""
    if (answer := answer_of(error, message.kind)) is not None:
        return answer.code, answer.text, answer.reason, answer.detail
    error = only_of(error)
    if message.kind is Kind.NOTIFY and isinstance(error, (Denied, Misfit)):  # the handler hasn't run, and nothing is sent
        if isinstance(error, Misfit):
            _skipped(services, message, error)
        return error.code, error.text, None, None
    text = f"internal error {services.executor.failed(message, error)}"
    if services.debug:
        text = f"{text}: {described(error)}"
    return Code.INTERNAL, text, None, None


def _skipped(services: Services, message: Message, why: Misfit) -> None:
    """Count an invalid notification, and log it with a rate limit."""
    services.counters.dropped += 1
    text = "a notification of %.200r from %s has an invalid body for its handler and is skipped: %.300r"
    sender, fields = message.peer or "this bus", log_fields(message.peer, message=message)
    services.running.warnings.warn(logger, text, message.subject, sender, why.text, extra=fields)


class ChannelCall(Call, eq=False, kw_only=True):
    of_channel: int = 1
    answers_once: bool = False

    channel: Channel[Any, Any]
    on_discard: Callable[[ChannelCall], object] | None = None
    """Called when the call ends, even if it never started."""

    def __post_init__(self) -> None:
        self.channel.on_end = self.stop
        self.channel.answers = True

    async def _execute(self, deadline: float | None) -> None:
        self.delivered = True
        converse = partial(self._converse, deadline=deadline)
        await self.services.executor.around(self.handler, self.message, deadline, converse)
        self.channel.finish()

    async def _converse(self, message: Message, deadline: float | None) -> None:
        if self.services.check_answers:
            self.channel.checked = partial(self.services.sent, checked=self.handler.checked)
        outcome = self.handler.invoke(self.services, message, deadline, self.channel)
        if isinstance(outcome, InjectedStream):
            async with outcome.items as items:
                await self._stream(items, self.channel)
            return
        if inspect.isawaitable(outcome):  # generator functions return their items directly
            outcome = await outcome
        if self.handler.style == "stream":
            await self._stream(outcome, self.channel)

    def _refuse(self, error: BaseException) -> None:
        if self.channel.failed is None:
            self.channel.abort(*failure(error, self.services, self.message))

    async def _stream(self, given: Any, channel: Channel[Any, Any]) -> None:
        if not isinstance(given, AsyncIterable):
            raise TypeError(f"{self.handler.name} must return an async iterator, not {type(given).__name__}")
        items = aiter(given)
        try:
            async for item in items:
                await channel.send(item)
        except BusError:  # the reader or the link is gone: raise the cancellation, as if the generator had been waiting
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise
        finally:
            # Let the generator's clean-up await something even after a cancellation.
            if (aclose := getattr(items, "aclose", None)) is not None:
                with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 5):
                    await aclose()

    def expire(self) -> None:
        self.cut(Code.DEADLINE_EXCEEDED, "the deadline passed before the stream ended")

    def cut(self, code: Code, text: str) -> None:
        """Stop the handler, and send an error."""
        if not self.ended:
            self.channel.abort(code, text)
            self.stop()

    def stop(self) -> None:
        self.channel.on_end = None
        super().stop()
        self.channel.abort(Code.CANCELLED, "the handler was stopped")  # the half that is still open

    def end(self) -> None:
        self.discard()
        super().end()

    def discard(self) -> None:
        self.channel.discard()
        if self.on_discard is not None:
            self.on_discard(self)
