"""Manages a peer's subscriptions to publications of this bus."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ..._util.logs import log_fields
from ..._util.pattern_index import pattern_cost
from ...subjects import check_pattern

if TYPE_CHECKING:
    from .peer_core import PeerCore

logger: logging.Logger = logging.getLogger("polybus")


class RemoteSubscriptions(Struct, eq=False):
    """The patterns that a peer has subscribed to. Their memory is charged to the peer's budget."""

    _peer: PeerCore
    _warned: bool = False
    patterns: dict[str | int, int] = {}
    _holder: Any = None
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
        if self._holder is None:
            pubsub.remote.add(pattern, peer)
        else:
            pubsub.local.add(pattern, self._holder)
        if pubsub.tells_inside and not link.upstream:
            pubsub.announcer.add_behind(pattern)

    def remove(self, pattern: str | int) -> None:
        size = self.patterns.pop(pattern, None)
        if size is not None:
            self._peer.budget.release(size)
            pubsub = self._peer.host.pubsub
            if self._holder is None:
                pubsub.remote.remove(pattern, self._peer)
            else:
                pubsub.local.remove(pattern, self._holder)
            if pubsub.tells_inside and not self._peer.link.upstream:
                pubsub.announcer.remove_behind(pattern)

    def hold(self, queue: Any) -> None:
        """Pass publications to a `plugins.extensions.PublicationQueue` instead of the peer, until `release` is called."""
        self._move(queue)

    def release(self) -> None:
        self._move(None)

    def _move(self, holder: Any) -> None:
        pubsub, before, self._holder = self._peer.host.pubsub, self._holder, holder
        for pattern in self.patterns:
            if before is None:
                pubsub.remote.remove(pattern, self._peer)
            else:
                pubsub.local.remove(pattern, before)
            if holder is None:
                pubsub.remote.add(pattern, self._peer)
            else:
                pubsub.local.add(pattern, holder)

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
