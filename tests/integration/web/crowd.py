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

from polybus import Bus, connect

AT_ONCE = 50
"""Connections that are opened at the same time."""


class Crowd:
    """All tabs, a bus each: to one bus, whatever links it has, a publication comes once."""

    def __init__(self, url: str, users: list[str]) -> None:
        self._url = url
        self._users = users
        self.buses: list[Bus] = []
        self.got: dict[str, dict[str, Counter[int]]] = {}
        """For each body and user, which tabs have got it, and how often."""

    def seen(self) -> dict[str, Any]:
        return {
            body: {
                "tabs": sum(len(tabs) for tabs in users.values()),
                "twice": sum(count > 1 for tabs in users.values() for count in tabs.values()),
                "users": sorted(users)[:3],
            }
            for body, users in self.got.items()
        }

    def tab(self, name: str) -> Bus:
        bus, number = Bus(), len(self.buses)
        self.buses.append(bus)

        @bus.on("news", queue=100_000)
        async def hear(body: str) -> None:
            self.got.setdefault(body, {}).setdefault(name, Counter())[number] += 1

        return bus

    async def main(self) -> None:
        control = Bus()
        control.handle("seen")(self.seen)
        control.handle("tabs")(lambda: sum(len(bus.peers) for bus in self.buses))
        async with control.serve("ubre+tcp://127.0.0.1:0") as listener, AsyncExitStack() as stack:
            limit = anyio.Semaphore(AT_ONCE)

            async def join(name: str) -> None:
                async with limit:
                    headers = {"Cookie": f"user={name}"}
                    await stack.enter_async_context(connect(self._url, bus=self.tab(name), headers=headers, wait=60))

            async with anyio.create_task_group() as group:
                for name in self._users:
                    group.start_soon(join, name)
            print(json.dumps({"urls": [listener.url]}), flush=True)
            await control.wait_closed()


def main() -> None:
    options = json.loads(sys.argv[1])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    anyio.run(Crowd(options["url"], options["users"]).main)


if __name__ == "__main__":
    main()
