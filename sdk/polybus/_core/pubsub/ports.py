"""The queue of a subscription as the parts around it see it: also that of a bridge is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing import Any

    from ...message import Message
    from ..handlers.durable import DurableSpec, ReplaySpec
    from ..peer.subscription import Subscription


class PublicationQueue(Protocol):
    """The queue of a subscription, as publishers and the receiver see it: what `_core.peer.queue.SubscriptionQueue` has."""

    @property
    def pattern(self) -> str | int: ...
    @property
    def group(self) -> str | None: ...
    @property
    def queue(self) -> int: ...
    @property
    def local(self) -> bool: ...
    @property
    def leads_on(self) -> bool: ...
    @property
    def peers(self) -> bool: ...
    @property
    def full(self) -> bool: ...
    async def room(self, deadline: float) -> bool: ...
    def offer(self, message: Message) -> None: ...
    def offer_shared(self, message: Message) -> None:
        """Take a publication that others are given too."""
        ...


class StreamPort(Protocol):
    """A place where publications are stored, as the publisher sees it."""

    async def publish(self, message: Message, id: str | None, deadline: float) -> None:
        """Return when the engine has stored a publication."""


class StorePort(StreamPort, Protocol):
    """The stores of a cluster: `cluster.durable.publishing`."""

    def keeps(self, subject: str | int) -> bool:
        """Tell whether publications of a subject are stored."""
        ...


class StoredPort(Protocol):
    """The readers of what is stored, as subscriptions see them: `_core.bus.stored`."""

    async def subscribe(self, subscription: Subscription[Any], spec: DurableSpec | ReplaySpec) -> None:
        """Hand what is stored to a subscription, until `unsubscribe`."""

    def unsubscribe(self, subscription: Subscription[Any]) -> None:
        """Hand nothing more to a subscription; one that is not in is ignored."""


class HandlerQueue(PublicationQueue, Protocol):
    """The queue of a handler, which lasts as long as the bus runs."""

    def __len__(self) -> int: ...
    @property
    def busy(self) -> bool: ...
    def clear(self) -> None: ...
