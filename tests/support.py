"""What the tests of the bus share."""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec

import anyio

P = ParamSpec("P")

BOUND = 5.0
"""Seconds within which a test must end; none takes that long unless it fails."""


def bounded(test: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
    """A test that fails when it hangs."""

    @functools.wraps(test)
    async def within(*args: P.args, **kwargs: P.kwargs) -> None:
        with anyio.fail_after(BOUND):
            await test(*args, **kwargs)

    return within


async def eventually(condition: Callable[[], Any]) -> None:
    """Wait until something holds that no event tells of."""
    while not condition():  # noqa: ASYNC110  # there is nothing to wait for
        await anyio.sleep(0.001)
