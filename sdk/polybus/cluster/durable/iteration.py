"""Subscriptions to what a store keeps, which are iterated over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define

if TYPE_CHECKING:
    from ..._core.services import Services
    from ..._peer.subscription import Subscription
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
        hopeless = None if self.fate is None else self.fate.hopeless(delivery)
        if self.fate is not None and hopeless is not None:
            self._services.running.spawn(self.fate.bury, delivery, *hopeless)
        elif delivery.to.fault:
            self._subscription.skip(delivery.message, "this version", delivery.to.fault)
            delivery.done()
        else:
            delivery.message.attributes["delivery"] = delivery
            self._subscription.offer(delivery.message)

    def stop(self) -> None:
        """End the iteration after what has come."""
        self._subscription.end(None)
