"""The items of a stream as an async iterator that is its own owner: a method of a contract has no block around it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .._util.event_loop import Loop, running_loop

if TYPE_CHECKING:
    from .._core.rpc.channel import Channel, ChannelContext

T = TypeVar("T")


class ItemStream(AsyncGenerator[T, None]):
    """The result of a stream of a contract: ``async for user in users.watch(query): ...``

    The stream is opened when the first item is wanted. It ends with its last item, with an error, with `aclose`
    (``async with aclosing(users.watch(query)) as found``), and, where it is left early, when nobody holds it any more: the
    handler at the other side is stopped then.
    """

    def __init__(self, opening: ChannelContext[T, Any]) -> None:
        self._opening: ChannelContext[T, Any] | None = opening
        self._channel: Channel[T, Any] | None = None
        self._loop: Loop | None = None
        self._over = False

    def __aiter__(self) -> ItemStream[T]:
        return self

    async def __anext__(self) -> T:
        if self._over:
            raise StopAsyncIteration
        channel = self._channel
        if channel is None:
            channel = await self._opened()
        try:
            return await anext(channel)
        except Exception:  # its end, or a failure, which is its end as of any generator
            await self.aclose()
            raise

    async def _opened(self) -> Channel[T, Any]:
        opening, self._opening = self._opening, None
        if opening is None:
            raise RuntimeError("another task opens this stream: read the first item in one task")
        try:
            channel = self._channel = await opening.__aenter__()
        except BaseException:
            self._over = True
            raise
        self._loop = running_loop()
        if self._over:  # closed meanwhile
            channel.leave()
        return channel

    async def asend(self, value: None) -> T:
        """The next item: a stream takes nothing."""
        if value is not None:
            raise TypeError(f"asend({value!r:.40}): a stream takes nothing, bus.channel() has two directions")
        return await self.__anext__()

    async def athrow(
        self,
        kind: type[BaseException] | BaseException,
        error: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> T:
        """Leave the stream and raise what is given."""
        await self.aclose()
        raise error if isinstance(error, BaseException) else kind

    async def aclose(self) -> None:
        """Leave the stream: the handler at the other side is stopped."""
        self._over, self._opening = True, None
        if self._channel is not None:
            self._channel.leave()

    def __del__(self) -> None:
        channel, loop = self._channel, self._loop
        if channel is None or loop is None or self._over:
            return
        try:
            # Not here: the garbage collector may have come in another thread, or in the middle of the link's own work.
            loop.call_from_thread(channel.leave)
        except RuntimeError:  # the loop is over, and the channel with it
            pass
