"""The context of a handler, which gives it everything except the body."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Generic

from ..._util.logs import log_fields
from ...plugins import Identity
from ...plugins.extensions import party_of

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from ...message import Message
    from ..peer.peer import Peer
    from .ports import RunningCall

    State_co = TypeVar("State_co", default=Any, covariant=True)
else:
    from typing import TypeVar  # without a default, which needs Python 3.13

    State_co = TypeVar("State_co", covariant=True)

logger: logging.Logger = logging.getLogger("polybus.handlers")


class Context(Generic[State_co]):
    """The context of a call. A handler receives it if a parameter is annotated with `Context`, or ``Context[Store]`` if `state`
    is a Store.

    Attributes:
        message: The message that is being handled.
        deadline: The monotonic time of the event loop at which the caller gives up, or None.
    """

    __slots__ = ("_bus", "_pattern", "deadline", "message")

    def __init__(self, bus: Any, message: Message, deadline: float | None = None, pattern: str | int | None = None) -> None:
        self._bus = bus
        self._pattern = pattern
        self.message: Message = message
        self.deadline: float | None = deadline

    @property
    def bus(self) -> Any:
        """The bus that runs the handler. A `def` handler gets the blocking twin of the bus."""
        return self._bus

    @property
    def pattern(self) -> str | int:
        """The subject or pattern of the handler. Unlike `Message.subject`, it has few different values."""
        return self.message.subject if self._pattern is None else self._pattern

    @property
    def peer(self) -> Peer | None:
        """The sender of the message; None if this bus itself sent it."""
        peer: Peer | None = self.message.peer
        return peer

    @property
    def identity(self) -> Any:
        """The value that `authenticate` returned for the peer, or None. Under `Bus.as_` it is the identity passed there.

        For a message that another node of the cluster passes on (`Bus.forward`), it is an `Identity` with the client's key.
        """
        peer, extras = self.message.peer, self.message.extras
        if peer is None and extras is not None:  # sent by this process
            return extras.get("identity")
        if peer is not None and party_of(peer).link.inner and extras is not None and "user" in extras:
            return Identity(extras["user"], key=extras["user"])
        return None if peer is None else peer.identity

    @property
    def attempt(self) -> int:
        """Number of deliveries of this publication to a durable handler, including this one; otherwise 1."""
        return self.message.attempt

    @property
    def answer_headers(self) -> dict[str, str]:
        """Headers for the answer, which a handler or a middleware sets: ``ctx.answer_headers["etag"] = "7"``.

        Names and values are strings. The headers are sent with the return value of the handler if the wire supports headers of
        answers (CSB does not). Errors, streams and channels have no such headers. The caller reads them from `Reply.message`,
        or passes ``returns=Message``.
        """
        headers = self.message.answer_headers
        if headers is None:
            headers = self.message.answer_headers = {}
        return headers

    @property
    def state(self) -> State_co:
        """The value that the lifespan of the bus yielded."""
        return self._bus.state  # type: ignore[no-any-return]  # the annotation ``Context[Store]`` vouches for the type

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that adds fields of the message to each record: subject, peer, address, protocol and request_id."""
        return HandlerLog(logger, {"peer": None, **log_fields(message=self.message)})


class HandlerLog(logging.LoggerAdapter[logging.Logger]):
    """Adds fields of the message to the ``extra`` that a handler passes."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge the fields, because the standard adapter would drop those that the handler passes."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


current_call: contextvars.ContextVar[RunningCall | None] = contextvars.ContextVar("polybus_call", default=None)
"""The request that is being handled. Nested requests inherit its deadline. Tasks that outlive the handler ignore it."""
