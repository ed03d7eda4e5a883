"""A server for all requests of the tests. Its only argument is a JSON object of options:

* ``urls``, ``backend``, ``uvloop``, ``when_full``, ``limits`` (fields of `Limits`)
* ``lifespan``: ``"slow"`` never begins (it reports that in a line of JSON), ``"stuck"`` never ends
* ``run``: arguments of `polybus.run`, which then does the serving
"""

import ctypes
import gc
import json
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import attrs

import polybus
from polybus import Bus, Context, Limits
from polybus.events import FrameRefused
from tests.integration.processes.serving_lines import print_urls


class Server:
    def __init__(self, options: dict[str, Any]) -> None:
        self.counted: Counter[str] = Counter()
        self._lasts = options.get("lifespan")
        lifespan = self._lifespan if self._lasts else None
        self.bus = Bus(limits=Limits(**options.get("limits", {})), lifespan=lifespan)
        handled = "echo document sleep block stuck control ask.back publish"
        for name in handled.split():
            self.bus.handle(name)(getattr(self, name.replace(".", "_")))
        self.bus.on("heard.>")(self.heard)

    @asynccontextmanager
    async def _lifespan(self, bus: Bus) -> AsyncIterator[None]:
        if self._lasts == "slow":
            print(json.dumps({"urls": []}), flush=True)
            await anyio.sleep_forever()
        yield
        await anyio.sleep_forever()

    # -- handlers

    async def echo(self, body: Any) -> Any:
        self.counted["echo"] += 1
        return body

    async def document(self, body: dict[str, Any]) -> str:
        return "x" * int(body["size"])

    async def sleep(self, body: Any) -> str:
        self.counted["started"] += 1
        try:
            await anyio.sleep(body["seconds"] if isinstance(body, dict) else body)
        except BaseException:
            self.counted["cancelled"] += 1
            raise
        self.counted["finished"] += 1
        return "slept"

    async def heard(self, message: polybus.Message) -> None:
        self.counted[str(message.subject)] += 1

    async def block(self, body: float) -> str:
        time.sleep(body)  # noqa: ASYNC251  # that is the point
        return "blocked"

    def stuck(self) -> None:
        threading.Event().wait(600)

    async def control(self, body: Any) -> dict[str, Any]:
        tasks = 0
        if body == "tidy up":
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)  # what is free goes back to the system: which holes stay is chance
        if self.bus._services.running.backend == "asyncio":
            import asyncio

            tasks = len(asyncio.all_tasks())
        return {"stats": attrs.asdict(self.bus.stats()), "counted": dict(self.counted), "tasks": tasks}

    async def ask_back(self, body: dict[str, Any], ctx: Context) -> Any:
        assert ctx.peer is not None
        return await ctx.peer.request(body["subject"])

    async def publish(self, body: dict[str, Any]) -> None:
        """A series of publications, numbered from `first`."""
        padding = "x" * body.get("size", 0)
        first = body.get("first", 0)
        for number in range(first, first + body.get("count", 1)):
            await self.bus.publish(body["subject"], {"n": number, "padding": padding} if padding else number)

    async def watch(self) -> None:
        async for event in self.bus.events():
            self.counted[f"event.{type(event).__name__}"] += 1
            if isinstance(event, FrameRefused):
                self.counted[f"refused.{event.reason}"] += 1


async def serve(server: Server, options: dict[str, Any]) -> None:
    when_full = options.get("when_full", "drop_oldest")
    async with anyio.create_task_group() as group, AsyncExitStack() as stack:
        urls = options.get("urls", ["ubre+tcp://127.0.0.1:0"])
        listeners = [await stack.enter_async_context(server.bus.serve(url, when_full=when_full)) for url in urls]
        group.start_soon(server.watch)
        print(json.dumps({"urls": [listener.url for listener in listeners]}), flush=True)
        await server.bus.wait_closed()


def main() -> None:
    options = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    server = Server(options)
    backend, uvloop = options.get("backend", "asyncio"), bool(options.get("uvloop"))
    if options.get("run") is not None:
        print_urls()
        polybus.run(server.bus, "ubre+tcp://127.0.0.1:0", backend=backend, uvloop=uvloop, **options["run"])
        return
    backend_options = {"use_uvloop": True} if uvloop else {}
    anyio.run(serve, server, options, backend=backend, backend_options=backend_options)


if __name__ == "__main__":
    main()
