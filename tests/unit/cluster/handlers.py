"""Handlers that several tests need."""

from typing import Any

import anyio
from attrs import define, field

from polybus import Bus, Retry

__all__ = ["Endless", "double", "failing"]


async def double(n: int) -> int:
    return 2 * n


@define
class Endless:
    """A handler that waits until it is stopped, and how often it has begun and was stopped."""

    begun: int = 0
    stopped: int = 0
    entered: anyio.Event = field(factory=anyio.Event)

    async def run(self) -> None:
        self.begun += 1
        self.entered.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.stopped += 1


def failing(bus: Bus, pattern: str, **options: Any) -> None:
    """Have the durable handler `billing` of this bus fail at whatever it is given, with one attempt for each."""

    @bus.on(pattern, durable="billing", retry=Retry(attempts=1), **options)
    async def bill(body: Any) -> None:
        raise RuntimeError(body)
