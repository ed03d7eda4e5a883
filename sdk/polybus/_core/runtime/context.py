"""The context of a handler: all that it is given besides the body."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Generic

from ..._type_variables import State_co
from ..._util.log_fields import log_fields
from ...plugins import Identity
from ...plugins.extensions import party_of

if TYPE_CHECKING:
    from ...message import Message
    from ..peer.peer import Peer
    from .ports import RunningCall

logger: logging.Logger = logging.getLogger("polybus.handlers")


class Context(Generic[State_co]):
    """Injected into a handler that annotates a parameter with `Context`, or with ``Context[Store]``, whose `state` is a Store.

    Attributes:
        message: The message being handled.
        deadline: Monotonic time of the event loop at which the asker gives up, or None.
    """

    __slots__ = ("_bus", "_pattern", "deadline", "message")

    def __init__(self, bus: Any, message: Message, deadline: float | None = None, pattern: str | int | None = None) -> None:
        self._bus = bus
        self._pattern = pattern
        self.message: Message = message
        self.deadline: float | None = deadline

    @property
    def bus(self) -> Any:
        """The bus that the handler runs on; in a `def` handler its blocking twin."""
        return self._bus

    @property
    def pattern(self) -> str | int:
        """The subject or pattern that the handler was registered for: of few values, where `Message.subject` may have many."""
        return self.message.subject if self._pattern is None else self._pattern

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
        if peer is not None and party_of(peer).link.inner and extras is not None and "user" in extras:
            return Identity(extras["user"], key=extras["user"])
        return None if peer is None else peer.identity

    @property
    def attempt(self) -> int:
        """Number of times that this publication was given to a durable handler, this one included; 1 for all else."""
        return self.message.attempt

    @property
    def answer_headers(self) -> dict[str, str]:
        """Headers of the answer, text to text, for a handler or a middleware to set: ``ctx.answer_headers["etag"] = "7"``.

        They leave with what the handler returns, where the wire has headers of answers (CSB has none); an error, a stream and a
        channel have none. The asker finds them in `Reply.message`, or asks with ``returns=Message``.
        """
        headers = self.message.answer_headers
        if headers is None:
            headers = self.message.answer_headers = {}
        return headers

    @property
    def state(self) -> State_co:
        """The value that the bus's lifespan yielded."""
        return self._bus.state  # type: ignore[no-any-return]  # whoever says ``Context[Store]`` knows

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records have the fields of the message: subject, peer, address, protocol and request_id."""
        return HandlerLog(logger, {"peer": None, **log_fields(message=self.message)})


class HandlerLog(logging.LoggerAdapter[logging.Logger]):
    """The logger of a handler. What a line is given as ``extra`` stands beside the fields of the message."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the fields; Python's own takes away those of the line."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


current_call: contextvars.ContextVar[RunningCall | None] = contextvars.ContextVar("polybus_call", default=None)
"""The request whose handler runs here: a nested request passes its deadline on. Tasks that a handler leaves behind inherit it;
for them it counts no more once it has ended."""
