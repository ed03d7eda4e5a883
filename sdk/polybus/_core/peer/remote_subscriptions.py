"""Manages a peer's subscriptions to publications of this bus."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ..._util.logs import log_fields
from ..._util.pattern_index import pattern_cost
from ...subjects import check_pattern

if TYPE_CHECKING:
    from ..._util.pattern_index import SubjectIndex
    from ...plugins.extensions import PublicationQueue
    from .peer_core import PeerCore

logger: logging.Logger = logging.getLogger("polybus")


class RemoteSubscriptions(Struct, eq=False):
    """The patterns that a peer has subscribed to. Their memory is charged to the peer's budget."""

    _peer: PeerCore
    _warned: bool = False
    patterns: dict[str | int, int] = {}
    _holder: PublicationQueue | None = None
    """Queue that receives the publications instead of the peer."""

    def add(self, pattern: str | int) -> None:
        """Add an authorized pattern, unless it would exceed a limit."""
        peer = self._peer
        link = peer.link
        try:
            check_pattern(pattern, link.runtime.limits.subject, foreign=True)
        except Exception as error:
            link.refused("invalid_subject", str(error), link.runtime.time(), peer.key)
            return
        patterns = self.patterns
        if pattern in patterns:
            return
        size = pattern_cost(pattern)
        if len(patterns) >= link.runtime.limits.subscriptions or not link.initiates or not peer.budget.hold(size):
            link.services.counters.refused += 1
            if link.initiates:
                self._warn(pattern)
            return
        patterns[pattern] = size
        link.services.access.subscribed(peer, pattern)
        pubsub = peer.host.pubsub
        index, receiver = self._destination
        index.add(pattern, receiver)
        if pubsub.tells_inside and not link.upstream:
            pubsub.announcer.add_behind(pattern)

    def remove(self, pattern: str | int) -> None:
        size = self.patterns.pop(pattern, None)
        if size is not None:
            self._peer.budget.release(size)
            pubsub = self._peer.host.pubsub
            index, receiver = self._destination
            index.remove(pattern, receiver)
            if pubsub.tells_inside and not self._peer.link.upstream:
                pubsub.announcer.remove_behind(pattern)

    @property
    def _destination(self) -> tuple[SubjectIndex[Any], Any]:
        """Index of subscriptions, and what receives the publications there."""
        pubsub = self._peer.host.pubsub
        return (pubsub.remote, self._peer) if self._holder is None else (pubsub.local, self._holder)

    def pass_to(self, queue: PublicationQueue | None) -> None:
        """Pass publications to a queue instead of the peer. `None` stops this."""
        before, receiver_before = self._destination
        self._holder = queue
        index, receiver = self._destination
        for pattern in self.patterns:
            before.remove(pattern, receiver_before)
            index.add(pattern, receiver)

    def clear(self) -> None:
        for pattern in list(self.patterns):
            self.remove(pattern)

    def _warn(self, pattern: str | int) -> None:
        if self._warned:  # only once, because a peer may send thousands of subscriptions
            return
        self._warned = True
        runtime = self._peer.link.runtime
        text = (
            "%r has %d subscriptions (Limits.subscriptions=%d; their cost counts in Limits.total_bytes=%d); "
            "%.100r and others refused"
        )
        limits, count = runtime.limits, len(self.patterns)
        facts = self._peer, count, limits.subscriptions, limits.total_bytes, pattern
        runtime.warnings.warn(logger, text, *facts, extra=log_fields(self._peer, subject=pattern))
