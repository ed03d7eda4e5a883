"""Keeps track of the peers that receive this bus's publications, and of subscriptions to single peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import define, field
from msgspec import Struct

from ..._util.pattern_index import SubjectIndex
from ...errors import Unsupported
from ..runtime.loop_prevention import BusIdentities

if TYPE_CHECKING:
    from ...plugins import ProtocolAdapter
    from ..link.link import Link
    from ..peer.peer_core import PeerCore
    from ..peer.subscription import IteratedQueue


class PeerSubscriptions(Struct, eq=False):
    _changed: Callable[[], None]
    indices: dict[PeerCore, SubjectIndex[IteratedQueue]] = {}
    _patterns: dict[PeerCore, dict[str | int, dict[IteratedQueue, None]]] = {}

    def add(self, peer: PeerCore, pattern: str | int, subscription: IteratedQueue) -> None:
        self._changed()
        self.indices.setdefault(peer, SubjectIndex()).add(subscription.pattern, subscription)
        self._patterns.setdefault(peer, {}).setdefault(pattern, {})[subscription] = None

    def remove(self, peer: PeerCore, pattern: str | int, subscription: IteratedQueue) -> bool:
        """Remove a subscription. Returns True if no other subscription to the pattern remains."""
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

    def match(self, peer: PeerCore, subject: str | int) -> tuple[IteratedQueue, ...]:
        index = self.indices.get(peer)
        return () if index is None else index.match(subject)

    def patterns(self, peer: PeerCore) -> tuple[str | int, ...]:
        return tuple(self._patterns.get(peer, ()))

    def wants(self, peer: PeerCore, pattern: object) -> bool:
        return pattern in self._patterns.get(peer, ())

    def forget(self, peer: PeerCore) -> list[IteratedQueue]:
        self.indices.pop(peer, None)
        return [subscription for wanting in self._patterns.pop(peer, {}).values() for subscription in wanting]


@define(eq=False, repr=False)
class Recipients:
    remote: SubjectIndex[PeerCore]
    _most: int
    _changed: Callable[[], None]
    """Called when the results of `of` may change."""
    bus_identities: BusIdentities = field(factory=BusIdentities, init=False)
    upstream: dict[PeerCore, None] = field(factory=dict, init=False)
    """Servers at the other end of point-to-point links, which receive every publication."""
    new_servers: dict[PeerCore, None] = field(factory=dict, init=False)
    """Servers that may not know yet which bus this is."""
    gets_all: dict[PeerCore, int] = field(factory=dict, init=False)
    """Peers that receive every publication, because their protocol has no subscriptions, until they turn out to run polybus and
    have sent this number of subscriptions."""
    unconfirmed: dict[PeerCore, None] = field(factory=dict, init=False)
    """Peers that may not support publications, which are an extension of their protocol. They have not answered a hello yet."""

    def start(self, identities: BusIdentities) -> None:
        self.bus_identities = identities
        identities.changed = self._changed

    def joined(self, peer: PeerCore) -> None:
        self.upstream[peer] = None
        self._changed()

    def left(self, peer: PeerCore | None) -> None:
        if peer is None:
            return
        self.upstream.pop(peer, None)
        self.new_servers.pop(peer, None)
        self._changed()

    def clear(self) -> None:
        self.upstream.clear()
        self.new_servers.clear()
        self._changed()

    def of(self, subject: str | int) -> tuple[PeerCore, ...]:
        matched = self.remote.match(subject)
        if self.gets_all:
            matched = tuple(dict.fromkeys((*matched, *self.gets_all)))
        upstream = tuple(self.upstream)
        if isinstance(subject, int) and len(upstream) > 1:  # prefer links with numeric subjects
            upstream = tuple(peer for peer in upstream if has_numbers(peer.link)) or upstream
        if matched and upstream:
            matched = tuple(dict.fromkeys((*upstream, *matched)))
        peers = matched or upstream
        if held_out := self.bus_identities.held_out:
            peers = tuple(peer for peer in peers if peer not in held_out)
        return peers

    def speaking(self, adapter: ProtocolAdapter, subject: str) -> tuple[PeerCore, ...]:
        held_out = self.bus_identities.held_out
        return tuple(peer for peer in self.remote.match(subject) if peer.link.adapter is adapter and peer not in held_out)

    def shares(self) -> bool:
        """Return True if an engine distributes publications among group members, even while it is reconnecting."""
        return any(peer.link.inner or peer.link.has_groups for peer in self.upstream)

    def clients(self, subject: str | int) -> tuple[PeerCore, ...]:
        return tuple(peer for peer in self.of(subject) if not peer.link.upstream)

    def unintroduced(self) -> list[PeerCore]:
        """Return the connected servers that may not know yet which bus this is."""
        told = self.bus_identities.has_told
        self.new_servers = {peer: None for peer in self.new_servers if peer.may_be_ours and not told(peer)}
        return list(self.new_servers)

    def add(self, peer: PeerCore) -> bool:
        """Add a connected peer. Returns True if it receives no publications until it is known which bus it is."""
        link, held_out = peer.link, False
        session = link.session
        if session is not None and not link.upstream and link.initiates and not session.capabilities.subscribe:
            self.send_all(peer)
            held_out = self.bus_identities.wait_for(peer)
        if session is not None and session.capabilities.asks_before_publishing and not peer.speaks_extensions:
            self.unconfirmed[peer] = None
            self._changed()
        return held_out

    def send_all(self, peer: PeerCore) -> None:
        self.gets_all[peer] = 0
        self._changed()

    def confirm(self, peer: PeerCore, subscribes: Any) -> None:
        """Record that a peer runs polybus. It still receives every publication until all its subscriptions have arrived."""
        if peer in self.gets_all and type(subscribes) is int and 0 < subscribes <= self._most:
            self.gets_all[peer] = subscribes
        else:
            self.remove(peer)

    def count_subscription(self, peer: PeerCore) -> None:
        """Count a peer's subscription, even if it was rejected."""
        left = self.gets_all.get(peer, 0) - 1
        if left > 0:
            self.gets_all[peer] = left
        else:
            self.remove(peer)

    def remove(self, peer: PeerCore) -> None:
        """Stop sending every publication to a peer, because it runs polybus or has left."""
        if peer in self.gets_all or peer in self.unconfirmed:
            self.gets_all.pop(peer, None)
            self.unconfirmed.pop(peer, None)
            self._changed()


def has_numbers(link: Link) -> bool:
    return link.session is None or link.session.capabilities.numbers


def bare_peer(peer: PeerCore) -> Unsupported:
    return peer.negotiation.unsupported("it can carry requests, but no publications and no subscriptions")
