"""Simulates ``MessageChannel`` and structured cloning in one process, without a browser.

A message is cloned when it is posted, and delivered in a later event-loop iteration, one message per iteration. The behaviour
is modelled on Chromium, and the same test suite runs against both.

You can post None, bool, int, float, str, bytes, bytearray, `ArrayBuffer`, datetime and exceptions, and lists, tuples, sets and
dicts with string keys that contain them, with shared and circular references. The receiver gets a copy, in which tuples become
lists and exceptions become `ClonedError`. Other objects are rejected, including class instances, although a browser would send
their fields. `Unreadable` can be posted but not read.
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
"""The payload of a message: a string or bytes, as in a browser."""


@frozen(kw_only=True)
class PortInfo:
    """Facts about the other end of a port.

    Attributes:
        origin: Origin of the other end's page, if a handshake determined it. ``"null"`` is an opaque origin.
        epoch: Number of ports that the handshake has opened for this frame, including this one, or `None` if there was no
            handshake. If an epoch is set, the other end uses polybus's control messages.
        address: Address for logs and error messages.
    """

    origin: str | None = None
    epoch: int | None = None
    address: str = "port"


class MessagePort(Protocol):
    """A two-way carrier of whole messages, such as a browser's port, a worker, a child process or a pipe.

    Messages arrive in order, each in a separate call, and never from within `post`.

    Three more methods are optional. If there is an ``on_close(callback)``, the port calls ``callback(reason)`` when it notices
    that the connection has ended, which a browser port never does. If there is an ``on_message_error(callback)``, the port
    calls ``callback()`` for each unreadable message. The bus runs ``async run()`` as a task, which must return soon after
    `close`.
    """

    @property
    def info(self) -> PortInfo:
        """Facts about the other end."""
        ...

    def post(self, data: PortData, /) -> None:
        """Send a message without waiting. Messages are ignored after `close`."""

    def on_message(self, callback: Callable[[PortData], None], /) -> None:
        """Start delivery, beginning with messages that have already arrived. The bus calls this method once."""

    def close(self) -> None:
        """Stop delivery. Posted messages still arrive at the other end, which doesn't notice."""


logger: logging.Logger = logging.getLogger("polybus.transports")

LARGEST: Final = 2**53 - 1
"""Largest integer that a JavaScript number represents exactly. Larger ones need a BigInt."""


class DataCloneError(ValueError):
    """Raised if a posted object cannot be cloned or transferred. Nothing was sent."""


@frozen
class ClonedError:
    """The received copy of an exception, without traceback and other attributes."""

    name: str
    message: str


