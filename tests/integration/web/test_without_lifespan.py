"""Servers that run no lifespan, and their event loop by ``run_forever``: the process ends when they do."""

import gc
import subprocess
import sys
import textwrap
import threading
from typing import Any
from weakref import WeakKeyDictionary

from fastapi import FastAPI
from fastapi.testclient import TestClient

from polybus import Bus
from polybus.fastapi import BusDep, attach
from tests.support import BOUND

SERVER = """
import asyncio
import os
import signal
import threading
from typing import Any
from weakref import WeakKeyDictionary

from fastapi import FastAPI
from polybus import Bus
from polybus.fastapi import BlockingBusDep, BusDep, attach

app, bus = FastAPI(), Bus()
attach(app, bus)


@bus.handle("thread")
def thread() -> str:
    return threading.current_thread().name


@app.get("/coroutine")
async def coroutine(bus: BusDep) -> str:
    return await bus.request("thread")


@app.get("/def")
def plain(bus: BlockingBusDep) -> str:
    return bus.request("thread")


async def serve(path: str) -> None:
    scope = dict(type="http", http_version="1.1", method="GET", path=path, raw_path=path.encode(), root_path="", scheme="http")
    scope |= dict(query_string=b"", headers=[], client=("127.0.0.1", 9), server=("127.0.0.1", 80), asgi=dict(version="3.0"))

    async def receive() -> dict:
        return dict(type="http.request")

    async def send(message: dict) -> None:
        print(message.get("body", b"").decode(), end="", flush=True)

    await app(scope, receive, send)


async def serve_both() -> None:
    await serve("/coroutine")
    await serve("/def")
    os.kill(os.getpid(), signal.SIGTERM)


loop = asyncio.new_event_loop()
loop.add_signal_handler(signal.SIGTERM, loop.stop)
serving = loop.create_task(serve_both())
loop.run_forever()
"""


def test_a_process_ends_with_its_server_though_a_def_handler_was_asked() -> None:
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(SERVER)], capture_output=True, text=True, timeout=BOUND)
    assert (ended.returncode, ended.stdout.count("AnyIO worker thread")) == (0, 2), ended.stderr


def test_a_thread_is_kept_for_the_process_and_none_for_each_event_loop() -> None:
    app, bus = FastAPI(), Bus()
    attach(app, bus)

    @app.get("/")
    async def asked(bus: BusDep) -> bool:
        return bus.ready

    client = TestClient(app)  # an event loop for each request, and no lifespan
    assert client.get("/").json()
    (ender,) = (one for one in threading.enumerate() if one.name == "polybus end of tasks")
    loops: WeakKeyDictionary[Any, float] = ender.loops  # type: ignore[attr-defined]
    before = [*loops]
    for _ in range(3):
        assert client.get("/").json()
    assert [one.name for one in threading.enumerate()].count(ender.name) == 1
    gc.collect()
    assert len([*loops]) <= len(before) + 1  # the bus remembers its last one
