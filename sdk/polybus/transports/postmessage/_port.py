"""Message ports: the small interface that everything which hands over whole messages can offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from attrs import frozen

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
