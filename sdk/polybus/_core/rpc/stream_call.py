"""Streams and channels while their handlers run: from the queue of the workers to their end."""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncIterable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import anyio

from ...errors import Code
from ...message import Message
from ..runtime.context import current_call
from ..runtime.injection import InjectedStream
from ..runtime.outcomes import kind_of
from .call import Call, failure
from .channel import Channel

if TYPE_CHECKING:
    from ..runtime.places import Places
    from ..runtime.ports import RemotePeer, RequestHandler
    from ..runtime.services import Services
    from .ports import ResponseSink


class ChannelCall(Call):
    """A stream or channel while its handler runs."""

    __slots__ = ("_on_discard", "channel")
    of_channel: ClassVar[int] = 1
    sizes_known: ClassVar[bool] = False

    def __init__(
        self,
        services: Services,
        origin: ResponseSink,
        peer: RemotePeer | None,
        handler: RequestHandler,
        message: Message,
        deadline: float,
        places: Places | None = None,
        *,
        channel: Channel[Any, Any],
        on_discard: Callable[[ChannelCall], object] | None = None,
    ) -> None:
        """A call whose handler has been chosen.

        Args:
            services: Of the bus.
            origin: Takes what is refused.
            peer: That has opened it; None for this bus.
            handler: Of the subject.
            message: The open.
            deadline: On the clock of the event loop.
            places: Of the handler, where only so many of its calls may run at once.
            channel: The near end of what was opened.
            on_discard: Called when it is over, also where its peer goes before it has begun.
        """
        super().__init__(services, origin, peer, handler, message, deadline, places)
        self._on_discard = on_discard
        self.channel: Channel[Any, Any] = channel
        channel.on_end = self.stop
        channel.answers = True

    async def _run(self) -> None:
        services, channel = self.services, self.channel
        deadline = None if self.deadline == math.inf else self.deadline
        token = current_call.set(self)
        try:
            if services.authorize is not None and self.peer is not None:
                await self._authorized(kind_of(self.message))
            await services.executor.around(
                self.handler, self.message, deadline, lambda message: self._converse(message, deadline)
            )
            channel.finish()
        except Exception as error:
            if not self.ended:  # then the client has gone, and what the handler ran into is mostly just that
                self._fail(error)
        except BaseException as error:
            if not (self.ended or services.executor.is_own_cancellation(error, self.scope)):
                self._fail(error)
            if self.ended or services.executor.must_propagate(error, self.scope):
                raise
        finally:
            current_call.reset(token)
            self.end()

    async def _converse(self, message: Message, deadline: float | None) -> None:
        if self.services.check_answers:
            self.channel.checked = partial(self.services.sent, checked=self.handler.checked)
        outcome = self.handler.invoke(self.services, message, deadline, self.channel)
        if isinstance(outcome, InjectedStream):
            async with outcome as items:
                await self._stream(items, self.channel)
            return
        if inspect.isawaitable(outcome):  # not of a generator function, which gives its items itself
            outcome = await outcome
        if self.handler.style == "stream":
            await self._stream(outcome, self.channel)

    def _fail(self, error: BaseException) -> None:
        if self.channel.failed is None:
            code, text, reason, detail = failure(error, self.services, self.message)
            self.channel.abort(code, text, reason, detail)

    async def _stream(self, given: Any, channel: Channel[Any, Any]) -> None:
        if not isinstance(given, AsyncIterable):
            raise TypeError(f"{self.handler.name} is to give an async iterator, and returned {type(given).__name__}")
        items = aiter(given)
        try:
            async for item in items:
                await channel.send(item)
        finally:
            # A generator's clean-up may await: let it, for a bounded time, even when we are cancelled.
            if (aclose := getattr(items, "aclose", None)) is not None:
                with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 5):
                    await aclose()

    def expire(self) -> None:
        self.cut(Code.DEADLINE_EXCEEDED, "the deadline passed before the stream ended")

    def cut(self, code: Code, text: str) -> None:
        """Stop the handler, and tell the client why."""
        if not self.ended:
            self.channel.abort(code, text)
            self.stop()

    def stop(self) -> None:
        self.channel.on_end = None
        super().stop()
        self.channel.abort(Code.CANCELLED, "the handler was stopped")  # what is still open

    def end(self) -> None:
        self.discard()
        super().end()

    def discard(self) -> None:
        self.channel.discard()
        if self._on_discard is not None:
            self._on_discard(self)
