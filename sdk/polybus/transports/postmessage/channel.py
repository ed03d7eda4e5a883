"""``MessageChannel`` and structured clone in one process: what a browser's do, without a browser.

A message is cloned when it is posted and delivered by a later turn of the event loop, one message for each. The rules are
those that a real Chromium shows; one suite of tests runs them against both.

What may be posted: None, bool, int, float, str, bytes, datetime, exceptions, and list, tuple, set, str-keyed dict, bytearray
and `ArrayBuffer` of these, with shared and circular references. What arrives is a copy; a tuple arrives as a list, an
exception as `ClonedError`. Everything else is refused, instances of classes too, of which a browser would send the fields.
`Unreadable` can be posted, and then not be read.
"""

from __future__ import annotations

import datetime
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import Any, Final, Literal, Protocol, TypeAlias

from attrs import frozen

from ...plugins.tools import running_loop

PortData: TypeAlias = str | bytes
"""Payload of a port: text or binary, told apart as a browser tells them apart."""


@frozen(kw_only=True)
class PortInfo:
    """Facts about the other end of a port.

    Attributes:
        origin: Of the page at the other end, where a handshake has found it out; ``"null"`` for an opaque one.
        epoch: How many ports the handshake has given for this frame, from 1; None for a port of no handshake. With an epoch
            the other end is known to speak the control messages of polybus.
        address: For people and logs.
    """

    origin: str | None = None
    epoch: int | None = None
    address: str = "port"


class MessagePort(Protocol):
    """A thing that carries whole messages both ways: a browser's port, a worker, a child process, a pipe.

    Messages arrive in order, each by a call of its own, and never from within `post`.

    Three more methods are optional. ``on_close(callback)`` takes a function which is told ``callback(reason)`` when the port
    finds out that it is over (a browser's port never does). ``on_message_error(callback)`` takes one that is called, with
    nothing, when a message came and cannot be read. ``async run()`` is for ports that need a task: it is run as one
    of the bus until it returns, and must return soon after `close`.
    """

    @property
    def info(self) -> PortInfo:
        """Facts about the other end."""
        ...

    def post(self, data: PortData, /) -> None:
        """Hand over a message without waiting. After `close`: ignored."""

    def on_message(self, callback: Callable[[PortData], None], /) -> None:
        """Begin to deliver, first what has already come in. Called once."""

    def close(self) -> None:
        """Deliver nothing more. What was posted before still arrives at the other end, which is told nothing."""


logger: logging.Logger = logging.getLogger("polybus.transports")

LARGEST: Final = 2**53 - 1
"""A JavaScript number holds no larger integer exactly; beyond it there is only BigInt."""


class DataCloneError(ValueError):
    """Something that was posted cannot be cloned or transferred. Nothing was sent."""


@frozen
class ClonedError:
    """The copy of an exception that arrives: no traceback, and no fields of its own."""

    name: str
    message: str


class ArrayBuffer:
    """Bytes that can be handed over without a copy; afterwards the sender has none."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self._data: bytes | bytearray | None = data

    @property
    def detached(self) -> bool:
        """True if it was handed over."""
        return self._data is None

    def __len__(self) -> int:
        """0 once it was handed over, as ``byteLength`` is."""
        return 0 if self._data is None else len(self._data)

    def tobytes(self) -> bytes:
        """The content.

        Raises:
            DataCloneError: It was handed over.
        """
        if self._data is None:
            raise DataCloneError("this ArrayBuffer was transferred: its bytes belong to the receiver")
        return bytes(self._data)

    def _shell(self) -> ArrayBuffer:
        """The copy that arrives in its place."""
        return ArrayBuffer()

    def _move_to(self, new: ArrayBuffer) -> None:
        """Give up the content."""
        new._data, self._data = self._data, None


class Unreadable:
    """Stands in a message for what can be posted and cannot be read where it arrives, as code for another site: who gets
    it is told of a message error in place of the message."""

    __slots__ = ()


_PLAIN: Final = frozenset({type(None), bool, float, str, bytes, datetime.datetime})
_CONTAINERS: Final[Mapping[type, type]] = {list: list, tuple: list, dict: dict, set: set}


def clone(data: Any, transferred: Mapping[int, Any] | None = None, *, big_ints: bool = True) -> Any:
    """A copy of what is posted; all of it is `Unreadable` if something in it is.

    Args:
        data: Anything.
        transferred: What takes the place of objects in the transfer list, by their `id`.
        big_ints: Let integers beyond 53 bits pass (a BigInt in a browser). JSON there would round them.

    Raises:
        DataCloneError: It contains something that cannot be cloned.
    """
    if type(data) is str or type(data) is bytes:
        return data
    cloner = _Cloner(transferred or {}, big_ints)
    try:
        copied = cloner.copy(data)
    except RecursionError:
        raise DataCloneError("nested too deeply") from None
    return copied if cloner.unreadable is None else cloner.unreadable


class _Cloner:
    """One walk; shared and circular references stay what they are."""

    def __init__(self, transferred: Mapping[int, Any], big_ints: bool) -> None:
        self._seen: dict[int, Any] = dict(transferred)
        self._big_ints = big_ints
        self.unreadable: Unreadable | None = None

    def copy(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is int:
            if not self._big_ints and not -LARGEST <= value <= LARGEST:
                raise DataCloneError(f"{value} is beyond the 53 bits of a JavaScript number: post it as text")
            return value
        known = self._seen.get(id(value))
        if known is not None:
            return known
        if isinstance(value, Unreadable):
            self.unreadable = value
            return value
        made: Any = _CONTAINERS[kind]() if kind in _CONTAINERS else _copied(value)
        self._seen[id(value)] = made
        if kind is dict:
            for key, item in value.items():
                if type(key) is not str:
                    raise DataCloneError(f"a key of type {type(key).__name__}: the keys of an object are text")
                made[key] = self.copy(item)
        elif kind is set:
            for item in value:
                if type(item) is tuple:
                    raise DataCloneError("a tuple in a set: it would arrive as a list, which no set of Python holds")
                made.add(self.copy(item))
        elif kind in _CONTAINERS:
            made.extend(self.copy(item) for item in value)
        return made


def _copied(value: Any) -> Any:
    """A copy of what holds no other objects. May raise `DataCloneError`: there is none of this type."""
    if type(value) is bytearray:
        return bytearray(value)
    if type(value) is ArrayBuffer:
        return ArrayBuffer(value.tobytes())
    if not isinstance(value, BaseException):
        name = type(value).__name__
        raise DataCloneError(f"{name} cannot be cloned: post plain values, or text and bytes of your own making")
    try:
        text = str(value)
    except Exception:  # it is of the application's making
        text = ""
    return ClonedError(type(value).__name__, text)


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
