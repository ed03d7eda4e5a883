"""Calls handlers of this bus on behalf of a user, for `Bus.as_`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ..peer.party_verbs import PartyVerbs
from ..rpc.reply import Reply

if TYPE_CHECKING:
    from ..rpc.channel import Channel
    from ..rpc.loopback import HandlerParty
    from ..runtime.services import Services
    from .message_routing import MessageRouting


class Caller(PartyVerbs):
    """Calls handlers of a bus on behalf of a user in the same process. Returned by `Bus.as_`.

    Handlers see the identity as `Context.identity`, as if the user had sent the request over a link. `Context.peer` is `None`.
    Access control is up to you, because `authorize` is not called.

    Attributes:
        identity: Identity of the user, as `authenticate` would return it.
    """

    __slots__ = ("_party", "identity")

    def __init__(self, routing: MessageRouting, identity: Any) -> None:
        self._party: OwnHandlers = OwnHandlers(routing, identity)  # pyright: ignore[reportIncompatibleVariableOverride]  # never set again
        self.identity: Any = identity

    def __repr__(self) -> str:
        return f"<Caller {self.identity!r}>"


class OwnHandlers(Struct, frozen=True):
    _routing: MessageRouting
    _identity: Any

    @property
    def services(self) -> Services:
        return self._routing.services

    def _find(self, subject: str | int) -> HandlerParty:
        return self._routing.find_own(subject, {"identity": self._identity})

    def send_request(
        self, subject: str | int, body: Any, timeout: float, returns: Any, headers: dict[str, str] | None
    ) -> Reply[Any]:
        return self._find(subject).send_request(subject, body, timeout, returns, headers)

    async def send_notify(self, subject: str | int, body: Any, headers: dict[str, str] | None) -> None:
        await self._find(subject).send_notify(subject, body, headers)

    async def open_channel(self, subject: str | int, body: Any, mode: str, timeout: float | None) -> Channel[Any, Any]:
        self.services.running.check_here()
        return await self._find(subject).open_channel(subject, body, mode, timeout)
