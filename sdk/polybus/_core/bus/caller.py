"""A bus's own handlers, asked in somebody's name: `Bus.as_`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ...contracts.verbs import client_of
from ...errors import NoHandler
from ..handlers.handler import Handler
from ..rpc.asker import Asker

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from ...message import Kind
    from ..rpc.channel import Channel
    from ..rpc.reply import Reply
    from ..runtime.services import Services
    from .parts import BusParts

P = TypeVar("P")


class Caller(Asker):
    """The handlers of a bus, as a program in the same process asks them for a user: ``bus.as_(user).request(...)``

    They see the identity as `Context.identity`, as if the user had asked over a link; `Context.peer` is None, and `authorize`
    is not asked: who calls this has let the user in.

    Attributes:
        identity: Whoever asks, as `authenticate` would have given it.
    """

    __slots__ = ("_parts", "identity")

    def __init__(self, parts: BusParts, identity: Any) -> None:
        self._parts = parts
        self.identity: Any = identity

    def __repr__(self) -> str:
        return f"<Caller {self.identity!r}>"

    @property
    def services(self) -> Services:
        return self._parts.services

    def send_request(
        self, kind: Kind, subject: str | int, body: Any, timeout: float, returns: Any, headers: dict[str, str] | None
    ) -> Reply[Any]:
        return self._parts.loopback.request(self._own(subject), subject, body, timeout, returns, headers, self._facts())

    async def send_notify(self, subject: str | int, body: Any, headers: dict[str, str] | None) -> None:
        self._parts.loopback.notify(self._own(subject), body, headers, self._facts())

    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Make an object with the methods of a Protocol class, each of which asks this bus's own handlers. See `Bus.client`.

        Raises:
            TypeError: As `Bus.client`.
        """
        return client_of(self, contract, prefix)

    async def open_channel(
        self, subject: str | int, body: Any, mode: str, timeout: float | None, receives: Any
    ) -> Channel[Any, Any]:
        self._parts.services.running.check_here()
        return self._parts.loopback.open(self._own(subject), body, mode, timeout, receives, self._facts())

    def _own(self, subject: str | int) -> Handler:
        own = self._parts.lookup.find(subject)
        if own is None:
            raise NoHandler(f"this bus has no handler for {subject!r}, and as_() asks its own alone")
        return own

    def _facts(self) -> dict[str, Any]:
        return {"identity": self.identity}
