"""A thread with asyncio, so that tests on every loop can talk to clients that only know asyncio."""

import asyncio
import threading
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

import anyio

from tests.support import BOUND

T = TypeVar("T")


class AsyncioThread:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        # In a context of its own: the caller's says which loop runs, and that is another one.
        future = Context().run(asyncio.run_coroutine_threadsafe, coroutine, self.loop)
        return await anyio.to_thread.run_sync(future.result, BOUND)

    async def end(self) -> None:
        await self.run(_let_end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        await anyio.to_thread.run_sync(self._thread.join)
        self.loop.close()


async def _let_end() -> None:
    """Cancel the tasks that are left, and let the loop close the connections that were closed last."""
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.sleep(0)
