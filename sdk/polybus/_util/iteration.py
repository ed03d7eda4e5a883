"""Iteration with a bound of time."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import anyio

from .._validation import seconds

__all__ = ["receive"]


async def receive(items: AsyncIterator[Any], timeout: float | None) -> Any:
    """Wait for the next item.

    Args:
        timeout: Seconds to wait for it; None waits as long as it takes.

    Raises:
        TimeoutError: Nothing came in time.
        EOFError: There will be no more.
        BusError: As iterating does.
        TypeError, ValueError: `timeout` is no number of seconds.
    """
    most = math.inf if timeout is None else seconds(timeout, endless=True)
    try:
        with anyio.fail_after(most):
            return await anext(items)
    except StopAsyncIteration:
        raise EOFError("it has ended: there will be no more") from None
    except TimeoutError as error:
        if type(error) is TimeoutError:  # not DeadlineExceeded, which says more
            raise TimeoutError(f"nothing came within {most:g} s") from None
        raise
