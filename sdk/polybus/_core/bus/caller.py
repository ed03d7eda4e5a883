"""A bus's own handlers, asked in somebody's name: `Bus.as_`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from ...errors import NoHandler
from ..handlers.handler import Handler
from ..peer.asker import Asker

if TYPE_CHECKING:
    from ...message import Kind
    from ..rpc.channel import Channel
    from ..rpc.reply import Reply
    from ..runtime.services import Services
    from .parts import BusParts


class Caller(Asker):
    """The handlers of a bus, as a program in the same process asks them for a user: ``bus.as_(user).request(...)``

    They see the identity as `Context.identity`, as if the user had asked over a link; `Context.peer` is None, and `authorize`
    is not asked: who calls this has let the user in.

    Attributes:
        identity: Whoever asks, as `authenticate` would have given it.
    """

    __slots__ = ("_party", "identity")

    def __init__(self, parts: BusParts, identity: Any) -> None:
        self._party: OwnHandlers = OwnHandlers(parts, {"identity": identity})
        self.identity: Any = identity

    def __repr__(self) -> str:
        return f"<Caller {self.identity!r}>"


@frozen
class OwnHandlers:
    """The handlers of a bus, which are told who asks. Implements `peer.asker.Party`."""

    _parts: BusParts
    _facts: dict[str, Any]

    @property
    def services(self) -> Services:
        """The services of the bus."""
        return self._parts.services

    def send_request(
        self, kind: Kind, subject: str | int, body: Any, timeout: float, returns: Any, headers: dict[str, str] | None
    ) -> Reply[Any]:
        """Run the handler as a request."""
        return self._parts.loopback.request(self._own(subject), subject, body, timeout, returns, headers, {**self._facts})

    async def send_notify(self, subject: str | int, body: Any, headers: dict[str, str] | None) -> None:
        """Run the handler as a notification."""
        self._parts.loopback.notify(self._own(subject), body, headers, {**self._facts})

    async def open_channel(
        self, subject: str | int, body: Any, mode: str, timeout: float | None, receives: Any
    ) -> Channel[Any, Any]:
        """Run the handler of a stream or channel."""
        self._parts.services.running.check_here()
        return self._parts.loopback.open(self._own(subject), body, mode, timeout, receives, {**self._facts})

    def _own(self, subject: str | int) -> Handler:
        own = self._parts.lookup.find(subject)
        if own is None:
            raise NoHandler(f"this bus has no handler for {subject!r}, and as_() asks its own alone")
        return own
