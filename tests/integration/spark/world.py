"""A world of six protocols that keeps a ledger: what each application has seen of each of its requests.

``python -m tests.integration.spark.world URL`` is a server that answers nothing, and says of each request that it has come.
"""

import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from polybus import Bus, BusError, DeadlineExceeded, Disconnected, NotFound, RequestCancelled, Route, bridge, connect
from polybus.protocols import Up
from polybus.testing.nats_engine import NatsEngine

ROOT = Path(__file__).parents[3]
SUBJECTS = {"good": 1, "bad": 2, "never": 3}
TALKING = ("ubre", "csb", "jrep", "uprotocol")
"""These protocols have streams, and a message that cancels a request."""
PROTOCOLS = (*TALKING, "up", "nats")
ENDINGS = {RequestCancelled: "cancelled", DeadlineExceeded: "timeout", Disconnected: "lost"}
AT_ONCE = 20
OUT, IN = 0, 1

Ledger = Counter[tuple[int, str, str, int, str]]
"""Direction, protocol, subject, number in the body and outcome of each exchange, wherever it is recorded."""


class World:
    def __init__(self, capture: Path, each: int) -> None:
        self.ledger: Ledger = Counter()
        self.bulk = ""
        """The recording of a client that has only asked what is answered."""
        self._capture, self._each, self._asked = capture, each, 0
        self._begun = defaultdict[str, anyio.Event](anyio.Event)
        self._server = Bus()
        self._server.handle("good")(self._good)
        self._server.handle("bad")(self._bad)
        self._server.handle("never")(self._never)
        self._server.handle("count")(self._count)

    async def _good(self, body: dict[str, str]) -> dict[str, str]:
        return body

    async def _bad(self, body: dict[str, str]) -> None:
        raise NotFound(f"no {body}")

    async def _never(self, body: dict[str, str]) -> None:
        self._begun[body["number"]].set()
        await anyio.sleep_forever()

    async def _count(self, body: dict[str, str]) -> AsyncIterator[int]:
        for number in range(3):
            yield number

    async def run(self) -> None:
        server, console, inside = self._server, Bus(), Bus()
        async with AsyncExitStack() as stack:
            for bus in (server, console, inside):
                await stack.enter_async_context(bus.record(self._capture))
            engine, urls = await stack.enter_async_context(NatsEngine()), dict[str, str]()
            urls["nats"] = engine.url
            await stack.enter_async_context(connect(engine.url, bus=server))
            for protocol in (*TALKING, "up"):
                given: Any = {"protocol": Up(entity="//house/1/1", names=SUBJECTS)} if protocol == "up" else {}
                listener = await stack.enter_async_context(server.serve(f"{protocol}+tcp://127.0.0.1:0", **given))
                urls[protocol] = listener.url
            for protocol in PROTOCOLS:
                await self._use(protocol, urls[protocol])
            await stack.enter_async_context(connect(urls["uprotocol"], bus=inside))
            near = await stack.enter_async_context(console.serve("ubre+tcp://127.0.0.1:0"))
            await stack.enter_async_context(bridge(console, inside, routes=[Route("far.>", "{rest}")]))
            await self._cross(near.url)
        for protocol in ("ubre", "csb"):
            await self._lose(protocol)

    async def _use(self, protocol: str, url: str) -> None:
        peer = {"protocol": Up(entity="//phone/2/1", peer="//house/1/1", names=SUBJECTS)} if protocol == "up" else {}
        given: Any = peer
        client = Bus()
        async with client.record(self._capture), connect(url, bus=client, **given):
            for _ in range(3):
                await self._ask(client, protocol, "bad")
            await self._ask(client, protocol, "never", timeout=1)
            if protocol in TALKING:
                await self._ask(client, protocol, "never", cancel=True)
                await self._stream(client, protocol)
        client = Bus()
        async with client.record(self._capture) as recording, connect(url, bus=client, **given):
            self.bulk = self.bulk or recording.capture_id
            async with anyio.create_task_group() as tasks:
                for share in range(AT_ONCE):
                    tasks.start_soon(self._ask_often, client, protocol, len(range(share, self._each, AT_ONCE)))

    async def _cross(self, url: str) -> None:
        client = Bus()
        async with client.record(self._capture), connect(url, bus=client):
            for _ in range(50):
                await self._ask(client, "ubre", "far.good")
                self.ledger.update((way, "uprotocol", "good", self._asked, "ok") for way in (OUT, IN))

    async def _lose(self, protocol: str) -> None:
        """Ask a server that is killed then; its recording is no one's."""
        command = [sys.executable, "-m", "tests.integration.spark.world", f"{protocol}+tcp://127.0.0.1:0"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:  # noqa: ASYNC220  # it starts at once
            assert server.stdout is not None
            url, client = (await anyio.to_thread.run_sync(server.stdout.readline)).strip(), Bus()
            async with client.record(self._capture), connect(url, bus=client), anyio.create_task_group() as tasks:
                for _ in range(AT_ONCE):
                    tasks.start_soon(self._ask, client, protocol, "lost", (OUT,))
                for _ in range(AT_ONCE):
                    await anyio.to_thread.run_sync(server.stdout.readline)
                server.kill()

    async def _ask_often(self, client: Bus, protocol: str, count: int) -> None:
        for _ in range(count):
            await self._ask(client, protocol, "good")

    async def _ask(
        self, client: Bus, protocol: str, subject: str, ways: tuple[int, ...] = (OUT, IN), *, timeout: float = 300,
        cancel: bool = False,
    ) -> None:  # fmt: skip
        body, outcome = self._body(), "ok"
        number = self._asked
        reply = client.request(subject, body, timeout=timeout)
        if cancel:
            await self._begun[body["number"]].wait()
            reply.cancel()
        try:
            await reply.wait()
        except BusError as error:
            outcome = ENDINGS.get(type(error), "error")
        self.ledger.update((way, protocol, subject, number, outcome) for way in ways)

    async def _stream(self, client: Bus, protocol: str) -> None:
        async with client.stream("count", self._body()) as items:
            assert [item async for item in items] == [0, 1, 2]
        self.ledger.update((way, protocol, "count", self._asked, "ok") for way in (OUT, IN))

    def _body(self) -> dict[str, str]:
        self._asked += 1
        return {"number": f"no-{self._asked}."}


async def serve(url: str) -> None:
    bus = Bus()

    @bus.handle("lost")
    async def lost(body: dict[str, str]) -> None:
        print("asked", flush=True)
        await anyio.sleep_forever()

    async with bus.serve(url) as listener:
        print(listener.url, flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(serve, sys.argv[1])
