"""Handlers of publications that several tests need."""

from typing import Any

from polybus import Bus, Retry

__all__ = ["failing", "noting"]


def noting(bus: Bus, pattern: str, **options: Any) -> list[Any]:
    """The bodies that a handler of this bus will be given, in their order."""
    bodies: list[Any] = []

    @bus.on(pattern, **options)
    async def note(body: Any) -> None:
        bodies.append(body)

    return bodies


def failing(bus: Bus, pattern: str, **options: Any) -> None:
    """Have the durable handler `billing` of this bus fail at whatever it is given, with one attempt for each."""

    @bus.on(pattern, durable="billing", retry=Retry(attempts=1), **options)
    async def bill(body: Any) -> None:
        raise RuntimeError(body)
