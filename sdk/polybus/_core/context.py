"""The context of a handler: all that it is given besides the body."""

from __future__ import annotations

import contextvars
import logging
from typing import TYPE_CHECKING, Any

from ..plugins import Identity

if TYPE_CHECKING:
    from .._peer.peer import Peer
    from ..message import Message
    from .ports import RunningCall

logger: logging.Logger = logging.getLogger("polybus.handlers")


class Context:
    """Injected into a handler that annotates a parameter with `Context`.

    Attributes:
        message: The message being handled.
        deadline: Monotonic time of the event loop at which the asker gives up, or None.
    """

    __slots__ = ("_bus", "deadline", "message")

    def __init__(self, bus: Any, message: Message, deadline: float | None = None) -> None:
        self._bus = bus
        self.message: Message = message
        self.deadline: float | None = deadline

    @property
    def bus(self) -> Any:
        """The bus that the handler runs on; in a `def` handler its blocking twin."""
        return self._bus

    @property
    def peer(self) -> Peer | None:
        """The sender of the message; None when it came from this bus itself."""
        peer: Peer | None = self.message.peer
        return peer

    @property
    def identity(self) -> Any:
        """The identity of the peer: the value that `authenticate` gave, or None; of what `Bus.as_` asks the one given there.

        Of what another node of the cluster passes on (`Bus.forward`): an `Identity` with the key that the client has there.
        """
        peer, extras = self.peer, self.message.extras
        if peer is None and extras is not None:  # of messages of this process: no wire sets it there
            return extras.get("identity")
        if peer is not None and peer.link.backbone is not None and extras is not None and "user" in extras:
            return Identity(extras["user"], key=extras["user"])
        return None if peer is None else peer.identity

    @property
    def state(self) -> Any:
        """The value that the bus's lifespan yielded."""
        return self._bus.state

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that knows the subject and the peer."""
        extra = {"subject": self.message.subject, "peer": getattr(self.peer, "id", None)}
        return logging.LoggerAdapter(logger, extra)


current_call: contextvars.ContextVar[RunningCall | None] = contextvars.ContextVar("polybus_call", default=None)
"""The request whose handler runs here: a nested request passes its deadline on. Tasks that a handler leaves behind inherit it;
for them it counts no more once it has ended."""
