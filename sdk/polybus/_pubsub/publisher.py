"""Who gets a publication of this bus, and how it gets there."""

from __future__ import annotations

import inspect
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import anyio.lowlevel

from .._core.bus_identity import Ends
from .._core.via import Journeys, Via, depth_of
from .._peer.authorization_queue import OutboundAuthorization
from .._util.pattern_index import SubjectIndex
from .._util.violation_counter import Offences
from ..errors import BusError, QueueFull
from ..headers import VIA
from ..message import Kind, Message
from .announcer import Interest, bare_peer, has_numbers
from .peer_subscriptions import Asked

if TYPE_CHECKING:
    from .._bus.bus import Bus
    from .._core.services import Services
    from .._link.link import Link
    from .._link.outbox import Waiting
    from .._peer.peer import Peer
    from ..body import BodyFormat
    from .queue import Inbox

__all__ = ["BREATH", "ROUTES", "FanOut", "Route", "own_format", "split"]

ROUTES = 4096
Choose: TypeAlias = "Callable[[Any, str | int], BodyFormat]"
_TURNS = 4
"""Of the event loop, until whoever can write has written: one to wake the writers, one to write, one to hear of it."""
BREATH = 256
"""Writes after which a publisher that never has to wait lets others run: else timers, cancellation and all that comes in would
wait for it."""


def own_format(peers: tuple[Peer, ...]) -> Choose | None:
    """How the wires of these peers write a value, where all of them do so in one way: what JSON cannot say is not lost then."""
    ways = {peer.link.format_for for peer in peers}
    return ways.pop() if len(ways) == 1 else None


class Route:
    """Where publications of one subject go, and in which form; remembered until anybody's interest changes."""

    __slots__ = ("choose", "inboxes", "message", "peers", "sole", "two_ways", "twice")

    def __init__(self, subject: str | int, inboxes: tuple[Inbox, ...], peers: tuple[Peer, ...], known: bool = True) -> None:
        self.inboxes: tuple[Inbox, ...] = inboxes
        self.peers: tuple[Peer, ...] = peers
        # The commonest case has a short way: one link, opened by this bus, whose peer reads publications, and nobody here.
        short = known and len(peers) == 1 and not inboxes and peers[0].link.upstream
        self.sole: Peer | None = peers[0] if short else None
        # On the short way a codec writes the message at once and nobody keeps it: one object serves for all.
        self.message: Message = Message(Kind.PUBLISH, subject)
        self.choose: Choose | None = own_format(peers)
        self.two_ways: bool = False
        """Whether some other bus might be reached twice."""
        self.twice: tuple[tuple[Peer, ...], ...] = ()
        """Peers that are known to be one bus, for each such bus."""


