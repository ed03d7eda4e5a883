"""A bus for many tests, and a handler that waits until a test releases its calls."""

from collections.abc import Callable, Iterable
from typing import Any

import anyio

from polybus import Bus, Peer

__all__ = ["Gated", "answering", "noting", "publish_each"]


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


def noting(bus: Bus, pattern: str, **options: Any) -> list[Any]:
    """The bodies that a handler of publications of this bus will be given, in their order."""
    bodies: list[Any] = []

    @bus.on(pattern, **options)
    async def note(body: Any) -> None:
        bodies.append(body)

    return bodies


async def publish_each(bus: Bus | Peer, subject: str, bodies: Iterable[object]) -> None:
    for body in bodies:
        await bus.publish(subject, body)


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
