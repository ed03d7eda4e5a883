"""Subscriptions that ask one peer alone: which of them gets what it publishes, and what it was told of because of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._util.pattern_index import SubjectIndex

if TYPE_CHECKING:
    from .._peer.peer import Peer
    from .subscription import Subscription

__all__ = ["Asked"]


class Asked:
    """Per peer the subscriptions that were entered with `Peer.subscribe`. Empty where nobody uses that."""

    __slots__ = ("indices", "_patterns")

    def __init__(self) -> None:
        self.indices: dict[Peer, SubjectIndex[Subscription]] = {}
        """Subscriptions to the publications of each peer. Looked at for every publication, so without a call."""
        self._patterns: dict[Peer, dict[str | int, dict[Subscription, None]]] = {}

    def add(self, peer: Peer, pattern: str | int, subscription: Subscription) -> None:
        """Remember one more interest in what the peer publishes.

        Args:
            pattern: As it is told to the peer.
        """
        self.indices.setdefault(peer, SubjectIndex()).add(subscription.pattern, subscription)
        self._patterns.setdefault(peer, {}).setdefault(pattern, {})[subscription] = None

    def remove(self, peer: Peer, pattern: str | int, subscription: Subscription) -> bool:
        """Take one interest back. Whether it was the last one in that pattern; False of what is not known."""
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
        """Those that get what the peer has published to a subject."""
        index = self.indices.get(peer)
        return () if index is None else index.match(subject)

    def patterns(self, peer: Peer) -> tuple[str | int, ...]:
        """Patterns that the peer is told of, besides those that all are told."""
        return tuple(self._patterns.get(peer, ()))

    def forget(self, peer: Peer) -> list[Subscription]:
        """The peer has gone for good: the subscriptions that it was asked for."""
        self.indices.pop(peer, None)
        return [subscription for wanting in self._patterns.pop(peer, {}).values() for subscription in wanting]
