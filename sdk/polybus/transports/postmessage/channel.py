"""Message ports, and pairs of them in one process.

A message is delivered in a later event-loop iteration, one message per iteration. The behaviour is modelled on Chromium, and
the same test suite runs against both.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final, Protocol, TypeAlias

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

_TURNS: Final = 12
"""Maximum event-loop iterations that shuffling delays a message."""


def _later(shuffle: Random | None) -> Callable[[Callable[[], None]], Any]:
    """Return a function that schedules calls for the next event-loop iteration, or for a random later one."""
    call_soon = running_loop().call_soon
    if shuffle is None:
        return call_soon

    def wait(turns: int, function: Callable[[], None]) -> None:
        call_soon(partial(wait, turns - 1, function) if turns else function)

    return lambda function: wait(shuffle.randrange(_TURNS), function)


class InMemoryPort:
    """One end of a `MessageChannel`, which implements `MessagePort`.

    As in a browser, a port doesn't notice when the other end closes.
    """

    def __init__(self, info: PortInfo | None = None, *, shuffle: Random | None = None) -> None:
        self.info: PortInfo = info or PortInfo()
        self.closed: bool = False
        """True if messages are no longer delivered here."""
        self._shuffle = shuffle
        self._other: InMemoryPort | None = None
        self._callback: Callable[[Any], Any] | None = None
        self._on_close: Callable[[str], None] | None = None
        # Undelivered messages of the other end, unlimited as in a browser. Two buses limit them by acknowledgements.
        self._queue: deque[PortData] = deque()
        self._scheduled = False
        self._call_soon: Callable[[Callable[[], None]], Any] | None = None

    def __repr__(self) -> str:
        return f"<InMemoryPort {self.info.address}{' closed' if self.closed else ''}>"

    def post(self, data: PortData) -> None:
        """Send a message. Ignored if one of the two ports is closed."""
        other = self._other
        if other is not None and not self.closed and not other.closed:
            other._queue.append(data)
            other._schedule()

    def on_message(self, callback: Callable[[Any], Any]) -> None:
        """Deliver each message to a callback, beginning with messages that have already arrived."""
        self._callback = callback
        self._schedule()

    def on_close(self, callback: Callable[[str], None]) -> None:
        """Set a function to call when other code closes this port, for example a handshake with a newer page."""
        self._on_close = callback

    def close(self, reason: str = "the port was closed") -> None:
        """Stop delivery. Posted messages still arrive at the other end, which doesn't notice."""
        if self.closed:
            return
        self.closed = True
        self._queue.clear()
        self._callback = None
        told, self._on_close = self._on_close, None
        if told is not None:
            told(reason)

    def _schedule(self) -> None:
        if self._queue and self._callback is not None and not self._scheduled:
            if self._call_soon is None:
                self._call_soon = _later(self._shuffle)
            self._scheduled = True
            self._call_soon(self._deliver)

    def _deliver(self) -> None:
        """Deliver one message. Calls that the callback schedules run before the next message, like microtasks."""
        self._scheduled = False
        if not self._queue or self._callback is None:
            return
        try:
            self._callback(self._queue.popleft())
        except Exception:
            logger.exception("a port's callback has failed; the next message is delivered")
        self._schedule()


class MessageChannel:
    """A pair of connected ports. Messages posted to one port arrive at the other.

    Args:
        shuffle: Delay each delivery by a random number of event-loop iterations, for tests. As in browsers, messages stay in
            order on each port but not between ports.
    """

    def __init__(self, *, shuffle: Random | None = None) -> None:
        self.port1: InMemoryPort = InMemoryPort(shuffle=shuffle)
        self.port2: InMemoryPort = InMemoryPort(shuffle=shuffle)
        self.port1._other, self.port2._other = self.port2, self.port1
