"""A thread for what polybus itself has to do, such as opening a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


async def in_own_thread(function: Callable[[*Arguments], T], *args: *Arguments, abandon_on_cancel: bool = False) -> T:
    """Call a function in a thread that does not count among anyio's: all of those may be waiting for what it does, in `def`
    endpoints of FastAPI for example.
    """
    limiter = anyio.CapacityLimiter(1)
    return await anyio.to_thread.run_sync(function, *args, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
