"""The context of a handler: everything but the body."""

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
    """Injected into a handler that annotates a parameter with `Context`, or ``Context[Store]`` if `state` is a Store.

    Attributes:
        message: The message being handled.
        deadline: Monotonic time of the event loop at which the caller gives up, or None.
    """

    __slots__ = ("_bus", "_pattern", "deadline", "message")

    def __init__(self, bus: Any, message: Message, deadline: float | None = None, pattern: str | int | None = None) -> None:
        self._bus = bus
        self._pattern = pattern
        self.message: Message = message
        self.deadline: float | None = deadline

    @property
    def bus(self) -> Any:
        """The bus that runs the handler; for a `def` handler its blocking twin."""
        return self._bus

    @property
    def pattern(self) -> str | int:
        """The subject or pattern of the handler: few values, unlike `Message.subject`."""
        return self.message.subject if self._pattern is None else self._pattern

    @property
    def peer(self) -> Peer | None:
        """The sender of the message; None when it came from this bus itself."""
        peer: Peer | None = self.message.peer
        return peer

    @property
    def identity(self) -> Any:
        """The value that `authenticate` returned for the peer, or None; under `Bus.as_` the identity passed to it.

        A message that another cluster node passes on (`Bus.forward`) has an `Identity` with the client's key.
        """
        peer, extras = self.message.peer, self.message.extras
        if peer is None and extras is not None:  # sent by this process
            return extras.get("identity")
        if peer is not None and party_of(peer).link.inner and extras is not None and "user" in extras:
            return Identity(extras["user"], key=extras["user"])
        return None if peer is None else peer.identity

    @property
    def attempt(self) -> int:
        """Deliveries of this publication to a durable handler, this one included; otherwise 1."""
        return self.message.attempt

    @property
    def answer_headers(self) -> dict[str, str]:
        """Headers of the answer, text to text, set by a handler or a middleware: ``ctx.answer_headers["etag"] = "7"``.

        They are sent with the handler's return value if the wire carries answer headers (CSB does not). Errors, streams and
        channels have none. The caller reads them from `Reply.message`, or asks with ``returns=Message``.
        """
        headers = self.message.answer_headers
        if headers is None:
            headers = self.message.answer_headers = {}
        return headers

    @property
    def state(self) -> State_co:
        """The value that the bus's lifespan yielded."""
        return self._bus.state  # type: ignore[no-any-return]  # the annotation ``Context[Store]`` vouches for the type

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that adds the message's fields to each record: subject, peer, address, protocol and request_id."""
        return HandlerLog(logger, {"peer": None, **log_fields(message=self.message)})


class HandlerLog(logging.LoggerAdapter[logging.Logger]):
    """Adds the message's fields to a handler's own ``extra``."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge the fields; the standard adapter would drop the line's own."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


current_call: contextvars.ContextVar[RunningCall | None] = contextvars.ContextVar("polybus_call", default=None)
"""The request being handled here: nested requests inherit its deadline. Tasks that outlive the handler ignore it."""
