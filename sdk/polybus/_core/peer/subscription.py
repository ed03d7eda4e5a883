"""Subscriptions that are iterated over."""

from __future__ import annotations

import copy
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Self

from ..._type_variables import T_co
from ..._util.entering import never_without_async
from ..._util.iteration import receive
from ..._util.typed_body import misfit, typed_body
from ..._validation import type_name
from ...errors import BusError, LocalProtocolError, SlowConsumer
from ...message import Message
from .queue import SubscriptionQueue

if TYPE_CHECKING:
    from ...plugins.extensions import Reading
    from ..handlers.subscriber import WhenFull
    from ..runtime.services import Services
    from .peer import Peer
    from .ports import PeerPubSub


@never_without_async("async with bus.subscribe(pattern) as messages:")
class Subscription(SubscriptionQueue, Generic[T_co]):
    """Publications to be read, from `Bus.subscribe` or `Peer.subscribe`: ``async with`` it, then iterate over it.

    Iteration gives a `Message` each; with ``returns=`` its body is of that type, and one that does not fit is skipped and
    counted in `skipped`. It ends when its bus has drained or is closed, once what has come is read. Of a durable one each is
    settled by `Message.ack`, `Message.retry` or `Message.reject`; what is not when the block is left comes again, and what does
    not fit is a dead letter.

    Raises:
        SlowConsumer: (by iterating) It is a ``block`` subscription, and was read too slowly.
        Disconnected, Unauthorized, Forbidden: (by iterating) The bus's only link, or the peer that was asked, is gone for good.
    """

    __slots__ = ("_active", "_entered", "_error", "_pubsub", "_readers", "_returns", "peer", "reading", "skipped")

    def __init__(
        self,
        pubsub: PeerPubSub,
        services: Services,
        pattern: str | int,
        returns: Any,
        queue: int | None,
        when_full: WhenFull,
        local: bool,
        peer: Peer | None = None,
        group: str | None = None,
        reading: Reading | None = None,
    ) -> None:
        super().__init__(services, pattern, queue, when_full, local, group, paced=reading is not None)
        self._pubsub = pubsub
        self.peer: Peer | None = peer
        """The peer whose publications it gets; None for those of all."""
        self.reading: Reading | None = reading
        """None: it takes what is published meanwhile."""
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
            await self._pubsub.subscribe(self)
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._active = False
        self._pubsub.unsubscribe(self)
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
                        raise LocalProtocolError(
                            "this subscription was never entered: iterate inside of its block, "
                            "`async with bus.subscribe(pattern) as messages:` (in threads `with`)"
                        )
                    raise StopAsyncIteration
                waiter = self._services.waiter()
                self._readers.append(waiter)
                try:
                    await waiter
                except BaseException:
                    if waiter in self._readers:
                        self._readers.remove(waiter)
                    else:
                        self._reader_woken = False
                        if self._queue:  # woken and cancelled in one turn: the message is another reader's
                            self._arrived()
                    raise
                self._reader_woken = False
                if self._overflow:
                    self._begin_turn()
            message = self.take()
            if self.reading is not None:
                message.attributes["delivery"].taken()
            if message.expires is not None and self.expired(message):
                continue
            if self._returns is Any:
                return message
            try:
                body = typed_body(message, self._returns)
            except Exception as error:  # also what a check of the application's own raises
                what = f"returns={type_name(self._returns)}"
                if self.reading is not None and self.reading.settled:
                    self.skipped += 1
                    message.reject(f"it does not fit {what}: {misfit(error)[0]}")
                else:
                    self.skip(message, what, misfit(error)[0])
                continue
            typed = copy.copy(message)  # other subscriptions share the message
            typed.decoded = body
            return typed

    async def receive(self, timeout: float | None = None) -> Message[T_co]:
        """Wait for the next publication.

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

    def skip(self, message: Message, what: str, why: str) -> None:
        """Count and log a publication that does not fit."""
        self.skipped += 1
        self._services.counters.dropped += 1
        self._skipped(message, what, why)

    def _arrived(self) -> None:
        if self._readers:
            self._reader_woken = True
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
        """End the subscription; with None orderly. Unread publications are lost, and counted where that is an error."""
        if error is not None:
            self._count_dropped(len(self._queue))
        self._error = self._error or error
        self._leave()

    def end(self, error: BusError | None) -> None:
        """Take nothing more: iterating gives what has come, and then raises, or with None stops."""
        self._error = self._error or error
        self._active = False
        self._wake_all()

    def _wake_all(self) -> None:
        while self._readers:
            self._services.wake(self._readers.popleft())
