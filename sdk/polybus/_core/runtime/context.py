"""The context that handlers can receive in addition to the body."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Generic

from ..._util.logs import log_fields
from ...plugins import Identity
from ...plugins.extensions import core_of

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
    """The context of a call, for handlers with a parameter annotated as `Context`, or as ``Context[Store]`` if `state` is a
    Store.

    Attributes:
        message: The message being handled.
        deadline: Time at which the caller gives up, on the event loop's monotonic clock, or None.
    """

    __slots__ = ("_bus", "_pattern", "deadline", "message")

    def __init__(self, bus: Any, message: Message, deadline: float | None = None, pattern: str | int | None = None) -> None:
        self._bus = bus
        self._pattern = pattern
        self.message: Message = message
        self.deadline: float | None = deadline

    @property
    def bus(self) -> Any:
        """The bus that runs the handler. `def` handlers receive the bus's blocking twin."""
        return self._bus

    @property
    def pattern(self) -> str | int:
        """Subject or pattern of the handler, useful for example as a metrics label."""
        return self.message.subject if self._pattern is None else self._pattern

    @property
    def peer(self) -> Peer | None:
        """Peer that sent the message, or None if this bus sent it."""
        peer: Peer | None = self.message.peer
        return peer

    @property
    def identity(self) -> Any:
        """Value that `authenticate` returned for the peer or that was passed to `Bus.as_`, otherwise None.

        For requests that another node of a cluster forwards (`Bus.forward`), it is an `Identity` with the key of the client.
        """
        peer, extras = self.message.peer, self.message.extras
        if peer is None and extras is not None:  # sent by this process
            return extras.get("identity")
        if peer is not None and core_of(peer).link.inner and extras is not None and "user" in extras:
            return Identity(extras["user"], key=extras["user"])
        return None if peer is None else peer.identity

    @property
    def attempt(self) -> int:
        """Number of times that this publication has been delivered to a durable handler. Always 1 for other handlers."""
        return self.message.attempt

    @property
    def answer_headers(self) -> dict[str, str]:
        """Headers for the answer, as in ``ctx.answer_headers["etag"] = "7"``. Names and values are strings.

        Handlers and middleware can set these headers. They are sent with the handler's return value if the protocol supports
        headers (CSB doesn't), but not with errors, streams or channels. The caller can read them from `Reply.message`, or by
        passing ``returns=Message``.
        """
        headers = self.message.answer_headers
        if headers is None:
            headers = self.message.answer_headers = {}
        return headers

    @property
    def state(self) -> State_co:
        """Value yielded by the lifespan of the bus."""
        return self._bus.state  # type: ignore[no-any-return]  # the annotation ``Context[Store]`` vouches for the type

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logger that adds the message's subject, peer, address, protocol and request_id to each record."""
        return HandlerLog(logger, {"peer": None, **log_fields(message=self.message)})


class HandlerLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge the fields. The standard adapter would drop fields that the handler passes."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


current_call: contextvars.ContextVar[RunningCall | None] = contextvars.ContextVar("polybus_call", default=None)
"""Request that is being handled. Nested requests inherit its deadline unless the handler has ended."""
