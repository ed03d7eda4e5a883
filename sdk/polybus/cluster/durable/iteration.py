"""Subscriptions to what a store keeps, which are iterated over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define

if TYPE_CHECKING:
    from ..._core.peer.subscription import Subscription
    from ..._core.runtime.services import Services
    from .delivery import Delivery, Fate


@define(eq=False)
class SubscriptionTaker:
    """Puts publications into the queue of a subscription. Implements `reader.Taker`."""

    _services: Services
    _subscription: Subscription[Any]
    fate: Fate | None
    """None where nothing is acknowledged."""

    @property
    def full(self) -> bool:
        """True while there is no room for one more."""
        return self._subscription.full

    def take(self, delivery: Delivery) -> None:
        """Queue a publication, but one that is not even tried."""
        fate = self.fate
        hopeless = None if fate is None else fate.hopeless(delivery)
        if fate is not None and hopeless is not None:
            self._services.running.spawn(self._take_last, fate, delivery, hopeless)
        elif delivery.to.fault:
            self._subscription.skip(delivery.message, "this version", delivery.to.fault)
            delivery.done()
        else:
            self._offer(delivery)

    async def _take_last(self, fate: Fate, delivery: Delivery, hopeless: tuple[int, str, str]) -> None:
        if not await fate.is_over(delivery, *hopeless):
            self._offer(delivery)

    def _offer(self, delivery: Delivery) -> None:
        delivery.message.attributes["delivery"] = delivery
        self._subscription.offer(delivery.message)

    def stop(self) -> None:
        """End the iteration after what has come."""
        self._subscription.end(None)
