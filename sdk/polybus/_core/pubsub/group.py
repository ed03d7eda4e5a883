"""Subscriptions of this bus that share the publications of a pattern: each is for one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from ...message import Message
    from .ports import PublicationQueue


@define(eq=False)
class SubscriptionGroup:
    """The members of a group in this bus. Implements `ports.PublicationQueue`; its members take publications in turn.

    Where an engine shares among the members of all nodes, one of these gets what the engine has chosen it for, nothing else.
    """

    pattern: str | int
    group: str
    _shared: Callable[[], bool]
    """Tells whether an engine shares the publications of this bus among the members."""
    _relayed: Callable[[Message], bool]
    """Tells whether publications of peers are passed on, to an engine too."""
    members: deque[PublicationQueue] = field(factory=deque)
    leads_on: bool = field(default=False, init=False)
    peers: bool = field(default=True, init=False)

    @property
    def queue(self) -> int:
        """The size of the queue of the member whose turn it is."""
        return self.members[0].queue

    @property
    def local(self) -> bool:
        """Tells whether this bus's own publications are taken directly; otherwise they come back from the engine."""
        return not self._shared()

    @property
    def full(self) -> bool:
        """Tells whether no member has room; the next one that has is made the next."""
        for _ in range(len(self.members)):
            if not self.members[0].full:
                return False
            self.members.rotate(-1)
        return True

    async def room(self, deadline: float) -> bool:
        """Wait until the member whose turn it is has room. False if it has none in time."""
        return await self.members[0].room(deadline)

    def offer(self, message: Message) -> None:
        """Give a publication to the next member, unless an engine gives each group a copy of its own, as of what is relayed."""
        peer = message.peer
        if peer is None or not (peer.link.has_groups or (self._shared() and self._relayed(message))):
            self.give(message)

    def offer_shared(self, message: Message) -> None:
        """As `offer`, of a publication that others are given too."""
        self.offer(message.for_another())

    def give(self, message: Message) -> None:
        """Give a publication to the next member."""
        member = self.members[0]
        self.members.rotate(-1)
        member.offer(message)
