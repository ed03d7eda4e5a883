"""What other buses are told of the interest of this one, and who is known to read publications and subscriptions at all."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from .._peer.extension_probe import HELLO_TIMEOUT
from ..errors import BusError, Disconnected, Forbidden, LocalProtocolError, Unsupported
from ..message import Kind, Message
from ..subjects import is_pattern, wire_pattern

if TYPE_CHECKING:
    from .._bus.bus import Bus
    from .._core.bus_identity import Ends
    from .._core.services import Services
    from .._link.link import Link
    from .._peer.peer import Peer
    from .peer_subscriptions import Asked
    from .subscription import Subscription

__all__ = ["Interest", "bare_peer", "has_numbers"]

logger: logging.Logger = logging.getLogger("polybus")


class Interest:
    """The part of a `Distribution` that tells peers what this bus has subscribed to and answers."""

    _bus: Bus
    _services: Services
    _interest: dict[str | int, int]
    _bare: dict[Peer, int]
    _unasked: dict[Peer, None]
    _restoring: dict[Peer, anyio.Event]
    _inbound: dict[str | int, Any]
    asked: Asked
    routes: dict[str | int, Any]
    ends: Ends

    @property
    def upstream(self) -> tuple[Peer, ...]:
        """Peers of point-to-point links that this bus opened: they get every publication."""
        raise NotImplementedError

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
            self._take_back(peer, pattern)

    def _take_back(self, peer: Peer, pattern: str | int) -> None:
        """Tell a peer that nobody here wants a pattern any more, unless something else does."""
        link = peer.link
        wanted = (pattern in self._interest and _announces(link)) or pattern in self.asked.patterns(peer)
        if (
            not wanted
            and link.initiates
            and self._understands(peer, pattern)
            and not (_tells_handlers(link) and pattern in self._bus._handlers)
        ):
            _say(Message(Kind.UNSUBSCRIBE, pattern), peer)

    async def ask(self, peer: Peer, subscription: Subscription) -> None:
        """Tell one peer alone of a subscription, and wait until it knows. One whose link is down is told when it is back.

        Raises:
            Unsupported: Its wire cannot carry it, or the peer cannot.
            Forbidden: It refused.
            Disconnected: It has gone.
        """
        pattern = wire_pattern(subscription.pattern)
        if peer.gone:
            raise peer.departed()
        self.asked.add(peer, pattern, subscription)
        self._inbound.clear()  # from now on it depends on the peer who gets a publication
        if not peer.connected:
            return
        try:
            await self._announce_to(peer, pattern, alone=True)
        except Disconnected:
            if peer.gone:
                raise
        except LocalProtocolError as error:
            raise Unsupported(f"{peer!r} cannot be asked for {pattern!r}: {error}") from error

    def unask(self, peer: Peer, subscription: Subscription) -> None:
        """Take such a subscription back; the last one of its pattern is told."""
        pattern = wire_pattern(subscription.pattern)
        if self.asked.remove(peer, pattern, subscription) and peer.connected:
            self._take_back(peer, pattern)

    def handled(self, subject: str | int) -> None:
        """A handler was registered while links are up: tell those who want to know."""
        for peer in self._told():
            if _tells_handlers(peer.link):
                for name in self._allowed(peer, [("request", subject)]):
                    _say(Message(Kind.SUBSCRIBE, name), peer)

    def _told(self) -> list[Peer]:
        """Peers that are told of this bus's subscriptions."""
        runtime = self._services.runtime
        links = runtime.links if runtime is not None else ()
        return [peer for link in links if link.stands and _announces(link) for peer in link.peers]

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
                (foreign if isinstance(pattern, int) and not has_numbers(peer.link) else refused).append(error)
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

    async def _announce_to(self, peer: Peer, pattern: str | int, *, alone: bool = False) -> None:
        """Tell one peer, and wait until it knows.

        Args:
            alone: The subscription is to this peer and no other: one that dialled in must carry it too.
        """
        link = peer.link
        if alone:
            link.check_initiates(peer)
        if not self._understands(peer, pattern) and not await peer.extended():
            if link.session is not None and not link.session.capabilities.subscribe:
                return  # it sends everything
            if not link.upstream and not alone:
                return  # it has dialled in: what it may send is no condition of a subscription here
            if peer in self._unasked:
                raise bare_peer(peer)
            raise peer.negotiation.unsupported(f"it matches exact subjects only: subscribe to those instead of {pattern!r}")
        if not alone and pattern not in self._allowed(peer, [("publish", pattern)]):
            return
        link.answer(Message(Kind.SUBSCRIBE, pattern), peer)
        await link.written()
        if not link.upstream and not alone:
            return
        if peer.speaks_extensions is not False and not peer.silent and pattern in await peer.negotiation.confirm([pattern]):
            if peer.negotiation.answers_only:
                raise Unsupported(f"{peer!r} only answers on this connection: it sends no publications")
            raise Forbidden(f"{peer!r} does not let us subscribe to {pattern!r}")

    @staticmethod
    def _understands(peer: Peer, pattern: str | int) -> bool:
        """Whether a subscription can be written without asking the peer who it is."""
        session = peer.link.session
        if peer.speaks_extensions or session is None:
            return True
        capabilities = session.capabilities
        if capabilities.asks_before_publishing:
            return False
        return capabilities.subscribe and (capabilities.patterns or not is_pattern(pattern))

    def restore(self, link: Link, *, alone: bool) -> None:
        """A link is up: tell it of all interest, before any other traffic.

        Args:
            alone: There is no other link, and nobody can come: no bus can be reached on two ways.
        """
        for peer in link.peers:
            self.ends.lost(peer)  # a question of the time without a connection still waits in the outbox
        for peer in () if alone else self.strangers():
            self.introduce(peer)
        for peer in link.peers:
            self.met(peer)

    async def introduced(self) -> None:
        """Before there is one link more: tell those who know of this bus's interest who it is."""
        if self.upstream and self._interest:
            for peer in self.strangers():
                with suppress(BusError):
                    await peer.negotiation.confirm()

    def introduce(self, peer: Peer) -> None:
        """Say who this bus is to a peer that it has dialled, where the same bus may be there on another link: that has dialled
        this one, or was dialled twice."""
        self.ends.introduces(peer)
        _ = peer.negotiation.ask()

    async def _let_speak(self, peer: Peer) -> None:
        """One of ours says who it is at once."""
        await anyio.sleep(HELLO_TIMEOUT)
        self.ends.release(peer)

    def strangers(self) -> list[Peer]:
        """Peers that this bus has dialled, and has not told who it is; not those whose links are down: they are told later."""
        up = [peer for peer in self.upstream if peer.connected]
        return [peer for peer in up if peer.may_be_ours and not self.ends.knows_us(peer)]

    def met(self, peer: Peer) -> None:
        """A peer is there: tell it of all interest, before any other traffic."""
        link = peer.link
        if not link.upstream and link.initiates and link.session is not None and not link.session.capabilities.subscribe:
            self._bare[peer] = 0
            self.routes.clear()
            if self.ends.wait_for(peer):
                peer.spawn(self._let_speak, peer)
        if link.session is not None and link.session.capabilities.asks_before_publishing and not peer.speaks_extensions:
            self._unasked[peer] = None
            self.routes.clear()
        if not _announces(link):
            return
        if link.upstream:
            peer.greet()
        later = []
        for pattern in self._allowed(peer, self._names(peer, link)):
            if self._understands(peer, pattern):
                self._tell(peer, pattern)
            else:
                later.append(pattern)
        link.flush()
        if later:
            done = self._restoring[peer] = anyio.Event()
            link.runtime.spawn(self._restore_patterns, peer, later, done)

    def _names(self, peer: Peer, link: Link) -> list[tuple[str, str | int]]:
        """Verbs and names that a peer is to be told of."""
        names = [("publish", pattern) for pattern in dict.fromkeys((*self._interest, *self.asked.patterns(peer)))]
        if _tells_handlers(link):
            names += [("request", subject) for subject in self._bus._answered()]
        return names

    def _allowed(self, peer: Peer, names: list[tuple[str, str | int]]) -> Iterable[str | int]:
        """Of verbs and names those that a peer may be told of: to a stranger even the names are not for everybody.

        What an asynchronous `authorize` allows is told later.
        """
        link = peer.link
        if self._services.authorize is None or link.upstream or not _tells_handlers(link):
            return dict.fromkeys(name for _, name in names)
        allowed: dict[str | int, None] = {}
        for index, (verb, name) in enumerate(names):
            answer = self._services.access.asks(peer, verb, name, Message(Kind(verb), name))
            if inspect.isawaitable(answer):
                getattr(answer, "close", lambda: None)()  # asked again, where it can be waited for
                peer.spawn(self._tell_allowed, peer, names[index:])
                break
            if answer:
                allowed[name] = None
        return allowed

    async def _tell_allowed(self, peer: Peer, names: list[tuple[str, str | int]]) -> None:
        authority = self._services.access
        for verb, name in names:
            if await authority.answer(authority.asks(peer, verb, name, Message(Kind(verb), name))) and peer.connected:
                if self._understands(peer, name):
                    _say(Message(Kind.SUBSCRIBE, name), peer)

    @staticmethod
    def _tell(peer: Peer, pattern: str | int) -> None:
        """Queue one subscription, for the session to write many at once."""
        link = peer.link
        assert link.session is not None
        try:
            link.session.send(Message(Kind.SUBSCRIBE, pattern), link.runtime.time(), peer.key)
        except BusError as error:  # a subject that this wire keeps to itself
            now = link.runtime.time()
            link.runtime.warnings.warn(logger, now, "polybus: %r does not hear of %r: %s", peer, pattern, error)
        else:
            link.services.counters.sent += 1

    def to_tell(self, peer: Peer, *, again: bool = False) -> int:
        """How many subscriptions a peer hears of as soon as it has said who it is, on a wire where only our own read them.

        Args:
            again: On a new connection, of which nobody there has heard them yet.
        """
        link = peer.link
        session = link.session
        if session is None or session.capabilities.subscribe or not _announces(link):
            return 0
        return len(self._names(peer, link)) if again or not peer.speaks_extensions or peer in self._restoring else 0

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
        link = peer.link
        session = link.session
        if session is None or not peer.connected or not _announces(link):
            return
        asked = session.capabilities.asks_before_publishing or not session.capabilities.subscribe
        names = [(verb, name) for verb, name in self._names(peer, link) if asked or is_pattern(name)]
        for pattern in self._allowed(peer, names):
            _say(Message(Kind.SUBSCRIBE, pattern), peer)

    async def restored(self, peer: Peer) -> None:
        """Wait until a peer has been told of what depends on who it is."""
        done = self._restoring.get(peer)
        if done is not None:
            await done.wait()

    async def _restore_patterns(self, peer: Peer, patterns: Iterable[str | int], done: anyio.Event) -> None:
        link = peer.link
        session = link.session
        try:
            if await peer.extended():
                for pattern in patterns:
                    _say(Message(Kind.SUBSCRIBE, pattern), peer)
            elif session is not None and session.capabilities.subscribe:
                names = ", ".join(map(repr, patterns))
                what = "reads no subscriptions" if peer in self._unasked else "matches exact subjects only"
                why = peer.negotiation.unsupported(f"it {what}, and does not hear of {names}")
                link.runtime.warnings.warn(logger, link.runtime.time(), "polybus: %s", why)
        except BusError:
            return
        finally:
            done.set()
            if self._restoring.get(peer) is done:
                del self._restoring[peer]


def has_numbers(link: Link) -> bool:
    return link.session is None or link.session.capabilities.numbers


def _say(message: Message, peer: Peer) -> None:
    """Tell a peer of interest in a subject, where its wire can name that."""
    try:
        peer.link.answer(message, peer)
    except (LocalProtocolError, Unsupported) as error:
        logger.debug("polybus: %r is not told of %r: %s", peer, message.subject, error)


def _tells_handlers(link: Link) -> bool:
    return link.session is not None and link.session.capabilities.handlers


def bare_peer(peer: Peer) -> Unsupported:
    return peer.negotiation.unsupported("it can carry requests, but no publications and no subscriptions")


def _announces(link: Link) -> bool:
    session = link.session
    return session is not None and (link.upstream or session.capabilities.announce == "both")
