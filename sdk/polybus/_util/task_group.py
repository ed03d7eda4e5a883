"""A task group that stays open until it is told to end."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.abc


async def hold_tasks(begin: Callable[[anyio.abc.TaskGroup], None], end: anyio.Event) -> None:
    """Hand a task group to `begin`, and cancel and await its tasks when `end` is set, or this task is cancelled.

    Raises:
        ExceptionGroup: A task failed.
    """
    async with anyio.create_task_group() as group:
        begin(group)
        await end.wait()
        group.cancel_scope.cancel()
