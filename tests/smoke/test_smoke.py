"""Programs as users start them, each once: real processes, real sockets, a real NATS server (a wheel brings it)."""

import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import nats
import pytest
from nats.aio.msg import Msg

from polybus import Backoff, Bus, connect
from tests.integration.interop.nats_servers import NatsServer, nats_server
from tests.integration.processes.processes import stopped
from tests.integration.web.support import Program
from tests.support import eventually, free_port
from tests.unit.cli.support import serve_process

pytestmark = pytest.mark.native

SOON = Backoff(initial=0.01, maximum=0.1)

WEB = """
from fastapi import FastAPI
from pydantic import BaseModel

from polybus import Bus
from polybus.fastapi import attach, run

class Order(BaseModel):
    count: int

bus, app = Bus(), FastAPI()
attach(app, bus, "/bus")

@bus.handle("order")
async def order(order: Order) -> Order:
    return Order(count=order.count + 1)

if __name__ == "__main__":
    run(app, port=0)
"""

WORKER = """
import os

from polybus import Bus

bus = Bus(cluster="auto")

@bus.handle("pid")
async def pid() -> int:
    return os.getpid()
"""


@pytest.fixture
def nats_of_wheel() -> Iterator[NatsServer]:
    with nats_server("wheel") as server:
        yield server


async def test_a_server_that_is_killed_and_started_again_answers_the_same_client(tmp_path: Path) -> None:
    url = f"ubre+ws://127.0.0.1:{free_port()}/bus"
    with serve_process(tmp_path, url=url) as (_, process):
        async with connect(url, backoff=SOON) as bus:
            assert await bus.request("greet", "Ada") == "Hello, Ada"
            process.kill()
            await eventually(lambda: bus.peers == [] or not bus.peers[0].connected)
            with serve_process(tmp_path, url=url):
                assert await bus.request("greet", "Ada", timeout=60) == "Hello, Ada"


async def test_a_bus_in_a_fastapi_application_answers_and_ends_in_order(tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text(WEB)
    served = await anyio.to_thread.run_sync(lambda: Program(program))
    try:
        async with connect(f"ubre+ws{served.site.removeprefix('http')}/bus") as bus:
            assert await bus.request("order", {"count": 1}) == {"count": 2}
            served.process.send_signal(signal.SIGTERM)
            assert await anyio.to_thread.run_sync(served.process.wait) in (0, -signal.SIGTERM)
    finally:
        served.kill()


async def test_four_workers_are_one_bus(tmp_path: Path) -> None:
    with serve_process(tmp_path, "--workers", "4", app=WORKER) as (url, process):
        seen: set[int] = set()
        for _ in range(4):
            async with stopped(seen), connect(url) as bus:
                seen.add(await bus.request("pid"))
        assert len(seen) == 4
        process.send_signal(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(process.wait) == 0


async def test_a_bus_and_nats_py_ask_and_hear_each_other(nats_of_wheel: NatsServer) -> None:
    ours, heard = Bus(), list[object]()
    ours.handle("sum")(sum_of)

    @ours.on("news")
    async def news(body: object) -> None:
        heard.append(body)

    theirs = await nats.connect(nats_of_wheel.address)

    async def answer(message: Msg) -> None:
        await message.respond(message.data.upper())

    try:
        await theirs.subscribe("upper", cb=answer)
        async with connect(nats_of_wheel.url, bus=ours):
            assert (await theirs.request("sum", b"[1,2,3]")).data == b"6"
            assert await ours.request("upper", b"abc") == b"ABC"
            await theirs.publish("news", b'"flash"')
            await eventually(lambda: heard == ["flash"])
    finally:
        await theirs.close()


async def sum_of(numbers: list[int]) -> int:
    return sum(numbers)


async def test_two_processes_at_a_nats_server_are_one_bus(nats_of_wheel: NatsServer, tmp_path: Path) -> None:
    app = WORKER.replace('"auto"', repr(nats_of_wheel.url))
    with serve_process(tmp_path, app=app) as (_, process):
        async with Bus(cluster=nats_of_wheel.url) as bus:
            await eventually(lambda: bus.ready)
            assert await bus.request("pid", timeout=30) == process.pid
