"""Passing on what is asked: from the cluster to a client of this node, and from a client to the cluster.

Both are a route of a bridge, whose other side is one peer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

from .._bridge.route import Route
from .._bridge.route_side import RouteSide
from .._core.handlers.lookup import HandlerLookup
from .._core.rpc.loopback import Loopback
from ..headers import VIA
from ..message import Kind, Message

if TYPE_CHECKING:
    from .._core.bus.parts import BusParts
    from .._core.peer.peer import Peer
    from .._core.runtime.services import Services
    from .._core.runtime.via import ViaHeader

_ANY: Final = Route(">", "{rest}")


@define(eq=False)
class PeerTarget:
    """A peer in the place of the bus that a route leads to: it handles nothing itself."""

    services: Services
    _choose: Callable[[], Peer]
    lookup: HandlerLookup = field(factory=HandlerLookup, init=False)
    loopback: Loopback = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.loopback = Loopback(self.services)

    @property
    def links(self) -> PeerTarget:
        """The part that chooses whom to ask."""
        return self

    def choose(self, subject: str | int) -> Peer:
        """Choose the peer. May raise `BusError`: it is not there."""
        return self._choose()


class ClusterSide(RouteSide):
    """A route inside one bus, to the cluster or from it: it is no bridge, so all headers cross."""

    to_cluster: bool = False
    """True where it leads from clients to the cluster, which is not told that these subjects are answered here."""

    def __init__(self, route: Route, here: BusParts, there: PeerTarget) -> None:
        super().__init__(route, here, there)  # type: ignore[arg-type]  # it has what a route needs of a bus

    def headers(self, message: Message, via: ViaHeader | None) -> dict[str, str] | None:
        """All headers, and where it has been."""
        kept = {**(message.headers or {})}
        if via is not None:
            kept[VIA] = str(via)
        return kept or None

    async def converted(
        self,
        convert: Callable[..., Any] | None,
        message: Message,
        kind: Kind,
        subject: str | int,
        headers: dict[str, str] | None = None,
    ) -> Message:
        """Make the message that goes on, with the key of the user who asks."""
        on = await super().converted(convert, message, kind, subject, headers)
        key = None if message.peer is None else message.peer.identity_key
        if key is not None and kind is not Kind.RESPONSE:
            on.attributes["user"] = key
        return on


class ClientSide(ClusterSide):
    """A route from the cluster to one client of this node: whatever it is asked, under its own name."""

    def __init__(self, here: BusParts, client: Peer) -> None:
        super().__init__(_ANY, here, PeerTarget(here.services, lambda: client))

    def target(self, subject: str | int) -> str | int:
        return subject
