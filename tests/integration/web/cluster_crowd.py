"""Many clients in one process. Its only argument is a JSON object: ``url`` of the server, ``clients``: how many.

Each is a user of its own, ``user0`` and so on, hears ``news``, where a body is ``[publisher, number]``, and answers ``who``.
Over a bus of its own the program answers ``seen``: how many clients have heard so many of each publisher, and what was wrong.
"""

from __future__ import annotations

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
    """All clients, a bus each."""

    def __init__(self, url: str, clients: int) -> None:
        self._url = url
        self._heard: list[dict[int, int]] = [{} for _ in range(clients)]
        """For each client and publisher, the number that is expected next."""
        self._wrong: list[str] = []

    def seen(self) -> dict[str, Any]:
        """How many clients have heard how many of each publisher; and of the first faults."""
        counts = Counter((publisher, number) for heard in self._heard for publisher, number in heard.items())
        return {"heard": [[*key, count] for key, count in sorted(counts.items())], "wrong": self._wrong[:5]}

    async def listen(self, client: int, news: Subscription[Any]) -> None:
        heard = self._heard[client]
        async for message in news:
            publisher, number = message.body
            if number != heard.get(publisher, 0):
                self._wrong.append(f"client {client}: {number} of {publisher} after {heard.get(publisher, 0) - 1}")
            heard[publisher] = number + 1

    async def main(self) -> None:
        control = Bus()
        control.handle("seen")(self.seen)
        limit = anyio.Semaphore(AT_ONCE)
        async with control.serve("ubre+tcp://127.0.0.1:0") as listener, AsyncExitStack() as stack:
            group = await stack.enter_async_context(anyio.create_task_group())

            async def join(client: int, *, task_status: Any) -> None:
                name, bus = f"user{client}", Bus()
                bus.handle("who")(lambda: name)
                async with limit:
                    connection = connect(self._url, bus=bus, headers={"x-user": name}, wait=60)
                    await stack.enter_async_context(connection)
                    news = await stack.enter_async_context(bus.subscribe("news", queue=100_000))
                task_status.started()
                await self.listen(client, news)

            async with anyio.create_task_group() as joining:
                for client in range(len(self._heard)):
                    joining.start_soon(group.start, lambda client=client, **given: join(client, **given))
            print(json.dumps({"urls": [listener.url]}), flush=True)
            await control.wait_closed()


def main() -> None:
    options = json.loads(sys.argv[1])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    anyio.run(Crowd(options["url"], options["clients"]).main)


if __name__ == "__main__":
    main()
