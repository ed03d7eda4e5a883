"""Sends publications to queues in this process and to peers."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
import anyio.lowlevel
from attrs import define, field
from msgspec import Struct

from ..._util.logs import log_fields
from ..._util.pattern_index import SubjectIndex
from ...body import JSON
from ...errors import BusError, LocalProtocolError, QueueFull
from ...headers import VIA
from ...message import Kind, Message
from ..peer.authorization_queue import OutboundAuthorization
from ..rpc.loopback import encode_local
from ..runtime.loop_prevention import ViaHeader
from ..runtime.outgoing_hooks import Departure, depart, read_alone
from .recipients import bare_peer

if TYPE_CHECKING:
    from ...body import BodyFormat
    from ...plugins import ProtocolAdapter
    from ...plugins.extensions import Keeper, PublicationQueue
    from ..link.link import Link
    from ..link.send_queue import WaitingMessage
    from ..peer.peer_core import PeerCore
    from ..runtime.loop_prevention import Deduplicator
    from ..runtime.services import Services
    from .recipients import Recipients

logger: logging.Logger = logging.getLogger("polybus")

ROUTES = 4096
OF_PEERS: Final = "of peers"
"""Key in `Message.shared` that marks bridged messages that a peer published."""
Choose: TypeAlias = "Callable[[Any, str | int], BodyFormat]"
_TURNS = 4
"""Number of event-loop iterations after which all links that can write have written."""
YIELD_AFTER = 256
"""Number of sends after which a publisher yields to the event loop."""


def own_format(peers: tuple[PeerCore, ...]) -> Choose | None:
    """Return `format_for` if all peers use the same one, because it may support values that JSON does not."""
    ways = {peer.link.format_for for peer in peers}
    return ways.pop() if len(ways) == 1 else None


@define(eq=False, repr=False, weakref_slot=False)
class Targets:
    peers: tuple[PeerCore, ...]
    queues: tuple[PublicationQueue, ...] = ()
    two_ways: bool = False
    """True if a publication may reach a bus twice or come back."""
    twice: tuple[tuple[PeerCore, ...], ...] = ()
    """Groups of peers that belong to the same bus."""


class Unsent(Struct):
    """Targets that have not received a publication, because they had no room, must be asked first, or failed."""

    message: Message
    targets: Targets
    deadline: float
    queues: list[PublicationQueue] = []
    peers: list[PeerCore] = []
    unconfirmed: list[PeerCore] = []
    """Peers that may not support publications."""
    undecided: list[tuple[OutboundAuthorization, WaitingMessage]] = []
    """Entries that are waiting for an asynchronous `authorize`."""
    catching_up: list[Link] = []
    """Links that have just become slow."""
    failed: list[tuple[PeerCore, BusError]] = []

    def raise_errors(self, text: str) -> None:
        full = [f"the queue of {queue.pattern!r} ({queue.queue})" for queue in self.queues]
        full += [f"the outbox to {peer.address}" for peer in self.peers]
        if full:
            raise QueueFull(text.format(", ".join(full)))
        if self.failed:
            raise self.failed[0][1]


# Not kw_only as a class: attrs before 25.4 means the inherited fields too.
@define(eq=False, repr=False, weakref_slot=False)
class PublicationRoute(Targets):
    """The targets and the encoding of a subject's publications. Cached until a subscription changes."""

    kept: bool = field(kw_only=True)
    """True if a stream stores the publications, so that publishing has to wait for the stream."""
    only_peer: PeerCore | None = field(kw_only=True)
    """The only target if it is a server that supports publications, for a fast path."""
    choose: Choose | None = field(kw_only=True)
    blank: Message = field(kw_only=True)
    """Empty publication that `LinkFlow.publish_alone` reuses, because the codec encodes it immediately and nothing keeps it."""


def make_publication(
    route: PublicationRoute, subject: str | int, body: Any, headers: dict[str, str] | None, peers: tuple[PeerCore, ...] | None
) -> Message:
    """Encode a publication for all targets of the route or for the given peers. Raises `EncodeError`."""
    if body is None:
        return Message(Kind.PUBLISH, subject, headers=headers or None)
    choose = route.choose if peers is None else own_format(peers)
    body_format = JSON if choose is None else choose(body, subject)
    if body_format is JSON and route.only_peer is None:
        raw, body_format = encode_local(body)
    else:
        raw = body_format.encode(body)
    return Message(Kind.PUBLISH, subject, None, raw, body_format, headers or None, checked=raw)


