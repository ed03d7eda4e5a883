"""``MessageChannel`` in one process: what a browser's does, without a browser.

A message is cloned when it is posted and delivered by a later turn of the event loop, one message for each. The rules are
those that a real Chromium shows; one suite of tests runs them against both.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any, Final, Literal

from attrs import frozen

from ..._util.event_loop import running_loop
from ._clone import ArrayBuffer, DataCloneError, Unreadable, clone
from ._port import PortInfo

logger: logging.Logger = logging.getLogger("polybus.transports")


_TURNS: Final = 12
"""Of the event loop, within which messages are shuffled."""


def later(shuffle: Random | None) -> Callable[[Callable[[], None]], Any]:
    """Function that calls in a later turn of this event loop: in the next one, or in one at random."""
    call_soon = running_loop().call_soon
    if shuffle is None:
        return call_soon

    def wait(turns: int, function: Callable[[], None]) -> None:
        call_soon(partial(wait, turns - 1, function) if turns else function)

    return lambda function: wait(shuffle.randrange(_TURNS), function)


@frozen(kw_only=True)
class MessageEvent:
    """Event for a listener."""

    data: Any
    origin: str = ""
    """Of the sender, for what was posted to a window; empty on a port."""
    source: Any = None
    """The window that posted it; None on a port."""
    ports: tuple[InMemoryPort, ...] = ()
    """Ports that were handed over."""


def tell(listeners: Iterable[Callable[[MessageEvent], Any]], event: MessageEvent) -> None:
    """Each of them; one that fails is logged and keeps nothing from the others."""
    for listener in tuple(listeners):
        try:
            listener(event)
        except Exception:
            logger.exception("a listener has failed")


class InMemoryPort:
    """One end of a `MessageChannel`; a `MessagePort`.

    It does not notice that the other end is closed or gone, because a browser's does not either.
    """

    def __init__(self, info: PortInfo | None = None, *, big_ints: bool = True, shuffle: Random | None = None) -> None:
        self.info: PortInfo = info or PortInfo()
        self._big_ints = big_ints
        self._shuffle = shuffle
        self._other: InMemoryPort | None = None
        self._listeners: list[Callable[[MessageEvent], Any]] = []
        self._callback: Callable[[Any], Any] | None = None
        self._on_message_error: Callable[[], Any] | None = None
        self._on_close: Callable[[str], None] | None = None
        # Posted by the other end and not delivered. A browser puts no bound on it either; what two buses have under way is
        # bounded by their acknowledgements.
        self._queue: deque[MessageEvent | Any] = deque()
        self._state: Literal["idle", "started", "closed", "detached"] = "idle"
        self._scheduled = False
        self._call_soon: Callable[[Callable[[], None]], Any] | None = None

    def __repr__(self) -> str:
        return f"<InMemoryPort {self.info.address} {self._state}>"

    @property
    def detached(self) -> bool:
        """True if it was handed over."""
        return self._state == "detached"

    @property
    def closed(self) -> bool:
        """True if nothing is delivered here any more."""
        return self._state in ("closed", "detached")

    def post(self, data: Any, transfer: Iterable[InMemoryPort | ArrayBuffer] = ()) -> None:
        """Send a copy of anything that can be cloned. On a port that is closed or handed over: nothing happens.

        Args:
            data: What; see `DataCloneError`.
            transfer: Ports and buffers that the sender gives up.

        Raises:
            DataCloneError: It cannot be cloned or transferred. Nothing was sent.
        """
        if transfer or (type(data) is not str and type(data) is not bytes):
            data = self._packed(data, transfer)
        other = self._other
        if other is None or self.closed or other._state == "closed":
            return
        other._queue.append(data)
        if other._state == "started" and not other._scheduled:
            other._schedule()

    def _packed(self, data: Any, transfer: Iterable[InMemoryPort | ArrayBuffer]) -> MessageEvent:
        given = list(transfer)
        if any(item is self for item in given):
            raise DataCloneError("a port cannot be transferred through itself")
        copied, ports = transferring(data, given, big_ints=self._big_ints)
        return MessageEvent(data=copied, ports=ports)

    def on_message(self, callback: Callable[[Any], Any]) -> None:
        """Deliver the data of each message from now on, first of what has already come in."""
        self._callback = callback
        self.start()

    def add_listener(self, callback: Callable[[MessageEvent], Any]) -> None:
        """Also tell this listener, with the whole event; by itself that begins nothing: see `start`. One that is there: nothing
        happens."""
        if callback not in self._listeners:
            self._listeners.append(callback)

    def remove_listener(self, callback: Callable[[MessageEvent], Any]) -> None:
        """Tell it no more. One that is not there: nothing happens."""
        if callback in self._listeners:
            self._listeners.remove(callback)

    def start(self) -> None:
        """Begin to deliver."""
        if self._state == "idle":
            self._state = "started"
            if self._queue:
                self._schedule()

    def on_close(self, callback: Callable[[str], None]) -> None:
        """Be told when this very end is closed by other code, as by the handshake that has found a newer page."""
        self._on_close = callback

    def on_message_error(self, callback: Callable[[], Any]) -> None:
        """Be told of each message that came and cannot be read; see `Unreadable`."""
        self._on_message_error = callback

    def close(self, reason: str = "the port was closed") -> None:
        """Deliver nothing more. What was posted before arrives at the other end, which is not told."""
        if self.closed:
            return
        self._state = "closed"
        self._queue.clear()
        self._callback = None
        self._listeners.clear()
        told, self._on_close = self._on_close, None
        if told is not None:
            told(reason)

    def _schedule(self) -> None:
        call_soon = self._call_soon
        if call_soon is None:
            call_soon = self._call_soon = later(self._shuffle)
        self._scheduled = True
        call_soon(self._deliver)

    def _deliver(self) -> None:
        """One message. What its listeners put off comes before the next one, as microtasks do."""
        queue = self._queue
        if not queue or self._state != "started":
            self._scheduled = False
            return
        message = queue.popleft()
        plain = type(message) is not MessageEvent
        try:
            if not plain and type(message.data) is Unreadable:
                if self._on_message_error is not None:
                    self._on_message_error()
            else:
                if self._listeners:
                    tell(self._listeners, MessageEvent(data=message) if plain else message)
                if self._callback is not None:
                    self._callback(message if plain else message.data)
        except Exception:
            logger.exception("what a port told has failed; the next message is delivered all the same")
        self._scheduled = bool(queue)
        if self._scheduled:
            self._schedule()

    def _shell(self) -> InMemoryPort:
        """The copy that arrives in its place."""
        return InMemoryPort(self.info, big_ints=self._big_ints, shuffle=self._shuffle)

    def _move_to(self, new: InMemoryPort) -> None:
        """Give up this end, with what has not been delivered; this one has no owner any more."""
        other, self._other = self._other, None
        new._other = other
        if other is not None:
            other._other = new
        new._queue, self._queue = self._queue, deque()
        self._state = "detached"
        self._callback = None
        self._listeners.clear()


def transferring(
    data: Any, transfer: Iterable[InMemoryPort | ArrayBuffer], *, big_ints: bool = True
) -> tuple[Any, tuple[InMemoryPort, ...]]:
    """A copy of what is posted, and the ports that go with it. Nothing is given up unless everything can be sent. May raise
    `DataCloneError`: it cannot be cloned, or something in the transfer list cannot be given up."""
    given: list[Any] = list(transfer)
    for place, item in enumerate(given):
        if not isinstance(item, (InMemoryPort, ArrayBuffer)):
            raise DataCloneError(f"{type(item).__name__} cannot be transferred: ports and ArrayBuffers can")
        if any(item is earlier for earlier in given[:place]):
            raise DataCloneError("an object stands twice in the transfer list")
        if item.detached:
            raise DataCloneError(f"this {type(item).__name__} was transferred before")
    shells = [item._shell() for item in given]
    copied = clone(data, {id(item): shell for item, shell in zip(given, shells, strict=True)}, big_ints=big_ints)
    for item, shell in zip(given, shells, strict=True):
        item._move_to(shell)
    return copied, tuple(shell for shell in shells if isinstance(shell, InMemoryPort))


class MessageChannel:
    """Two ports that belong together: what is posted to one arrives at the other.

    Args:
        big_ints: Let integers beyond the 53 bits of a JavaScript number pass, as BigInt does.
        shuffle: Deliver after a random number of turns, for tests: among the messages of one port the order is kept, between
            ports no browser promises one.
    """

    def __init__(self, *, big_ints: bool = True, shuffle: Random | None = None) -> None:
        self.port1: InMemoryPort = InMemoryPort(big_ints=big_ints, shuffle=shuffle)
        self.port2: InMemoryPort = InMemoryPort(big_ints=big_ints, shuffle=shuffle)
        self.port1._other, self.port2._other = self.port2, self.port1
