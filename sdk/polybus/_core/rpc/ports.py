"""Ports of a call: what it asks of the rooms above, which hand it in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ..runtime.ports import RequestHandler

if TYPE_CHECKING:
    from ...errors import Code
    from ..runtime.places import Places
    from .call import Call


class LocalHandler(RequestHandler, Protocol):
    """A handler of this bus."""

    @property
    def subject(self) -> str | int: ...
    @property
    def places(self) -> Places | None:
        """Present where only so many of its calls may run at once."""
        ...


class ResponseSink(Protocol):
    """The place that takes the outcome of a call: the client's connection, or a `Reply` of this very bus."""

    def answer(self, call: Call, value: Any) -> None:
        """Take the result of the handler."""

    async def answer_later(self, call: Call, value: Any) -> None:
        """Take the result of the handler, for a client that reads slowly."""

    def refuse(self, call: Call, code: Code, text: str, reason: str | None, detail: Any) -> None:
        """Take an error: the handler raised, or was not run."""

    def put_off(self, call: Call) -> bool:
        """Let a call wait that has not begun, where its client has stopped reading. True if it waits."""
        ...

    def proceed(self, call: Call) -> None:
        """Begin a call that waited for a place of its handler, which has one now, or let it wait for one of its client."""

    def finished(self, call: Call) -> None:
        """Note that a call is over, answered or not, and its handler too."""

    def stopped(self, call: Call) -> None:
        """Note that a call is over, and its handler has only been told to stop: it keeps its place until `returned`."""

    def returned(self, call: Call) -> None:
        """Note that the handler of a stopped call is over too."""
