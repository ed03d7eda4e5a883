"""Narrow interfaces that publications and subscriptions need of the bus above them, and of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..message import Message
    from .subscription import Subscription


class SubscriptionPort(Protocol):
    """The registry that a subscription enters itself into."""

    async def subscribe(self, subscription: Subscription) -> None:
        """Take it in, and tell the peers; returns when those that are connected know."""

    def unsubscribe(self, subscription: Subscription) -> None:
        """Take it out, and tell the peers."""


class PublicationQueue(Protocol):
    """The queue of a subscription, as publishers and the receiver see it."""

    @property
    def pattern(self) -> str | int: ...

    @property
    def queue(self) -> int:
        """The number of publications that it holds."""
        ...

    @property
    def local(self) -> bool:
        """Tells whether the bus's own publications are taken too."""
        ...

    @property
    def leads_on(self) -> bool:
        """Tells whether it is the way to another bus."""
        ...

    @property
    def full(self) -> bool:
        """Tells whether a publisher of this process has to wait."""
        ...

    async def room(self, deadline: float) -> bool:
        """Wait until there is room. False when the deadline passed."""
        ...

    def offer(self, message: Message) -> None:
        """Take a publication."""


class HandlerQueue(PublicationQueue, Protocol):
    """The queue of a handler, which lasts as long as the bus runs."""

    def __len__(self) -> int: ...

    @property
    def busy(self) -> bool:
        """Tells whether publications wait or are being handled."""
        ...

    def clear(self) -> None:
        """Forget those that wait."""