class FanOut(Interest):
    """Local inboxes, remote interest, relays, and what has been told to other buses."""

    def __init__(self, bus: Bus, services: Services) -> None:
        self._bus = bus
        self._services = services
        self.local: SubjectIndex[Inbox] = SubjectIndex()
        self.remote: SubjectIndex[Peer] = SubjectIndex()
        self.relays: SubjectIndex[str | int] = SubjectIndex()
        self.asked: Asked = Asked()
        self._interest: dict[str | int, int] = {}
        self._hinted: set[str | int] = set()
        self.bridges: int = 0
        """Routes of bridges on which publications leave this bus."""
        self._numbering: bool = False
        """Whether a publication is on its two ways, and may wait there."""
        self._turns: deque[anyio.Event] = deque()
        self._stopped: set[str | int] = set()
        """Subjects of which the log says that some came too far."""
        self._unsent = Offences()
        self.journeys: Journeys = Journeys(services.id)
        self.ends: Ends = Ends()
        self._upstream: tuple[Peer, ...] = ()
        self._bare: dict[Peer, int] = {}
        """Peers on wires without subscriptions that get every publication: they have not shown to be ours, or have as many
        subscriptions still to tell."""
        self._unasked: dict[Peer, None] = {}
        """Peers on wires where publications are an extension that have not shown to be ours: they are asked first."""
        self._restoring: dict[Peer, anyio.Event] = {}
        """Peers that are told of this bus's interest as soon as it is known who they are."""
        self.routes: dict[str | int, Route] = {}
        """Recent answers of `route`."""
        self.unbroken: int = 0
        """Publications, and copies of them, since the last `breathe`."""
        self._inbound: dict[str | int, tuple[Inbox, ...]] = {}
        """Queues for publications of peers, of subjects that end here. Empty while peers are asked each for itself."""
        for index in (self.local, self.remote, self.relays):
            index.changed = self._forget_routes

    @property
    def upstream(self) -> tuple[Peer, ...]:
        """Peers of point-to-point links that this bus opened: they get every publication."""
        return self._upstream

    @upstream.setter
    def upstream(self, peers: tuple[Peer, ...]) -> None:
        self._upstream = peers
        self.routes.clear()

    def begin(self, ends: Ends) -> None:
        """The bus runs, and will know who is at the other ends of its links."""
        self.ends = ends
        ends.changed = self._forget_routes

    @property
    def passes_on(self) -> bool:
        """Whether this bus passes publications on to others."""
        return self.bridges > 0 or self.relays.size > 0

    def _forget_routes(self) -> None:
        self.routes.clear()
        self._inbound.clear()

    def route(self, subject: str | int) -> Route:
        """Where publications of a subject go.

        Raises:
            LocalProtocolError, ReservedSubject: An application must not publish to it, or the bus is not entered.
            Disconnected, Unauthorized, Forbidden: The bus's only link is gone for good.
        """
        self._services.running  # noqa: B018  # raises when the bus is not entered
        self._bus._check_subject(subject)
        if len(self.routes) >= ROUTES:
            self.routes.clear()
        peers = self.targets(subject)
        route = Route(subject, self.local.match(subject), peers, self._unasked.keys().isdisjoint(peers))
        leading = len(self._upstream) + sum(peer.passes_on for peer in peers if peer not in self._upstream)
        several = len(peers) > 1 and (self.relays.size > 0 or leading > 1)
        route.two_ways = several or (len(peers) > 0 and any(inbox.leads_on for inbox in route.inboxes))
        if not route.two_ways:
            route.twice = self.ends.same(peers)
            route.two_ways = len(route.twice) > 0
        if not route.inboxes and not route.peers:
            self._bus._check_gone()
        self.routes[subject] = route
        return route

    # -- local and remote interest ---------------------------------------------------------------------------------------

    async def _ask(self, peers: Iterable[Peer]) -> list[Peer]:
        """Those of the peers who are there and read no publications; who they are is asked where that is not known."""
        bare = []
        for peer in peers:
            if peer in self._unasked and peer.connected:
                try:
                    if peer.silent:
                        _ = peer.negotiation.ask()  # nobody waits for it again, but a late answer changes what follows
                        bare.append(peer)
                    elif not await peer.extended() and (peer.speaks_extensions is False or peer.silent):
                        bare.append(peer)
                except BusError:
                    continue  # it has gone meanwhile: the publication waits, or ends, with its link
        return bare

    # -- publications of this bus ----------------------------------------------------------------------------------------

    def targets(self, subject: str | int) -> tuple[Peer, ...]:
        """The peers that a publication of this bus goes to."""
        matched = self.remote.match(subject)
        if self._bare:
            matched = tuple(dict.fromkeys((*matched, *self._bare)))
        upstream = self.upstream
        if isinstance(subject, int) and len(upstream) > 1:  # the links that number their subjects, if there is any
            upstream = tuple(peer for peer in upstream if has_numbers(peer.link)) or upstream
        if matched and upstream:
            matched = tuple(dict.fromkeys((*upstream, *matched)))
        peers = matched or upstream
        if held_out := self.ends.held_out:
            peers = tuple(peer for peer in peers if peer not in held_out)
        return peers

    @staticmethod
    def publish_alone(route: Route, link: Link, body: Any) -> None:
        """The short way of a publication with one goal that takes it at once.

        Raises:
            EncodeError, Unsupported, TooLarge: The wire cannot carry it.
        """
        message = route.message if link.shared is not None else Message(Kind.PUBLISH, route.message.subject)
        message.format = body_format = link.format_for(body, message.subject)
        message.raw = body_format.encode(body)
        link.publish_alone(message, route.peers[0])

    def via_of(self, message: Message) -> Via:
        """Where a publication has been: one answer for all the ways on which it is about to leave."""
        known = message.shared.get(VIA)
        if known is not None:
            return Via.read(known.decode())
        sort = message.attributes.get("priority")
        if message.peer is not None:
            sort = f"{sort} relayed"  # what this bus itself publishes may wait for room meanwhile
        via = self.journeys.first(message.subject, sort).over(depth_of(message.peer))
        message.shared[VIA] = str(via).encode()
        return via

    def onward(self, message: Message, via: Via | None = None) -> Message:
        """A publication as it goes to other buses, with where it has been."""
        return message.with_headers({**(message.headers or {}), VIA: str(self.journeys.leaving(via or self.via_of(message)))})

    async def publish_two_ways(self, message: Message, route: Route, deadline: float) -> None:
        """`publish` of what may reach another bus on two ways: that one takes it once.

        One after the other: what waits for room on one way must not be overtaken there by what has a higher number.

        Raises:
            QueueFull, EncodeError, Unsupported, TooLarge: As `publish`.
        """
        if route.twice and VIA not in message.shared:
            await self._publish_twice(message, route, deadline)
            return
        await self._turn(deadline)
        self._numbering = True
        try:
            carry, others = split(route.peers)
            failed: BusError | None = None
            on = self.onward(message)  # before anything of the message is forgotten
            for one, peers, inboxes in ((message, others, route.inboxes), (on, carry, ())):
                try:
                    await self.publish(one, peers, inboxes, deadline)
                except BusError as error:  # each for itself
                    failed = failed or error
            if failed is not None:
                raise failed
        finally:
            self._numbering = False
            self._next_turn()

    def _copies(self, message: Message, route: Route) -> list[tuple[Message, tuple[Peer, ...], tuple[Inbox, ...]]]:
        """A publication as it goes to buses that are reached on one way, and to each that is reached on several.

        It has an id there that nobody else is told, and no number: on each way all of them come in order, and what one way had
        no room for comes on another, however late.
        """
        several = {peer for peers in route.twice for peer in peers}
        others = tuple(peer for peer in route.peers if peer not in several)
        return [
            (message, others, route.inboxes),
            *((self.onward(message, Via(secrets.token_hex(8))), peers, ()) for peers in route.twice),
        ]

    async def _publish_twice(self, message: Message, route: Route, deadline: float) -> None:
        failed: BusError | None = None
        for one, peers, inboxes in self._copies(message, route):
            try:
                await self.publish(one, peers, inboxes, deadline)
            except BusError as error:  # each for itself
                failed = failed or error
        if failed is not None:
            raise failed

    async def _turn(self, deadline: float) -> None:
        """Wait until no other publication is on its two ways.

        Raises:
            QueueFull: Not until the deadline.
        """
        while self._numbering:
            turn = anyio.Event()
            self._turns.append(turn)
            with anyio.move_on_at(deadline) as scope:
                try:
                    await turn.wait()
                except BaseException:
                    if turn.is_set():
                        self._next_turn()
                    else:
                        self._turns.remove(turn)
                    raise
            if scope.cancelled_caught:
                raise QueueFull("no room in time: an earlier publication still waits for it")

    def _next_turn(self) -> None:
        if self._turns and not self._numbering:
            self._turns.popleft().set()

    def publish_two_ways_nowait(self, message: Message, route: Route, deadline: float) -> None:
        """The same without waiting.

        Raises:
            QueueFull, EncodeError, Unsupported, TooLarge: As `publish`.
        """
        failed: BusError | None = None
        for one, peers, inboxes in self._copies_nowait(message, route):
            try:
                self.publish_nowait(one, peers, inboxes, deadline)
            except BusError as error:  # each for itself
                failed = failed or error
        if failed is not None:
            raise failed

    def _copies_nowait(self, message: Message, route: Route) -> list[tuple[Message, Iterable[Peer], Iterable[Inbox]]]:
        if route.twice:
            return [*self._copies(message, route)]
        carry, others = split(route.peers)
        if self._numbering:  # another waits for room on some way, and has a lower number: this one goes without
            message.shared[VIA] = str(self.via_of(message).of("")).encode()
        return [(self.onward(message), carry, ()), (message, others, route.inboxes)]

    async def publish(self, message: Message, peers: Iterable[Peer], inboxes: Iterable[Inbox], deadline: float) -> None:
        """Deliver to all, waiting for room where that is the policy.

        Raises:
            QueueFull: A queue or outbox had no room until the deadline. The others have got the publication.
            EncodeError, Unsupported, TooLarge: Some peer's wire cannot carry it. The others have got it.
        """
        full: list[str] = []
        failed: BusError | None = None
        if self._unasked and (bare := await self._ask(peers)):
            failed = bare_peer(bare[0])
            peers = [peer for peer in peers if peer not in bare]
        for inbox in inboxes:
            if inbox.local:
                if inbox.full and not await inbox.room(deadline):
                    full.append(f"the queue of {inbox.pattern!r} ({inbox.queue})")
                else:
                    inbox.offer(message)
        slow = False
        catching_up: list[Link] = []
        free = self._services.authorize is None
        undecided: list[tuple[OutboundAuthorization, Waiting]] = []
        shared, turn, at_once = message.shared, self._services.running.turn(), 0
        for peer in peers:
            link = peer.link
            try:
                if free and link.flowing:  # the usual case, without a coroutine for each peer
                    if (alike := link.alike) is not None:
                        link.send_framed(shared.get(alike) or link.framed(message), turn)  # type: ignore[misc]  # it goes with `alike`
                        at_once += 1
                    else:
                        link.publish(message, peer, deadline)
                elif free or link.upstream:
                    if not await self._send(message, peer, deadline):
                        full.append(f"the outbox to {peer.address}")
                elif (entry := self._send_if_allowed(message, peer, deadline)) is not None and peer.undelivered is not None:
                    undecided.append((peer.undelivered, entry))
            except BusError as error:
                failed = failed or error
            if not link.flowing:
                slow = True
                if not link.slow:
                    catching_up.append(link)
        self._services.counters.sent += at_once
        self.unbroken += at_once
        if slow:
            message.forget_shared()
        for deliveries, entry in undecided:
            await deliveries.settled(entry, deadline)
        if full:
            raise QueueFull(f"no room in time in {', '.join(full)}")
        if catching_up:
            await self._let_write(catching_up)
        if failed is not None:
            raise failed

    async def breathe(self) -> None:
        """Let others run; before anything is published, so that who is cancelled here has published nothing."""
        self.unbroken = 0
        await anyio.lowlevel.checkpoint()

    @staticmethod
    async def _let_write(links: list[Link]) -> None:
        """A publisher in a loop must let the event loop write, or it overruns peers that do read."""
        for _ in range(_TURNS):
            if all(link.flowing or link.slow for link in links):
                return
            await anyio.lowlevel.checkpoint()

    async def _send(self, message: Message, peer: Peer, deadline: float) -> bool:
        link = peer.link
        while not link.publish(message, peer, deadline):
            if not link.upstream:
                return True  # dropped or cut by the policy of the listener, and counted
            if not await link.room(len(message.raw or b""), deadline):
                return False
        return True

    def publish_nowait(self, message: Message, peers: Iterable[Peer], inboxes: Iterable[Inbox], deadline: float) -> None:
        """The same without waiting.

        Raises:
            QueueFull: There was no room somewhere; the others have got the publication.
            EncodeError, Unsupported, TooLarge: Some peer's wire cannot carry it; the others have got it.
        """
        full: list[str] = []
        failed: BusError | None = None
        for inbox in inboxes:
            if inbox.local:
                if inbox.full:
                    full.append(f"the queue of {inbox.pattern!r} ({inbox.queue})")
                else:
                    inbox.offer(message)
        for peer in peers:
            try:
                if peer in self._unasked:
                    self._check_unasked(peer)
                if not self._send_nowait(message, peer, deadline):
                    full.append(f"the outbox to {peer.address}")
            except BusError as error:  # each peer for itself
                failed = failed or error
        message.forget_shared()
        if full:
            raise QueueFull(f"no room in {', '.join(full)}")
        if failed is not None:
            raise failed

    def _check_unasked(self, peer: Peer) -> None:
        """
        Raises:
            Unsupported: It is known to read no publications. Where that is not known, it is asked for the next time.
        """
        if peer.silent and peer.connected:
            _ = peer.negotiation.ask()
        if peer.speaks_extensions is False or peer.silent:
            raise bare_peer(peer)
        if peer.connected:
            peer.link.runtime.spawn(self._ask, (peer,))

    def _send_nowait(self, message: Message, peer: Peer, deadline: float) -> bool:
        link = peer.link
        if self._services.authorize is not None and not link.upstream:
            self._send_if_allowed(message, peer, deadline)
            return True
        return link.publish(message, peer, deadline) or not link.upstream

    def _send_if_allowed(self, message: Message, peer: Peer, deadline: float) -> Waiting | None:
        """Send what `authorize` lets a peer hear. What is returned waits for its answer, and what follows waits behind it."""
        if peer.undelivered is not None:
            return peer.undelivered.add(message, deadline)
        allowed = self._services.access.may_receive(peer, message.subject)
        if inspect.isawaitable(allowed):
            return OutboundAuthorization(peer).begin(message, deadline, allowed)
        if allowed:
            peer.link.publish(message, peer, deadline)  # or dropped by the policy of the listener, and counted
        return None


def split(peers: tuple[Peer, ...]) -> tuple[list[Peer], list[Peer]]:
    """Those whose wire has headers, and the others."""
    carry: list[Peer] = []
    others: list[Peer] = []
    for peer in peers:
        (carry if peer.link.carries_headers else others).append(peer)
    return carry, others
