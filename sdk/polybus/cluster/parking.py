"""Publications for a client between two of its connections: they wait here, in place of being sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import define, field

from .._core.runtime.memory import MemoryBudget, Share, cost, trim
from ..errors import BusError
from ..events import PeerSlow
from ..message import Message

if TYPE_CHECKING:
    from .._core.bus.parts import BusParts
    from .._core.peer.peer import Peer

_POLICY: Final = "drop_oldest"
_Entry: TypeAlias = tuple[str, Message, int, int]
"""The node that a publication is from, the publication, its cost and its number."""


@define(eq=False)
class PublicationSources:
    """The nodes that publications are from which are being delivered here."""

    _parts: BusParts
    own: str = field(default="", init=False)
    """The name of this node."""
    current: str = field(default="", init=False)
    """The node that has sent the publication of the cluster which is being delivered; empty where it is none of ours."""
    _last: Message | None = field(default=None, init=False)
    _number: int = field(default=0, init=False)

    def of(self, message: Message) -> str | None:
        """Tell which node a publication is from; None of one that is not for clients of this node."""
        peer, links = message.peer, self._parts.links
        if peer is None or peer.host is not links:
            return self.own
        if peer is links.inner_peer:
            return self.current
        return self.own if self._parts.pubsub.relay.takes(message) else None

    def number_of(self, message: Message) -> int:
        """Number the publications that are kept: by it the same one is known which waits for several clients."""
        if message is not self._last:
            self._last = message
            self._number += 1
        return self._number

    def forget(self) -> None:
        """Hold nothing: nothing is kept any more."""
        self._last = None


@define(eq=False)
class ParkedPublications:
    """Publications that wait for one client. Implements `_core.pubsub.ports.PublicationQueue`.

    Bounded as an outbox is, in messages and bytes, which are charged to the client's address; the oldest go first.
    """

    _parts: BusParts
    peer: Peer
    """The client, at whose cost they wait."""
    _sources: PublicationSources
    _share: Share
    cut: set[str] = field(factory=set, init=False)
    """Nodes of which nothing more is taken. Of several queues it may be one set."""
    dropped: int = field(default=0, init=False)
    _waiting: deque[_Entry] = field(factory=deque, init=False)
    _budget: MemoryBudget = field(init=False)

    pattern: str | int = field(default=">", init=False)
    group: str | None = field(default=None, init=False)
    queue: int = field(default=0, init=False)
    local: bool = field(default=True, init=False)
    leads_on: bool = field(default=False, init=False)
    peers: bool = field(default=True, init=False)
    full: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        limits = self._parts.services.limits
        self.queue = limits.outbox
        self._budget = MemoryBudget(self._parts.services.running, limits.outbox_bytes, self._share)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next(self) -> int:
        """The number of the oldest."""
        return self._waiting[0][3]

    async def room(self, deadline: float) -> bool:
        """Tell that there is room: the oldest makes it."""
        return True

    def offer(self, message: Message) -> None:
        """Take a publication, unless it is of a node of which nothing more is taken."""
        source = self._sources.of(message)
        if source is not None and source not in self.cut:
            self.add(source, message)

    offer_shared = offer
    """Nothing is changed here, and copies would not be known to be one publication."""

    def add(self, source: str, message: Message) -> None:
        """Take a publication of a node; the oldest goes where there is no room."""
        if message.raw is None and message.has_body:
            try:
                message.encoded(self.peer.link.adapter.codec(self._parts.services.limits).formats)
            except BusError as error:
                self._parts.pubsub.publisher.unsent(message, self.peer, "kept", error)
                return
        trim(message)
        size = cost(message)
        while self._waiting and (len(self._waiting) >= self.queue or not self._budget.has_room(size)):
            _ = self.take()
            self._drop()
        if self._budget.hold(size):
            self._waiting.append((source, message, size, self._sources.number_of(message)))
        else:
            self._drop()

    def _drop(self) -> None:
        self.dropped += 1
        services = self._parts.services
        services.counters.dropped += 1
        if self.dropped == 1:
            services.emit(PeerSlow(peer=self.peer, policy=_POLICY, dropped=1))

    def take(self) -> Message | None:
        """Remove and return the oldest; None where there is none."""
        if not self._waiting:
            return None
        _, message, size, _ = self._waiting.popleft()
        self._budget.release(size)
        return message

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Remove all that is of other nodes than those wanted."""
        before, self._waiting = self._waiting, deque()
        for entry in before:
            if wanted(entry[0]):
                self._waiting.append(entry)
            else:
                self._budget.release(entry[2])

    def clear(self) -> None:
        """Remove all."""
        while self.take() is not None:
            pass
