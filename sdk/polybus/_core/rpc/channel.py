"""Implements streams and channels with credit-based flow control.

One side opens a channel on a subject. Each side may send as many items as the other side has granted, and closes its direction
with `end`. In a stream, only the handler sends items. In a tunnel, the items are frames. Each protocol defines how channels are
encoded.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, Self, TypeVar, cast

import anyio.lowlevel
from msgspec import Struct

from ..._util.cancel_scopes import let_scope_fire, receive
from ..._util.misuse import entered_first
from ..._util.typed_body import check_returns, misfit, typed_body
from ...errors import BadReply, BadRequest, BusError, Code, DeadlineExceeded, LocalProtocolError, RequestError, TooManyRequests
from ...message import Kind, Message
from ...outcomes import facts_of
from ..runtime.memory_budgets import MemoryBudget, cost
from .reply import end_of_scope, error_of, is_remote_deadline

if TYPE_CHECKING:
    from ..._util.event_loop import Loop
    from ..runtime.outgoing_hooks import Departure

Receives_co = TypeVar("Receives_co", covariant=True)
Sends_contra = TypeVar("Sends_contra", contravariant=True)

CREDIT = 64
"""Maximum number of sent items that the other side has not read yet."""
CREDIT_BYTES = 256 * 1024
"""Maximum number of sent bytes that the other side has not read yet. The last item may have any size.

Credits only count items. The sender knows the size of each item that a credit acknowledges. The reader sends credit after it
has read a quarter of either limit.
"""
_TOLERANCE = 4
"""A peer may send this multiple of `CREDIT_BYTES`, because it counts the bytes of its own encoding."""


class ChannelPort(Protocol):
    """Sends a channel's messages to a peer, or to the other end in this process."""

    budget: MemoryBudget
    """Memory budget for unread items."""

    def channel_send(self, channel: Channel[Any, Any], kind: Kind, value: Any, code: Code | None, facts: dict[str, Any]) -> int:
        """Send an item, a credit or an end. Returns the bytes that it occupies on the other side until it is read."""
        ...

    def channel_room(self) -> Awaitable[None] | None:
        """Return an awaitable to await before sending an item. Returns None if there is room."""
        ...

    def channel_done(self, channel: Channel[Any, Any]) -> None:
        """Forget a channel that has ended."""


class WaitingSender(Struct, eq=False):
    waiter: Any = None