@define(eq=False, repr=False)
class Publisher:
    _services: Services
    _check_gone: Callable[[], None]
    _local: SubjectIndex[PublicationQueue]
    _relays: SubjectIndex[str | int]
    _recipients: Recipients
    _deduplicator: Deduplicator
    spellings: Callable[[str | int], Mapping[ProtocolAdapter, tuple[str, ...]]]
    """Returns a publication's other names by protocol, for protocols with both names and addresses."""
    routes: dict[str | int, PublicationRoute] = field(factory=dict, init=False)
    client_routes: dict[str | int, tuple[PeerCore, ...]] = field(factory=dict, init=False)
    """Cache of the clients that receive publications from the cluster."""
    since_yield: int = field(default=0, init=False)
    keeps: Callable[[str | int], bool] | None = field(default=None, init=False)
    """Returns True if the cluster stores publications to a subject."""
    in_net: bool = field(default=False, init=False)
    """True once a publication could reach a bus twice or come back. It stays True, because a copy may wait elsewhere."""
    net_joined: Callable[[], None] | None = field(default=None, init=False)
    """Makes the other nodes of the cluster number their publications."""
    _numbering: anyio.Lock | None = field(default=None, init=False)
    """Lock that is held while a numbered publication is sent. Each run of the bus has a new lock."""

    # -- routes ----------------------------------------------------------------------------------------------------------

    def route(self, subject: Any) -> PublicationRoute:
        """Find and cache the targets of a subject. Raises the errors of `Bus.publish`."""
        self._services.running  # noqa: B018  # raises if the bus is not entered
        self._services.subjects.check(subject)
        if len(self.routes) >= ROUTES:
            self.routes.clear()
        recipients = self._recipients
        queues, peers = self._local.match(subject), recipients.of(subject)
        if self._local.addresses or recipients.remote.addresses or "/" in str(subject):
            queues, peers = self._by_all_spellings(subject, queues, peers)
        if not queues and not peers:
            self._check_gone()
        if len(peers) > 1 and (self._relays.size > 0 or len(recipients.upstream) > 1):
            self.in_net = True
        kept, may_return = self.keeps is not None and self.keeps(subject), self._may_return(peers)
        twice = () if may_return else recipients.bus_identities.same(peers)
        only = peers[0] if len(peers) == 1 and not (queues or kept or may_return) else None
        route = self.routes[subject] = PublicationRoute(
            peers,
            queues,
            may_return or len(twice) > 0,
            twice,
            kept=kept,
            only_peer=only if only is not None and only.link.upstream and only not in recipients.unconfirmed else None,
            choose=own_format(peers),
            blank=Message(Kind.PUBLISH, subject),
        )
        return route

    def _may_return(self, peers: Iterable[PeerCore]) -> bool:
        return any(self.in_net or peer.passes_on is None for peer in peers)

    def join_net(self) -> None:
        """Number publications from now on, because this bus or one of its peers forwards publications."""
        if not self.in_net:
            self.in_net = True
            self.routes.clear()
            if self.net_joined is not None:
                self.net_joined()

    def stop(self) -> None:
        self.in_net, self._numbering = False, None

    def targets(self, peers: tuple[PeerCore, ...]) -> Targets:
        return Targets(peers, two_ways=self._may_return(peers))

    def _by_all_spellings(
        self, subject: str | int, queues: tuple[PublicationQueue, ...], peers: tuple[PeerCore, ...]
    ) -> tuple[tuple[PublicationQueue, ...], tuple[PeerCore, ...]]:
        for adapter, spellings in self.spellings(subject).items():
            for one in spellings:
                queues = tuple(dict.fromkeys((*queues, *self._local.match(one))))
                peers = tuple(dict.fromkeys((*peers, *self._recipients.speaking(adapter, one))))
        return queues, peers

    def route_of(self, subject: Any) -> PublicationRoute:
        try:
            route = self.routes.get(subject)
        except TypeError:  # not hashable, so `route` raises an error
            route = None
        return route if route is not None else self.route(subject)

    # -- publishing ------------------------------------------------------------------------------------------------------

    def offer(self, message: Message, targets: Targets, deadline: float, *, ask: bool = True) -> Unsent | None:
        """Send a publication to all targets that have room. Returns the rest, for `finish` or `Unsent.raise_errors`.

        With `ask`, the rest includes peers that may not support publications.
        """
        rest = Unsent(message, targets, deadline)
        alone = len(targets.queues) == 1
        for queue in targets.queues:
            if queue.local:
                if queue.full:
                    rest.queues.append(queue)
                elif alone:
                    queue.offer(message)
                else:
                    queue.offer_shared(message)
        free, unconfirmed = self._services.authorize is None, self._recipients.unconfirmed if ask else None
        shared, turn, at_once, slow = message.shared, self._services.running.turn(), 0, False
        for peer in targets.peers:
            link = peer.link
            if unconfirmed and peer in unconfirmed:
                rest.unconfirmed.append(peer)
                continue
            try:
                if free and link.flowing and (framing := link.framing) is not None:  # the fast path
                    link.send_framed(shared.get(framing) or link.framed(message), turn)  # type: ignore[misc]  # set together with `framing`
                    at_once += 1
                elif free or link.upstream:
                    if not link.publish(message, peer, deadline) and link.upstream:
                        rest.peers.append(peer)  # for clients, the policy of the listener has dropped and counted it
                else:
                    self._offer_if_allowed(rest, peer)
            except BusError as error:  # must not affect other peers
                rest.failed.append((peer, error))
            if not link.flowing:
                slow = True
                if not link.slow:
                    rest.catching_up.append(link)
        self._services.counters.sent += at_once
        self.since_yield += at_once
        if slow:
            message.forget_shared()
        late = rest.queues or rest.peers or rest.unconfirmed or rest.undecided or rest.catching_up or rest.failed
        return rest if late else None

    async def finish(self, rest: Unsent) -> None:
        """Send a publication to the remaining targets once they have room. Raises the errors of `Bus.publish`."""
        message, deadline = rest.message, rest.deadline
        full, rest.queues = rest.queues, []
        behind, rest.peers = [*rest.peers, *rest.unconfirmed], []
        waits = [partial(self._offer_late, rest, queue) for queue in full]
        waits += [partial(self._send_late, rest, peer) for peer in behind]
        if len(waits) == 1:
            await waits[0]()
        elif waits:  # concurrently, so that a slow target doesn't delay the others
            async with anyio.create_task_group() as group:
                for wait in waits:
                    group.start_soon(wait)
        message.forget_shared()
        for deliveries, entry in rest.undecided:
            await deliveries.settled(entry, deadline)
        if not (rest.queues or rest.peers):
            await self._let_write(rest.catching_up)
        rest.raise_errors("no room in {} before the timeout: increase timeout=, Limits.outbox or queue=")

    @staticmethod
    async def _offer_late(rest: Unsent, queue: PublicationQueue) -> None:
        if not await queue.room(rest.deadline):
            rest.queues.append(queue)
        elif len(rest.targets.queues) == 1:
            queue.offer(rest.message)
        else:
            queue.offer_shared(rest.message)

    async def _send_late(self, rest: Unsent, peer: PeerCore) -> None:
        try:
            if await self._is_bare(peer):
                raise bare_peer(peer)
            if self._services.authorize is not None and not peer.link.upstream:
                self._offer_if_allowed(rest, peer)
            elif not await self._send(rest.message, peer, rest.deadline):
                rest.peers.append(peer)
        except BusError as error:
            rest.failed.append((peer, error))

    async def publish(
        self, message: Message, targets: Targets, deadline: float, keeper: Keeper | None = None, id: str | None = None
    ) -> None:
        """Call the outgoing hooks, and send a publication to its targets and, if there is one, its store."""
        copies, departure = self._departing(message, targets)
        with departure:
            failed: BusError | None = None
            if keeper is not None:
                try:
                    await keeper.publish(message, id, deadline)
                except LocalProtocolError:
                    raise
                except BusError as error:
                    failed = error
            if targets.two_ways:
                await self._send_deduplicated(message, targets, deadline)
            else:
                await self._send_each(copies, deadline)
            if failed is not None:
                raise failed

    def publish_nowait(self, message: Message, targets: Targets, deadline: float) -> None:
        """Call the outgoing hooks, and send a publication to all targets with room. Raises `QueueFull` for other targets."""
        copies, departure = self._departing(message, targets)
        with departure:
            if targets.two_ways:
                copies = self._copies_nowait(message, targets)
            failed: BusError | None = None
            for copy, each in copies:
                try:
                    self._send_nowait(copy, each, deadline)
                except BusError as error:  # must not affect other targets
                    failed = failed or error
            if failed is not None:
                raise failed

    def _send_nowait(self, message: Message, targets: Targets, deadline: float) -> None:
        rest = self.offer(message, targets, deadline) or Unsent(message, targets, deadline)
        for peer in rest.unconfirmed:
            try:
                self._check_unconfirmed(peer)
                if not self.send_nowait(message, peer, deadline):
                    rest.peers.append(peer)
            except BusError as error:
                rest.failed.append((peer, error))
        message.forget_shared()
        rest.raise_errors("no room in {} (Limits.outbox, queue=): `await bus.publish(...)` waits for room")

    def _departing(self, message: Message, targets: Targets) -> tuple[list[tuple[Message, Targets]], Departure]:
        """Call the outgoing hooks. Peers that cannot read the added headers get copies without them."""
        services, given = self._services, message.headers
        if not services.outgoing:
            return [(message, targets)], Departure([])
        departure = depart(services.outgoing, message, None, services.limits.headers)
        others = tuple(peer for peer in targets.peers if not peer.reads_headers)
        if not others or targets.two_ways or message.headers == given:
            return [(message, targets)], departure
        readers = tuple(peer for peer in targets.peers if peer.reads_headers)
        copies = [(message, Targets(readers, targets.queues))]
        for own in {peer.link.own_headers: None for peer in others}:
            alike = tuple(peer for peer in others if peer.link.own_headers == own)
            copies.append((message.with_headers(read_alone(message.headers, given, own)), Targets(alike)))
        return copies, departure

    async def yield_to_loop(self) -> None:
        """Yield to the event loop. Call this before publishing, because the caller may be cancelled here."""
        self.since_yield = 0
        await anyio.lowlevel.checkpoint()

    @staticmethod
    async def _let_write(links: list[Link]) -> None:
        """Let the event loop write, so that repeated `publish` calls don't fill the outboxes of peers that keep reading."""
        for _ in range(_TURNS if links else 0):
            if all(link.flowing or link.slow for link in links):
                return
            await anyio.lowlevel.checkpoint()

    async def _is_bare(self, peer: PeerCore) -> bool:
        """Return True if a connected peer doesn't support publications. If this is unknown, send a hello to find out."""
        if peer not in self._recipients.unconfirmed or not peer.connected:
            return False
        try:
            if peer.silent:
                _ = peer.negotiation.ask()  # without waiting, but a later answer counts
                return True
            return not await peer.extended() and (peer.speaks_extensions is False or peer.silent)
        except BusError:
            return False  # the peer has disconnected, and the link decides about the publication

    async def _send(self, message: Message, peer: PeerCore, deadline: float) -> bool:
        link = peer.link
        while not link.publish(message, peer, deadline):
            if not link.upstream:
                return True  # the policy of the listener has dropped and counted it
            if not await link.room(deadline):
                return False
        return True

    def publish_to_clients(self, message: Message) -> None:
        subject = message.subject
        clients = self.client_routes.get(subject)
        if clients is None:
            clients = self._recipients.clients(subject)
            if len(self.client_routes) >= ROUTES:
                self.client_routes.clear()
            self.client_routes[subject] = clients
        if not clients:
            return
        targets = Targets(clients)
        via = VIA in message.shared  # set if the message had the header
        deadline = self._services.running.time() + 30.0
        for copy, each in self._copies_with_number(message, targets) if via else ((message, targets),):
            rest = self.offer(copy, each, deadline, ask=False)
            for peer, error in () if rest is None else rest.failed:
                self.unsent(copy, peer, "published", error)
            copy.forget_shared()

    def _check_unconfirmed(self, peer: PeerCore) -> None:
        """Raise `Unsupported` if a peer doesn't support publications. If this is unknown, send a hello for next time."""
        if peer.silent and peer.connected:
            _ = peer.negotiation.ask()
        if peer.speaks_extensions is False or peer.silent:
            raise bare_peer(peer)
        if peer.connected:
            peer.link.runtime.spawn(self._is_bare, peer)

    def send_nowait(self, message: Message, peer: PeerCore, deadline: float) -> bool:
        """Send a publication to a peer if `authorize` allows it. Returns False if there is no room."""
        link = peer.link
        if self._services.authorize is not None and not link.upstream:
            self._send_if_allowed(message, peer, deadline)
            return True
        return link.publish(message, peer, deadline) or not link.upstream

    def _offer_if_allowed(self, rest: Unsent, peer: PeerCore) -> None:
        entry = self._send_if_allowed(rest.message, peer, rest.deadline)
        if entry is not None and peer.undelivered is not None:
            rest.undecided.append((peer.undelivered, entry))

    def _send_if_allowed(self, message: Message, peer: PeerCore, deadline: float) -> WaitingMessage | None:
        """Send a publication if `authorize` allows it. If the decision is asynchronous, return the waiting entry."""
        if peer.undelivered is not None:
            return peer.undelivered.add(message, deadline)
        allowed = self._services.access.may_receive(peer, message.subject)
        if inspect.isawaitable(allowed):
            return OutboundAuthorization(peer).begin(message, deadline, allowed)
        if allowed:
            peer.link.publish(message, peer, deadline)  # the policy of the listener may drop and count it
        return None

    def unsent(self, message: Message, peer: PeerCore, how: str, error: BusError) -> None:
        """Count a publication that a peer's protocol cannot carry, and log it with a rate limit."""
        self._services.counters.dropped += 1
        text = "%.200r, and perhaps others like it, could not be %s to %r: %.300s"
        fields = log_fields(peer, subject=message.subject)
        self._services.running.warnings.warn(logger, text, message.subject, how, peer, error, lines=1, extra=fields)

    # -- buses with several routes ---------------------------------------------------------------------------------------

    async def publish_bridged(self, message: Message, via: ViaHeader, deadline: float, *, of_peers: bool) -> None:
        """Publish a message for a bridge. If a peer of an earlier bus published the message, `of_peers` is True."""
        message.shared[VIA] = str(via).encode()
        targets: Targets = self.routes.get(message.subject) or self.route(message.subject)
        if of_peers:
            message.shared[OF_PEERS] = b""
            if not all(queue.peers for queue in targets.queues):
                queues = tuple(queue for queue in targets.queues if queue.peers)
                targets = Targets(targets.peers, queues, targets.two_ways, targets.twice)
        await self._send_deduplicated(message, targets, deadline)

    async def _send_deduplicated(self, message: Message, targets: Targets, deadline: float) -> None:
        """Send a publication that may reach a bus twice. That bus then drops the second copy.

        Publications are sent one at a time, so that a publication with a higher number never overtakes one that is waiting for
        room.
        """
        if targets.twice and VIA not in message.shared:
            await self._send_each(self._copies_with_id(message, targets), deadline)
            return
        numbering = self._numbering = self._numbering or anyio.Lock(fast_acquire=True)
        with anyio.move_on_at(deadline) as scope:
            await numbering.acquire()
        if scope.cancelled_caught:
            raise QueueFull("no room before the timeout: an earlier publication is still waiting")
        try:
            await self._send_each(self._copies_with_number(message, targets), deadline)
        finally:
            numbering.release()

    async def _send_each(self, copies: list[tuple[Message, Targets]], deadline: float) -> None:
        failed: BusError | None = None
        for copy, targets in copies:
            try:
                if (rest := self.offer(copy, targets, deadline)) is not None:
                    await self.finish(rest)
            except BusError as error:  # must not affect other targets
                failed = failed or error
        if failed is not None:
            raise failed

    def _copies_nowait(self, message: Message, targets: Targets) -> list[tuple[Message, Targets]]:
        if targets.twice:
            return self._copies_with_id(message, targets)
        # If a publication with a lower number waits for room, this one must not be numbered.
        if self._numbering is not None and self._numbering.locked():
            message.shared[VIA] = str(self._deduplicator.via_of(message).in_stream("")).encode()
        return self._copies_with_number(message, targets)

    def _copies_with_id(self, message: Message, targets: Targets) -> list[tuple[Message, Targets]]:
        """Create one copy for all buses with a single route, and another for each bus with several routes. The latter have an
        id and no number, because a copy on another route may arrive late."""
        several = {peer for peers in targets.twice for peer in peers}
        others = tuple(peer for peer in targets.peers if peer not in several)
        onward = self._deduplicator.onward
        return [
            (message, Targets(others, targets.queues)),
            *((onward(message, ViaHeader.start()), Targets(peers)) for peers in targets.twice),
        ]

    def _copies_with_number(self, message: Message, targets: Targets) -> list[tuple[Message, Targets]]:
        """Create one copy with the number for protocols with headers, and another copy for other protocols."""
        on = self._deduplicator.onward(message)  # before the message loses any of its parts
        carry = tuple(peer for peer in targets.peers if peer.link.carries_headers)
        others = tuple(peer for peer in targets.peers if not peer.link.carries_headers)
        return [(message, Targets(others, targets.queues)), (on, Targets(carry))]
