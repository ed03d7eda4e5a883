"""Blocking iterators for subscriptions, streams, channels and events, and blocking context managers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, Self, TypeAlias, TypeVar

from attrs import frozen

from ..errors import LocalProtocolError
from ..message import Message, Settlement
from ..plugins.tools import blocking_entered_first, receive

if TYPE_CHECKING:
    from .. import Channel, Subscription
    from ..plugins import Connector

T = TypeVar("T")
Receives = TypeVar("Receives")
Sends = TypeVar("Sends")


Run: TypeAlias = Callable[Concatenate[Callable[..., Any], ...], Any]
"""``run(function, *args)`` runs a coroutine function on the event loop while the calling thread waits for the result."""


async def called(function: Callable[[], T]) -> T:
    return function()


async def awaited(function: Callable[[], Awaitable[T]]) -> T:
    return await function()


_END = object()


async def _next(items: Any) -> Any:
    return await anext(items, _END)


class BlockingItems(Generic[T]):
    """An iterator that waits for each item: ``for item in items: ...`` Several threads can share it."""

    _items: Any
    _run: Run

    def __init__(self, items: Any, run: Run) -> None:
        self._items = items
        self._run = run

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        item = self._run(_next, self._items)
        if item is _END:
            raise StopIteration
        return self._given(item)

    def receive(self, timeout: float | None = None) -> T:
        """Wait for the next item and return it.

        Args:
            timeout: Seconds to wait, or None for no limit.

        Raises:
            TimeoutError: If no item arrives in time.
            EOFError: If there are no more items.
            BusError: As for iterating.
            TypeError, ValueError: If `timeout` is not a number of seconds.
        """
        return self._given(self._run(receive, self._items, timeout))

    def _given(self, item: T) -> T:
        return item


@frozen
class BlockingSettlement:
    """Settles a stored publication from another thread. Implements `message.Settlement`."""

    _settlement: Settlement
    _run: Run

    def ack(self) -> None:
        self._run(called, self._settlement.ack)

    def retry(self, delay: float | None) -> None:
        self._run(called, partial(self._settlement.retry, delay))

    def reject(self, reason: str) -> None:
        self._run(called, partial(self._settlement.reject, reason))


class BlockingSubscription(BlockingItems[Message[T]]):
    """A subscription for threads: ``with bus.subscribe("news.*") as news: for message in news: ...``

    Raises:
        BusError: On entry or while iterating, as for `Subscription`.
    """

    _items: Subscription[T]

    def _given(self, item: Message[T]) -> Message[T]:
        if (extras := item.extras) is not None and "delivery" in extras:
            settlement = extras["delivery"]
            extras["delivery"] = BlockingSettlement(settlement, self._run)
        return item

    def __enter__(self) -> Self:
        self._run(self._items.__aenter__)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(LocalProtocolError):  # the loop has stopped, and so has the subscription
            self._run(self._items.__aexit__, None, None, None)

    @property
    def skipped(self) -> int:
        """Number of messages skipped because they did not match ``returns``."""
        return self._items.skipped

    @property
    def dropped(self) -> int:
        """Number of messages dropped because the queue was full."""
        return self._items.dropped


class _Unentered:
    """Stands in for the channel until its block is entered."""

    def __getattr__(self, name: str) -> NoReturn:
        raise LocalProtocolError(
            "this channel was never entered: use it inside its block, `with bus.channel(subject) as channel:`"
        )

    async def __anext__(self) -> NoReturn:  # in 3.11, `anext` with a default crashes if this raises before it is awaited
        self.__getattr__("")


class BlockingChannel(BlockingItems[Receives], Generic[Receives, Sends]):
    """A stream or channel for threads: ``with bus.channel("chat") as chat: chat.send(...); for item in chat: ...``

    Leaving the block stops the handler on the other side.

    Raises:
        BusError: On entry or while iterating, as for `Bus.stream` and `Bus.channel`.
    """

    def __init__(self, opening: AbstractAsyncContextManager[Channel[Receives, Sends]], run: Run) -> None:
        super().__init__(_Unentered(), run)
        self._opening = opening

    def __enter__(self) -> Self:
        self._items: Channel[Receives, Sends] = self._run(self._opening.__aenter__)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(LocalProtocolError):
            self._run(self._opening.__aexit__, kind, error, trace)

    def send(self, item: Sends) -> None:
        """Send an item. If the other side's queue is full, wait until it has room.

        Raises:
            BusError: As for `Channel.send`.
        """
        self._run(self._items.send, item)

    def send_eof(self) -> None:
        """End this direction of the channel. The other direction continues."""
        self._run(self._items.send_eof)


@frozen
class BlockingTunnel:
    """Result of the blocking `tunnel`. Pass it to `polybus.sync.connect`, which then uses the event loop of the outer bus."""

    connector: Connector
    run: Run


@blocking_entered_first("with bus.serve(url) as listener:`, `with bus.connect(url) as peer:")
class BlockingBlock(Generic[T]):
    """A context manager that enters an asynchronous one and returns the blocking twin of its value."""

    def __init__(self, run: Run, manager: AbstractAsyncContextManager[Any], twin: Callable[[Any], T]) -> None:
        self._run = run
        self._manager = manager
        self._twin = twin

    def __enter__(self) -> T:
        return self._twin(self._run(self._manager.__aenter__))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(LocalProtocolError):
            self._run(self._manager.__aexit__, kind, error, trace)
