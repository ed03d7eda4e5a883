"""Stores publications for the clients of a draining node until they have reconnected to other nodes (see `client_takeover`)."""

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
from .client_takeover import AT_ONCE, HANDING, ClientTakeover, ParkedPublications

if TYPE_CHECKING:
    from ..integrations import BusParts, PeerCore
    from .backbone import Backbone

logger: logging.Logger = logging.getLogger("polybus.cluster")

_QUESTIONS: Final = frozenset(("claim", "mark", "marked", "hand_over"))
_SECRET: Final = 16  # Number of random bytes in a token


class ClientClaim(msgspec.Struct):
    token: str
    name: str
    user: str | None = None


class ClaimRequest(msgspec.Struct):
    mark: str
    node: str
    clients: Annotated[list[ClientClaim], msgspec.Meta(max_length=AT_ONCE)]


@define(eq=False)
class Parked:
    """A disconnected client, with the publications that are stored for it."""

    secret: str
    key: str | None  # Identity key of the client. Only the same user can claim the publications.
    patterns: Sequence[str | int]
    publications: ParkedPublications


@define(eq=False)
class Claim:
    node: str
    clients: dict[str, Parked]  # Clients, keyed by the names that the claiming node gave them
    cut: set[str] = field(factory=set)
    """Nodes that have sent their mark. The claiming node delivers what they publish afterwards."""


@define(eq=False)
class ClientHandover:
    """Hands clients over to other nodes while this node is draining. Implements `plugins.extensions.Resumption`."""

    _parts: BusParts
    _node: Backbone
    _seconds: float
    takeover: ClientTakeover = field(init=False)
    _secrets: dict[PeerCore, str] = field(factory=dict, init=False)
    _parked: dict[str, Parked] = field(factory=dict, init=False)  # Disconnected clients without a claim, by secret
    _claims: dict[str, Claim] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.takeover = ClientTakeover(self._parts, self._node)

    @property
    def busy(self) -> bool:
        return self.takeover.busy

    def token(self, peer: PeerCore) -> str | None:
        """Return the token for the client to send when it reconnects, or None if the client cannot be handed over."""
        link = peer.link
        if link.opened or link.multiplexed is not None or not self._seconds or self._node.peer is None:
            return None
        secret = self._secrets.get(peer)
        if secret is None:
            secret = self._secrets[peer] = sources.get().urandom(_SECRET).hex()
        return f"{self._parts.services.id}.{secret}"

    def greeted(self, peer: PeerCore, token: str | None) -> None:
        if token is not None and peer not in self._secrets:  # only the first hello may contain another node's token
            self.takeover.returns(peer, token)
        self.takeover.speaks(peer)

    def resumed(self, peer: PeerCore) -> None:
        self.takeover.returned(peer)

    def came(self, peer: PeerCore) -> None:
        if self._seconds:
            self.takeover.came(peer)

    def gone(self, peer: PeerCore) -> None:
        self.takeover.forget(peer)
        self._secrets.pop(peer, None)

    def park(self) -> None:
        """From now on, store publications for subscribed clients instead of sending them."""
        if not self._node.nodes_known:
            return
        for peer, secret in list(self._secrets.items()):
            if peer.patterns and peer.connected:
                self._park(peer, secret)

    def _park(self, peer: PeerCore, secret: str) -> None:
        publications = ParkedPublications(self._parts, peer, self._node)
        patterns, undelivered = self._parts.take_over(peer, publications)
        self._parked[secret] = Parked(secret, peer.identity_key, patterns, publications)
        for message in undelivered:
            publications.add(self._node.own, message)

    async def handed_over(self, until: float) -> None:
        """Wait until all clients are handed over, or until no claim arrives for `Cluster.handover` seconds. Drops the rest."""
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
            self._drop_all()

    def _give_up(self, parked: Parked) -> None:
        self._parked.pop(parked.secret, None)
        for pattern in parked.patterns:
            self._parts.pubsub.local.remove(pattern, parked.publications)
            self._parts.pubsub.announcer.remove_behind(pattern)
        parked.publications.clear()

    def clear(self) -> None:
        self.takeover.clear()
        self._drop_all()

    def _drop_all(self) -> None:
        for mark in list(self._claims):
            self._end(mark)
        for parked in list(self._parked.values()):
            self._give_up(parked)

    def answer(self, message: Message) -> bool:
        """Handle a message from another node. Returns False if its subject is not used for handovers."""
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
            pass  # a notification needs no answer
        elif what == "claim":
            self._claim(message, body)
        elif what == "hand_over":
            self._answer_handing(message, body)
        else:
            self._give_mark(message, facts.get("mark"), facts.get("for"))
        return True

    def _give_mark(self, message: Message, mark: Any, to: Any) -> None:
        """Send this node's mark to the draining node, then to the requesting node as the answer."""
        own = self._node.own
        if not isinstance(mark, str) or not isinstance(to, str) or (to != own and to not in self._node.nodes_known):
            self._parts.refuse(message, Code.INVALID_ARGUMENT, "a mark requires a name and a known node")
            return
        if to == own:
            self._mark(mark, own)
        else:
            self.takeover.give_mark(mark, to)
        self._parts.answer(message, True)

    def _claim(self, message: Message, body: Any) -> None:
        try:
            asked = msgspec.convert(body, ClaimRequest)
        except msgspec.ValidationError:
            asked = ClaimRequest("", "", [])
        names = {client.name for client in asked.clients}
        if asked.node not in self._node.nodes_known or asked.mark in self._claims or len(names) < len(asked.clients):
            why = "a claim requires a known node, a new mark, and a different name for each client"
            self._parts.refuse(message, Code.INVALID_ARGUMENT, why)
            return
        claim = Claim(asked.node, {})
        for client in asked.clients:
            parked = self._parked.get(client.token)
            if parked is None:
                continue
            if parked.key != client.user:
                text = "node %s claims a client of this one for another user: %.100r, not %.100r"
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
        """Record a node's mark. The node's later publications are no longer stored for the clients of the claim."""
        claim = self._claims.get(mark) if isinstance(mark, str) else None
        if claim is not None and isinstance(node, str) and (node == self._node.own or node in self._node.nodes_known):
            claim.cut.add(node)

    def _answer_handing(self, message: Message, mark: Any) -> None:
        claim = self._claims.get(mark) if isinstance(mark, str) else None
        if claim is None:
            self._parts.refuse(message, Code.NOT_FOUND, "no claim has this mark")
            return
        self._parts.services.running.spawn(self._hand_over, claim, mark, message)

    async def _hand_over(self, claim: Claim, mark: str, message: Message) -> None:
        count, deadline = 0, self._parts.services.running.time() + HANDING
        with anyio.move_on_after(HANDING):  # the claiming node does not wait longer
            while waiting := {name: one.publications for name, one in claim.clients.items() if len(one.publications)}:
                first = min((queue.oldest for queue in waiting.values()), key=itemgetter(0))[1]
                told = {name: queue.take() for name, queue in waiting.items() if queue.oldest[1] is first}
                if len(told) == len(claim.clients):  # send a publication for all clients only once
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
            self._parts.pubsub.publisher.unsent(publication, cluster, "handed over", error)

    def _end(self, mark: str) -> None:
        claim = self._claims.pop(mark, None)
        if claim is not None:
            for parked in claim.clients.values():
                self._give_up(parked)
            self._parts.services.signal()

    def node_left(self, node: str) -> None:
        for mark in [mark for mark, claim in self._claims.items() if claim.node == node]:
            self._end(mark)
