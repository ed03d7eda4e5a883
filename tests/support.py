"""Shared by the tests of the bus."""

import functools
import os
import random
import socket
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, NoReturn, ParamSpec, TypeVar

import anyio
import pytest

from polybus.events import BusEvent
from polybus.testing._waiting import eventually, let_expire

__all__ = ["BOUND", "HAS_IPV6", "bounded", "eventually", "free_port", "let_expire", "missing", "next_event", "until"]

P = ParamSpec("P")
Event = TypeVar("Event", bound=BusEvent)

BOUND = 60.0
"""Seconds within which a test must end, also on a slow machine with other work; none takes that long unless it fails."""


def bounded(test: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
    """A test that fails when it hangs, and shows where."""

    @functools.wraps(test)
    async def within(*args: P.args, **kwargs: P.kwargs) -> None:
        with anyio.fail_after(BOUND):
            try:
                await test(*args, **kwargs)
            except anyio.get_cancelled_exc_class():
                traceback.print_exc()  # where it hung: trio's TimeoutError does not say
                raise

    return within


def _ports() -> Iterator[int]:
    """Ports that the system assigns to no one, in random order; each worker of pytest-xdist has its own, and gets each once."""
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:], os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    mine = range(20_000 + int(worker) % int(workers), 32_000, int(workers))
    yield from random.SystemRandom().sample(mine, len(mine))


_left = _ports()


def port_of(url: str) -> int:
    return int(url.partition("//")[2].partition("/")[0].partition("?")[0].rpartition(":")[2])


def free_port() -> int:
    """A port that is free, and still is when a server comes back to it: neither the system nor another test gets it."""
    for port in _left:
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("all ports were given or are taken")


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


HAS_IPV6 = _has_ipv6()


def missing(text: str) -> NoReturn:
    """Skip the test; in CI that is a failure."""
    if os.environ.get("POLYBUS_CI"):
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


def until(condition: Callable[[], Any]) -> None:
    """`eventually`, for a test without an event loop."""
    anyio.run(eventually, condition)


async def next_event(events: AsyncIterator[BusEvent], kind: type[Event]) -> Event:
    """The next event of a kind; others before it are passed over."""
    with anyio.fail_after(BOUND):
        async for event in events:
            if isinstance(event, kind):
                return event
    raise AssertionError(f"no {kind.__name__} event")
