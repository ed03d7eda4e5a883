"""Another server, on every event loop: what is attached relies on ASGI, and on nothing of uvicorn."""

import functools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
from fastapi import FastAPI
from hypercorn.config import Config

from polybus import Limits, connect
from polybus.fastapi import attach
from tests.integration.web.support import echoing
from tests.integration.web.test_strangers import UPGRADE
from tests.loops import every_loop  # noqa: F401  # a fixture
from tests.support import eventually


@asynccontextmanager
async def running(app: Any, backend: str) -> AsyncIterator[int]:
    if backend == "trio":
        from hypercorn.trio import serve
    else:
        from hypercorn.asyncio import serve  # type: ignore[assignment]
    config, listening = Config(), socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    config.bind, config.errorlog = [f"fd://{listening.detach()}"], None
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(functools.partial(serve, app, config, shutdown_trigger=stop.wait))
        yield port
        stop.set()


async def test_requests_publications_and_ends_of_a_mounted_application(anyio_backend: tuple[str, Any]) -> None:
    outer, inner, bus = FastAPI(), FastAPI(), echoing(limits=Limits(close_timeout=0.2))
    attach(inner, bus)
    outer.mount("/sub", inner)
    async with running(outer, anyio_backend[0]) as port:
        async with connect(f"ubre+ws://127.0.0.1:{port}/sub/bus") as client:
            body = "x" * 100_000
            replies = [client.request("echo", body) for _ in range(20)]
            assert [await reply for reply in replies] == [body] * 20
            async with client.subscribe("news") as news:
                await bus.publish("news", "hello")
                assert (await anext(news)).body == "hello"
            await bus.peers[0].aclose("again")
            await eventually(lambda: client.stats().reconnects == 1)
            assert await client.request("echo", 1) == 1
        await eventually(lambda: not bus.peers)
        async with httpx.AsyncClient() as http:
            url, headers = f"http://127.0.0.1:{port}/sub/bus", {**UPGRADE, "origin": "https://evil.example"}
            answer = await http.get(url, headers=headers)
            assert (answer.status_code, "Origin 'https://evil.example'" in answer.text) == (403, True)
