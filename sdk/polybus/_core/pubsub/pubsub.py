"""Publications and subscriptions of one bus, put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..._util.pattern_index import SubjectIndex
from ..._util.typed_body import check_returns
from ...errors import BusError, another
from ...subjects import AnySubject, Subject, bare, check_pattern, warn_of_literal_wildcards
from ..handlers.subscriber import SubscriberSpec, WhenFull, check_group, check_queue
from ..peer.subscription import Subscription
from ..runtime.via import Deduplicator
from .announcer import SubscriptionAnnouncer, interest_in
from .group import SubscriptionGroup
from .handler_subscription import HandlerSubscription
from .peer_subscriptions import PeerSubscriptions
from .publisher import Publisher
from .receiver import PublicationReceiver
from .recipients import Recipients
from .relay import Relay

if TYPE_CHECKING:
    from ...plugins.extensions import Reading, Storage
    from ..handlers.lookup import HandlerLookup
    from ..peer.peer import Peer
    from ..runtime.services import Services
    from .ports import HandlerQueue, PublicationQueue


class PubSub:
    """The indexes of patterns, the parts that work with them, and the subscriptions of this bus.

    Args:
        check_gone: Raises a `BusError` where the last link that the bus opened is gone for good, and it serves none.
    """

    def __init__(self, services: Services, lookup: HandlerLookup, check_gone: Callable[[], None]) -> None:
        self._services = services
        self._check_gone = check_gone
        self._handler_queues: dict[HandlerQueue, None] = {}
        self._leading = 0
        """The number of them that lead on to another bus."""
        self._subscriptions: dict[Subscription, None] = {}
        self.tells_inside: bool = False
        """True where other buses are this one: they are told what clients have subscribed to."""
        self.storage: Callable[[], Storage]
        """Gives the reader of what is kept: set when the bus is put together."""
        self._groups: dict[Any, SubscriptionGroup] = {}
        self.local: SubjectIndex[PublicationQueue] = SubjectIndex()
        self.remote: SubjectIndex[Peer] = SubjectIndex()
        relays: SubjectIndex[str | int] = SubjectIndex()
        self.deduplicator: Deduplicator = Deduplicator(services.id, services.counters)
        self.recipients: Recipients = Recipients(self.remote, services.limits.subscriptions, self.forget_routes)
        self.to_peers: PeerSubscriptions = PeerSubscriptions(self.forget_routes)
        self.announcer: SubscriptionAnnouncer = SubscriptionAnnouncer(services, lookup, self.recipients, self.to_peers)
        self.publisher: Publisher = Publisher(services, check_gone, self.local, relays, self.recipients, self.deduplicator)
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
        """Look again where each publication goes."""
        self.publisher.routes.clear()
        self.publisher.client_routes.clear()
        self.receiver.queues.clear()

    @property
    def passes_on(self) -> bool:
        """Tells whether this bus passes publications on to others."""
        return self.relay.patterns.size > 0 or self._leading > 0

    # -- the life of the bus ---------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take the subscriptions of handlers out: the bus has been left."""
        for queue in self._handler_queues:
            queue.clear()
            self._take_out(queue)
        self._handler_queues.clear()
        self._leading = 0
        self.publisher.in_net = False
        self.recipients.clear()

    @property
    def busy(self) -> bool:
        """Tells whether handlers have publications to handle."""
        return any(queue.busy for queue in self._handler_queues)

    @property
    def unread(self) -> int:
        """The number of publications that wait in queues."""
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
        peer: Peer | None = None,
        group: str | None = None,
        reading: Reading | None = None,
    ) -> Subscription[Any]:
        """Make a subscription, to one peer or to all; it takes part while it is entered.

        Raises:
            LocalProtocolError, ReservedSubject, TypeError, ValueError: As `Bus.subscribe`.
        """
        name = bare(pattern)
        if isinstance(pattern, Subject) and returns is Any:
            returns = pattern.takes
        check_pattern(name, self._services.limits.subject)
        warn_of_literal_wildcards(name)
        if reading is not None:
            if when_full != "drop_oldest" or not (local or peer):
                raise ValueError("what is stored waits in its store, and names no publisher: leave out when_full= and local=")
            when_full = "block"
        if queue is None and reading is not None:
            queue = reading.unread
        check_queue(queue, when_full)
        check_group(group)
        check_returns(returns)
        return Subscription(self, self._services, name, returns, queue, when_full, local, peer, group, reading)

    async def subscribe(self, subscription: Subscription) -> None:
        """Take a subscription in; returns when the peers that are connected know of it.

        Raises:
            LocalProtocolError: The bus is not entered, or runs in another event loop.
            Unsupported, Forbidden, Disconnected: As `SubscriptionAnnouncer.announce` and `ask`.
        """
        self._services.running.check_here()
        self._check_gone()
        self._subscriptions[subscription] = None
        if subscription.reading is not None:
            await self.storage().subscribe(subscription, subscription.reading)
            return
        if subscription.peer is not None:
            await self.announcer.ask(subscription.peer, subscription)
            return
        self._take_in(subscription)
        await self.announcer.announce(subscription.pattern, subscription.group)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Take a subscription out; one that is not in is ignored."""
        if subscription in self._subscriptions:
            del self._subscriptions[subscription]
            if subscription.reading is not None:
                self.storage().unsubscribe(subscription)
            elif subscription.peer is not None:
                self.announcer.unask(subscription.peer, subscription)
            else:
                self._take_out(subscription)

    def fail_subscriptions(self, error: BusError | None) -> None:
        """End the subscriptions: with an error those to all peers, since those to one peer end with that one; else all."""
        for subscription in list(self._subscriptions):
            if error is None:
                subscription.fail(None)
            elif subscription.peer is None:
                subscription.fail(another(error))

    def end_subscriptions(self) -> None:
        """End all subscriptions once what has come is read: nothing more will."""
        for subscription in list(self._subscriptions):
            subscription.end(None)

    def subscribe_handler(self, spec: SubscriberSpec) -> HandlerSubscription:
        """Take in an `on` handler for this run of the bus."""
        queue = HandlerSubscription(self._services, self._services.running, spec)
        self.add_handler_queue(queue)
        return queue

    def add_handler_queue(self, queue: HandlerQueue) -> None:
        """Take in the queue of a handler, until the bus is left or `remove_handler_queue`."""
        self._handler_queues[queue] = None
        if queue.leads_on:
            self._leading += 1
            self.publisher.join_net()
            self.announcer.tell_who_passes_on()
        self._take_in(queue)

    def remove_handler_queue(self, queue: HandlerQueue) -> None:
        """Take the queue of a handler out; one that is not in is ignored."""
        if queue in self._handler_queues:
            del self._handler_queues[queue]
            self._leading -= queue.leads_on
            self._take_out(queue)

    def add_relay(self, pattern: str | int) -> None:
        """Pass publications of peers on to other peers that subscribed."""
        self.relay.patterns.add(pattern, pattern)
        self.announcer.tell_who_passes_on()
        self.announcer.add(pattern)
        self.announcer.announce_later(pattern)

    def _take_in(self, queue: PublicationQueue) -> None:
        """Deliver publications to a queue from now on."""
        if queue.group is None:
            self.local.add(queue.pattern, queue)
        else:
            self._join(interest_in(queue.pattern, queue.group), queue)
        if self.hears_others(queue):
            self.announcer.add(queue.pattern, queue.group)

    def hears_others(self, queue: PublicationQueue) -> bool:
        """Tell whether others are to know of a queue: peers, or the other buses that are this one."""
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
        """Deliver no more publications to a queue."""
        if queue.group is None:
            self.local.remove(queue.pattern, queue)
        else:
            self._part(interest_in(queue.pattern, queue.group), queue)
        if self.hears_others(queue):
            self.announcer.remove(queue.pattern, queue.group)

    # -- peers -----------------------------------------------------------------------------------------------------------

    def peer_gone(self, peer: Peer, error: BusError) -> None:
        """End the subscriptions to a peer that has gone for good, which raise the error."""
        for subscription in self.to_peers.forget(peer):
            subscription.end(None if self._services.leaving else another(error))
