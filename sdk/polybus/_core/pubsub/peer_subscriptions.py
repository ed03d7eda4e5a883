"""Subscriptions to the publications of one peer alone, as `Peer.subscribe` makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import define, field

from ..._util.pattern_index import SubjectIndex

if TYPE_CHECKING:
    from ..peer.peer import Peer
    from ..peer.subscription import Subscription


@define(eq=False)
class PeerSubscriptions:
    """Subscriptions to single peers, and the patterns that each peer was told because of them. Empty where there are none."""

    _changed: Callable[[], None]
    """Called before one more is added."""
    indices: dict[Peer, SubjectIndex[Subscription]] = field(factory=dict, init=False)
    """Subscriptions to the publications of each peer. Looked at for every publication, so without a call."""
    _patterns: dict[Peer, dict[str | int, dict[Subscription, None]]] = field(factory=dict, init=False)

    def add(self, peer: Peer, pattern: str | int, subscription: Subscription) -> None:
        """Add a subscription to a pattern, which is as it is told to the peer."""
        self._changed()
        self.indices.setdefault(peer, SubjectIndex()).add(subscription.pattern, subscription)
        self._patterns.setdefault(peer, {}).setdefault(pattern, {})[subscription] = None

    def remove(self, peer: Peer, pattern: str | int, subscription: Subscription) -> bool:
        """Remove a subscription. True if it was the last one to that pattern; False of one that is not known."""
        patterns = self._patterns.get(peer, {})
        wanting = patterns.get(pattern, {})
        if subscription not in wanting:
            return False
        del wanting[subscription]
        self.indices[peer].remove(subscription.pattern, subscription)
        if wanting:
            return False
        del patterns[pattern]
        if not patterns:
            del self._patterns[peer], self.indices[peer]
        return True

    def match(self, peer: Peer, subject: str | int) -> tuple[Subscription, ...]:
        """Find the subscriptions that get a publication of the peer."""
        index = self.indices.get(peer)
        return () if index is None else index.match(subject)

    def patterns(self, peer: Peer) -> tuple[str | int, ...]:
        """List the patterns that the peer is told, besides those that all are told."""
        return tuple(self._patterns.get(peer, ()))

    def wants(self, peer: Peer, pattern: object) -> bool:
        """Tell whether the peer is told a pattern besides those that all are told."""
        return pattern in self._patterns.get(peer, ())

    def forget(self, peer: Peer) -> list[Subscription]:
        """Remove and return the subscriptions to a peer that has gone for good."""
        self.indices.pop(peer, None)
        return [subscription for wanting in self._patterns.pop(peer, {}).values() for subscription in wanting]
