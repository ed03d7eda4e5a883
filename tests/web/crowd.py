"""Many browser tabs in one process. Its only argument is a JSON object: ``url`` of the server, ``users``: a tab for each name.

Every tab subscribes to ``news``. Over a bus of its own it answers ``seen``: for each body, how many tabs have got it and of
whom, and ``tabs``: how many are connected.
"""

from __future__ import annotations

import json
import resource
import sys
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import anyio

from polybus import Bus, Limits, Peer

AT_ONCE = 50
"""Connections that are opened at the same time."""


class Crowd:
    """All tabs."""

    def __init__(self, url: str, users: list[str]) -> None:
        self._url = url
        self._users = users
        self.bus = Bus(limits=Limits(peers_per_address=100_000, peers=100_000))
        self.names: dict[Peer, str] = {}
        self.got: dict[str, Counter[Peer]] = {}

    def seen(self) -> dict[str, Any]:
        return {
            body: {
                "tabs": len(tabs),
                "twice": sum(count > 1 for count in tabs.values()),
                "users": sorted({self.names[tab] for tab in tabs})[:3],
            }
            for body, tabs in self.got.items()
        }

    async def listen(self) -> None:
        async with self.bus.subscribe("news", queue=100_000) as news:
            print(json.dumps({"urls": [self.listener.url]}), flush=True)
            async for message in news:
                self.got.setdefault(message.body, Counter())[message.peer] += 1

    async def main(self) -> None:
        control = Bus()
        control.handle("seen")(self.seen)
        control.handle("tabs")(lambda: len(self.bus.peers))
        async with control.serve("ubre+tcp://127.0.0.1:0") as self.listener, self.bus, AsyncExitStack() as stack:
            limit = anyio.Semaphore(AT_ONCE)

            async def join(name: str) -> None:
                async with limit:
                    headers = {"Cookie": f"user={name}"}
                    peer = await stack.enter_async_context(self.bus.connect(self._url, headers=headers, wait=60))
                    self.names[peer] = name

            async with anyio.create_task_group() as group:
                for name in self._users:
                    group.start_soon(join, name)
            await self.listen()


def main() -> None:
    options = json.loads(sys.argv[1])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    anyio.run(Crowd(options["url"], options["users"]).main)


if __name__ == "__main__":
    main()
