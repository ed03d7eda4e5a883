"""For tests of subscriptions: what waits in one, and a handler whose answer tells that everything before has been handled."""

from typing import Any

from polybus import Bus, Subscription

__all__ = ["bodies", "with_barrier"]


def bodies(subscription: Subscription) -> list[Any]:
    """Take what waits to be read."""
    return [subscription._source.take().body for _ in range(len(subscription))]


def with_barrier(bus: Bus) -> Bus:
    bus.handle("barrier", inline=True)(lambda: None)
    return bus