class ArrayBuffer:
    """Bytes that can be transferred without copying, after which the sender can no longer access them."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self._data: bytes | bytearray | None = data

    @property
    def detached(self) -> bool:
        """True after a transfer."""
        return self._data is None

    def __len__(self) -> int:
        """Return the number of bytes, which is 0 after a transfer, like ``byteLength``."""
        return 0 if self._data is None else len(self._data)

    def tobytes(self) -> bytes:
        """Return the content.

        Raises:
            DataCloneError: If the buffer has been transferred.
        """
        if self._data is None:
            raise DataCloneError("this ArrayBuffer was transferred: its bytes belong to the receiver")
        return bytes(self._data)

    def _shell(self) -> ArrayBuffer:
        return ArrayBuffer()

    def _move_to(self, new: ArrayBuffer) -> None:
        new._data, self._data = self._data, None


class Unreadable:
    """An object that can be posted but not read, such as code for another site. The receiver gets a message error instead."""

    __slots__ = ()


_PLAIN: Final = frozenset({type(None), bool, float, str, bytes, datetime.datetime})
_CONTAINERS: Final[Mapping[type, type]] = {list: list, tuple: list, dict: dict, set: set}


def _clone(data: Any, transferred: Mapping[int, Any], big_ints: bool) -> Any:
    """Copy a posted object. If part of it is `Unreadable`, the whole copy is `Unreadable`.

    `transferred` maps the `id` of each object in the transfer list to its replacement. With `big_ints`, integers may have more
    than 53 bits (BigInt in a browser). Raises `DataCloneError` if a part cannot be cloned.
    """
    cloner = _Cloner(transferred, big_ints)
    try:
        copied = cloner.copy(data)
    except RecursionError:
        raise DataCloneError("nested too deeply") from None
    return copied if cloner.unreadable is None else cloner.unreadable


class _Cloner:
    """A single traversal, which preserves shared and circular references."""

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
                raise DataCloneError(f"{value} exceeds the 53 bits of a JavaScript number: post it as a string")
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
                    raise DataCloneError(f"a key of type {type(key).__name__}: the keys of an object must be strings")
                made[key] = self.copy(item)
        elif kind is set:
            for item in value:
                if type(item) is tuple:
                    raise DataCloneError("a tuple in a set: it would arrive as a list, which a Python set cannot hold")
                made.add(self.copy(item))
        elif kind in _CONTAINERS:
            made.extend(self.copy(item) for item in value)
        return made


def _copied(value: Any) -> Any:
    """Copy an object that contains no other objects. Raises `DataCloneError` for an unknown type."""
    if type(value) is bytearray:
        return bytearray(value)
    if type(value) is ArrayBuffer:
        return ArrayBuffer(value.tobytes())
    if not isinstance(value, BaseException):
        name = type(value).__name__
        raise DataCloneError(f"{name} cannot be cloned: post plain values, strings or bytes")
    try:
        text = str(value)
    except Exception:  # the application's own exception
        text = ""
    return ClonedError(type(value).__name__, text)


_TURNS: Final = 12
"""Maximum number of event-loop iterations by which shuffling delays a message."""


def _later(shuffle: Random | None) -> Callable[[Callable[[], None]], Any]:
    """Return a function that schedules calls for the next event-loop iteration, or for a random later one."""
    call_soon = running_loop().call_soon
    if shuffle is None:
        return call_soon

    def wait(turns: int, function: Callable[[], None]) -> None:
        call_soon(partial(wait, turns - 1, function) if turns else function)

    return lambda function: wait(shuffle.randrange(_TURNS), function)


@frozen(kw_only=True)
class MessageEvent:
    """An event for the listeners of a port."""

    data: Any
    ports: tuple[InMemoryPort, ...] = ()
    """The transferred ports."""


def _tell(listener: Callable[[MessageEvent], Any], event: MessageEvent) -> None:
    """Call a listener. If it fails, the error is logged and the other listeners are still called."""
    try:
        listener(event)
    except Exception:
        logger.exception("a listener has failed")


class InMemoryPort:
    """One end of a `MessageChannel`, which implements `MessagePort`.

    As in a browser, a port doesn't notice when the other end closes.
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
        # Undelivered messages of the other end, unlimited as in a browser. Two buses limit them by acknowledgements.
        self._queue: deque[MessageEvent | Any] = deque()
        self._state: Literal["idle", "started", "closed", "detached"] = "idle"
        self._scheduled = False
        self._call_soon: Callable[[Callable[[], None]], Any] | None = None

    def __repr__(self) -> str:
        return f"<InMemoryPort {self.info.address} {self._state}>"

    @property
    def detached(self) -> bool:
        """True after a transfer."""
        return self._state == "detached"

    @property
    def closed(self) -> bool:
        """True if messages are no longer delivered here."""
        return self._state in ("closed", "detached")

    def post(self, data: Any, transfer: Iterable[InMemoryPort | ArrayBuffer] = ()) -> None:
        """Send a copy of an object. Ignored if the port is closed or was transferred.

        Args:
            data: An object that can be cloned.
            transfer: Ports and buffers that the sender gives up.

        Raises:
            DataCloneError: If an object cannot be cloned or transferred. Nothing was sent.
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
        given: list[Any] = list(transfer)
        if any(item is self for item in given):
            raise DataCloneError("a port cannot be transferred through itself")
        _check_transferable(given)
        shells = [item._shell() for item in given]
        copied = _clone(data, {id(item): shell for item, shell in zip(given, shells, strict=True)}, self._big_ints)
        for item, shell in zip(given, shells, strict=True):
            item._move_to(shell)
        return MessageEvent(data=copied, ports=tuple(shell for shell in shells if isinstance(shell, InMemoryPort)))

    def on_message(self, callback: Callable[[Any], Any]) -> None:
        """Deliver the data of each message to a callback, beginning with messages that have already arrived."""
        self._callback = callback
        self.start()

    def add_listener(self, callback: Callable[[MessageEvent], Any]) -> None:
        """Add a listener for whole events unless it has already been added. Call `start` to begin delivery."""
        if callback not in self._listeners:
            self._listeners.append(callback)

    def remove_listener(self, callback: Callable[[MessageEvent], Any]) -> None:
        """Remove a listener if it is present."""
        if callback in self._listeners:
            self._listeners.remove(callback)

    def start(self) -> None:
        """Start delivery."""
        if self._state == "idle":
            self._state = "started"
            if self._queue:
                self._schedule()

    def on_close(self, callback: Callable[[str], None]) -> None:
        """Set a function to call when other code closes this port, for example a handshake with a newer page."""
        self._on_close = callback

    def on_message_error(self, callback: Callable[[], Any]) -> None:
        """Set a function to call for each unreadable message (see `Unreadable`)."""
        self._on_message_error = callback

    def close(self, reason: str = "the port was closed") -> None:
        """Stop delivery. Posted messages still arrive at the other end, which doesn't notice."""
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
            call_soon = self._call_soon = _later(self._shuffle)
        self._scheduled = True
        call_soon(self._deliver)

    def _deliver(self) -> None:
        """Deliver one message. Calls that its listeners schedule run before the next message, like microtasks."""
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
                for listener in tuple(self._listeners):
                    _tell(listener, MessageEvent(data=message) if plain else message)
                if self._callback is not None:
                    self._callback(message if plain else message.data)
        except Exception:
            logger.exception("a port's callback has failed; the next message is delivered")
        self._scheduled = bool(queue)
        if self._scheduled:
            self._schedule()

    def _shell(self) -> InMemoryPort:
        return InMemoryPort(self.info, big_ints=self._big_ints, shuffle=self._shuffle)

    def _move_to(self, new: InMemoryPort) -> None:
        other, self._other = self._other, None
        new._other = other
        if other is not None:
            other._other = new
        new._queue, self._queue = self._queue, deque()
        self._state = "detached"
        self._callback = None
        self._listeners.clear()


def _check_transferable(given: list[Any]) -> None:
    for place, item in enumerate(given):
        if not isinstance(item, (InMemoryPort, ArrayBuffer)):
            raise DataCloneError(f"{type(item).__name__} cannot be transferred: ports and ArrayBuffers can")
        if any(item is earlier for earlier in given[:place]):
            raise DataCloneError("an object occurs twice in the transfer list")
        if item.detached:
            raise DataCloneError(f"this {type(item).__name__} has already been transferred")


class MessageChannel:
    """A pair of connected ports. Messages posted to one port arrive at the other.

    Args:
        big_ints: Allow integers that exceed the 53 bits of a JavaScript number, as BigInt does.
        shuffle: Delay each delivery by a random number of event-loop iterations, for tests. As in browsers, messages stay in
            order on each port but not between ports.
    """

    def __init__(self, *, big_ints: bool = True, shuffle: Random | None = None) -> None:
        self.port1: InMemoryPort = InMemoryPort(big_ints=big_ints, shuffle=shuffle)
        self.port2: InMemoryPort = InMemoryPort(big_ints=big_ints, shuffle=shuffle)
        self.port1._other, self.port2._other = self.port2, self.port1
