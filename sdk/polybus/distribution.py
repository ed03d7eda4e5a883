"""Who gets a publication: local subscriptions, linked peers, relays. One object per bus."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio.lowlevel

from .deliveries import Deliveries
from .errors import BusError, Code, Disconnected, Forbidden, LocalProtocolError, QueueFull, Unsupported
from .headers import VIA
from .message import Kind, Message
from .relaying import Journeys
from .subjects import SubjectIndex, is_pattern, wire_pattern

if TYPE_CHECKING:
    from .body import BodyFormat
    from .bus import Bus
    from .inbox import Inbox
    from .link import Link
    from .outbox import Waiting
    from .peer import Peer

__all__ = ["Distribution", "own_format"]

logger: logging.Logger = logging.getLogger("polybus")

_HINTS = 256
_ROUTES = 4096
Choose: TypeAlias = "Callable[[Any, str | int], BodyFormat]"
_TURNS = 4
"""Of the event loop, until whoever can write has written: one to wake the writers, one to write, one to hear of it."""


def own_format(peers: tuple[Peer, ...]) -> Choose | None:
    """How the wires of these peers write a value, where all of them do so in one way: what JSON cannot say is not lost then."""
    ways = {peer._link.format_for for peer in peers}
    return ways.pop() if len(ways) == 1 else None


class Route:
    """Where publications of one subject go, and in which form; remembered until anybody's interest changes."""

    __slots__ = ("choose", "inboxes", "message", "peers", "sole", "two_ways")

    def __init__(self, subject: str | int, inboxes: tuple[Inbox, ...], peers: tuple[Peer, ...], known: bool = True) -> None:
        self.inboxes: tuple[Inbox, ...] = inboxes
        self.peers: tuple[Peer, ...] = peers
        # The commonest case has a short way: one link, opened by this bus, whose peer reads publications, and nobody here.
        short = known and len(peers) == 1 and not inboxes and peers[0]._link.upstream
        self.sole: Peer | None = peers[0] if short else None
        # On the short way a codec writes the message at once and nobody keeps it: one object serves for all.
        self.message: Message = Message(Kind.PUBLISH, subject)
        self.choose: Choose | None = own_format(peers)
        self.two_ways: bool = False
        """Whether some other bus might be reached twice."""


