"""Who gets a publication: local subscriptions, linked peers, relays. One object per bus."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .errors import BusError, Code
from .fanout import ROUTES, FanOut, split
from .headers import VIA
from .message import Kind, Message

if TYPE_CHECKING:
    from .peer import Peer

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
        elif len(self._inbound) < ROUTES:
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
        carry, others = split(route.peers)
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
