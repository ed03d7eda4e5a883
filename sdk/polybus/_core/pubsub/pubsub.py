"""Manages a bus's publications and subscriptions, and delivers peers' publications to local queues and relays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ..._util.logs import log_fields
from ..._util.pattern_index import SubjectIndex
from ..._util.typed_body import check_returns
from ...errors import BusError, Code, Unsupported, another
from ...headers import VIA
from ...message import MISSING, RELAYED, Kind, Message
from ...subjects import AnySubject, Subject, bare, check_pattern, warn_of_literal_wildcards
from ..handlers.handler import SubscriberSpec, WhenFull, check_group, check_queue
from ..peer.subscription import IteratedQueue, Subscription
from ..runtime.loop_prevention import Deduplicator, ViaHeader, depth_of, quota_owner, too_far, vouched
from .announcer import SubscriptionAnnouncer, interest_in
from .handler_subscription import HandlerSubscription, SubscriptionGroup
from .publisher import ROUTES, Publisher
from .recipients import PeerSubscriptions, Recipients

if TYPE_CHECKING:
    from ...plugins import ProtocolAdapter
    from ...plugins.extensions import PublicationQueue, Reading, Storage
    from ..handlers.lookup import HandlerLookup
    from ..peer.peer_core import PeerCore
    from ..runtime.access import AccessControl
    from ..runtime.services import Services

logger: logging.Logger = logging.getLogger("polybus")

_HINTS = 256


class Relay(Struct, eq=False):
    _services: Services
    patterns: SubjectIndex[str | int]
    _recipients: Recipients
    _publisher: Publisher
    _deduplicator: Deduplicator
    _hinted: set[str | int] = set()
    _stopped: set[str | int] = set()

    def takes(self, message: Message) -> bool:
        patterns = self.patterns
        if not patterns.size:
            return False
        return bool(patterns.match(message.subject) or (patterns.addresses and any(map(patterns.match, message.spellings))))

    def pass_on(self, message: Message, source: PeerCore) -> None:
        id = None if source.link.carries_headers else message.attributes.get("id")
        news = id is None or self._deduplicator.is_news(ViaHeader(str(id)), message.subject, owner=quota_owner(source))
        if not news:
            return  # a loop, which the id reveals in protocols without headers
        via = self._deduplicator.via_of(message)
        if via.hops > self._services.limits.hops:
            self.stop(message, via.hops)
            return
        now = source.link.runtime.time()
        deadline = now + 30.0 if message.expires is None else min(now + 30.0, message.expires)
        copies: dict[tuple[bool, bool], Message] = {}
        for peer in self._recipients.of(message.subject):
            if peer is not source:
                wire = peer.protocol == source.protocol, peer.link.carries_headers
                try:
                    on = copies.get(wire) or copies.setdefault(wire, self._copy(message, via, *wire, now=now))
                    if not self._publisher.send_nowait(on, peer, deadline):
                        self._services.counters.dropped += 1
                except BusError as error:
                    self._publisher.unsent(message, peer, "relayed", error)
                    self._services.dead_letter(peer.public, message, Code.INVALID_ARGUMENT, f"not relayed: {error}")
        for on in copies.values():
            on.forget_shared()

    def _copy(self, message: Message, via: ViaHeader, same_wire: bool, has_headers: bool, *, now: float) -> Message:
        """Return a copy of a publication for peers of a protocol. Raises `Unsupported` if the copy cannot count hops."""
        if has_headers:
            on = self._deduplicator.onward(message, via)
        else:
            on = _with_id(message, same_wire)
        if message.attributes and not same_wire:
            value = message.body if message.raw is None and message.has_body else MISSING
            on = Message(Kind.PUBLISH, message.subject, None, message.raw, message.format, on.headers, body=value)
            on.checked = message.checked
        if message.expires is not None:  # the remaining time
            on.expires, on.ttl = message.expires, message.expires - now
        return on

    def stop(self, message: Message, hops: int) -> None:
        """Drop a publication with too many hops. Logs this once per subject."""
        services, subject = self._services, message.subject
        text = too_far(subject, hops, services.limits.hops)
        services.counters.dropped += 1
        services.dead_letter(message.peer, message, Code.FAILED_PRECONDITION, text)
        if subject not in self._stopped and len(self._stopped) < _HINTS:  # peers choose subjects
            self._stopped.add(subject)
            logger.warning("%.200s", text, extra=log_fields(message=message))

    def hint(self, subject: str | int, source: PeerCore) -> bool:
        """Warn that no relay is configured, once per subject. Returns False if the warning has been logged before."""
        if subject in self._hinted:
            return False
        others = [peer for peer in self._recipients.remote.match(subject) if peer is not source]
        if others and len(self._hinted) < _HINTS:
            self._hinted.add(subject)
            text = (
                "%r published %.100r, to which others subscribed (%d), but nothing relays it: clients are isolated. "
                "bus.relay(%.100r), or polybus serve --relay, passes it on"
            )
            self._services.running.warnings.warn(
                logger, text, source, subject, len(others), subject, extra=log_fields(source, subject=subject)
            )
        return True


def _with_id(message: Message, same_wire: bool) -> Message:
    """Return a copy for a protocol without headers, where the id reveals loops. Raises `Unsupported` without an id."""
    known = message.attributes
    if not same_wire or "id" not in known:
        raise Unsupported(
            "a wire without headers does not tell how far a publication has come, and a ring of relays would have no end: "
            "publish it from a handler, or over a bridge"
        )
    on = message.with_headers(message.headers)
    on.extras = {**known, RELAYED: {name: known[name] for name in ("id", "priority") if name in known}}
    return on


class PublicationReceiver(Struct, eq=False):
    _local: SubjectIndex[PublicationQueue]
    _remote: SubjectIndex[PeerCore]
    _to_peers: PeerSubscriptions
    _relay: Relay
    _deduplicator: Deduplicator
    _publisher: Publisher
    _find_group: Callable[[str | int, str], SubscriptionGroup | None]
    _access: AccessControl
    queues: dict[str | int, tuple[PublicationQueue, ...]] = {}
    """Cached queues for publications that are not relayed. Empty while there are subscriptions to single peers."""

    def deliver(self, message: Message, peer: PeerCore) -> None:
        """Deliver a peer's publication to local subscriptions and, if there is one, to a relay."""
        subject, extras = message.subject, message.extras
        if extras is not None and "group" in extras:
            self.deliver_to_group(message, peer, extras["group"], extras["pattern"])
            return
        if message.headers is not None and VIA in message.headers and not self._is_news(message, peer):
            return
        queues = self.queues.get(subject)
        if queues is None:
            queues = self._of_peers(message)
            handler = _handler_among(queues) if self._access.trusts("publish") else None
            if handler is not None:
                self._access.reached(peer, subject, handler)
            to_peers = self._to_peers.indices
            if self._relay.takes(message):
                self._relay.pass_on(message, peer)
            elif self._remote.size and self._relay.hint(subject, peer):
                pass  # not cached before the hint has been logged
            elif to_peers or (self._local.addresses and message.spellings):
                pass  # not cached, because it depends on the peer or the message
            elif handler is not None and self._access.trusts("publish"):
                pass  # not cached before a client's publication has caused a warning
            elif len(self.queues) < ROUTES:
                self.queues[subject] = queues
            else:
                self.queues.clear()
            if to_peers:
                queues = (*queues, *self._asked_of(peer, message))
        if len(queues) == 1:  # after caching, because this publication may end a subscription, which clears the cache
            queues[0].offer(message)
        else:
            for queue in queues:
                queue.offer_shared(message)

    def deliver_to_all(self, message: Message, peer: PeerCore) -> tuple[PublicationQueue, ...]:
        """Deliver a publication from the inner link to local subscriptions and to clients. Returns the queues."""
        if message.headers is not None and VIA in message.headers and not self._is_news(message, peer):
            return ()
        local = self._local
        queues = self._matching(message) if local.addresses else local.match(message.subject)
        if len(queues) == 1:
            queues[0].offer(message)
        else:
            for queue in queues:
                queue.offer_shared(message)
        if self._remote.size:
            self._publisher.publish_to_clients(message)
        return queues

    def deliver_to_group(self, message: Message, peer: PeerCore, group: str, pattern: str | int) -> None:
        """Deliver a publication that an engine has assigned to a member of a queue group of this bus."""
        if message.headers is not None and VIA in message.headers and not self._is_news(message, peer, (group, pattern)):
            return
        found = self._find_group(pattern, group)
        if found is not None:  # otherwise the group has ended in the meantime
            found.give(message)

    def takes(self, message: Message) -> bool:
        """Return True if any queue or relay receives a peer's publication."""
        return bool(self.queues.get(message.subject) or self._of_peers(message)) or self._relay.takes(message)

    def _of_peers(self, message: Message) -> tuple[PublicationQueue, ...]:
        return tuple(queue for queue in self._matching(message) if queue.peers)

    def _matching(self, message: Message) -> tuple[PublicationQueue, ...]:
        """Return the subscriptions that match any name of a publication, without duplicates."""
        found = self._local.match(message.subject)
        if self._local.addresses and (spellings := message.spellings):
            return tuple(dict.fromkeys(chain(found, *map(self._local.match, spellings))))
        return found

    def _asked_of(self, peer: PeerCore, message: Message) -> Iterable[IteratedQueue]:
        match = self._to_peers.match
        return dict.fromkeys(chain.from_iterable(match(peer, one) for one in (message.subject, *message.spellings)))

    def _is_news(self, message: Message, peer: PeerCore, group: tuple[str, str | int] | None = None) -> bool:
        """Return True if a publication has not arrived before. Removes its ``polybus-via`` header."""
        via = ViaHeader.of(message)
        ViaHeader.strip(message)
        via = via.in_stream(vouched(via.origin, peer)).add_hops(depth_of(peer))
        message.shared[VIA] = str(via).encode()
        news = self._deduplicator.is_news(via, message.subject, group, owner=quota_owner(peer))
        if not news and group is None and self._to_peers.indices and not self._deduplicator.is_own(via):
            for subscription in self._asked_of(peer, message):  # they still need the copy from their own peer
                subscription.offer_shared(message)
        return news


