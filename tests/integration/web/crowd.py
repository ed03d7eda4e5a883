"""Many browser tabs in one process. Its only argument is a JSON object: ``url`` of the server, ``users``: a tab for each name.

Each tab subscribes to ``news`` and answers ``who``. Over a separate bus the program answers ``orders``: how many tabs got which
sequence of each publisher, for bodies ``[publisher, number]``.
"""

import json
import resource
import sys
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import anyio

from polybus import Bus, Subscription, connect

AT_ONCE = 50
"""Connections that are opened at the same time."""


class Crowd:
    """All tabs, a bus each: to one bus, whatever links it has, a publication comes once."""

    def __init__(self, url: str, users: list[str]) -> None:
        self._url = url
        self._users = users
        self.heard: list[list[Any]] = [[] for _ in users]
        """What each tab has got, in its order."""

    def orders(self) -> dict[str, int]:
        """Of each publisher the numbers, or how many where they are all from 0 on, in order."""
        found: Counter[str] = Counter()
        for heard in self.heard:
            numbers: dict[int, list[int]] = {}
            for publisher, number in heard:
                numbers.setdefault(publisher, []).append(number)
            told = {who: len(said) if said == [*range(len(said))] else said for who, said in sorted(numbers.items())}
            found[json.dumps(told)] += 1
        return found

    async def live(self, tab: int, *, task_status: Any) -> None:
        name, bus = self._users[tab], Bus()
        bus.handle("who")(lambda: name)
        async with connect(self._url, bus=bus, headers={"Cookie": f"user={name}"}, wait=60):
            async with bus.subscribe("news", queue=100_000) as news:
                task_status.started()
                await self._listen(tab, news)

    async def _listen(self, tab: int, news: Subscription[Any]) -> None:
        async for message in news:
            self.heard[tab].append(message.body)  # it is looked at meanwhile

    async def main(self) -> None:
        control = Bus()
        control.handle("orders")(self.orders)
        async with control.serve("ubre+tcp://127.0.0.1:0") as listener, AsyncExitStack() as stack:
            group = await stack.enter_async_context(anyio.create_task_group())
            limit = anyio.Semaphore(AT_ONCE)

            async def join(tab: int) -> None:
                async with limit:
                    await group.start(self.live, tab)

            async with anyio.create_task_group() as joining:
                for tab in range(len(self._users)):
                    joining.start_soon(join, tab)
            print(json.dumps({"urls": [listener.url]}), flush=True)
            await control.wait_closed()


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    given = json.loads(sys.argv[1])
    anyio.run(Crowd(given["url"], given["users"]).main)
