"""Iteration with a bound of time."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import anyio

from .._validation import seconds


async def receive(items: AsyncIterator[Any], timeout: float | None) -> Any:
    """Wait for the next item.

    Raises:
        TimeoutError, EOFError, BusError, TypeError, ValueError: As `Subscription.receive`.
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
