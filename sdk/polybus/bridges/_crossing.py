"""The open routes of a bridge."""

from __future__ import annotations

import logging
from itertools import chain

from ..errors import BusError, Unsupported
from ..headers import TRACE, VIA
from ..integrations import OF_PEERS, BusParts, ForwardingRoute, Handler, HandlerSubscription, SubscriberSpec
from ..message import Kind, Message
from ..subjects import is_pattern, matches
from ._route import Route

logger: logging.Logger = logging.getLogger("polybus")

_REMEMBERED = 1024
"""Number of target subjects that a route caches."""
_LONGEST = 30.0
"""Maximum seconds that a publication waits for space on the target bus."""


class Crossing(ForwardingRoute):
    """An open route of a bridge. Receives messages on the source bus and sends them on the target bus."""

    is_open = False

    def __init__(self, route: Route, here: BusParts, there: BusParts) -> None:
        name = f"{route.source!r} to {route.target!r}"
        super().__init__(route.source, route.kinds, here, there, name=name, request=route.request, reply=route.reply)
        self.route: Route = route
        self._known: dict[str | int, str | int] = {}
        self._named: frozenset[str] = frozenset((*route.headers, TRACE))
        self._publications: PublicationForwarder | None = None

    # -- opening and closing ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self.is_open = True
        here, source = self.here.pubsub, self.source
        self.here.lookup.routes.append(self)
        if "request" in self.kinds:
            here.announcer.add_handler(source)
            await here.announcer.known()
        if "publish" in self.kinds:
            self._publications = PublicationForwarder(self)
            here.add_handler_queue(self._publications)
            try:
                await here.announcer.announce(source)
            except Unsupported as error:
                if "request" not in self.kinds or is_pattern(source):
                    raise
                text = "route %r to %r: requests cross, but publications do not: %s"
                logger.info(text, source, self.route.target, error)

    def close(self) -> None:
        """Stop accepting messages. Publications that are already queued are still forwarded."""
        self.is_open = False
        lookup, here = self.here.lookup, self.here.pubsub
        if self in lookup.routes:
            lookup.routes.remove(self)
            if "request" in self.kinds:
                here.announcer.remove_handlers({self.source} - {*lookup.answered(patterns=True)})
        if self._publications is not None:
            here.remove_handler_queue(self._publications)

    def idle(self, *, lasting: bool) -> bool:
        busy = self._publications is not None and self._publications.busy
        return not busy and super().idle(lasting=lasting)

    def stop(self) -> None:
        super().stop()
        if self._publications is not None:
            self._publications.clear()

    # -- what crosses ----------------------------------------------------------------------------------------------------

    def target(self, subject: str | int) -> str | int:
        found = self._known.get(subject)
        if found is None:
            found = self.route.rewritten(subject)
            self.there.services.subjects.check(found)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[subject] = found
        return found

    def passed_headers(self, message: Message) -> dict[str, str]:
        return {name: value for name, value in (message.headers or {}).items() if name.lower() in self._named}

    async def publish(self, message: Message) -> None:
        """Publish a message on the target bus, unless it has been there. Failures are counted."""
        here, there = self.here.pubsub, self.there.pubsub
        try:
            target = self.target(message.subject)
            via = here.deduplicator.via_of(message)
            if there.deduplicator.is_own(via):
                return  # the target bus published it, so nothing is lost
            if via.hops >= self.here.services.limits.hops:
                here.relay.stop(message, via.hops)
                return
            via = via.extend(self.here.services.id).add_hops(1)
            if not there.deduplicator.is_news(via, target):
                return
            headers = self.passed_headers(message) or None
            on = await self.converted(self.request, message, Kind.PUBLISH, target, headers)
            now = self.there.services.running.time()
            if message.expires is not None:
                on.expires, on.ttl = message.expires, message.expires - now
            await there.publisher.publish_bridged(on, via, now + _LONGEST, of_peers=OF_PEERS in message.shared)
        except BusError as error:  # one peer failed; the others have the publication
            self.lost(message, error)


class PublicationForwarder(HandlerSubscription):
    """A queue of publications for an open route, which publishes them on the target bus."""

    __slots__ = ("_here",)
    leads_on = True

    def __init__(self, crossing: Crossing) -> None:
        services = crossing.here.services
        handler = Handler(crossing.source, crossing.publish, "async")
        handler.only_body = lambda message: message  # takes the whole message, without parsing a signature
        super().__init__(services, services.running, SubscriberSpec(handler, 1000, "block", 1))
        self._here = crossing.here.pubsub

    def offer(self, message: Message) -> None:
        on = message.with_headers(message.headers)
        if message.subject != self.pattern and not matches(self.pattern, message.subject):
            on.subject = self._spelled(message)
        on.extras = message.attributes or None  # some kinds of messages create attributes on access
        on.shared[VIA] = str(self._here.deduplicator.via_of(message)).encode()
        on.peer = message.peer
        if message.peer is not None or OF_PEERS in message.shared:
            on.shared[OF_PEERS] = b""
        super().offer(on)

    offer_shared = offer

    def _spelled(self, message: Message) -> str | int:
        own = self._here.publisher.spellings(message.subject).values()
        spellings = chain(message.spellings, chain.from_iterable(own))
        return next((one for one in spellings if matches(self.pattern, one)), message.subject)
