"""Inbound publications: from peers to the queues of this bus, and to its relay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

from attrs import define, field

from ..._util.pattern_index import SubjectIndex
from ...headers import VIA
from ...message import Message
from ..runtime.via import ViaHeader, depth_of, speaker, vouched
from .group import SubscriptionGroup
from .handler_subscription import HandlerSubscription
from .publisher import ROUTES, Publisher

if TYPE_CHECKING:
    from ..peer.peer import Peer
    from ..peer.subscription import Subscription
    from ..runtime.access import AccessControl
    from ..runtime.via import Deduplicator
    from .peer_subscriptions import PeerSubscriptions
    from .ports import PublicationQueue
    from .relay import Relay


@define(eq=False)
class PublicationReceiver:
    """Delivers the publications of peers."""

    _local: SubjectIndex[PublicationQueue]
    _remote: SubjectIndex[Peer]
    _to_peers: PeerSubscriptions
    _relay: Relay
    _deduplicator: Deduplicator
    _publisher: Publisher
    _find_group: Callable[[str | int, str], SubscriptionGroup | None]
    _access: AccessControl
    queues: dict[str | int, tuple[PublicationQueue, ...]] = field(factory=dict, init=False)
    """Queues for publications of peers, of subjects that end here. Empty while there are subscriptions to single peers."""

    def deliver(self, message: Message, peer: Peer) -> None:
        """Deliver a publication to this bus's own subscriptions, and to others only where a relay says so."""
        subject, extras = message.subject, message.extras
        if extras is not None and "group" in extras:
            self.deliver_to_group(message, peer, extras["group"], extras["pattern"])
            return
        if message.headers is not None and VIA in message.headers and not self._is_news(message, peer):
            return
        queues = self.queues.get(subject)
        if queues is None:
            queues = self._of_peers(message)
            handler = _handler_among(queues) if self._access.trusting else None
            if handler is not None:
                self._access.reached(peer, subject, handler)
            to_peers = self._to_peers.indices
            if self._relay.takes(message):
                self._relay.pass_on(message, peer)
            elif self._remote.size and self._relay.hint(subject, peer):
                pass  # it is looked at again while the hint has not been given
            elif to_peers or (self._local.addresses and message.spellings):
                pass  # the answer depends on the peer, or on what its names stand for
            elif handler is not None and self._access.trusting:
                pass  # a client may publish it too, which is to be warned of
            elif len(self.queues) < ROUTES:
                self.queues[subject] = queues
            else:
                self.queues.clear()
            if to_peers:
                queues = (*queues, *self._asked_of(peer, message))
        if len(queues) == 1:  # after it is remembered: one that ends with this publication is to be forgotten
            queues[0].offer(message)
        else:
            for queue in queues:
                queue.offer_shared(message)

    def deliver_to_all(self, message: Message, peer: Peer) -> tuple[PublicationQueue, ...]:
        """Deliver a publication that came over the inner link: to the subscriptions of this bus, and to its clients.

        Gives the queues that it was offered to.
        """
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

    def deliver_to_group(self, message: Message, peer: Peer, group: str, pattern: str | int) -> None:
        """Deliver a publication that an engine has chosen a member of a group here for."""
        if message.headers is not None and VIA in message.headers and not self._is_news(message, peer, (group, pattern)):
            return
        found = self._find_group(pattern, group)
        if found is not None:  # or it was given up while this was on its way
            found.give(message)

    def takes(self, message: Message) -> bool:
        """Tell whether a publication of a peer is delivered to any queue, here or by a relay."""
        return bool(self.queues.get(message.subject) or self._of_peers(message)) or self._relay.takes(message)

    def _of_peers(self, message: Message) -> tuple[PublicationQueue, ...]:
        """Find those that take what peers publish."""
        return tuple(queue for queue in self._matching(message) if queue.peers)

    def _matching(self, message: Message) -> tuple[PublicationQueue, ...]:
        """Find the subscriptions of this bus to a publication of a peer, each once, whichever of its spellings they name."""
        found = self._local.match(message.subject)
        if self._local.addresses and (spellings := message.spellings):
            return tuple(dict.fromkeys(chain(found, *map(self._local.match, spellings))))
        return found

    def _asked_of(self, peer: Peer, message: Message) -> Iterable[Subscription[Any]]:
        """Find those to that peer alone."""
        match = self._to_peers.match
        return dict.fromkeys(chain.from_iterable(match(peer, one) for one in (message.subject, *message.spellings)))

    def _is_news(self, message: Message, peer: Peer, group: tuple[str, str | int] | None = None) -> bool:
        """Tell whether a publication that has been on other buses is news here; takes the header off it."""
        via = ViaHeader.of(message)
        ViaHeader.strip(message)
        via = via.in_stream(vouched(via.origin, peer)).add_hops(depth_of(peer))
        message.shared[VIA] = str(via).encode()
        news = self._deduplicator.is_news(via, message.subject, group, speaker=speaker(peer))
        if not news and group is None and self._to_peers.indices and not self._deduplicator.is_own(via):
            for subscription in self._asked_of(peer, message):  # it is their peer that has sent this copy
                subscription.offer_shared(message)
        return news


def _handler_among(queues: Iterable[PublicationQueue]) -> str | None:
    """Find the name of an `on` handler among queues."""
    for queue in queues:
        for one in queue.members if isinstance(queue, SubscriptionGroup) else (queue,):
            if isinstance(one, HandlerSubscription):
                return one.name
    return None
