"""A bus for many tests, and a handler that waits until a test releases its calls."""

from collections.abc import Callable
from typing import Any

import anyio

from polybus import Bus

__all__ = ["Gated", "answering"]


def answering(bus: Bus | None = None, **options: Any) -> Bus:
    """A bus whose `echo` answers what it is asked, and whose `endless` never answers."""
    bus = Bus(**options) if bus is None else bus

    @bus.handle("echo")
    async def echo(body: Any) -> Any:
        return body

    @bus.handle("endless")
    async def endless() -> None:
        await anyio.sleep_forever()

    return bus


class Gated:
    """A handler that waits for a signal, knows who came and how many are inside, and answers with `answer` of the body."""

    def __init__(self, bus: Bus, subject: str = "wait", answer: Callable[[Any], Any] = lambda body: body) -> None:
        self.inside = self.most = 0
        self.begun: list[Any] = []
        self.go = anyio.Event()
        self._answer = answer
        bus.handle(subject)(self.wait)

    async def wait(self, body: Any = None) -> Any:
        self.begun.append(body)
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.go.wait()
        self.inside -= 1
        return self._answer(body)
