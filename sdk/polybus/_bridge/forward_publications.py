"""Publications that cross a bridge."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from .._core.handlers.handler import Handler
from .._core.handlers.subscriber import SubscriberSpec
from .._core.pubsub.handler_subscription import HandlerSubscription
from .._core.pubsub.publisher import OF_PEERS
from ..errors import BusError
from ..headers import VIA
from ..message import Kind, Message
from ..subjects import matches
from .translation import USUAL

if TYPE_CHECKING:
    from .route_side import RouteSide


class PublicationForwarder:
    """The subscription of a route while it is open: queues publications, each with its way, and publishes them over there.

    Implements `_core.pubsub.ports.HandlerQueue`.
    """

    local = True
    leads_on = True
    peers = True
    group = None

    def __init__(self, side: RouteSide) -> None:
        services = side.here.services
        crossing = Handler(side.route.source, self._cross, "async")
        crossing.only_body = lambda message: message  # it wants all of it, and its signature need not be read for that
        spec = SubscriberSpec(crossing, 1000, "block", 1)
        subscription = self._subscription = HandlerSubscription(services, services.running, spec)
        self._side = side
        self.pattern: str | int = side.route.source
        self.queue: int = subscription.queue
        self.room = subscription.room
        self.clear = subscription.clear

    def __len__(self) -> int:
        return len(self._subscription)

    @property
    def busy(self) -> bool:
        return self._subscription.busy

    @property
    def full(self) -> bool:
        return self._subscription.full

    def offer(self, message: Message) -> None:
        """Take a publication, and note where it has been."""
        on = message.with_headers(message.headers)
        if message.subject != self.pattern and not matches(self.pattern, message.subject):
            on.subject = self._spelled(message)
        on.extras = message.attributes or None  # some kinds of messages make them when they are read
        on.shared[VIA] = str(self._side.here.pubsub.deduplicator.via_of(message)).encode()
        on.peer = message.peer
        if message.peer is not None or OF_PEERS in message.shared:
            on.shared[OF_PEERS] = b""
        self._subscription.offer(on)

    offer_shared = offer

    def _spelled(self, message: Message) -> str | int:
        """Find the spelling of a subject that the route names."""
        own = self._side.here.pubsub.publisher.spellings(message.subject).values()
        spellings = chain(message.spellings, chain.from_iterable(own))
        return next((one for one in spellings if matches(self.pattern, one)), message.subject)

    async def _cross(self, message: Message) -> None:
        side = self._side
        here, there = side.here.pubsub, side.there.pubsub
        try:
            target = side.target(message.subject)
            via = here.deduplicator.via_of(message)
            if there.deduplicator.is_own(via):
                return  # it has been there: nothing is lost, also where it may go no further
            if via.hops >= side.here.services.limits.hops:
                here.relay.stop(message, via.hops)
                return
            via = via.extend(side.here.services.id).add_hops(1)
            if not there.deduplicator.is_news(via, target):
                return
            on = await side.converted(side.route.request, message, Kind.PUBLISH, target, side.headers(message, None))
            now = side.there.services.running.time()
            if message.expires is not None:
                on.expires, on.ttl = message.expires, message.expires - now
            await there.publisher.publish_bridged(on, via, now + USUAL, of_peers=OF_PEERS in message.shared)
        except BusError as error:  # of some peer or its wire; the others have got it
            side.lost(message, error)