class Channel(Generic[Receives_co, Sends_contra]):
    """One end of a channel. Iterate over it to receive items, call `send` to send items, and `send_eof` after the last item.

    The type parameters are the types of received and sent items. If a handler has a ``Channel[In, Out]``, it receives ``In``
    and sends ``Out``, and the opener has a ``Channel[Out, In]``.
    """

    def __init__(
        self, loop: Loop, port: ChannelPort, subject: str | int, credit: int, *, window: int = CREDIT, receiving: bool = True
    ) -> None:
        self._loop = loop
        self._port = port
        self.subject: str | int = subject
        self.id: Any = None
        self._credit = credit
        self._granted = window
        self._window = window
        self._consumed = 0
        self._consumed_bytes = 0
        self._unread = 0
        """Number of bytes in `_items`."""
        self._ahead: deque[int] = deque()
        """Sizes of sent items that the other side may not have read."""
        self._ahead_bytes = 0
        self._items: deque[Message] = deque()
        self._receives: Any = Any
        self._sending = True
        self._receiving = receiving
        self._done = False
        self._error: BusError | None = None
        self._aborted: tuple[Code, str] | None = None
        self._readers: list[Any] = []
        self._line: deque[WaitingSender] = deque()
        self.frames: bool = False
        self.answers: bool = False
        """True on the handler's side, where an invalid item is the opener's mistake."""
        self.started: float = 0.0
        self.deadline: float = math.inf
        """Deadline from the opener's ``timeout=``, on the event loop's clock."""
        self.ttl: float | None = None
        """Timeout that was sent to the other side, in seconds."""
        self.checked: Callable[[Any], Any] | None = None
        """Function that validates items to send. None if checks are off."""
        self.sent: int = 0
        self.received: int = 0
        self.departure: Departure | None = None
        """Function that reports the outcome to the outgoing hooks."""
        self.on_end: Callable[[], None] | None = None
        """Called to cancel the handler if the other side aborts the channel."""

    # -- sending ---------------------------------------------------------------------------------------------------------

    async def send(self, item: Sends_contra) -> None:
        """Send an item, waiting until the other side can accept it.

        Raises:
            LocalProtocolError: If `send_eof` has been called, or the handler has returned.
            EncodeError, TooLarge: If the item cannot be encoded, or exceeds `Limits.message`.
            RequestError: If the other side ended the channel with an error.
            DeadlineExceeded: If the channel's `timeout` has passed.
            Disconnected: If the link goes down.
        """
        if self.checked is not None:
            item = self.checked(item)
        if self._line or not self._may_send():
            await self._stand_in_line()
        elif (room := self._port.channel_room()) is not None:
            await self._stand_in_line(room)
        if self._error is not None:
            await self._broken(self._error)
        if not self._sending:
            await self._let_handler_stop()
            raise LocalProtocolError(
                "this half of the channel is closed: you cannot send after send_eof(), or after the handler has returned"
            )
        size = self._port.channel_send(self, Kind.ITEM, item, None, {})
        self.sent += 1
        self._credit -= 1
        self._ahead.append(size)
        self._ahead_bytes += size

    def _may_send(self) -> bool:
        """Return True if the other side keeps up. Also if the channel has ended, because `send` then raises an error."""
        return (self._credit > 0 and self._ahead_bytes < CREDIT_BYTES) or self._error is not None or not self._sending

    async def _stand_in_line(self, room: Awaitable[None] | None = None) -> None:
        """Wait until earlier senders are done and there is credit. `room` is an earlier result of `channel_room`."""
        place = WaitingSender()
        self._line.append(place)
        try:
            while True:
                if room is not None:
                    await room  # only the first sender waits here
                    room = None
                    if self._may_send():
                        return
                elif self._line[0] is not place or not self._may_send():
                    place.waiter = self._loop.waiter()
                    await place.waiter
                elif (room := self._port.channel_room()) is None:
                    return
        finally:
            self._line.remove(place)
            self._call_next()

    def _call_next(self) -> None:
        if self._line and (waiter := self._line[0].waiter) is not None:
            self._loop.wake(waiter)

    def finish(self) -> None:
        """Close both directions, because the handler has returned."""
        receiving, self._receiving = self._receiving, False
        if self._error is None and self._sending:
            self._port.channel_send(self, Kind.END, None, None, {})
            self._sending = False
        if receiving and self._error is None:
            self._port.channel_send(self, Kind.END, None, None, {})
        self.discard()
        self._maybe_done()

    async def send_eof(self) -> None:
        """Close the sending direction. You can still receive items."""
        self._finish_sending()

    def _finish_sending(self) -> None:
        if self._sending:
            self._sending = False
            if self._error is None:
                self._port.channel_send(self, Kind.END, None, None, {})
            self._maybe_done()

    def abort(self, code: Code, text: str = "", reason: str | None = None, detail: Any = None) -> None:
        """End the channel with an error, which is raised on the other side."""
        if self._done:
            return
        for facts in facts_of(text, reason, detail):
            try:
                self._port.channel_send(self, Kind.END, None, code, facts)
            except BusError:
                continue
            break
        self._aborted = code, text
        self._sending = self._receiving = False
        self.discard()
        self._wake()
        self._maybe_done()

    # -- receiving -------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Receives_co:
        while not self._items:
            if self._error is not None:
                await self._broken(self._error)
            if not self._receiving:
                await self._let_handler_stop()
                raise StopAsyncIteration
            waiter = self._loop.waiter()
            self._readers.append(waiter)
            try:
                await waiter
            except BaseException:
                if waiter in self._readers:
                    self._readers.remove(waiter)
                elif self._items:  # woken but cancelled before it ran, so wake another reader
                    self._wake_one(self._readers)
                raise
        message = self._items.popleft()
        self.received += 1
        size = cost(message)
        self._unread -= size
        self._port.budget.release(size)
        self._grant(size)
        try:
            return cast(Receives_co, typed_body(message, self._receives))
        except Exception as error:  # may come from a validator of the application
            blame = BadRequest if self.answers else BadReply
            raise blame(f"invalid item of {self.subject!r}: {misfit(error)[0]}") from error

    async def receive(self, timeout: float | None = None) -> Receives_co:
        """Wait for the next item.

        Args:
            timeout: Seconds to wait, or None for no limit.

        Raises:
            TimeoutError: If no item arrives in time.
            EOFError: If the other side has sent its last item.
            BusError: As while iterating.
            TypeError, ValueError: If `timeout` is not a valid number of seconds.
        """
        item: Receives_co = await receive(self, timeout)
        return item

    def discard(self) -> None:
        """Drop unread items and all later ones."""
        self._receiving = False
        self._items.clear()
        self._port.budget.release(self._unread)
        self._unread = 0

    def _grant(self, size: int) -> None:
        """Send credit once a quarter of the window has been read."""
        self._consumed += 1
        self._consumed_bytes += size
        self._grant_consumed()

    def _grant_consumed(self) -> None:
        if self._receiving and (self._consumed * 4 >= self._window or self._consumed_bytes * 4 >= CREDIT_BYTES):
            self._port.channel_send(self, Kind.CREDIT, None, None, {"credit": self._consumed})
            self._granted += self._consumed
            self._consumed = self._consumed_bytes = 0

    # -- messages of the other side --------------------------------------------------------------------------------------

    def received_item(self, message: Message) -> None:
        if not self._receiving:
            return
        size = cost(message)
        if self._granted <= 0:
            self._overrun(f"more items than the credit of {self._window} allows", "more items than it was granted")
        elif self._unread >= _TOLERANCE * CREDIT_BYTES:
            self._overrun(f"{self._unread} unread bytes are too far ahead", f"{self._unread} bytes ahead of the reader")
        elif not self._port.budget.hold(size):
            held = f"{self._port.budget.held} bytes wait to be read (Limits.waiting_bytes, total_bytes)"
            self._overrun(held, f"an item while {held}")
        else:
            self._granted -= 1
            self._unread += size
            self._items.append(message)
            self._wake_one(self._readers)

    def _overrun(self, told: str, seen: str) -> None:
        self.abort(Code.RESOURCE_EXHAUSTED, told)
        self._break(TooManyRequests(f"the peer sent on {self.subject!r} {seen}"))

    def received_credit(self, count: Any) -> None:
        if isinstance(count, int) and 0 < count <= 1 << 31:
            self._credit = min(self._credit + count, 1 << 31)
            for _ in range(min(count, len(self._ahead))):
                self._ahead_bytes -= self._ahead.popleft()
            self._call_next()

    def received_end(self, message: Message) -> None:
        """Close the receiving direction. If the message is an error, close the whole channel."""
        if message.code is None or message.code is Code.OK:
            if not self._receiving and not self.answers:
                self._sending = False  # the second end means that the handler has returned
            self._receiving = False
            self._wake()
            self._maybe_done()
        else:
            self._break(error_of(message, self.subject, self._loop.time() - self.started))

    def expire(self, now: float) -> None:
        """End the channel, because the opener's timeout has passed."""
        if not self._done:
            text = "the opener's time is up"
            self._port.channel_send(
                self, Kind.END, None, Code.DEADLINE_EXCEEDED, {"text": text, "reason": None, "detail": None}
            )
            self._break(DeadlineExceeded(self.subject, now - self.started, "local"))

    def lost(self, error: BusError) -> None:
        if not self._done:
            self._break(error)

    def _break(self, error: BusError) -> None:
        if self._error is None:
            self._error = error
        self._sending = self._receiving = False
        self._wake()
        self._maybe_done()
        if self.on_end is not None:
            self.on_end()

    def _maybe_done(self) -> None:
        if not (self._sending or self._receiving or self._done):
            self._done = True
            self._port.channel_done(self)

    async def _broken(self, error: BusError) -> NoReturn:
        if is_remote_deadline(error):
            await let_scope_fire(end_of_scope(self))
        raise error.with_traceback(None)

    async def _let_handler_stop(self) -> None:
        """Raise the cancellation of a handler that was stopped. Otherwise its loop would end as if all items had arrived.

        A shielded scope or another task is not cancelled, and gets an error.
        """
        if self.answers:
            await anyio.lowlevel.checkpoint_if_cancelled()
            if self._aborted is not None:
                raise RequestError(*self._aborted)

    @property
    def failed(self) -> BusError | None:
        """Error that ended the channel, or None."""
        return self._error

    def _wake_one(self, waiters: list[Any]) -> None:
        if waiters:
            self._loop.wake(waiters.pop(0))

    def _wake(self) -> None:
        while self._readers:
            self._loop.wake(self._readers.pop())
        self._call_next()  # each sender wakes the next one