class Distribution:
    """Local inboxes, remote interest, relays, and what has been told to other buses."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.local: SubjectIndex[Inbox] = SubjectIndex()
        self.remote: SubjectIndex[Peer] = SubjectIndex()
        self.relays: SubjectIndex[str | int] = SubjectIndex()
        self._interest: dict[str | int, int] = {}
        self._hinted: set[str | int] = set()
        self.journeys: Journeys = Journeys(bus._id)
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
        self._inbound: dict[str | int, tuple[Inbox, ...]] = {}
        """Who gets what peers publish, of subjects that end here."""
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

    def _forget_routes(self) -> None:
        self.routes.clear()
        self._inbound.clear()

    def route(self, subject: str | int) -> Route:
        """Where publications of a subject go.

        Raises:
            LocalProtocolError, ReservedSubject: An application must not publish to it, or the bus is not entered.
            Disconnected, Unauthorized, Forbidden: The bus's only link is gone for good.
        """
        self._bus._running  # noqa: B018  # raises when the bus is not entered
        self._bus._check_subject(subject)
        if len(self.routes) >= _ROUTES:
            self.routes.clear()
        peers = self.targets(subject)
        route = Route(subject, self.local.match(subject), peers, self._unasked.keys().isdisjoint(peers))
        route.two_ways = len(peers) > 1 and (self.relays.size > 0 or len(self._upstream) > 1)
        if not route.inboxes and not route.peers:
            self._bus._check_gone()
        self.routes[subject] = route
        return route

    # -- local and remote interest ---------------------------------------------------------------------------------------

    def want(self, pattern: str | int) -> None:
        """Count one more interest of this bus."""
        pattern = wire_pattern(pattern)
        self._interest[pattern] = self._interest.get(pattern, 0) + 1

    def unwant(self, pattern: str | int) -> None:
        """Take one interest back; the last one is told to the links."""
        pattern = wire_pattern(pattern)
        left = self._interest.get(pattern, 0) - 1
        if left > 0:
            self._interest[pattern] = left
            return
        self._interest.pop(pattern, None)
        for peer in self._told():
            if self._understands(peer, pattern) and not (_tells_handlers(peer._link) and pattern in self._bus._handlers):
                _say(Message(Kind.UNSUBSCRIBE, pattern), peer)

    def handled(self, subject: str | int) -> None:
        """A handler was registered while links are up: tell those who want to know."""
        for peer in self._told():
            if _tells_handlers(peer._link):
                for name in self._allowed(peer, [("request", subject)]):
                    _say(Message(Kind.SUBSCRIBE, name), peer)

    def _told(self) -> list[Peer]:
        """Peers that are told of this bus's subscriptions."""
        runtime = self._bus._runtime
        links = runtime.links if runtime is not None else ()
        return [peer for link in links if link.state.value == "up" and _announces(link) for peer in link.peers]

    async def announce(self, pattern: str | int) -> None:
        """Tell the links that are up, and wait until they know.

        Raises:
            Unsupported: A bare peer cannot match patterns; or no wire among several can carry such a subject.
            Forbidden: A peer refused. The others know, here as there.
        """
        pattern = wire_pattern(pattern)
        told = self._told()
        foreign: list[BusError] = []
        refused: list[BusError] = []
        for peer in told:
            try:
                await self._announce_to(peer, pattern)
            except Disconnected:
                continue  # the link is restored with all interest when it comes back
            except LocalProtocolError as error:  # such subjects are not of that wire
                foreign.append(error)
            except (Unsupported, Forbidden) as error:  # the others are told all the same
                (foreign if isinstance(pattern, int) and not _has_numbers(peer._link) else refused).append(error)
        if refused:
            raise refused[0]
        if foreign and len(foreign) == len(told):
            raise Unsupported(f"no link can carry a subscription to {pattern!r}: {foreign[0]}") from foreign[0]

    async def announce_later(self, pattern: str | int) -> None:
        """`announce`, where nobody waits to be told what went wrong."""
        try:
            await self.announce(pattern)
        except BusError as error:
            logger.warning("polybus: not everybody hears of %r: %s", pattern, error)

    async def _announce_to(self, peer: Peer, pattern: str | int) -> None:
        link = peer._link
        if not self._understands(peer, pattern) and not await peer.extended():
            if link.session is not None and not link.session.capabilities.subscribe:
                return  # it sends everything
            if not link.upstream:
                return  # it has dialled in: what it may send is no condition of a subscription here
            if peer in self._unasked:
                raise _bare(peer)
            raise peer.not_extended(f"it matches exact subjects only: subscribe to those instead of {pattern!r}")
        if pattern not in self._allowed(peer, [("publish", pattern)]):
            return
        link.answer(Message(Kind.SUBSCRIBE, pattern), peer)
        if peer._extended is not False and not peer._silent and link.upstream and pattern in await peer.hello([pattern]):
            if peer._answers_only:
                raise Unsupported(f"{peer!r} only answers on this connection: it sends no publications")
            raise Forbidden(f"{peer!r} does not let us subscribe to {pattern!r}")

    @staticmethod
    def _understands(peer: Peer, pattern: str | int) -> bool:
        """Whether a subscription can be written without asking the peer who it is."""
        session = peer._link.session
        if peer._extended or session is None:
            return True
        capabilities = session.capabilities
        if capabilities.asks_before_publishing:
            return False
        return capabilities.subscribe and (capabilities.patterns or not is_pattern(pattern))

    def restore(self, link: Link) -> None:
        """A link is up: tell it of all interest, before any other traffic."""
        for peer in link.peers:
            self.met(peer)

    def met(self, peer: Peer) -> None:
        """A peer is there: tell it of all interest, before any other traffic."""
        link = peer._link
        if not link.upstream and link.initiates and link.session is not None and not link.session.capabilities.subscribe:
            self._bare[peer] = 0
            self.routes.clear()
        if link.session is not None and link.session.capabilities.asks_before_publishing and not peer._extended:
            self._unasked[peer] = None
            self.routes.clear()
        if not _announces(link):
            return
        later = []
        for pattern in self._allowed(peer, self._names(link)):
            if self._understands(peer, pattern):
                self._tell(peer, pattern)
            else:
                later.append(pattern)
        link.flush()
        if later:
            done = self._restoring[peer] = anyio.Event()
            link.runtime.spawn(self._restore_patterns, peer, later, done)

    def _names(self, link: Link) -> list[tuple[str, str | int]]:
        """Verbs and names that a link is to be told of."""
        names = [("publish", pattern) for pattern in self._interest]
        if _tells_handlers(link):
            names += [("request", subject) for subject in self._bus._answered()]
        return names

    def _allowed(self, peer: Peer, names: list[tuple[str, str | int]]) -> Iterable[str | int]:
        """Of verbs and names those that a peer may be told of: to a stranger even the names are not for everybody.

        What an asynchronous `authorize` allows is told later.
        """
        link = peer._link
        if self._bus._authorize is None or link.upstream or not _tells_handlers(link):
            return dict.fromkeys(name for _, name in names)
        allowed: dict[str | int, None] = {}
        for index, (verb, name) in enumerate(names):
            answer = self._bus._authority.asks(peer, verb, name, Message(Kind(verb), name))
            if inspect.isawaitable(answer):
                getattr(answer, "close", lambda: None)()  # asked again, where it can be waited for
                peer.spawn(self._tell_allowed, peer, names[index:])
                break
            if answer:
                allowed[name] = None
        return allowed

    async def _tell_allowed(self, peer: Peer, names: list[tuple[str, str | int]]) -> None:
        authority = self._bus._authority
        for verb, name in names:
            if await authority.answer(authority.asks(peer, verb, name, Message(Kind(verb), name))) and peer.connected:
                if self._understands(peer, name):
                    _say(Message(Kind.SUBSCRIBE, name), peer)

    @staticmethod
    def _tell(peer: Peer, pattern: str | int) -> None:
        """Queue one subscription, for the session to write many at once."""
        link = peer._link
        assert link.session is not None
        try:
            link.session.send(Message(Kind.SUBSCRIBE, pattern), link.runtime.time(), peer.key)
        except BusError as error:  # a subject that this wire keeps to itself
            logger.warning("polybus: %r does not hear of %r: %s", peer, pattern, error)
        else:
            link.bus._counters.sent += 1

    def to_tell(self, peer: Peer) -> int:
        """How many subscriptions a peer hears of as soon as it has said who it is, on a wire where only our own read them."""
        link = peer._link
        session = link.session
        if session is None or session.capabilities.subscribe or not _announces(link):
            return 0
        return len(self._interest) if not peer._extended or peer in self._restoring else 0

    def known(self, peer: Peer, subscribes: Any) -> None:
        """A peer has shown to be ours.

        Args:
            subscribes: How many subscriptions it says that it will tell; until then it misses nothing.
        """
        if peer in self._bare and type(subscribes) is int and 0 < subscribes <= self._bus.limits.subscriptions:
            self._bare[peer] = subscribes
        else:
            self.not_bare(peer)

    def told(self, peer: Peer) -> None:
        """A peer has told a subscription, which was granted or refused."""
        left = self._bare.get(peer, 0) - 1
        if left > 0:
            self._bare[peer] = left
        else:
            self.not_bare(peer)

    def not_bare(self, peer: Peer) -> None:
        """A peer has shown to be ours, or has gone."""
        if peer in self._bare or peer in self._unasked:
            self._bare.pop(peer, None)
            self._unasked.pop(peer, None)
            self.routes.clear()

    def known_late(self, peer: Peer) -> None:
        """A peer that was silent has shown to be ours: tell it of the interest that waited for that."""
        link = peer._link
        session = link.session
        if session is None or not peer.connected or not _announces(link):
            return
        asked = session.capabilities.asks_before_publishing or not session.capabilities.subscribe
        names = [(verb, name) for verb, name in self._names(link) if asked or is_pattern(name)]
        for pattern in self._allowed(peer, names):
            _say(Message(Kind.SUBSCRIBE, pattern), peer)

    async def restored(self, peer: Peer) -> None:
        """Wait until a peer has been told of what depends on who it is."""
        done = self._restoring.get(peer)
        if done is not None:
            await done.wait()

    async def _restore_patterns(self, peer: Peer, patterns: Iterable[str | int], done: anyio.Event) -> None:
        session = peer._link.session
        try:
            if await peer.extended():
                for pattern in patterns:
                    _say(Message(Kind.SUBSCRIBE, pattern), peer)
            elif session is not None and session.capabilities.subscribe:
                names = ", ".join(map(repr, patterns))
                what = "reads no subscriptions" if peer in self._unasked else "matches exact subjects only"
                logger.warning("polybus: %r %s; it does not hear of %s", peer, what, names)
        except BusError:
            return
        finally:
            done.set()
            if self._restoring.get(peer) is done:
                del self._restoring[peer]

    async def _ask(self, peers: Iterable[Peer]) -> list[Peer]:
        """Those of the peers who are there and read no publications; who they are is asked where that is not known."""
        bare = []
        for peer in peers:
            if peer in self._unasked and peer.connected:
                try:
                    if peer._silent:
                        _ = peer.question()  # nobody waits for it again, but a late answer changes what follows
                        bare.append(peer)
                    elif not await peer.extended() and (peer._extended is False or peer._silent):
                        bare.append(peer)
                except BusError:
                    continue  # it has gone meanwhile: the publication waits, or ends, with its link
        return bare

    def relay(self, pattern: str | int) -> None:
        """Pass publications of peers on to other peers that subscribed."""
        self.relays.add(pattern, pattern)
        self.want(pattern)

    # -- publications of this bus ----------------------------------------------------------------------------------------

    def targets(self, subject: str | int) -> tuple[Peer, ...]:
        """The peers that a publication of this bus goes to."""
        matched = self.remote.match(subject)
        if self._bare:
            matched = tuple(dict.fromkeys((*matched, *self._bare)))
        upstream = self.upstream
        if isinstance(subject, int) and len(upstream) > 1:  # the links that number their subjects, if there is any
            upstream = tuple(peer for peer in upstream if _has_numbers(peer._link)) or upstream
        if not matched:
            return upstream
        if not upstream:
            return matched
        return tuple(dict.fromkeys((*upstream, *matched)))

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

    async def publish_two_ways(self, message: Message, route: Route, deadline: float) -> None:
        """`publish` of what may reach another bus on two ways: that one takes it once.

        Raises:
            QueueFull, EncodeError, Unsupported, TooLarge: As `publish`.
        """
        carry, others = _split(route.peers)
        failed: BusError | None = None
        try:
            await self.publish(self.journeys.begin(message), carry, (), deadline)
        except BusError as error:  # each for itself
            failed = error
        await self.publish(message, others, route.inboxes, deadline)
        if failed is not None:
            raise failed

    def publish_two_ways_nowait(self, message: Message, route: Route, deadline: float) -> None:
        """The same without waiting.

        Raises:
            QueueFull, EncodeError, Unsupported, TooLarge: As `publish`.
        """
        carry, others = _split(route.peers)
        failed: BusError | None = None
        try:
            self.publish_nowait(self.journeys.begin(message), carry, (), deadline)
        except BusError as error:
            failed = error
        self.publish_nowait(message, others, route.inboxes, deadline)
        if failed is not None:
            raise failed

    async def publish(self, message: Message, peers: Iterable[Peer], inboxes: Iterable[Inbox], deadline: float) -> None:
        """Deliver to all, waiting for room where that is the policy.

        Raises:
            QueueFull: A queue or outbox had no room until the deadline. The others have got the publication.
            EncodeError, Unsupported, TooLarge: Some peer's wire cannot carry it. The others have got it.
        """
        full: list[str] = []
        failed: BusError | None = None
        if self._unasked and (bare := await self._ask(peers)):
            failed = _bare(bare[0])
            peers = [peer for peer in peers if peer not in bare]
        for inbox in inboxes:
            if inbox.local:
                if inbox.full and not await inbox.room(deadline):
                    full.append(f"the queue of {inbox.pattern!r} ({inbox.queue})")
                else:
                    inbox.offer(message, None)
        slow = False
        catching_up: list[Link] = []
        free = self._bus._authorize is None
        undecided: list[tuple[Deliveries, Waiting]] = []
        shared, turn, at_once = message.shared, self._bus._running.turn(), 0
        for peer in peers:
            link = peer._link
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
        self._bus._counters.sent += at_once
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

    @staticmethod
    async def _let_write(links: list[Link]) -> None:
        """A publisher in a loop must let the event loop write, or it overruns peers that do read."""
        for _ in range(_TURNS):
            if all(link.flowing or link.slow for link in links):
                return
            await anyio.lowlevel.checkpoint()

    async def _send(self, message: Message, peer: Peer, deadline: float) -> bool:
        link = peer._link
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
                    inbox.offer(message, None)
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
        if peer._silent and peer.connected:
            _ = peer.question()
        if peer._extended is False or peer._silent:
            raise _bare(peer)
        if peer.connected:
            peer._link.runtime.spawn(self._ask, (peer,))

    def _send_nowait(self, message: Message, peer: Peer, deadline: float) -> bool:
        link = peer._link
        if self._bus._authorize is not None and not link.upstream:
            self._send_if_allowed(message, peer, deadline)
            return True
        return link.publish(message, peer, deadline) or not link.upstream

    def _send_if_allowed(self, message: Message, peer: Peer, deadline: float) -> Waiting | None:
        """Send what `authorize` lets a peer hear. What is returned waits for its answer, and what follows waits behind it."""
        if peer.undelivered is not None:
            return peer.undelivered.add(message, deadline)
        allowed = self._bus._authority.may_receive(peer, message.subject)
        if inspect.isawaitable(allowed):
            return Deliveries(peer).begin(message, deadline, allowed)
        if allowed:
            peer._link.publish(message, peer, deadline)  # or dropped by the policy of the listener, and counted
        return None

    # -- publications of peers -------------------------------------------------------------------------------------------

    def deliver(self, message: Message, peer: Peer) -> None:
        """A publication has come in: to this bus's own subscriptions, and on to others only where a relay says so."""
        via: str | None = None
        if message.headers is not None and (via := message.headers.get(VIA)) is not None:
            if not self.journeys.arrived(message, via):
                return
            message.shared[VIA] = via.encode()
        subject = message.subject
        link = peer._link
        inboxes = self._inbound.get(subject)
        if inboxes is not None:
            for inbox in inboxes:
                inbox.offer(message, link)
            return
        inboxes = self.local.match(subject)
        for inbox in inboxes:
            inbox.offer(message, link)
        if self.relays.size and self.relays.match(subject):
            self._relay(message, peer, via)
        elif self.remote.size and subject not in self._hinted:
            self._hint(subject, peer)
        elif len(self._inbound) < _ROUTES:
            self._inbound[subject] = inboxes
        else:
            self._inbound.clear()

    def via_of(self, message: Message) -> str:
        """Where a publication has been, for all bridges alike that it is about to cross."""
        via = message.shared.get(VIA)
        if via is None:
            via = message.shared[VIA] = self.journeys.first().encode()
        return via.decode()

    async def publish_crossed(self, message: Message, deadline: float) -> None:
        """A publication that came over a bridge: to all that one of this very bus would go to.

        Raises:
            QueueFull, EncodeError, Unsupported, TooLarge: As `publish`.
        """
        route = self.routes.get(message.subject) or self.route(message.subject)
        headers = message.headers or {}
        via = headers[VIA]
        here = Message(Kind.PUBLISH, message.subject, None, message.raw, message.format)
        here.headers = {name: value for name, value in headers.items() if name != VIA} or None
        here._value, here.expires, here.ttl = message._value, message.expires, message.ttl
        here.shared[VIA] = via.encode()
        carry, others = _split(route.peers)
        message.headers = {**headers, VIA: f"{via},{self._bus._id}"}
        failed: BusError | None = None
        for on, peers, inboxes in ((here, others, route.inboxes), (message, carry, ())):
            try:
                await self.publish(on, peers, inboxes, deadline)
            except BusError as error:  # each for itself
                failed = error
        if failed is not None:
            raise failed

    def _relay(self, message: Message, source: Peer, via: str | None) -> None:
        via = self.journeys.onward(via, source._link.runtime.limits.hops)
        if via is None:
            return
        on = Message(Kind.PUBLISH, message.subject, None, message.raw, message.format)
        on.headers = {**(message.headers or {}), VIA: via}
        if message.raw is None and message.has_body:
            on._value = message.body
        alike = on
        if message.attributes:  # what only that wire knows goes on to peers on the same one
            alike = Message(Kind.PUBLISH, on.subject, None, on.raw, on.format, on.headers, attributes=message._attributes)
            alike._value = on._value
        now = source._link.runtime.time()
        deadline = now + 30.0
        if message.expires is not None:  # what is left of its time
            on.expires = alike.expires = message.expires
            on.ttl = alike.ttl = message.expires - now
            deadline = min(deadline, message.expires)
        for peer in self.targets(message.subject):
            if peer is not source:
                try:
                    if not self._send_nowait(alike if peer.protocol == source.protocol else on, peer, deadline):
                        self._bus._counters.dropped += 1
                except BusError as error:
                    self._bus._counters.dropped += 1
                    logger.warning("polybus: %r could not be relayed to %r: %s", message.subject, peer, error)
                    self._bus._dead_letter(peer, message, Code.INVALID_ARGUMENT, f"not relayed: {error}")
        on.forget_shared()
        alike.forget_shared()

    def _hint(self, subject: str | int, source: Peer) -> None:
        others: list[Any] = [peer for peer in self.remote.match(subject) if peer is not source]
        if others and len(self._hinted) < _HINTS:
            self._hinted.add(subject)
            logger.info(
                "polybus: %r published %.100r, which %d other peers subscribed to; bus.relay(%.100r) would pass it on",
                source,
                subject,
                len(others),
                subject,
            )


def _split(peers: tuple[Peer, ...]) -> tuple[list[Peer], list[Peer]]:
    """Those whose wire has headers, and the others."""
    carry: list[Peer] = []
    others: list[Peer] = []
    for peer in peers:
        session = peer._link.session
        (carry if session is not None and session.capabilities.headers else others).append(peer)
    return carry, others


def _has_numbers(link: Link) -> bool:
    return link.session is None or link.session.capabilities.numbers


def _say(message: Message, peer: Peer) -> None:
    """Tell a peer of interest in a subject, where its wire can name that."""
    try:
        peer._link.answer(message, peer)
    except (LocalProtocolError, Unsupported) as error:
        logger.debug("polybus: %r is not told of %r: %s", peer, message.subject, error)


def _tells_handlers(link: Link) -> bool:
    return link.session is not None and link.session.capabilities.handlers


def _bare(peer: Peer) -> Unsupported:
    return peer.not_extended("it can carry requests, but no publications and no subscriptions")


def _announces(link: Link) -> bool:
    session = link.session
    return session is not None and (link.upstream or session.capabilities.announce == "both")
