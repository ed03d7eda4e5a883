"""Hands the clients of a draining node over to other nodes without losing or repeating a publication.

The draining node stores the publications for its clients until they have reconnected. The node that such a client connects to
also stores them at first. Once the engine knows the client's subscriptions on that node, it claims the client from the draining
node and asks every node to send both of them a *mark* among its publications. The draining node hands over what each node
published before its mark, and the new node sends the rest. Because the engine preserves the order of publications on each
connection, none is lost or delivered twice.

Publications can be lost in two cases. A program that is not a node sends no mark, so its publications are lost between the end
of the handover and the moment at which the new node learns of that end. A node that joins during a handover may lose what it
publishes at that moment.

One claim and one mark cover all clients that have arrived from the same node since the last claim.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import anyio
import anyio.lowlevel
import msgspec
from attrs import define, field

from ..body import JSON
from ..errors import BusError, Code
from ..events import PeerSlow
from ..message import Kind, Message
from ..plugins import ToClient, ToNode
from ..plugins.extensions import Extension
from ..plugins.tools import sources

if TYPE_CHECKING:
    from ..integrations import BusParts, PeerCore
    from ..plugins import Reservation
    from .backbone import Backbone

logger: logging.Logger = logging.getLogger("polybus.cluster")

HANDING: Final = 20.0  # Maximum duration of a handover, in seconds
AT_ONCE: Final = 256  # Maximum number of clients per claim, and of publications handed over before yielding to other tasks
PATIENCE: Final = 2.0
"""Seconds to wait for a client's subscriptions, and for a node's mark. A mark that does not arrive in time counts as sent."""
_HELLO: Final = 1.0  # Seconds to wait for the hello of a new client
_POLICY: Final = "drop_oldest"
_EVERYTHING: Final = (">", "/>")  # Patterns that match all subjects
_LONGEST: Final = 64  # Maximum length of each of the two parts of a token
_SECRET: Final = 16  # Number of random bytes in a token

_Entry: TypeAlias = tuple[str, Message, int, int]  # Publishing node, publication, size in bytes, and sequence number


@define(eq=False)
class ParkedPublications:
    """A queue of publications for a client that cannot receive them yet. Implements `plugins.extensions.PublicationQueue`.

    The queue is bounded in messages and bytes like an outbox, and its memory is charged to the client's address. When it is
    full, it drops the oldest publication.
    """

    _parts: BusParts
    peer: PeerCore
    _node: Backbone
    cut: set[str] = field(factory=set, init=False)
    """The queue accepts no more publications from these nodes. Several queues may share this set."""
    patterns: Sequence[str | int] = field(default=(), init=False)
    """Subscriptions of a client that this node hands over."""
    dropped: int = field(default=0, init=False)
    _waiting: deque[_Entry] = field(factory=deque, init=False)
    _bytes: int = field(default=0, init=False)
    _reservation: Reservation | None = field(default=None, init=False)

    queue: int = field(default=0, init=False)
    pattern: str | int = field(default=">", init=False)
    group: str | None = field(default=None, init=False)
    local = peers = True
    leads_on = full = False

    def __attrs_post_init__(self) -> None:
        self.queue = self._parts.services.limits.outbox

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def oldest(self) -> tuple[int, Message]:
        """Number and content of the oldest publication. All queues that accepted a publication share the same object."""
        _, message, _, number = self._waiting[0]
        return number, message

    async def room(self, deadline: float) -> bool:
        return True  # because it drops the oldest publication

    def offer(self, message: Message) -> None:
        """Accept a publication from this node. For publications from other nodes, call `keep`."""
        if self._parts.is_of_this_bus(message):
            self.keep(self._node.own, message)

    def keep(self, source: str, message: Message) -> None:
        if source not in self.cut:
            self.add(source, message)

    offer_shared = offer
    """Same as `offer`. Copying would hide that queues share a publication, and is not needed because they never change it."""

    def add(self, source: str, message: Message) -> None:
        if message.raw is None and message.has_body:
            try:
                message.encoded(self.peer.link.adapter.codec(self._parts.services.limits).formats)
            except BusError as error:
                self._parts.pubsub.publisher.unsent(message, self.peer, "kept", error)
                return
        size = self._parts.weigh(message)
        while not self._hold(size):
            self._drop()
            if self.take() is None:
                return
        self._waiting.append((source, message, size, next(self._node.numbers)))

    def _hold(self, size: int) -> bool:
        """Reserve memory for a publication. Returns False if the queue is full. One alone may exceed `Limits.outbox_bytes`."""
        most = self._parts.services.limits.outbox_bytes
        if self._waiting and (len(self._waiting) >= self.queue or self._bytes + size > most):
            return False
        reservation = self._reservation or self._parts.services.running.reserve(self.peer.address)
        if not reservation.hold(size):
            if self._reservation is None:
                reservation.release()
            return False
        self._reservation, self._bytes = reservation, self._bytes + size
        return True

    def _give_back(self, size: int) -> None:
        self._bytes -= size
        if self._reservation is not None:
            if self._waiting:
                self._reservation.give_back(size)
            else:
                self._reservation.release()
                self._reservation = None

    def _drop(self) -> None:
        self.dropped += 1
        services = self._parts.services
        services.counters.dropped += 1
        if self.dropped == 1:
            services.emit(PeerSlow(peer=self.peer.public, policy=_POLICY, dropped=1))

    def take(self) -> Message | None:
        if not self._waiting:
            return None
        _, message, size, _ = self._waiting.popleft()
        self._give_back(size)
        return message

    def drop_unless(self, wanted: Callable[[str], bool]) -> None:
        before = self._waiting
        self._waiting = deque(entry for entry in before if wanted(entry[0]))
        if gone := sum(size for source, _, size, _ in before if not wanted(source)):
            self._give_back(gone)

    def clear(self) -> None:
        while self.take() is not None:
            pass


@define(eq=False)
class Returning:
    name: str  # Name by which the other node refers to this client when it hands over publications
    secret: str
    held: ParkedPublications
    since: float
    ready: bool = False  # True once the client has sent its subscriptions

    @property
    def peer(self) -> PeerCore:
        return self.held.peer


@define(eq=False)
class Splice:
    """Clients that this node claims together from another node."""

    mark: str
    node: str  # The node that the clients came from
    clients: list[Returning]
    marking: bool = False  # True while this node requests marks, including from nodes that join in the meantime
    marked: set[str] = field(factory=set)  # Nodes that have sent their mark or count as having sent it
    replies: list[Awaitable[Any]] = field(factory=list)


@define(eq=False)
class ClientTakeover:
    """Takes over clients that have reconnected to this node, with the publications that other nodes stored for them."""

    _parts: BusParts
    _node: Backbone
    _newcomers: dict[PeerCore, ParkedPublications] = field(factory=dict, init=False)
    """Clients that have not sent a hello. Their protocol has no subscriptions, so that they receive every publication."""
    _clients: dict[PeerCore, Returning] = field(factory=dict, init=False)
    _names: dict[str, Returning] = field(factory=dict, init=False)
    _coming: dict[str, dict[Returning, None]] = field(factory=dict, init=False)
    """Clients that have not been claimed yet, by the bus that they came from."""
    _splices: dict[str, Splice] = field(factory=dict, init=False)
    """Splices by mark. The other node uses the mark as the name of all clients of a splice together."""

    @property
    def busy(self) -> bool:
        return bool(self._clients)

    def came(self, peer: PeerCore) -> None:
        """Delay all publications to a new client without subscriptions, because another node may hand over the same ones."""
        if peer.link.multiplexed is not None or not self._parts.withhold(peer):
            return
        held = self._newcomers[peer] = ParkedPublications(self._parts, peer, self._node)
        for pattern in _EVERYTHING:
            self._parts.pubsub.local.add(pattern, held)
        peer.spawn(self._wait_for_hello, peer)

    async def _wait_for_hello(self, peer: PeerCore) -> None:
        await anyio.sleep(_HELLO)
        self.speaks(peer)

    def speaks(self, peer: PeerCore) -> None:
        if (held := self._taken(peer)) is not None:
            self._parts.pubsub.recipients.send_all(peer)
            while (message := held.take()) is not None:
                self._send(peer, message)

    def _taken(self, peer: PeerCore) -> ParkedPublications | None:
        held = self._newcomers.pop(peer, None)
        if held is not None:
            for pattern in _EVERYTHING:
                self._parts.pubsub.local.remove(pattern, held)
        return held

    def returns(self, peer: PeerCore, token: str) -> None:
        runtime = self._parts.services.running
        bus, _, secret = token.partition(".")
        if not (0 < len(bus) <= _LONGEST and 0 < len(secret) <= _LONGEST):
            text = "%r sent %.100r, which is not a node's token: it goes on without a handover"
            runtime.warnings.warn(logger, text, peer, token)
            return
        if peer in self._clients or peer.link.multiplexed is not None or self._node.node_of(bus) is None:
            return  # if that node is gone, so are the publications that it kept
        held = self._taken(peer)
        if held is None:
            held = ParkedPublications(self._parts, peer, self._node)
        returning = Returning(sources.get().urandom(8).hex(), secret, held, runtime.time())
        self._clients[peer] = self._names[returning.name] = returning
        self._parts.queue_for(peer, held)
        if (coming := self._coming.get(bus)) is None:
            coming = self._coming[bus] = {}
            runtime.spawn(self._take_over, bus, coming)
        coming[returning] = None

    def returned(self, peer: PeerCore) -> None:
        if (returning := self._clients.get(peer)) is not None:
            returning.ready = True
            self._parts.services.signal()

    def forget(self, peer: PeerCore) -> None:
        if (held := self._taken(peer)) is not None:
            held.clear()
        if (returning := self._clients.pop(peer, None)) is not None:
            del self._names[returning.name]
            for coming in self._coming.values():
                coming.pop(returning, None)
            returning.held.clear()
            self._parts.services.signal()

    def clear(self) -> None:
        for peer in [*self._clients, *self._newcomers]:
            self.forget(peer)

    async def _take_over(self, bus: str, coming: dict[Returning, None]) -> None:
        try:
            while coming:
                ready = [returning for returning in coming if returning.ready][:AT_ONCE]
                if ready:
                    for returning in ready:
                        del coming[returning]
                    await self._join(bus, ready)
                else:
                    await self._wait(coming)
        finally:
            del self._coming[bus]
            for returning in list(coming):
                self._let_go(returning)

    async def _wait(self, coming: dict[Returning, None]) -> None:
        """Wait until a client has sent its subscriptions. After `PATIENCE`, give up on the client that has waited longest."""
        oldest = next(iter(coming))
        with anyio.move_on_at(oldest.since + PATIENCE) as scope:
            await self._parts.services.running.notifier.until(lambda: not coming or any(one.ready for one in coming))
        if scope.cancelled_caught and not oldest.ready:
            coming.pop(oldest, None)
            self._let_go(oldest)

    async def _join(self, bus: str, clients: list[Returning]) -> None:
        """Let the other node hand over what was published before the marks, then send the publications delayed here."""
        splice = Splice(sources.get().urandom(8).hex(), self._node.node_of(bus) or "", clients)
        self._splices[splice.mark] = splice
        joined = False
        try:
            with anyio.move_on_after(PATIENCE):  # this node must receive what is published after the marks
                await self._parts.pubsub.announcer.known_inside()
            if await self._claim(splice):
                await self._mark(splice)
                joined = await self._parts.ask_inside(ToNode(splice.node), "hand_over", splice.mark, HANDING) is True
        except BusError as error:
            logger.info("node %s hands over none of the %d clients that come from it: %s", splice.node, len(clients), error)
        finally:
            del self._splices[splice.mark]
            for returning in splice.clients:
                if joined:  # otherwise the other node does not hand over more
                    returning.held.drop_unless(splice.marked.__contains__)
                self._let_go(returning)

    async def _claim(self, splice: Splice) -> bool:
        """Claim clients, and release clients that the other node does not know. Returns False if no client remains."""
        # Recordings redact the "token" field.
        clients = [{"token": one.secret, "user": one.peer.identity_key, "name": one.name} for one in splice.clients]
        body = {"mark": splice.mark, "node": self._node.own, "clients": clients}
        given = await self._parts.ask_inside(ToNode(splice.node), "claim", body, PATIENCE)
        names = {name for name in given if isinstance(name, str)} if isinstance(given, list) else set[str]()
        for returning in splice.clients:
            if returning.name not in names:
                text = "%r has a token for which node %s keeps no publications"
                self._parts.services.running.warnings.warn(logger, text, returning.peer, splice.node, level=logging.INFO)
                self._let_go(returning)
        splice.clients = [returning for returning in splice.clients if returning.name in names]
        return bool(splice.clients)

    async def _mark(self, splice: Splice) -> None:
        splice.marking = True
        self.give_mark(splice.mark, splice.node)
        self._marked(splice, self._node.own)
        for node in list(self._node.nodes_known):
            self._ask_for_mark(splice, node)
        for reply in splice.replies:  # grows while nodes join
            with suppress(BusError):
                await reply
        splice.marking = False

    def give_mark(self, mark: str, to: str) -> None:
        self._parts.tell_inside(ToNode(to), "marked", JSON.encode({"mark": mark, "node": self._node.own}))

    def _ask_for_mark(self, splice: Splice, node: str) -> None:
        """Request a mark from a node. The mark is the position of the node's answer among its publications.

        If the node is gone or does not answer in time, the mark counts as sent.
        """
        question, marked = {"mark": splice.mark, "for": splice.node}, partial(self._marked, splice, node)
        splice.replies.append(self._parts.ask_inside(ToNode(node), "mark", question, PATIENCE, marked))

    @staticmethod
    def _marked(splice: Splice, node: str) -> None:
        """Drop publications that a node sent before its mark, because the draining node hands them over."""
        if node not in splice.marked:
            splice.marked.add(node)
            for returning in splice.clients:
                returning.held.drop_unless(lambda source: source != node)

    def node_joined(self, node: str) -> None:
        for splice in self._splices.values():
            if splice.marking:
                self._ask_for_mark(splice, node)

    def handed_over(self, name: str, message: Message) -> bool:
        """Send a publication from another node to a client, or to all clients of a splice. Returns False if it finds none."""
        splice, returning = self._splices.get(name), self._names.get(name)
        if splice is not None:
            clients = [client for client in splice.clients if client.name in self._names]
        elif returning is not None:
            clients = [returning]
        else:
            return False
        if message.ttl is not None:
            message.expires = self._parts.services.running.time() + message.ttl
        wanted = set(self._parts.pubsub.local.match(message.subject))
        for client in clients:
            if client.held in wanted:
                self._send(client.peer, message)
            else:  # this node refused the subscription
                self._parts.services.counters.refused += 1
        message.forget_shared()
        return True

    def _let_go(self, returning: Returning) -> None:
        """Send a client its delayed publications. Later publications go to the client directly."""
        if self._clients.pop(returning.peer, None) is None:
            return
        del self._names[returning.name]
        while (message := returning.held.take()) is not None:
            # The subscription may have been refused since.
            if returning.held in self._parts.pubsub.local.match(message.subject):
                self._send(returning.peer, message)
        self._parts.queue_for(returning.peer, None)
        self._parts.services.signal()

    def _send(self, peer: PeerCore, message: Message) -> None:
        if message.extras:  # extras only apply to the connection that they arrived on
            message, given = Message(Kind.PUBLISH, message.subject, None, message.raw, message.format, message.headers), message
            message.peer, message.expires, message.checked = given.peer, given.expires, given.checked
        self._parts.send(message, peer)


class ClientClaim(msgspec.Struct):
    token: str
    name: str
    user: str | None = None


class ClaimRequest(msgspec.Struct):
    mark: str
    node: str
    clients: Annotated[list[ClientClaim], msgspec.Meta(max_length=AT_ONCE)]


@define(eq=False)
class Claim:
    node: str
    clients: dict[str, ParkedPublications]  # By the names that the claiming node gave the clients
    cut: set[str] = field(factory=set)
    """Nodes that have sent their mark. The claiming node delivers what they publish afterwards."""


@define(eq=False)
class ClientHandover(Extension):
    """Hands clients over to other nodes while this node is draining. Implements `plugins.extensions.Resumption`.

    Only the same user can claim the publications of a client.
    """

    _parts: BusParts
    _node: Backbone
    _seconds: float
    takeover: ClientTakeover = field(init=False)
    _secrets: dict[PeerCore, str] = field(factory=dict, init=False)
    _parked: dict[str, ParkedPublications] = field(factory=dict, init=False)
    """Publications of disconnected clients without a claim, by secret."""
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

    def client_up(self, peer: PeerCore) -> None:
        if self._seconds:
            self.takeover.came(peer)

    def client_gone(self, peer: PeerCore) -> None:
        self.takeover.forget(peer)
        self._secrets.pop(peer, None)

    def last_turn(self) -> None:
        """From now on, store publications for subscribed clients instead of sending them."""
        if not self._node.nodes_known:
            return
        for peer, secret in list(self._secrets.items()):
            if peer.patterns and peer.connected:
                parked = self._parked[secret] = ParkedPublications(self._parts, peer, self._node)
                parked.patterns, undelivered = self._parts.take_over(peer, parked)
                for message in undelivered:
                    parked.add(self._node.own, message)

    async def finish(self, until: float) -> None:
        """Wait until all clients are handed over, or until no claim arrives for `Cluster.handover` seconds. Drops the rest."""
        signalled = self._parts.services.running.notifier.until
        try:
            while count := len(self._parked):
                with anyio.move_on_at(min(until, anyio.current_time() + self._seconds)) as scope:
                    await signalled(lambda: len(self._parked) < count)
                if scope.cancelled_caught:
                    break
            self._drop_unclaimed()
            with anyio.move_on_at(min(until, anyio.current_time() + HANDING)):
                await signalled(lambda: not self._claims)
        finally:
            self._drop_all()

    def clear(self) -> None:
        self.takeover.clear()
        self._drop_all()

    def _drop_all(self) -> None:
        for mark in list(self._claims):
            self._end(mark)
        self._drop_unclaimed()

    def _drop_unclaimed(self) -> None:
        while self._parked:
            self._drop(self._parked.popitem()[1])

    def _drop(self, parked: ParkedPublications) -> None:
        for pattern in parked.patterns:
            self._parts.pubsub.local.remove(pattern, parked)
            self._parts.pubsub.announcer.remove_behind(pattern)
        parked.clear()

    def answer(self, message: Message, body: Any) -> bool:
        """Handle a message from another node. Returns False if it has nothing to do with handovers."""
        match message.kind, message.subject, body:
            case Kind.NOTIFY, "marked", {"mark": str(mark), "node": str(node)}:
                self._marked(mark, node)
            case Kind.REQUEST, "mark", {"mark": str(mark), "for": str(to)} if self._is_node(to):
                self._give_mark(message, mark, to)
            case Kind.REQUEST, "mark", _:
                self._parts.refuse(message, Code.INVALID_ARGUMENT, "a mark requires a name and a known node")
            case Kind.REQUEST, "claim", _:
                self._claim(message, body)
            case Kind.REQUEST, "hand_over", str(mark) if mark in self._claims:
                self._parts.services.running.spawn(self._hand_over, self._claims[mark], mark, message)
            case Kind.REQUEST, "hand_over", _:
                self._parts.refuse(message, Code.NOT_FOUND, "no claim has this mark")
            case _:
                return False
        return True

    def _is_node(self, name: str) -> bool:
        return name == self._node.own or name in self._node.nodes_known

    def _give_mark(self, message: Message, mark: str, to: str) -> None:
        """Send this node's mark to the draining node, then to the requesting node as the answer."""
        if to == self._node.own:
            self._marked(mark, to)
        else:
            self.takeover.give_mark(mark, to)
        self._parts.answer(message, True)

    def _marked(self, mark: str, node: str) -> None:
        """Record a node's mark. The node's later publications are no longer stored for the clients of the claim."""
        if mark in self._claims and self._is_node(node):
            self._claims[mark].cut.add(node)

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
            if (key := parked.peer.identity_key) != client.user:
                text = "node %s claims a client of this one for another user: %.100r, not %.100r"
                self._parts.services.running.warnings.warn(logger, text, claim.node, client.user, key)
                continue
            del self._parked[client.token]
            parked.cut = claim.cut
            claim.clients[client.name] = parked
        if claim.clients:
            self._claims[asked.mark] = claim
            self._parts.services.signal()
        self._parts.answer(message, list(claim.clients))

    async def _hand_over(self, claim: Claim, mark: str, message: Message) -> None:
        count, deadline = 0, self._parts.services.running.time() + HANDING
        with anyio.move_on_after(HANDING):  # the claiming node does not wait longer
            while waiting := {name: parked for name, parked in claim.clients.items() if len(parked)}:
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
                self._drop(parked)
            self._parts.services.signal()

    def node_left(self, node: str) -> None:
        for mark in [mark for mark, claim in self._claims.items() if claim.node == node]:
            self._end(mark)
