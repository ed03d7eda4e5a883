"""Streams and channels, which carry many items in both directions and are limited by credits.

One side opens a channel on a subject. Each side may then send as many items as the other side has granted, and ends its half
with `end`. A stream is a channel whose opener sends no items; the items of a tunnel are frames. The protocols define how
channels appear on the wire; this module defines their meaning.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, Self, TypeVar, cast

from msgspec import Struct

from ..._util.cancel_scopes import let_scope_fire, receive
from ..._util.misuse import entered_first
from ..._util.typed_body import check_returns, misfit, typed_body
from ...errors import BadReply, BadRequest, BusError, Code, DeadlineExceeded, LocalProtocolError, TooManyRequests
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
"""Number of items that a side grants before it has read any."""
CREDIT_BYTES = 256 * 1024
"""Number of bytes that a side may send before the other side reads them. The last item may have any size.

Credits count items. Bytes need no field on the wire, because a sender knows the sizes of the items that a credit returns. The
reader returns credit after a quarter of either limit.
"""
_TOLERANCE = 4
"""Each side counts the bytes of its own encoding, so only a sender far above the limit violates the rule."""


class ChannelPort(Protocol):
    """Writes the messages of a channel: to the peer of a link, or to the other end in this process."""

    budget: MemoryBudget
    """The budget that is charged for unread items."""

    def channel_send(self, channel: Channel[Any, Any], kind: Kind, value: Any, code: Code | None, facts: dict[str, Any]) -> int:
        """Send an item, a credit or an end. Returns the bytes that the other side holds until the message is read."""
        ...

    def channel_room(self) -> Awaitable[None] | None:
        """Return an awaitable that waits for room for an item, or None if there is room."""
        ...

    def channel_done(self, channel: Channel[Any, Any]) -> None:
        """Forget an ended channel."""


class WaitingSender(Struct, eq=False):
    waiter: Any = None


class Channel(Generic[Receives_co, Sends_contra]):
    """One end of a channel. Iterate over it to receive items, `send` items, and call `send_eof` after the last one.

    The types are named from the point of view of this end. A handler with a ``Channel[In, Out]`` receives ``In`` and sends
    ``Out``; the opener has a ``Channel[Out, In]``.
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
        """Number of bytes in `_items`, which are charged to the budget of the port."""
        self._ahead: deque[int] = deque()
        """Sizes of the sent items that the other side may not have read."""
        self._ahead_bytes = 0
        self._items: deque[Message] = deque()
        self._receives: Any = Any
        self._sending = True
        self._receiving = receiving
        self._done = False
        self._error: BusError | None = None
        self._readers: list[Any] = []
        self._line: deque[WaitingSender] = deque()
        self.frames: bool = False
        self.answers: bool = False
        """True for the end of the handler. If an item does not fit there, the opener made a mistake and receives the error."""
        self.started: float = 0.0
        self.deadline: float = math.inf
        """Time at which the ``timeout=`` of the opener ends, on the clock of the event loop."""
        self.ttl: float | None = None
        """The time that was sent to the other side, in seconds."""
        self.checked: Callable[[Any], Any] | None = None
        """Validates sent items, if checks are on."""
        self.sent: int = 0
        self.received: int = 0
        self.departure: Departure | None = None
        """Reports to the outgoing hooks that the channel has ended."""
        self.on_end: Callable[[], None] | None = None
        """Called when the other side aborts, to cancel the handler."""

    # -- sending ---------------------------------------------------------------------------------------------------------

    async def send(self, item: Sends_contra) -> None:
        """Send one item. Waits until the other side has granted credit for it.

        Raises:
            LocalProtocolError: This end has called `send_eof`, or the handler on the other side has returned.
            EncodeError: The wire cannot carry the item.
            RequestError: The other side ended the channel with this error.
            Disconnected: The link broke.
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
            raise LocalProtocolError(
                "this half of the channel has ended: no send after send_eof, or after the handler has returned"
            )
        size = self._port.channel_send(self, Kind.ITEM, item, None, {})
        self.sent += 1
        self._credit -= 1
        self._ahead.append(size)
        self._ahead_bytes += size

    def _may_send(self) -> bool:
        """Check whether the other side keeps up. Also true after the end, so that `send` raises."""
        return (self._credit > 0 and self._ahead_bytes < CREDIT_BYTES) or self._error is not None or not self._sending

    async def _stand_in_line(self, room: Awaitable[None] | None = None) -> None:
        """Wait until it is this sender's turn and there is credit. `room` is an earlier result of `channel_room`."""
        place = WaitingSender()
        self._line.append(place)
        try:
            while True:
                if room is not None:
                    await room  # only the first sender in line gets here and uses credit
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
        """End both halves after the handler has returned."""
        receiving, self._receiving = self._receiving, False
        if self._error is None and self._sending:
            self._port.channel_send(self, Kind.END, None, None, {})
            self._sending = False
        if receiving and self._error is None:
            self._port.channel_send(self, Kind.END, None, None, {})
        self.discard()
        self._maybe_done()

    async def send_eof(self) -> None:
        """End this half. The other direction stays open."""
        self._finish_sending()

    def _finish_sending(self) -> None:
        if self._sending:
            self._sending = False
            if self._error is None:
                self._port.channel_send(self, Kind.END, None, None, {})
            self._maybe_done()

    def abort(self, code: Code, text: str = "", reason: str | None = None, detail: Any = None) -> None:
        """End both halves with an error. Waiting calls on the other side raise it."""
        if self._done:
            return
        for facts in facts_of(text, reason, detail):
            try:
                self._port.channel_send(self, Kind.END, None, code, facts)
            except BusError:
                continue
            break
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
                raise StopAsyncIteration
            waiter = self._loop.waiter()
            self._readers.append(waiter)
            try:
                await waiter
            except BaseException:
                if waiter in self._readers:
                    self._readers.remove(waiter)
                elif self._items:  # woken and cancelled in one turn: another reader receives the item
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
        except Exception as error:  # includes errors raised by checks of the application
            blame = BadRequest if self.answers else BadReply
            raise blame(f"an item of {self.subject!r} does not fit: {misfit(error)[0]}") from error

    async def receive(self, timeout: float | None = None) -> Receives_co:
        """Wait for the next item.

        Args:
            timeout: Seconds to wait; None waits without limit.

        Raises:
            TimeoutError: No item arrived in time.
            EOFError: The other side has ended its half.
            BusError: As while iterating.
            TypeError, ValueError: `timeout` is not a number of seconds.
        """
        item: Receives_co = await receive(self, timeout)
        return item

    def discard(self) -> None:
        """Drop received and future items."""
        self._receiving = False
        self._items.clear()
        self._port.budget.release(self._unread)
        self._unread = 0

    def _grant(self, size: int) -> None:
        """Return credit to the other side, in portions of a quarter of the window."""
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
        """End the half of the other side, or the whole channel if the message is an error."""
        if message.code is None or message.code is Code.OK:
            if not self._receiving:
                self._sending = False  # sent twice: the handler has returned and reads no more
            self._receiving = False
            self._wake()
            self._maybe_done()
        else:
            self._break(error_of(message, self.subject, self._loop.time() - self.started))

    def expire(self, now: float) -> None:
        """Stop the other side and fail the waiting calls, because the timeout of the opener has passed."""
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

    @property
    def failed(self) -> BusError | None:
        """The error that broke the channel, or None."""
        return self._error

    def _wake_one(self, waiters: list[Any]) -> None:
        if waiters:
            self._loop.wake(waiters.pop(0))

    def _wake(self) -> None:
        while self._readers:
            self._loop.wake(self._readers.pop())
        self._call_next()  # each of them calls the next


def typed(channel: Channel[Any, Any], receives: Any) -> Channel[Any, Any]:
    channel._receives = receives
    return channel


def leave(channel: Channel[Any, Any]) -> None:
    """Leave a channel. It is cancelled unless both halves have ended: without `send_eof`, more items may have been meant."""
    if channel._sending or channel._receiving:
        channel.abort(Code.CANCELLED, "the other side left the channel")
    channel.discard()
    channel._maybe_done()


@entered_first("async with bus.stream(subject) as items:`, `async with bus.channel(subject) as channel:")
class ChannelContext(Generic[Receives_co, Sends_contra]):
    """The async context manager behind `stream` and `channel`."""

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
            # The open of a stream already says so.
            channel._sending = False
        return channel

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if (channel := self._channel) is not None:
            leave(channel)
            if (departure := channel.departure) is not None:
                departure.end(error or channel.failed, sent=channel.sent, received=channel.received)
