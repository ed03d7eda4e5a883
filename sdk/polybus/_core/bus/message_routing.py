"""Chooses the receiver of a message: a handler, a route, or a peer."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ..._validation import shown
from ...errors import AmbiguousRoute, NoHandler
from ...plugins.extensions import core_of
from ..peer.party_verbs import ChosenParty, PartyVerbs
from ..peer.peer import Peer
from ..rpc.loopback import HandlerParty, Loopback
from .cluster_clients import RemotePeer

if TYPE_CHECKING:
    from ..handlers.lookup import HandlerLookup
    from ..peer.party_verbs import Party
    from ..peer.peer_core import PeerCore
    from ..runtime.services import Services
    from .links import LinkRegistry


class MessageRouting(Struct, eq=False):
    """Chooses among the handlers of a bus, its bridge routes, its peers, and clients of other nodes.

    Messages from peers never leave over another link, so `HandlerLookup.find_for` only considers handlers and routes.
    """

    _lookup: HandlerLookup
    _loopback: Loopback
    _links: LinkRegistry

    @property
    def services(self) -> Services:
        return self._links.services

    def find(self, subject: str | int, to: Any = None) -> Party:
        """Find the receiver of the application's message: the peer in `to`, a handler of this bus, or the peer behind a link.

        Raises the errors of `named` and of `LinkRegistry.choose`.
        """
        if to is not None:
            return self.named(to)
        lookup, opened = self._lookup, self._links.opened
        own = lookup.handlers.get(subject) or (lookup.find(subject) if lookup.by_uri else None)
        if own is not None:
            return HandlerParty(self._loopback, own)
        only: Party | None = opened[0].peer if len(opened) == 1 else None  # the usual case, without a call
        return self._links.choose(subject) if only is None else only

    def find_behind(self, subject: str | int, address: str) -> PeerCore:
        """Find the peer that leads to an address. A bus without opened links uses its only peer that supports addresses."""
        behind = [] if self._links.opened else [peer for peer in self._links.peers if peer.link.destinations]
        if len(behind) > 1:
            text = f"several peers could lead to {address!r}: name one, as in bus.peers[0].notify(..., to={address!r})"
            raise AmbiguousRoute(text)
        return behind[0] if behind else self._links.choose(subject)

    def find_own(self, subject: str | int, identity: Any) -> HandlerParty:
        """Find this bus's handler for a subject, for `Bus.as_`. Raises `NoHandler` if the subject has no handler."""
        own = self._lookup.find(subject)
        if own is None:
            raise NoHandler(f"this bus has no handler for {subject!r}, and as_() only calls its own")
        return HandlerParty(self._loopback, own, {"identity": identity})

    def find_beyond(self, subject: str | int, kind: str, came_from: Any) -> Any:
        """Find the receiver of a message from a bridge, like `find`, including routes of other bridges that do not lead back.

        The result is a `HandlerParty`, a `ForwardingRoute` or a `PeerCore`, or for ``tunnel`` a listener instead of a handler.
        """
        own = self._lookup.listener(subject) if kind == "tunnel" else self._lookup.find(subject)
        if own is not None:
            return own if kind == "tunnel" else HandlerParty(self._loopback, own)
        route = self._lookup.route(subject, kind, back_to=came_from)
        return route if route is not None else self._links.choose(subject)

    def named(self, to: Any) -> Party:
        """Return the party of a peer in ``to=``. Raises `TypeError` or `ValueError` if it is not a peer of this bus."""
        if not isinstance(to, (Peer, RemotePeer)):
            raise TypeError(
                f"to={shown(to)} must be a Peer, as in bus.peers, bus.peers_of(key) or ctx.peer, not {type(to).__name__}"
            )
        party: Any = core_of(to)
        if party.host is not self._links:
            raise ValueError(f"to={to!r} is a peer of another bus: call that bus, or the peer itself")
        found: Party = party
        return found

    def recipients(self, to: Any) -> tuple[tuple[PeerCore, ...], PeerCore | None, tuple[RemotePeer, ...]]:
        """Split ``to=`` into connected peers, the first peer that has left, and clients of other nodes. Removes duplicates."""
        given: list[Any] = [*to] if isinstance(to, Iterable) and not isinstance(to, (str, bytes)) else [to]
        for peer in given:
            self.named(peer)
        given = list(dict.fromkeys(given))
        peers: list[PeerCore] = [core_of(peer) for peer in given if isinstance(peer, Peer)]
        remote = tuple(peer for peer in given if isinstance(peer, RemotePeer))
        return tuple(peer for peer in peers if not peer.gone), next((peer for peer in peers if peer.gone), None), remote


class Caller(PartyVerbs):
    """Calls handlers of a bus on behalf of a user in the same process. Returned by `Bus.as_`.

    Handlers see the identity as `Context.identity`, as if the user had sent the request over a link. `Context.peer` is `None`.
    Access control is up to you, because `authorize` is not called.

    Attributes:
        identity: Identity of the user, as `authenticate` would return it.
    """

    __slots__ = ("_party", "identity")

    def __init__(self, routing: MessageRouting, identity: Any) -> None:
        self._party = ChosenParty(routing.services, partial(routing.find_own, identity=identity))
        self.identity: Any = identity

    def __repr__(self) -> str:
        return f"<Caller {self.identity!r}>"
