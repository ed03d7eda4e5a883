"""The peers that publications of this bus go to, and the subscriptions to the publications of one peer alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import define, field

from ..._util.pattern_index import SubjectIndex
from ...errors import Unsupported
from ..runtime.via import BusIdentities

if TYPE_CHECKING:
    from ...plugins import ProtocolAdapter
    from ..link.link import Link
    from ..peer.party import PeerParty
    from ..peer.subscription import IteratedQueue


@define(eq=False)
class PeerSubscriptions:
    """Subscriptions to single peers, and the patterns that each peer was told because of them. Empty where there are none."""

    _changed: Callable[[], None]
    """Called before one more is added."""
    indices: dict[PeerParty, SubjectIndex[IteratedQueue]] = field(factory=dict, init=False)
    """Subscriptions to the publications of each peer. Looked at for every publication, so without a call."""
    _patterns: dict[PeerParty, dict[str | int, dict[IteratedQueue, None]]] = field(factory=dict, init=False)

    def add(self, peer: PeerParty, pattern: str | int, subscription: IteratedQueue) -> None:
        """Add a subscription to a pattern, which is as it is told to the peer."""
        self._changed()
        self.indices.setdefault(peer, SubjectIndex()).add(subscription.pattern, subscription)
        self._patterns.setdefault(peer, {}).setdefault(pattern, {})[subscription] = None

    def remove(self, peer: PeerParty, pattern: str | int, subscription: IteratedQueue) -> bool:
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

    def match(self, peer: PeerParty, subject: str | int) -> tuple[IteratedQueue, ...]:
        """Find the subscriptions that get a publication of the peer."""
        index = self.indices.get(peer)
        return () if index is None else index.match(subject)

    def patterns(self, peer: PeerParty) -> tuple[str | int, ...]:
        """List the patterns that only this peer is told, not every peer."""
        return tuple(self._patterns.get(peer, ()))

    def wants(self, peer: PeerParty, pattern: object) -> bool:
        """Tell whether a pattern is one that only this peer is told."""
        return pattern in self._patterns.get(peer, ())

    def forget(self, peer: PeerParty) -> list[IteratedQueue]:
        """Remove and return the subscriptions to a peer that has gone for good."""
        self.indices.pop(peer, None)
        return [subscription for wanting in self._patterns.pop(peer, {}).values() for subscription in wanting]


@define(eq=False)
class Recipients:
    """The peers that have subscribed, and those that get publications without that."""

    remote: SubjectIndex[PeerParty]
    _most: int
    """`Limits.subscriptions`."""
    _changed: Callable[[], None]
    """Called when `of` may give another answer."""
    bus_identities: BusIdentities = field(factory=BusIdentities, init=False)
    _upstream: tuple[PeerParty, ...] = field(default=(), init=False)
    _dialled: dict[PeerParty, None] = field(factory=dict, init=False)
    """The same, in which one is found at once."""
    strangers: dict[PeerParty, None] = field(factory=dict, init=False)
    """The peers that perhaps do not know yet who this bus is, on their present connection."""
    gets_all: dict[PeerParty, int] = field(factory=dict, init=False)
    """Peers on wires without subscriptions that get every publication: they have not shown to be ours, or have as many
    subscriptions still to tell."""
    unconfirmed: dict[PeerParty, None] = field(factory=dict, init=False)
    """Peers on wires where publications are an extension that have not shown to be ours: they are asked first."""

    def start(self, identities: BusIdentities) -> None:
        """Begin with a runtime, which knows the buses at the other ends of the links."""
        self.bus_identities = identities
        identities.changed = self._changed

    @property
    def upstream(self) -> tuple[PeerParty, ...]:
        """Peers of point-to-point links that this bus opened: they get every publication."""
        return self._upstream

    def joined(self, peer: PeerParty) -> None:
        """Take in the peer of a link that this bus has opened, if it is not in yet."""
        self._dialled[peer] = None
        self._upstream = tuple(self._dialled)
        self._changed()

    def left(self, peer: PeerParty | None) -> None:
        """Take such a peer out: its link has come to its end."""
        if peer is None:
            return
        self._dialled.pop(peer, None)
        self.strangers.pop(peer, None)
        self._upstream = tuple(self._dialled)
        self._changed()

    def clear(self) -> None:
        """Take all out: the bus has been left."""
        self._dialled.clear()
        self.strangers.clear()
        self._upstream = ()
        self._changed()

    def of(self, subject: str | int) -> tuple[PeerParty, ...]:
        """List the peers that a publication of this bus goes to."""
        matched = self.remote.match(subject)
        if self.gets_all:
            matched = tuple(dict.fromkeys((*matched, *self.gets_all)))
        upstream = self._upstream
        if isinstance(subject, int) and len(upstream) > 1:  # the links that number their subjects, if there is any
            upstream = tuple(peer for peer in upstream if has_numbers(peer.link)) or upstream
        if matched and upstream:
            matched = tuple(dict.fromkeys((*upstream, *matched)))
        peers = matched or upstream
        if held_out := self.bus_identities.held_out:
            peers = tuple(peer for peer in peers if peer not in held_out)
        return peers

    def speaking(self, adapter: ProtocolAdapter, subject: str) -> tuple[PeerParty, ...]:
        """List the peers on one kind of wire that have subscribed to a subject."""
        held_out = self.bus_identities.held_out
        return tuple(peer for peer in self.remote.match(subject) if peer.link.adapter is adapter and peer not in held_out)

    def shares(self) -> bool:
        """Tell whether an engine that this bus is connected to, or comes back to, shares among the members of groups."""
        return any(peer.link.inner or peer.link.has_groups for peer in self._upstream)

    def clients(self, subject: str | int) -> tuple[PeerParty, ...]:
        """List the peers that have dialled in, or are behind a broker, and get publications of the subject."""
        return tuple(peer for peer in self.of(subject) if not peer.link.upstream)

    def unintroduced(self) -> list[PeerParty]:
        """List the peers that this bus has dialled, and has not told who it is; not those whose links are down: they are told
        later."""
        told = self.bus_identities.has_told
        self.strangers = {peer: None for peer in self.strangers if peer.may_be_ours and not told(peer)}
        return list(self.strangers)

    def add(self, peer: PeerParty) -> bool:
        """Take in a peer that has connected. True where it is held out, until it has said who it is."""
        link, held_out = peer.link, False
        session = link.session
        if session is not None and not link.upstream and link.initiates and not session.capabilities.subscribe:
            self.send_all(peer)
            held_out = self.bus_identities.wait_for(peer)
        if session is not None and session.capabilities.asks_before_publishing and not peer.speaks_extensions:
            self.unconfirmed[peer] = None
            self._changed()
        return held_out

    def send_all(self, peer: PeerParty) -> None:
        """Send a peer every publication until it has shown to be ours."""
        self.gets_all[peer] = 0
        self._changed()

    def confirm(self, peer: PeerParty, subscribes: Any) -> None:
        """Note that a peer has shown to be ours. Until it has told as many subscriptions as it says, it misses nothing."""
        if peer in self.gets_all and type(subscribes) is int and 0 < subscribes <= self._most:
            self.gets_all[peer] = subscribes
        else:
            self.remove(peer)

    def count_subscription(self, peer: PeerParty) -> None:
        """Note that a peer has told one subscription, which was granted or refused."""
        left = self.gets_all.get(peer, 0) - 1
        if left > 0:
            self.gets_all[peer] = left
        else:
            self.remove(peer)

    def remove(self, peer: PeerParty) -> None:
        """Send a peer what it has subscribed to and no more: it has shown to be ours, or has gone."""
        if peer in self.gets_all or peer in self.unconfirmed:
            self.gets_all.pop(peer, None)
            self.unconfirmed.pop(peer, None)
            self._changed()


def has_numbers(link: Link) -> bool:
    """Tell whether a wire can carry subjects that are numbers."""
    return link.session is None or link.session.capabilities.numbers


def bare_peer(peer: PeerParty) -> Unsupported:
    """Make the error of a publication or subscription for a peer that reads none."""
    return peer.negotiation.unsupported("it can carry requests, but no publications and no subscriptions")
