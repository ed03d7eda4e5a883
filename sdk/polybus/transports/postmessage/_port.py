"""Message ports: the small interface that everything which hands over whole messages can offer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, TypeAlias

from attrs import frozen

PortData: TypeAlias = str | bytes
"""Payload of a port: text or binary, told apart as a browser tells them apart."""


def as_text(content: bytes) -> PortData:
    """A text as it came over a byte stream. What is no UTF-8 stays bytes, and so is refused where text is spoken."""
    try:
        return content.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return content


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


class ProcessPort(ABC):
    """Shared half of ports to other processes: the callbacks, and an end that is told once."""

    def __init__(self, address: str) -> None:
        self.info: PortInfo = PortInfo(address=address)
        self._callback: Callable[[PortData], None] | None = None
        self._on_close: Callable[[str], None] | None = None
        self._closed = False

    def on_message(self, callback: Callable[[PortData], None]) -> None:
        """Begin to deliver."""
        self._callback = callback

    def on_close(self, callback: Callable[[str], None]) -> None:
        """Be told when the other process has closed its side, or died."""
        self._on_close = callback

    def close(self) -> None:
        """Write what was posted, and close."""
        self._on_close = None
        self._end("the port was closed")

    def _end(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._wake()
            told, self._on_close = self._on_close, None
            if told is not None:
                told(reason)

    @abstractmethod
    def _wake(self) -> None:
        """Let `run` see that it is over."""
