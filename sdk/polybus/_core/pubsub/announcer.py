"""Announces this bus's subscriptions and handlers to its peers."""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
from attrs import define, field
from msgspec import Struct

from ..._util.logs import log_fields
from ...errors import BusError, Disconnected, Forbidden, LocalProtocolError, Unsupported
from ...message import Kind, Message
from ...plugins import ToUser
from ...subjects import is_pattern, wire_pattern
from ..peer.negotiation import HELLO_TIMEOUT
from .recipients import bare_peer, has_numbers

if TYPE_CHECKING:
    from ..handlers.lookup import HandlerLookup
    from ..link.link import Link
    from ..peer.peer_core import PeerCore
    from ..peer.subscription import IteratedQueue
    from ..runtime.services import Services
    from .recipients import PeerSubscriptions, Recipients

logger: logging.Logger = logging.getLogger("polybus")


class Interest(Struct, frozen=True):
    pattern: str | int
    group: str | None = None
    user: str | None = None
    handler: bool = False


@define(eq=False, repr=False)
class SubscriptionAnnouncer:
    _services: Services
    _lookup: HandlerLookup
    _recipients: Recipients
    _to_peers: PeerSubscriptions
    _interests: Counter[Interest] = field(factory=Counter, init=False)
    _grouped: Counter[str | int] = field(factory=Counter, init=False)
    _behind: Counter[Interest] = field(factory=Counter, init=False)
    """Patterns and users of clients, which are announced only over the inner link."""
    inner: PeerCore | None = field(default=None, init=False)
    """Peer of the inner link, while it is connected."""
    _told: dict[Link, None] = field(factory=dict, init=False)
    """Links over which this bus has announced something."""
    _restoring: dict[PeerCore, anyio.Event] = field(factory=dict, init=False)
    """Peers that will receive patterns once it is known which bus they are."""

    @property
    def has_patterns(self) -> bool:
        return len(self._interests) > 0

    def add(self, pattern: str | int, group: str | None = None) -> None:
        """Count a subscription. To send it to peers, call `announce`."""
        interest = interest_in(pattern, group)
        self._interests[interest] += 1
        if group is not None:
            self._grouped[interest.pattern] += 1

    def remove(self, pattern: str | int, group: str | None = None) -> None:
        interest = interest_in(pattern, group)
        if group is not None:
            _one_less(self._grouped, interest.pattern)
        if not _one_less(self._interests, interest):
            for peer in self._audience():
                self._take_back(peer, interest)

    def add_behind(self, wanted: str | int | ToUser) -> None:
        """Count a client's pattern or user. If it is the first of its kind, announce it to the cluster."""
        interest = _behind(wanted)
        self._behind[interest] += 1
        if self._behind[interest] == 1 and self.inner is not None and interest not in self._interests:
            _send(interest, self.inner)

    def remove_behind(self, wanted: str | int | ToUser) -> None:
        interest = _behind(wanted)
        if not _one_less(self._behind, interest) and self.inner is not None:
            self._take_back(self.inner, interest)

    async def known_inside(self) -> None:
        """Wait until the cluster has processed all announcements."""
        if self.inner is not None:
            with suppress(Disconnected):
                await self.inner.link.confirmed()

    def _wants(self, interest: Interest, link: Link) -> bool:
        if interest in self._interests or (link.inner and interest in self._behind):
            return True
        return not _has_groups(link) and interest.pattern in self._grouped

    def _take_back(self, peer: PeerCore, interest: Interest) -> None:
        """Unsubscribe from a peer unless the pattern is still required for another reason."""
        link, pattern = peer.link, interest.pattern
        if not _has_groups(link):
            interest = Interest(pattern)
        wanted = self._wants(interest, link) and _announces(link)
        wanted = wanted or (interest == Interest(pattern) and self._to_peers.wants(peer, pattern))
        if (
            not wanted
            and link.initiates
            and self._understands(peer, pattern)
            and not (_tells_handlers(link) and not _has_groups(link) and self._lookup.answers(pattern))
        ):
            _send(interest, peer, Kind.UNSUBSCRIBE)

    async def ask(self, peer: PeerCore, subscription: IteratedQueue) -> None:
        """Subscribe to one peer and wait for its confirmation. If the link is down, subscribe after the reconnect."""
        pattern = wire_pattern(subscription.pattern)
        if peer.gone:
            raise peer.link.disconnected(sent=False) if peer.key is None else peer.departed()
        self._to_peers.add(peer, pattern, subscription)
        if not peer.connected:
            return
        try:
            await self._announce_to(peer, Interest(pattern), alone=True)
        except Disconnected:
            if peer.gone:
                raise
        except LocalProtocolError as error:
            raise Unsupported(f"{peer!r} cannot be asked for {pattern!r}: {error}") from error

    def unask(self, peer: PeerCore, subscription: IteratedQueue) -> None:
        pattern = wire_pattern(subscription.pattern)
        if self._to_peers.remove(peer, pattern, subscription) and peer.connected:
            self._take_back(peer, Interest(pattern))

    def add_handler(self, subject: str | int) -> None:
        """Announce a new handler if the protocol supports this. Patterns, which bridges use, require queue groups."""
        for peer in self._audience():
            if _tells_handlers(peer.link) and (_has_groups(peer.link) or not is_pattern(subject)):
                for interest in self._allowed(peer, [Interest(subject, handler=True)]):
                    _send(interest, peer)

    def remove_handlers(self, subjects: Iterable[str | int]) -> None:
        for peer in self._audience():
            if _has_groups(peer.link):
                for subject in subjects:
                    _send(Interest(subject, handler=True), peer, Kind.UNSUBSCRIBE)

    async def begin(self) -> None:
        """Join the queue groups of all handlers over the inner link, and wait until this is confirmed."""
        peer = self.inner
        if peer is not None and peer.connected:
            for interest in self._handlers(peer.link):
                _send(interest, peer)
            await self.known_inside()

    def add_listener(self, pattern: str) -> None:
        peer = self.inner
        if peer is not None and peer.connected:
            _send(Interest(wire_pattern(pattern), handler=True), peer)

    async def withdraw(self) -> None:
        """Leave all queue groups before a drain, and wait until this is confirmed. Earlier messages still arrive here."""
        for peer in self._audience():
            if _has_groups(peer.link):
                groups = [interest for interest in self._interests if interest.group is not None]
                for interest in (*self._handlers(peer.link), *groups):
                    _send(interest, peer, Kind.UNSUBSCRIBE)
        await self.known()

    async def known(self) -> None:
        """Wait until all peers have processed the announcements, if their protocols support confirmations."""
        for peer in self._audience():
            with suppress(Disconnected):
                await peer.link.confirmed()

    def _audience(self) -> list[PeerCore]:
        return [peer for link in self._told if link.stands and _announces(link) for peer in link.peers]

    def forget(self, link: Link) -> None:
        self._told.pop(link, None)

    async def announce(self, pattern: str | int, group: str | None = None) -> None:
        """Announce a pattern, and wait for confirmations. Raises `Unsupported` or `Forbidden` after all peers were asked."""
        interest = interest_in(pattern, group)
        told = self._audience()
        foreign: list[BusError] = []
        refused: list[BusError] = []
        for peer in told:
            try:
                await self._announce_to(peer, interest)
            except Disconnected:
                continue  # all patterns are announced again after a reconnect
            except LocalProtocolError as error:  # the protocol doesn't support the subject
                foreign.append(error)
            except (Unsupported, Forbidden) as error:
                (foreign if isinstance(pattern, int) and not has_numbers(peer.link) else refused).append(error)
        if refused:
            raise refused[0]
        if foreign and len(foreign) == len(told):
            raise Unsupported(f"no link can carry a subscription to {pattern!r}: {foreign[0]}") from foreign[0]

    def announce_later(self, pattern: str | int) -> None:
        """Announce a pattern in a separate task if the bus is running. Failures are logged."""
        if self._services.runtime is not None:
            self._services.runtime.spawn(self._announce, pattern)

    async def _announce(self, pattern: str | int) -> None:
        try:
            await self.announce(pattern)
        except BusError as error:
            logger.warning("not all peers got the subscription to %r: %s", pattern, error, extra=log_fields(subject=pattern))

    async def _announce_to(self, peer: PeerCore, interest: Interest, *, alone: bool = False) -> None:
        """Announce to one peer, and wait for its confirmation. If `alone` is set, clients must support the pattern too."""
        link, pattern = peer.link, interest.pattern
        if alone:
            link.check_initiates(peer)
        if not self._understands(peer, pattern) and not await peer.extended():
            if link.session is not None and not link.session.capabilities.subscribe:
                return  # the peer sends everything
            if not link.upstream and not alone:
                return  # clients need not support it
            if peer in self._recipients.unconfirmed:
                raise bare_peer(peer)
            raise peer.negotiation.unsupported(f"it matches exact subjects only: subscribe to those instead of {pattern!r}")
        if not alone and not self._allowed(peer, [interest]):
            return
        link.answer(_announcement(interest, link), peer)
        await link.written()
        if pattern in await link.confirmed():
            raise Forbidden(f"{peer!r} does not allow this bus to subscribe to {pattern!r}")
        if not link.upstream and not alone:
            return
        if peer.speaks_extensions is not False and not peer.silent and pattern in await peer.negotiation.confirm([pattern]):
            if peer.negotiation.answers_only:
                raise Unsupported(f"{peer!r} only answers on this connection: it sends no publications")
            why = "its authorize= or its limits (Limits.subscriptions, waiting_bytes) reject it"
            raise Forbidden(f"{peer!r} does not allow this bus to subscribe to {pattern!r}: {why}")

    @staticmethod
    def _understands(peer: PeerCore, pattern: str | int) -> bool:
        """Return True if the peer is known to support a subscription to this pattern."""
        session = peer.link.session
        if peer.speaks_extensions or session is None:
            return True
        capabilities = session.capabilities
        if capabilities.asks_before_publishing:
            return False
        return capabilities.filters or (capabilities.subscribe and (capabilities.patterns or not is_pattern(pattern)))

    def restore(self, link: Link, *, alone: bool) -> None:
        """Announce all patterns on a new link before any other message. If there are no other links, `alone` is True."""
        for peer in link.peers:
            self._recipients.bus_identities.lost(peer)  # an earlier hello may still be in the outbox
            if link.opened and link.multiplexed is None:
                self._recipients.new_servers[peer] = None
        for peer in () if alone else self._recipients.unintroduced():
            self.introduce(peer)
        for peer in link.peers:
            self.restore_peer(peer)

    async def prepare_link(self) -> None:
        """Tell publishers which bus this is before it opens another link."""
        if self._recipients.upstream and self._interests:
            for peer in self._recipients.unintroduced():
                with suppress(BusError):
                    await peer.negotiation.confirm()

    def tell_who_passes_on(self) -> None:
        """Tell peers that this bus forwards publications. They then number theirs, so that copies can be detected."""
        runtime = self._services.runtime
        for link in runtime.links if runtime is not None else ():
            for peer in link.peers if link.stands and link.initiates else ():
                if peer.speaks_extensions or (link.upstream and peer.may_be_ours):
                    peer.negotiation.tell()

    def introduce(self, peer: PeerCore) -> None:
        self._recipients.bus_identities.expect_answer(peer)
        _ = peer.negotiation.ask()

    async def _hold_out(self, peer: PeerCore) -> None:
        """Send no publications to a peer as long as it may still turn out to be another bus's second link."""
        await anyio.sleep(HELLO_TIMEOUT)
        self._recipients.bus_identities.release(peer)

    def restore_peer(self, peer: PeerCore) -> None:
        """Announce all patterns to a new peer before any other message."""
        link = peer.link
        if self._recipients.add(peer):
            peer.spawn(self._hold_out, peer)
        if not _announces(link):
            return
        self._told[link] = None
        if link.upstream:
            peer.greet()
        later: list[Interest] = []
        for interest in self._allowed(peer, self._names(peer, link)):
            if self._understands(peer, interest.pattern):
                self._tell(peer, interest)
            else:
                later.append(interest)
        if later:
            done = self._restoring[peer] = anyio.Event()
            link.runtime.spawn(self._restore_patterns, peer, later, done)

    def _names(self, peer: PeerCore, link: Link) -> list[Interest]:
        interests = [*self._interests, *(self._behind if link.inner else ())]
        if not _has_groups(link):
            interests = [Interest(interest.pattern) for interest in interests]
        names = list(dict.fromkeys((*interests, *map(Interest, self._to_peers.patterns(peer)))))
        if _tells_handlers(link) and (self._services.ready or not link.inner):  # no requests of other nodes before the start
            names += self._handlers(link)
        return names

    def _handlers(self, link: Link) -> list[Interest]:
        answered = self._lookup.answered(patterns=_has_groups(link), inner=link.inner)
        return [Interest(subject, handler=True) for subject in answered]

    def _allowed(self, peer: PeerCore, names: list[Interest]) -> Collection[Interest]:
        """Return the names that `authorize` allows the peer to see. Names with an asynchronous decision are sent later."""
        link = peer.link
        if self._services.authorize is None or link.upstream or not _tells_handlers(link):
            return _each_once(names, link)
        allowed: list[Interest] = []
        for index, interest in enumerate(names):
            answer = self._asked(peer, interest)
            if inspect.isawaitable(answer):
                getattr(answer, "close", lambda: None)()  # called again in a task, which can wait
                peer.spawn(self._tell_allowed, peer, names[index:])
                break
            if answer:
                allowed.append(interest)
        return _each_once(allowed, link)

    def _asked(self, peer: PeerCore, interest: Interest) -> Any:
        kind = Kind.REQUEST if interest.handler else Kind.PUBLISH
        return self._services.access.asks(peer, kind.value, interest.pattern, Message(kind, interest.pattern))

    async def _tell_allowed(self, peer: PeerCore, names: list[Interest]) -> None:
        for interest in names:
            if await self._services.access.answer(self._asked(peer, interest)) and peer.connected:
                if self._understands(peer, interest.pattern):
                    _send(interest, peer)

    @staticmethod
    def _tell(peer: PeerCore, interest: Interest) -> None:
        """Announce a subscription without queueing it."""
        link = peer.link
        assert link.session is not None
        try:
            link.send_frames(link.session.send(_announcement(interest, link), link.runtime.time(), peer.key)[1])
        except BusError as error:  # for example if the protocol reserves the subject
            fields, text = log_fields(peer, subject=interest.pattern), "%r gets no subscription to %r: %s"
            link.runtime.warnings.warn(logger, text, peer, interest.pattern, error, extra=fields)
        else:
            link.services.counters.sent += 1

    def to_tell(self, peer: PeerCore, *, again: bool = False) -> int:
        """Return the number of announcements to send to a polybus peer. Set `again` for a new connection."""
        link = peer.link
        session = link.session
        if session is None or session.capabilities.subscribe or not _announces(link):
            return 0
        return len(self._names(peer, link)) if again or not peer.speaks_extensions or peer in self._restoring else 0

    def confirm_late(self, peer: PeerCore) -> None:
        """Announce the delayed patterns to a peer once it is known which bus it is."""
        link = peer.link
        session = link.session
        if session is None or not peer.connected or not _announces(link):
            return
        waited = session.capabilities.asks_before_publishing or not session.capabilities.subscribe
        names = [interest for interest in self._names(peer, link) if waited or is_pattern(interest.pattern)]
        for interest in self._allowed(peer, names):
            _send(interest, peer)

    async def restored(self, peer: PeerCore) -> None:
        done = self._restoring.get(peer)
        if done is not None:
            await done.wait()

    async def _restore_patterns(self, peer: PeerCore, interests: Iterable[Interest], done: anyio.Event) -> None:
        link = peer.link
        session = link.session
        try:
            if await peer.extended():
                for interest in interests:
                    _send(interest, peer)
            elif session is not None and session.capabilities.subscribe:
                names = ", ".join(repr(interest.pattern) for interest in interests)
                what = "reads no subscriptions" if peer in self._recipients.unconfirmed else "matches exact subjects only"
                why = peer.negotiation.unsupported(f"it {what}, and gets no subscription to {names}")
                link.runtime.warnings.warn(logger, "%s", why, extra=log_fields(peer))
        except BusError:
            return
        finally:
            done.set()
            if self._restoring.get(peer) is done:
                del self._restoring[peer]


