"""Handing clients over from a node that drains to those to which they come back, so that they miss no publication.

What is published after they were told goodbye is kept here for where they come back. The other end is in `arrivals`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
import anyio.lowlevel
import msgspec
from attrs import define, field

from ..errors import BusError, Code
from ..message import Kind, Message
from ..plugins import ToClient
from ..plugins.tools import sources
from .arrivals import AT_ONCE, HANDING, Arrivals, ParkedPublications

if TYPE_CHECKING:
    from ..plugins.parts import BusPeer, BusPort
    from .backbone import Backbone

logger: logging.Logger = logging.getLogger("polybus.cluster")

_QUESTIONS: Final = frozenset(("claim", "mark", "marked", "hand_over"))
_SECRET: Final = 16
"""Random bytes in a token."""


class ClientClaim(msgspec.Struct):
    """A client as the node names it to which it has come back."""

    token: str
    name: str
    user: str | None = None


class ClaimRequest(msgspec.Struct):
    """The question of a node for clients that have come back to it."""

    mark: str
    node: str
    clients: Annotated[list[ClientClaim], msgspec.Meta(max_length=AT_ONCE)]


@define(eq=False)
class Parked:
    """A client that was told goodbye, and the publications that are kept for it."""

    secret: str
    key: str | None
    """The key of its identity: it comes back as the same user."""
    patterns: Sequence[str | int]
    publications: ParkedPublications


@define(eq=False)
class Claim:
    """Clients that have come back together to another node."""

    node: str
    clients: dict[str, Parked]
    """By the names that the other node has given them."""
    cut: set[str] = field(factory=set)
    """Nodes that have given their mark: what they publish from then on is the affair of the other node."""


@define(eq=False)
class ClientHandover:
    """The clients that this node has told, or will tell, to go elsewhere, and those that come from others.

    Implements `plugins.extensions.Resumption`.
    """

    _parts: BusPort
    _node: Backbone
    _seconds: float
    """`Cluster.handover`."""
    arrivals: Arrivals = field(init=False)
    _secrets: dict[BusPeer, str] = field(factory=dict, init=False)
    """Secrets of clients that are connected."""
    _parked: dict[str, Parked] = field(factory=dict, init=False)
    """Clients that have gone and nobody has claimed, by their secrets."""
    _claims: dict[str, Claim] = field(factory=dict, init=False)
    """By their marks."""

    def __attrs_post_init__(self) -> None:
        self.arrivals = Arrivals(self._parts, self._node)

    @property
    def busy(self) -> bool:
        """Tells whether clients are about to be taken over here."""
        return self.arrivals.busy

    # -- clients -----------------------------------------------------------------------------------------------------------

    def token(self, peer: BusPeer) -> str | None:
        """Give the token that a client shows where it comes back; None where nothing will be kept for it."""
        link = peer.link
        if link.opened or link.multiplexed is not None or not self._seconds or self._node.peer is None:
            return None
        secret = self._secrets.get(peer)
        if secret is None:
            secret = self._secrets[peer] = sources.get().urandom(_SECRET).hex()
        return f"{self._parts.services.id}.{secret}"

    def greeted(self, peer: BusPeer, token: str | None) -> None:
        """Take note of a hello. A client that has been at another node shows its token before all else on a connection."""
        if token is not None and peer not in self._secrets:
            self.arrivals.returns(peer, token)
        self.arrivals.speaks(peer)

    def resumed(self, peer: BusPeer) -> None:
        """Take note that a client has told all its subscriptions."""
        self.arrivals.returned(peer)

    def came(self, peer: BusPeer) -> None:
        """Take note of a client that has connected."""
        if self._seconds:
            self.arrivals.came(peer)

    def gone(self, peer: BusPeer) -> None:
        """Forget a client whose connection is gone; what is parked for it stays."""
        self.arrivals.forget(peer)
        self._secrets.pop(peer, None)

    # -- the end of a drain ------------------------------------------------------------------------------------------------

    def park(self) -> None:
        """Keep publications from now on for the clients that have subscribed, in place of sending them."""
        if not self._node.nodes_known:
            return
        for peer, secret in list(self._secrets.items()):
            if peer.patterns and peer.connected:
                self._park(peer, secret)

    def _park(self, peer: BusPeer, secret: str) -> None:
        publications = ParkedPublications(self._parts, peer, self._node)
        patterns, undelivered = self._parts.take_over(peer, publications)
        self._parked[secret] = Parked(secret, peer.identity_key, patterns, publications)
        for message in undelivered:
            publications.add(self._node.own, message)

    async def handed_over(self, until: float) -> None:
        """Wait until clients were claimed and handed over, or none was claimed for `Cluster.handover`; then keep nothing."""
        signalled = self._parts.services.running.notifier.until
        try:
            while count := len(self._parked):
                with anyio.move_on_at(min(until, anyio.current_time() + self._seconds)) as scope:
                    await signalled(lambda: len(self._parked) < count)
                if scope.cancelled_caught:
                    break
            for parked in list(self._parked.values()):
                self._give_up(parked)
            with anyio.move_on_at(min(until, anyio.current_time() + HANDING)):
                await signalled(lambda: not self._claims)
        finally:
            self._keep_nothing()

    def _give_up(self, parked: Parked) -> None:
        """Keep nothing for a client any more."""
        self._parked.pop(parked.secret, None)
        for pattern in parked.patterns:
            self._parts.remove_queue(pattern, parked.publications)
            self._parts.remove_interest(pattern)
        parked.publications.clear()

    def clear(self) -> None:
        """Keep nothing for anybody any more."""
        self.arrivals.clear()
        self._keep_nothing()

    def _keep_nothing(self) -> None:
        for mark in list(self._claims):
            self._end(mark)
        for parked in list(self._parked.values()):
            self._give_up(parked)

    # -- what other nodes ask ----------------------------------------------------------------------------------------------

    def answer(self, message: Message) -> bool:
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
            self._mark(facts.get("mark"), facts.get("node"))
        elif message.kind is Kind.NOTIFY:
            pass  # nobody waits for the answer
        elif what == "claim":
            self._claim(message, body)
        elif what == "hand_over":
            self._answer_handing(message, body)
        else:
            self._give_mark(message, facts.get("mark"), facts.get("for"))
        return True

    def _give_mark(self, message: Message, mark: Any, to: Any) -> None:
        """Mark the publications of this node, for the node that hands over and for the one that takes over."""
        own = self._node.own
        if not isinstance(mark, str) or not isinstance(to, str) or (to != own and to not in self._node.nodes_known):
            self._parts.refuse(message, Code.INVALID_ARGUMENT, "a mark has a name, and is for a node that is known")
            return
        if to == own:
            self._mark(mark, own)
        else:
            self.arrivals.give_mark(mark, to)
        self._parts.answer(message, True)

    def _claim(self, message: Message, body: Any) -> None:
        """Answer which of the clients that a node claims are its own from now on."""
        try:
            asked = msgspec.convert(body, ClaimRequest)
        except msgspec.ValidationError:
            asked = ClaimRequest("", "", [])
        names = {client.name for client in asked.clients}
        if asked.node not in self._node.nodes_known or asked.mark in self._claims or len(names) < len(asked.clients):
            why = "a claim is of a known node, and has a mark of its own and a name of its own for each client"
            self._parts.refuse(message, Code.INVALID_ARGUMENT, why)
            return
        claim = Claim(asked.node, {})
        for client in asked.clients:
            parked = self._parked.get(client.token)
            if parked is None:
                continue
            if parked.key != client.user:
                text = "node %s claims a client of this one for another user: %.100r, who is not %.100r"
                self._parts.services.running.warnings.warn(logger, text, claim.node, client.user, parked.key)
                continue
            del self._parked[parked.secret]
            parked.publications.cut = claim.cut
            claim.clients[client.name] = parked
        if claim.clients:
            self._claims[asked.mark] = claim
            self._parts.services.signal()
        self._parts.answer(message, list(claim.clients))

    def _mark(self, mark: Any, node: Any) -> None:
        """Take note of the mark in the publications of a node: what follows is not for clients of this claim."""
        claim = self._claims.get(mark) if isinstance(mark, str) else None
        if claim is not None and isinstance(node, str) and (node == self._node.own or node in self._node.nodes_known):
            claim.cut.add(node)

    def _answer_handing(self, message: Message, mark: Any) -> None:
        """Send what was kept for the clients of a claim, then answer."""
        claim = self._claims.get(mark) if isinstance(mark, str) else None
        if claim is None:
            self._parts.refuse(message, Code.NOT_FOUND, "there is no claim with this mark")
            return
        self._parts.services.running.spawn(self._hand_over, claim, mark, message)

    async def _hand_over(self, claim: Claim, mark: str, message: Message) -> None:
        count, deadline = 0, self._parts.services.running.time() + HANDING
        with anyio.move_on_after(HANDING):  # nobody waits for longer
            while waiting := {name: one.publications for name, one in claim.clients.items() if len(one.publications)}:
                first = min((queue.oldest for queue in waiting.values()), key=itemgetter(0))[1]
                told = {name: queue.take() for name, queue in waiting.items() if queue.oldest[1] is first}
                if len(told) == len(claim.clients):  # most want the same, which is said once
                    told = {mark: next(iter(told.values()))}
                for name, publication in told.items():
                    if publication is not None:
                        await self._send(publication, ToClient(claim.node, name), deadline)
                count += len(told)
                if count >= AT_ONCE:
                    count = 0
                    await anyio.lowlevel.checkpoint()
        self._end(mark)
        self._parts.answer(message, True)

    async def _send(self, publication: Message, to: ToClient, deadline: float) -> None:
        cluster = self._node.choose()
        link = cluster.link
        on = Message(Kind.PUBLISH, publication.subject, None, publication.raw, publication.format, publication.headers)
        on.extras, on.checked = {"to": to}, publication.checked
        if publication.expires is not None:
            on.ttl = publication.expires - self._parts.services.running.time()
            if on.ttl <= 0:
                self._parts.services.counters.dropped += 1
                return
        try:
            while not link.publish(on, cluster, deadline):
                if not await link.room(deadline):
                    self._parts.services.counters.dropped += 1
                    return
        except BusError as error:
            self._parts.unsent(publication, cluster, "handed over", error)

    def _end(self, mark: str) -> None:
        claim = self._claims.pop(mark, None)
        if claim is not None:
            for parked in claim.clients.values():
                self._give_up(parked)
            self._parts.services.signal()

    def node_left(self, node: str) -> None:
        """Take note of a node that is gone: what it has claimed is for nobody."""
        for mark in [mark for mark, claim in self._claims.items() if claim.node == node]:
            self._end(mark)
