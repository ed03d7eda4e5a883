"""Handing clients over from a node that drains to those to which they come back, so that they miss no publication."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

from .._core.peer.responses import response_to, send_error
from ..errors import BusError, Code
from ..message import Kind, Message
from .arrivals import Arrivals, give_mark
from .departures import Departures
from .parking import PublicationSources

if TYPE_CHECKING:
    from .._core.bus.parts import BusParts
    from .._core.peer.peer import Peer
    from .membership import Membership

_QUESTIONS: Final = frozenset(("claim", "mark", "marked", "hand_over"))


@define(eq=False)
class ClientHandover:
    """The part of a node that hands its clients over, and takes over others. Implements `plugins.extensions.Resumption`."""

    _parts: BusParts
    _membership: Membership
    seconds: float
    """`Cluster.handover`."""
    sources: PublicationSources = field(init=False)
    """The nodes that publications are from."""
    _arrivals: Arrivals = field(init=False)
    _departures: Departures = field(init=False)

    def __attrs_post_init__(self) -> None:
        parts, membership = self._parts, self._membership
        self.sources = PublicationSources(parts)
        self._arrivals = Arrivals(parts, membership, self.sources)
        self._departures = Departures(parts, membership, self.sources, self.seconds)

    @property
    def busy(self) -> bool:
        """Tells whether clients are about to be taken over here."""
        return self._arrivals.busy

    # -- clients -----------------------------------------------------------------------------------------------------------

    def token(self, peer: Peer) -> str | None:
        """Give the token that a client shows where it comes back; None where nothing will be kept for it."""
        return self._departures.token(peer)

    def came(self, peer: Peer) -> None:
        """Take note of a client that has connected."""
        if self.seconds:
            self._arrivals.came(peer)

    def greeted(self, peer: Peer, token: str | None) -> None:
        """Take note of a hello. A client that has been at another node shows its token before all else on a connection."""
        if token is not None and not self._departures.knows(peer):
            self._arrivals.returns(peer, token)
        self._arrivals.speaks(peer)

    def resumed(self, peer: Peer) -> None:
        """Take note that a client has told all its subscriptions."""
        self._arrivals.returned(peer)

    def gone(self, peer: Peer) -> None:
        """Forget a client whose connection is gone; what was kept for it before stays."""
        self._arrivals.forget(peer)
        self._departures.forget(peer)

    # -- the life of the node ----------------------------------------------------------------------------------------------

    def park(self) -> None:
        """Keep publications for the clients that are connected, for whom this is the last turn."""
        self._departures.park()

    async def handed_over(self, until: float) -> None:
        """Wait until the clients have been taken over by other nodes, a bounded time, and keep nothing any more."""
        await self._departures.handed_over(until)

    def node_joined(self, node: str) -> None:
        """Take note of a node that has come."""
        self._arrivals.node_joined(node)

    def node_left(self, node: str) -> None:
        """Take note of a node that is gone."""
        self._departures.node_left(node)

    def clear(self) -> None:
        """Forget all: the bus has been left."""
        self._arrivals.clear()
        self._departures.clear()

    # -- other nodes -------------------------------------------------------------------------------------------------------

    def handed(self, name: str, message: Message) -> bool:
        """Send a publication that another node has kept for a client; False where there is no such client."""
        return self._arrivals.handed_over(name, message)

    def answer(self, message: Message, cluster: Peer) -> bool:
        """Answer another node. False where it asks about something else."""
        what = message.subject
        if what not in _QUESTIONS or message.kind not in (Kind.REQUEST, Kind.NOTIFY):
            return False
        try:
            body: Any = message.body
        except BusError:
            body = None
        facts = body if isinstance(body, dict) else {}
        if what == "marked":
            self._departures.marked(facts.get("mark"), facts.get("node"))
        elif message.kind is Kind.NOTIFY:
            pass  # nobody waits for the answer
        elif what == "claim":
            self._departures.claim(message, body, cluster)
        elif what == "hand_over":
            self._departures.hand_over(message, body, cluster)
        else:
            self._give_mark(message, facts.get("mark"), facts.get("for"), cluster)
        return True

    def _give_mark(self, message: Message, mark: Any, to: Any, cluster: Peer) -> None:
        """Mark the publications of this node, for the node that hands over and for the one that takes over."""
        own, link = self.sources.own, cluster.link
        if not isinstance(mark, str) or not isinstance(to, str) or (to != own and to not in self._membership.nodes_known):
            send_error(cluster, message, Code.INVALID_ARGUMENT, "a mark has a name, and is for a node that is known")
            return
        if to == own:
            self._departures.marked(mark, own)
        else:
            give_mark(mark, to, own, cluster)
        link.answer(response_to(message, True, link), cluster)