def _handler_among(queues: Iterable[PublicationQueue]) -> str | None:
    for queue in queues:
        for one in queue.members if isinstance(queue, SubscriptionGroup) else (queue,):
            if isinstance(one, HandlerSubscription) and not one.leads_on:
                return one.name
    return None


class PubSub:
    """The subscriptions of this bus, with the pattern indexes and the parts that use these indexes.

    Args:
        check_gone: Raises a `BusError` if the bus has no listener and its last link is gone for good.
        storage: Returns the extension for stored publications.
        spellings: Returns a publication's other names by protocol, for protocols with both names and addresses.
    """

    def __init__(
        self,
        services: Services,
        lookup: HandlerLookup,
        *,
        check_gone: Callable[[], None],
        storage: Callable[[], Storage],
        spellings: Callable[[str | int], Mapping[ProtocolAdapter, tuple[str, ...]]],
    ) -> None:
        self._services = services
        self._check_gone = check_gone
        self._storage = storage
        self._handler_queues: dict[HandlerSubscription, None] = {}
        self._leading = 0
        self._subscriptions: dict[IteratedQueue, None] = {}
        self.tells_inside: bool = False
        """True in a cluster. Clients' subscriptions are then announced to other nodes."""
        self._groups: dict[Any, SubscriptionGroup] = {}
        self.local: SubjectIndex[PublicationQueue] = SubjectIndex()
        self.remote: SubjectIndex[PeerCore] = SubjectIndex()
        relays: SubjectIndex[str | int] = SubjectIndex()
        self.deduplicator: Deduplicator = Deduplicator(services.id, services.counters)
        self.recipients: Recipients = Recipients(self.remote, services.limits.subscriptions, self.forget_routes)
        self.to_peers: PeerSubscriptions = PeerSubscriptions(self.forget_routes)
        self.announcer: SubscriptionAnnouncer = SubscriptionAnnouncer(services, lookup, self.recipients, self.to_peers)
        self.publisher: Publisher = Publisher(
            services, check_gone, self.local, relays, self.recipients, self.deduplicator, spellings
        )
        self.relay: Relay = Relay(services, relays, self.recipients, self.publisher, self.deduplicator)
        self.receiver: PublicationReceiver = PublicationReceiver(
            self.local,
            self.remote,
            self.to_peers,
            self.relay,
            self.deduplicator,
            self.publisher,
            self._find_group,
            services.access,
        )
        for index in (self.local, self.remote, relays):
            index.changed = self.forget_routes

    def forget_routes(self) -> None:
        self.publisher.routes.clear()
        self.publisher.client_routes.clear()
        self.receiver.queues.clear()

    @property
    def passes_on(self) -> bool:
        return self.relay.patterns.size > 0 or self._leading > 0

    # -- the life of the bus ---------------------------------------------------------------------------------------------

    def stop(self) -> None:
        for queue in self._handler_queues:
            queue.clear()
            self._take_out(queue)
        self._handler_queues.clear()
        self._leading = 0
        self.publisher.stop()
        self.recipients.clear()

    @property
    def busy(self) -> bool:
        return any(queue.busy for queue in self._handler_queues)

    @property
    def unread(self) -> int:
        return sum(map(len, self._handler_queues)) + sum(map(len, self._subscriptions))

    # -- subscriptions ---------------------------------------------------------------------------------------------------

    def subscription(
        self,
        pattern: AnySubject,
        returns: Any,
        queue: int | None,
        when_full: WhenFull,
        *,
        local: bool = False,
        peer: PeerCore | None = None,
        group: str | None = None,
        reading: Reading | None = None,
    ) -> Subscription[Any]:
        """Create a subscription to one peer or to all peers. Raises the errors of `Bus.subscribe`."""
        name = bare(pattern)
        if isinstance(pattern, Subject) and returns is Any:
            returns = pattern.takes
        check_pattern(name, self._services.limits.subject)
        warn_of_literal_wildcards(name)
        if reading is not None:
            if when_full != "drop_oldest" or not (local or peer):
                raise ValueError(
                    "stored messages wait in the store and do not name their publisher: leave out when_full= and local="
                )
            when_full = "block"
        if queue is None and reading is not None:
            queue = reading.unread
        check_queue(queue, when_full)
        check_group(group)
        check_returns(returns)
        source = IteratedQueue(
            self._services,
            name,
            queue,
            when_full,
            local,
            group,
            paced=reading is not None,
            pubsub=self,
            returns=returns,
            peer=peer,
            reading=reading,
        )
        return Subscription(source)

    async def subscribe(self, subscription: IteratedQueue) -> None:
        """Activate a subscription, and wait until all peers have confirmed it. Raises the errors of `Bus.subscribe`."""
        self._services.running.check_here()
        self._check_gone()
        self._subscriptions[subscription] = None
        if subscription.reading is not None:
            await self._storage().subscribe(subscription, subscription.reading)
            return
        if subscription.peer is not None:
            await self.announcer.ask(subscription.peer, subscription)
            return
        self._take_in(subscription)
        await self.announcer.announce(subscription.pattern, subscription.group)

    def unsubscribe(self, subscription: IteratedQueue) -> None:
        if subscription in self._subscriptions:
            del self._subscriptions[subscription]
            if subscription.reading is not None:
                self._storage().unsubscribe(subscription)
            elif subscription.peer is not None:
                self.announcer.unask(subscription.peer, subscription)
            else:
                self._take_out(subscription)

    def fail_subscriptions(self, error: BusError | None) -> None:
        """End all subscriptions. If there is an error, subscriptions to a single peer are not affected."""
        for subscription in list(self._subscriptions):
            if error is None:
                subscription.fail(None)
            elif subscription.peer is None:
                subscription.fail(another(error))

    def end_subscriptions(self) -> None:
        for subscription in list(self._subscriptions):
            subscription.end(None)

    def subscribe_handler(self, spec: SubscriberSpec) -> HandlerSubscription:
        queue = HandlerSubscription(self._services, self._services.running, spec)
        self.add_handler_queue(queue)
        return queue

    def add_handler_queue(self, queue: HandlerSubscription) -> None:
        """Add a handler's queue. It stays until `remove_handler_queue` is called or the bus stops."""
        self._handler_queues[queue] = None
        if queue.leads_on:
            self._leading += 1
            self.publisher.join_net()
            self.announcer.tell_who_passes_on()
        self._take_in(queue)

    def remove_handler_queue(self, queue: HandlerSubscription) -> None:
        if queue in self._handler_queues:
            del self._handler_queues[queue]
            self._leading -= queue.leads_on
            self._take_out(queue)

    def add_relay(self, pattern: str | int) -> None:
        self.relay.patterns.add(pattern, pattern)
        self.announcer.tell_who_passes_on()
        self.announcer.add(pattern)
        self.announcer.announce_later(pattern)

    def _take_in(self, queue: PublicationQueue) -> None:
        if queue.group is None:
            self.local.add(queue.pattern, queue)
        else:
            self._join(interest_in(queue.pattern, queue.group), queue)
        if self.hears_others(queue):
            self.announcer.add(queue.pattern, queue.group)

    def hears_others(self, queue: PublicationQueue) -> bool:
        """Return True if a subscription must be announced to peers or other nodes."""
        return queue.peers or self.tells_inside

    def _join(self, interest: Any, queue: PublicationQueue) -> None:
        group = self._groups.get(interest)
        if group is None:
            group = self._groups[interest] = SubscriptionGroup(
                interest.pattern, interest.group, self.recipients.shares, self.relay.takes
            )
            self.local.add(group.pattern, group)
        group.members.append(queue)

    def _part(self, interest: Any, queue: PublicationQueue) -> None:
        group = self._groups.get(interest)
        if group is not None and queue in group.members:
            group.members.remove(queue)
            if not group.members:
                del self._groups[interest]
                self.local.remove(group.pattern, group)

    def _find_group(self, pattern: str | int, group: str) -> SubscriptionGroup | None:
        return self._groups.get(interest_in(pattern, group))

    def _take_out(self, queue: PublicationQueue) -> None:
        if queue.group is None:
            self.local.remove(queue.pattern, queue)
        else:
            self._part(interest_in(queue.pattern, queue.group), queue)
        if self.hears_others(queue):
            self.announcer.remove(queue.pattern, queue.group)

    # -- peers -----------------------------------------------------------------------------------------------------------

    def peer_gone(self, peer: PeerCore, error: BusError) -> None:
        """End the subscriptions to a peer that has left for good. Iterating over them raises the error."""
        for subscription in self.to_peers.forget(peer):
            subscription.end(None if self._services.leaving else another(error))
