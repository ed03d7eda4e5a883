"""Clients that come back from a node which has told them goodbye: this one has it hand over what they would miss.

What this node itself would send waits meanwhile. When the engine knows the client's subscriptions here, the client is claimed
at the other node, and every node is asked for a *mark* in the stream of its publications, for both. Of each the other node
hands over what came before its mark, and this one sends what comes behind it: an engine keeps the order of what one connection
publishes, so nothing is missing and nothing comes twice.

What is of no node, since another program has published it, has no mark: what comes between the end of the handing over and the
news of it is lost. So is what a node publishes in that moment which has joined since the others were asked.

One claim and one mark serve all clients that have come from the same node since the last ones were claimed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
from attrs import define, field

from ..body import JSON
from ..errors import BusError
from ..events import PeerSlow
from ..message import Kind, Message
from ..plugins import ToNode
from ..plugins.tools import sources

if TYPE_CHECKING:
    from ..plugins import Reservation
    from ..plugins.parts import BusPeer, BusPort
    from .backbone import Backbone

logger: logging.Logger = logging.getLogger("polybus.cluster")

HANDING: Final = 20.0
"""Seconds for what is kept to be handed over; that ends at once where either node is gone."""
AT_ONCE: Final = 256
"""Clients that are claimed at once, and publications that are handed over in one turn."""
PATIENCE: Final = 2.0
"""Seconds for a client to tell its subscriptions, and for a node to answer. One that does not give its mark in that time counts
as if it had."""
_WORD: Final = 1.0
"""Seconds for a newcomer to say who it is."""
_POLICY: Final = "drop_oldest"
_EVERYTHING: Final = (">", "/>")
"""Patterns of all subjects that a wire without subscriptions carries."""
_LONGEST: Final = 64
"""Characters of either part of a token."""


_Entry: TypeAlias = tuple[str, Message, int, int]
"""The node that a publication is from, the publication, its cost and its number."""


@define(eq=False)
class ParkedPublications:
    """Publications that wait for one client. Implements `plugins.parts.PublicationQueue`.

    Bounded as an outbox is, in messages and bytes, which are charged to the client's address; the oldest go first.
    """

    _parts: BusPort
    peer: BusPeer
    """The client, at whose cost they wait."""
    _node: Backbone
    cut: set[str] = field(factory=set, init=False)
    """Nodes of which nothing more is taken. Of several queues it may be one set."""
    dropped: int = field(default=0, init=False)
    _waiting: deque[_Entry] = field(factory=deque, init=False)
    _bytes: int = field(default=0, init=False)
    _reservation: Reservation | None = field(default=None, init=False)
    """Present while any wait."""

    pattern: str | int = field(default=">", init=False)
    group: str | None = field(default=None, init=False)
    queue: int = field(default=0, init=False)
    local: bool = field(default=True, init=False)
    leads_on: bool = field(default=False, init=False)
    peers: bool = field(default=True, init=False)
    full: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.queue = self._parts.services.limits.outbox

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def oldest(self) -> tuple[int, Message]:
        """The oldest, and its number: of what was offered to several queues each holds the same object."""
        _, message, _, number = self._waiting[0]
        return number, message

    async def room(self, deadline: float) -> bool:
        """Tell that there is room: the oldest makes it."""
        return True

    def offer(self, message: Message) -> None:
        """Take a publication of this node. What comes over the cluster is `keep` told, with the node that it is from."""
        if self._parts.is_of_this_bus(message):
            self.keep(self._node.own, message)

    def keep(self, source: str, message: Message) -> None:
        """Take a publication, unless it is of a node of which nothing more is taken."""
        if source not in self.cut:
            self.add(source, message)

    offer_shared = offer
    """Nothing is changed here, and copies would not be known to be one publication."""

    def add(self, source: str, message: Message) -> None:
        """Take a publication of a node; the oldest goes where there is no room."""
        if message.raw is None and message.has_body:
            try:
                message.encoded(self.peer.link.adapter.codec(self._parts.services.limits).formats)
            except BusError as error:
                self._parts.unsent(message, self.peer, "kept", error)
                return
        size = self._parts.weigh(message)
        while not self._hold(size):
            self._drop()
            if self.take() is None:
                return
        self._waiting.append((source, message, size, next(self._node.numbers)))

    def _hold(self, size: int) -> bool:
        """Charge the client for one more. One alone may be of any size, as far as the total allows."""
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
        """Remove and return the oldest; None where there is none."""
        if not self._waiting:
            return None
        _, message, size, _ = self._waiting.popleft()
        self._give_back(size)
        return message

    def drop_unless(self, wanted: Callable[[str], bool]) -> None:
        """Remove all that is of other nodes than those wanted."""
        before = self._waiting
        self._waiting = deque(entry for entry in before if wanted(entry[0]))
        if gone := sum(size for source, _, size, _ in before if not wanted(source)):
            self._give_back(gone)

    def clear(self) -> None:
        """Remove all."""
        while self.take() is not None:
            pass


@define(eq=False)
class Returning:
    """A client that has come back to this node."""

    peer: BusPeer
    name: str
    """The name under which the other node hands over publications for it."""
    secret: str
    held: ParkedPublications
    since: float
    ready: bool = False
    """True when it has told its subscriptions."""


@define(eq=False)
class Splice:
    """The joining of what another node hands over and what this one holds, for clients that have come back together."""

    mark: str
    node: str
    """The node where they were."""
    clients: list[Returning]
    marking: bool = False
    """True while marks are asked for: of nodes that join, too."""
    marked: set[str] = field(factory=set)
    """Nodes that have given their mark, or count as if they had."""
    replies: list[Awaitable[Any]] = field(factory=list)


@define(eq=False)
class Arrivals:
    """The clients that have come back to this node, until they have what was kept for them."""

    _parts: BusPort
    _node: Backbone
    _newcomers: dict[BusPeer, ParkedPublications] = field(factory=dict, init=False)
    """Clients that would be sent everything, on a wire without subscriptions, and have not said yet whether they come back."""
    _clients: dict[BusPeer, Returning] = field(factory=dict, init=False)
    _names: dict[str, Returning] = field(factory=dict, init=False)
    _coming: dict[str, dict[Returning, None]] = field(factory=dict, init=False)
    """Clients that wait for their turn, by the buses where they were."""
    _splices: dict[str, Splice] = field(factory=dict, init=False)
    """By their marks, under which the other node hands over what is for all clients of one."""

    @property
    def busy(self) -> bool:
        """Tells whether there are any."""
        return len(self._clients) > 0

    # -- newcomers on wires without subscriptions --------------------------------------------------------------------------

    def came(self, peer: BusPeer) -> None:
        """Hold what a newcomer would be sent, which is everything: it may come back, and then be handed the same."""
        if peer.link.multiplexed is not None or not self._parts.withhold(peer):
            return
        held = self._newcomers[peer] = ParkedPublications(self._parts, peer, self._node)
        for pattern in _EVERYTHING:
            self._parts.add_queue(pattern, held)
        peer.spawn(self._wait_for_word, peer)

    async def _wait_for_word(self, peer: BusPeer) -> None:
        """Wait as long as any peer has to say who it is."""
        await anyio.sleep(_WORD)
        self.speaks(peer)

    def speaks(self, peer: BusPeer) -> None:
        """Send a newcomer what was held: it does not come back from another node."""
        held = self._taken(peer)
        if held is not None:
            self._parts.send_all(peer)
            while (message := held.take()) is not None:
                self._send(peer, message)

    def _taken(self, peer: BusPeer) -> ParkedPublications | None:
        held = self._newcomers.pop(peer, None)
        if held is not None:
            for pattern in _EVERYTHING:
                self._parts.remove_queue(pattern, held)
        return held

    # -- what clients say --------------------------------------------------------------------------------------------------

    def returns(self, peer: BusPeer, token: str) -> None:
        """Hold what a client will subscribe to: it shows the token of a node where publications are kept for it."""
        runtime = self._parts.services.running
        bus, _, secret = token.partition(".")
        if not (0 < len(bus) <= _LONGEST and 0 < len(secret) <= _LONGEST):
            runtime.warnings.warn(logger, "%r shows %.100r, which is no token of a node; it goes on without", peer, token)
            return
        if peer in self._clients or peer.link.multiplexed is not None or self._node.node_of(bus) is None:
            return  # that node is gone, and with it what it kept
        held = self._taken(peer)
        if held is None:
            held = ParkedPublications(self._parts, peer, self._node)
        returning = Returning(peer, sources.get().urandom(8).hex(), secret, held, runtime.time())
        self._clients[peer] = self._names[returning.name] = returning
        self._parts.queue_for(peer, held)
        coming = self._coming.get(bus)
        if coming is None:
            coming = self._coming[bus] = {}
            runtime.spawn(self._take_over, bus, coming)
        coming[returning] = None

    def returned(self, peer: BusPeer) -> None:
        """Take note that a client has told all its subscriptions."""
        returning = self._clients.get(peer)
        if returning is not None:
            returning.ready = True
            self._parts.services.signal()

    def forget(self, peer: BusPeer) -> None:
        """Forget a client whose connection is gone."""
        held = self._taken(peer)
        if held is not None:
            held.clear()
        returning = self._clients.pop(peer, None)
        if returning is not None:
            del self._names[returning.name]
            for coming in self._coming.values():
                coming.pop(returning, None)
            returning.held.clear()
            self._parts.services.signal()

    def clear(self) -> None:
        """Forget all: the bus has been left."""
        for peer in [*self._clients, *self._newcomers]:
            self.forget(peer)

    # -- taking over -------------------------------------------------------------------------------------------------------

    async def _take_over(self, bus: str, coming: dict[Returning, None]) -> None:
        """Take over the clients that come from one bus, as many at once as there are."""
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
        """Wait until one has told its subscriptions. Who does not do that is not waited for."""
        oldest = next(iter(coming))
        with anyio.move_on_at(oldest.since + PATIENCE) as scope:
            await self._parts.services.running.notifier.until(lambda: not coming or any(one.ready for one in coming))
        if scope.cancelled_caught and not oldest.ready:
            coming.pop(oldest, None)
            self._let_go(oldest)

    async def _join(self, bus: str, clients: list[Returning]) -> None:
        """Have the other node hand over what it has kept, up to the marks; then send what was held here."""
        splice = Splice(sources.get().urandom(8).hex(), self._node.node_of(bus) or "", clients)
        self._splices[splice.mark] = splice
        joined = False
        try:
            with anyio.move_on_after(PATIENCE):  # so that what follows the marks comes here
                await self._parts.interest_known()
            if await self._claim(splice):
                await self._mark(splice)
                joined = await self._ask(splice.node, "hand_over", splice.mark, HANDING) is True
        except BusError as error:
            logger.info("node %s hands over none of the %d clients that come from it: %s", splice.node, len(clients), error)
        finally:
            del self._splices[splice.mark]
            for returning in splice.clients:
                if joined:  # of others the other node has handed over what came until now
                    returning.held.drop_unless(splice.marked.__contains__)
                self._let_go(returning)

    async def _ask(self, node: str, what: str, body: Any, seconds: float = PATIENCE) -> Any:
        """May raise `BusError`."""
        return await self._parts.ask_inside(ToNode(node), what, body, seconds)

    async def _claim(self, splice: Splice) -> bool:
        """Claim the clients. Those that the other node does not give have what was held for them. False if it gives none."""
        # Named so that recordings leave it out.
        clients = [{"token": one.secret, "user": one.peer.identity_key, "name": one.name} for one in splice.clients]
        body = {"mark": splice.mark, "node": self._node.own, "clients": clients}
        given = await self._ask(splice.node, "claim", body)
        names = {name for name in given if isinstance(name, str)} if isinstance(given, list) else set[str]()
        for returning in splice.clients:
            if returning.name not in names:
                text = "%r shows a token for which node %s keeps nothing"
                self._parts.services.running.warnings.warn(logger, text, returning.peer, splice.node, level=logging.INFO)
                self._let_go(returning)
        splice.clients = [returning for returning in splice.clients if returning.name in names]
        return len(splice.clients) > 0

    async def _mark(self, splice: Splice) -> None:
        """Ask every node for its mark, and wait until all have given it, or are gone."""
        splice.marking = True
        self.give_mark(splice.mark, splice.node)
        self._marked(splice, self._node.own)
        for node in list(self._node.nodes_known):
            self._ask_for_mark(splice, node)
        for reply in splice.replies:  # more while this goes on, of nodes that join
            with suppress(BusError):
                await reply
        splice.marking = False

    def give_mark(self, mark: str, to: str) -> None:
        """Say to the node that hands clients over: of this node only what it has published so far is its affair."""
        self._parts.tell_inside(ToNode(to), "marked", JSON.encode({"mark": mark, "node": self._node.own}))

    def _ask_for_mark(self, splice: Splice, node: str) -> None:
        """Ask a node for its mark, which is where the answer comes among its publications.

        A node that is gone, or does not answer in time, counts as if it had given its mark then.
        """
        question, marked = {"mark": splice.mark, "for": splice.node}, partial(self._marked, splice, node)
        splice.replies.append(self._parts.ask_inside(ToNode(node), "mark", question, PATIENCE, marked))

    @staticmethod
    def _marked(splice: Splice, node: str) -> None:
        """Forget what has come from a node before its mark: the other node hands it over."""
        if node not in splice.marked:
            splice.marked.add(node)
            for returning in splice.clients:
                returning.held.drop_unless(lambda source: source != node)

    def node_joined(self, node: str) -> None:
        """Ask a node that has come for its mark too, where others are being asked."""
        for splice in self._splices.values():
            if splice.marking:
                self._ask_for_mark(splice, node)

    def handed_over(self, name: str, message: Message) -> bool:
        """Send a publication that another node has kept for a client, or for all of a splice; False where it is for none."""
        splice, returning = self._splices.get(name), self._names.get(name)
        if splice is not None:
            clients = [client for client in splice.clients if client.name in self._names]
        elif returning is not None:
            clients = [returning]
        else:
            return False
        if message.ttl is not None:
            message.expires = self._parts.services.running.time() + message.ttl
        wanted = set(self._parts.queues(message.subject))
        for client in clients:
            if client.held in wanted:
                self._send(client.peer, message)
            else:  # it was not allowed here what it was there
                self._parts.services.counters.refused += 1
        message.forget_shared()
        return True

    def _let_go(self, returning: Returning) -> None:
        """Send what was held for a client; from now on publications are sent to it as to others."""
        if self._clients.pop(returning.peer, None) is None:
            return
        del self._names[returning.name]
        while (message := returning.held.take()) is not None:
            if returning.held in self._parts.queues(message.subject):  # it was held before that was known, perhaps
                self._send(returning.peer, message)
        self._parts.queue_for(returning.peer, None)
        self._parts.services.signal()

    def _send(self, peer: BusPeer, message: Message) -> None:
        if message.extras:  # what only the wire knows on which it came
            message, given = Message(Kind.PUBLISH, message.subject, None, message.raw, message.format, message.headers), message
            message.peer, message.expires, message.checked = given.peer, given.expires, given.checked
        self._parts.send(message, peer)
