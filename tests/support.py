"""What the tests of the bus share."""

import functools
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec

import anyio

P = ParamSpec("P")

BOUND = 20.0
"""Seconds within which a test must end; none takes that long unless it fails."""


def bounded(test: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
    """A test that fails when it hangs."""

    @functools.wraps(test)
    async def within(*args: P.args, **kwargs: P.kwargs) -> None:
        with anyio.fail_after(BOUND):
            await test(*args, **kwargs)

    return within


def free_port() -> int:
    """A port that nobody has, and that the system gives to nobody by itself: still free when a server comes back to it."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 200):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("200 ports in a row are taken")


async def eventually(condition: Callable[[], Any]) -> None:
    """Wait until something holds that no event tells of."""
    while not condition():  # noqa: ASYNC110  # there is nothing to wait for
        await anyio.sleep(0.001)
