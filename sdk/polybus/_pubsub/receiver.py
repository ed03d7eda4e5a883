"""Who gets a publication: local subscriptions, linked peers, relays. One object per bus."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

from .._core.via import Via, depth_of, hide, too_far, vouched
from ..errors import BusError, Code, another
from ..headers import VIA
from ..message import Kind, Message
from .publisher import ROUTES, FanOut

if TYPE_CHECKING:
    from .._peer.peer import Peer

__all__ = ["Distribution"]

logger: logging.Logger = logging.getLogger("polybus")

_HINTS = 256


class Distribution(FanOut):
    """Interest, fan-out, and what becomes of the publications of peers."""

    def relay(self, pattern: str | int) -> None:
        """Pass publications of peers on to other peers that subscribed."""
        self.relays.add(pattern, pattern)
        self.want(pattern)

    def deliver(self, message: Message, peer: Peer) -> None:
        """A publication has come in: to this bus's own subscriptions, and on to others only where a relay says so."""
        if message.headers is not None and VIA in message.headers and not self._arrived(message, peer):
            return
        subject = message.subject
        inboxes = self._inbound.get(subject)
        if inboxes is None:
            inboxes = self.local.match(subject)
            if self.relays.size and self.relays.match(subject):
                self._relay(message, peer)
            elif self.remote.size and subject not in self._hinted:
                self._hint(subject, peer)
            elif self.asked.indices:
                pass  # the answer depends on the peer
            elif len(self._inbound) < ROUTES:
                self._inbound[subject] = inboxes
            else:
                self._inbound.clear()
            if self.asked.indices:
                inboxes = (*inboxes, *self.asked.match(peer, subject))
        for inbox in inboxes:  # after it is remembered: one that ends with this publication is to be forgotten
            inbox.offer(message)

    def _arrived(self, message: Message, peer: Peer) -> bool:
        """Whether a publication that has been on other buses is news here; takes the header off it."""
        via = Via.read((message.headers or {})[VIA])
        hide(message)
        via = via.of(vouched(via.origin, peer)).over(depth_of(peer))
        message.shared[VIA] = str(via).encode()
        news = self.is_news(via, message.subject)
        if not news and self.asked.indices and not self.journeys.is_own(via):
            for subscription in self.asked.match(peer, message.subject):  # it is their peer that has sent this copy
                subscription.offer(message)
        return news

    def departed(self, peer: Peer, error: BusError) -> None:
        """A peer has gone for good: the subscriptions that asked it have come to their end.

        Args:
            error: Why, to be raised there.
        """
        for subscription in self.asked.forget(peer):
            subscription.end(None if self._bus.leaving else another(error))

    def is_news(self, via: Via, subject: str | int) -> bool:
        """Whether a publication comes for the first time, and in order."""
        news = self.journeys.arrived(via, subject)
        if news is None:
            self._services.counters.dropped += 1
        return bool(news)

    def stopped(self, message: Message, crossed: int) -> None:
        """A publication has come too far: it is counted and told, and in the log once for each subject."""
        subject = message.subject
        text = too_far(subject, crossed, self._bus.limits.hops)
        self._services.counters.dropped += 1
        self._services.dead_letter(message.peer, message, Code.FAILED_PRECONDITION, text)
        if subject not in self._stopped and len(self._stopped) < _HINTS:
            self._stopped.add(subject)
            logger.warning("polybus: %.200s", text)

    async def publish_crossed(self, message: Message, via: Via, deadline: float) -> None:
        """A publication that came over a bridge: to all that one of this very bus would go to.

        Raises:
            QueueFull, EncodeError, Unsupported, TooLarge: As `publish`.
        """
        message.shared[VIA] = str(via).encode()
        await self.publish_two_ways(message, self.routes.get(message.subject) or self.route(message.subject), deadline)

    def takes(self, subject: str | int) -> bool:
        """Whether a publication of a peer to this subject is delivered to anybody, here or by a relay."""
        if self._inbound.get(subject) or self.local.match(subject):
            return True
        return bool(self.relays.size and self.relays.match(subject))

    def _relay(self, message: Message, source: Peer) -> None:
        via = self.via_of(message)
        if via.crossed > self._bus.limits.hops:
            self.stopped(message, via.crossed)
            return
        on = Message(Kind.PUBLISH, message.subject, None, message.raw, message.format)
        on.headers = {**(message.headers or {}), VIA: str(self.journeys.leaving(via))}
        if message.raw is None and message.has_body:
            on.decoded = message.body
        alike = on
        if message.attributes:  # what only that wire knows goes on to peers on the same one
            alike = Message(Kind.PUBLISH, on.subject, None, on.raw, on.format, on.headers, attributes=message.extras)
            alike.decoded = on.decoded
        now = source.link.runtime.time()
        deadline = now + 30.0
        if message.expires is not None:  # what is left of its time
            on.expires = alike.expires = message.expires
            on.ttl = alike.ttl = message.expires - now
            deadline = min(deadline, message.expires)
        for peer in self.targets(message.subject):
            if peer is not source:
                try:
                    if not self._send_nowait(alike if peer.protocol == source.protocol else on, peer, deadline):
                        self._services.counters.dropped += 1
                except BusError as error:
                    self.unsent(message, peer, "relayed", error)
                    self._services.dead_letter(peer, message, Code.INVALID_ARGUMENT, f"not relayed: {error}")
        on.forget_shared()
        alike.forget_shared()

    def unsent(self, message: Message, peer: Peer, how: str, error: BusError) -> None:
        """A publication did not fit the wire of a peer, and nobody waits for it: counted, and told in the log once a minute,
        which a stranger must not be able to fill.

        Args:
            how: What could not be done with it.
        """
        self._services.counters.dropped += 1
        if self._unsent.add(monotonic()) == 1:
            text = "polybus: %.200r could not be %s to %r, nor may others like it: %.300s"
            logger.warning(text, message.subject, how, peer, error)

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
