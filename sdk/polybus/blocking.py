"""The verbs of a bus for threads: each runs in the event loop and blocks the calling thread until it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.from_thread

from .context import Context

if TYPE_CHECKING:
    from .bus import Bus
    from .message import Message
    from .peer import Peer

__all__ = ["BlockingBus", "BlockingContext", "BlockingSubscription"]

T = TypeVar("T")

Run = Callable[..., Any]
"""Runs a coroutine function in the event loop and waits for its result."""


class BlockingBus:
    """A `Bus` whose verbs block the calling thread. Safe to use from several threads."""

    def __init__(self, bus: Bus, run: Run) -> None:
        self._bus = bus
        self._run = run

    def request(
        self,
        subject: Any,
        body: Any = None,
        *,
        timeout: float = 30.0,
        returns: Any = Any,
        to: Peer | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Ask, and wait for the answer.

        Raises:
            BusError: As `Bus.request` and its `Reply`.
        """

        async def ask() -> Any:
            return await self._bus.request(subject, body, timeout=timeout, returns=returns, to=to, headers=headers)

        return self._run(ask)

    def publish(
        self,
        subject: Any,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        to: Any = None,
        timeout: float = 30.0,
    ) -> None:
        """Publish.

        Raises:
            BusError: As `Bus.publish`.
        """

        async def send() -> None:
            await self._bus.publish(subject, body, headers=headers, to=to, timeout=timeout)

        self._run(send)

    def notify(
        self, subject: Any, body: Any = None, *, headers: Mapping[str, str] | None = None, to: Peer | None = None
    ) -> None:
        """Tell one handler, without an answer.

        Raises:
            BusError: As `Bus.notify`.
        """

        async def tell() -> None:
            await self._bus.notify(subject, body, headers=headers, to=to)

        self._run(tell)

    def subscribe(self, pattern: Any, **options: Any) -> AbstractContextManager[BlockingSubscription]:
        """Receive publications: ``with bus.subscribe("news.*") as news: for message in news: ...``

        Args: as `Bus.subscribe`.

        Raises:
            BusError: As `Bus.subscribe`.
        """
        return BlockingSubscription(self._bus, self._run, pattern, options)

    @property
    def peers(self) -> list[Peer]:
        """Everybody linked to this bus."""
        return self._bus.peers

    def stats(self) -> Any:
        """A snapshot, as `Bus.stats`."""

        async def look() -> Any:
            return self._bus.stats()

        return self._run(look)


class BlockingSubscription:
    """A subscription that is iterated over by a thread."""

    def __init__(self, bus: Bus, run: Run, pattern: Any, options: dict[str, Any]) -> None:
        self._subscription = bus.subscribe(pattern, **options)
        self._run = run

    def __enter__(self) -> BlockingSubscription:
        self._run(self._subscription.__aenter__)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._run(self._subscription.__aexit__, None, None, None)

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            message: Message = self._run(self._subscription.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None
        return message


class BlockingContext(Context):
    """The `Context` of a `def` handler."""

    __slots__ = ()

    @property
    def bus(self) -> BlockingBus:
        """The blocking twin of the bus that the handler runs on."""
        return BlockingBus(self._bus, anyio.from_thread.run)