def _send(interest: Interest, peer: PeerCore, kind: Kind = Kind.SUBSCRIBE) -> None:
    message = _announcement(interest, peer.link, kind)
    try:
        peer.link.answer(message, peer)
    except (LocalProtocolError, Unsupported) as error:
        logger.debug("%r gets no announcement of %r: %s", peer, message.subject, error, extra=log_fields(peer, message=message))


def _announcement(interest: Interest, link: Link, kind: Kind = Kind.SUBSCRIBE) -> Message:
    facts: dict[str, Any] | None = None
    if _has_groups(link):
        if interest.handler:
            facts = {"handler": True}
        elif interest.group is not None:
            facts = {"group": interest.group}
        elif interest.user is not None:
            facts = {"user": interest.user}
    return Message(kind, interest.pattern, attributes=facts)


def interest_in(pattern: str | int, group: str | None = None) -> Interest:
    return Interest(wire_pattern(pattern), group)


def _behind(wanted: str | int | ToUser) -> Interest:
    return Interest("", user=wanted.key) if isinstance(wanted, ToUser) else Interest(wanted)


def _one_less(counts: Counter[Any], interest: Interest | str | int) -> bool:
    """Decrement a count. Returns False if it reaches zero."""
    counts[interest] -= 1
    if counts[interest] > 0:
        return True
    del counts[interest]
    return False


def _each_once(names: Iterable[Interest], link: Link) -> Collection[Interest]:
    """Remove duplicates. If the protocol has no groups, handlers are announced like subscriptions."""
    if _has_groups(link):
        return dict.fromkeys(names)
    return {interest.pattern: interest for interest in names}.values()


def _has_groups(link: Link) -> bool:
    return link.session is not None and link.session.capabilities.groups


def _tells_handlers(link: Link) -> bool:
    return link.session is not None and link.session.capabilities.handlers


def _announces(link: Link) -> bool:
    """Return True if this side announces its subscriptions over a link."""
    session = link.session
    return session is not None and (link.upstream or session.capabilities.announce == "both")
