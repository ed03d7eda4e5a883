"""A context for calling a handler as the plain function that it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._core.bus.bus import Bus
from .._core.runtime.context import Context
from ..body import JSON
from ..message import Kind, Message


class HandlerContext(Context[Any]):
    """A `Context` outside of any bus that runs; see `context`."""

    __slots__ = ("_state",)

    def __init__(self, bus: Bus, message: Message, deadline: float | None, state: Any) -> None:
        super().__init__(bus, message, deadline)
        self._state = state

    @property
    def state(self) -> Any:
        """The value that was given in the place of the lifespan's."""
        return self._state


def context(
    *,
    identity: Any = None,
    state: Any = None,
    bus: Bus | None = None,
    subject: str | int = "test",
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    deadline: float | None = None,
) -> Context[Any]:
    """Make the `Context` with which a test calls a handler: ``await get_user(7, context(identity="ann", state=store))``

    Args:
        identity: Whoever asks, as `authenticate` would give it; `Context.peer` is None.
        state: The value that the bus's lifespan would yield.
        bus: The bus of `Context.bus`, with the other handlers that are asked; a new one without.
        subject: What the message is about.
        body: Its body, as it would come out of a decoder.
        headers: Text to text.
        deadline: Monotonic time of the event loop at which the asker gives up.
    """
    message = Message(Kind.REQUEST, subject, None, None, JSON, None if headers is None else dict(headers))
    message.extras = {"identity": identity}
    if body is not None:
        message.decoded = body
        message.raw = JSON.encode(body)
    return HandlerContext(bus if bus is not None else Bus(), message, deadline, state)