def typed(channel: Channel[Any, Any], receives: Any) -> Channel[Any, Any]:
    channel._receives = receives
    return channel


def leave(channel: Channel[Any, Any]) -> None:
    """Leave a channel. If a direction is still open, the channel is cancelled."""
    if channel._sending or channel._receiving:
        channel.abort(Code.CANCELLED, "the other side left the channel")
    channel.discard()
    channel._maybe_done()


@entered_first("async with bus.stream(subject) as items:`, `async with bus.channel(subject) as channel:")
class ChannelContext(Generic[Receives_co, Sends_contra]):
    """The async context manager that `stream` and `channel` return."""

    def __init__(self, open_channel: Callable[[], Any], half_closed: bool, receives: Any = Any) -> None:
        check_returns(receives, "returns" if half_closed else "receives")
        self._open = open_channel
        self._half_closed = half_closed
        self._receives = receives
        self._channel: Channel[Receives_co, Sends_contra] | None = None

    async def __aenter__(self) -> Channel[Receives_co, Sends_contra]:
        channel: Channel[Receives_co, Sends_contra] = await self._open()
        self._channel = typed(channel, self._receives)
        if self._half_closed:
            # Opening a stream implies that this side sends nothing.
            channel._sending = False
        return channel

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if (channel := self._channel) is not None:
            leave(channel)
            if (departure := channel.departure) is not None:
                departure.end(error or channel.failed, sent=channel.sent, received=channel.received)
