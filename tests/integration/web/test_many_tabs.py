"""Hundreds of tabs on one uvicorn: everybody is reached, users are told apart, and those who read nothing harm nobody."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
import websockets
from attrs import frozen

from polybus import Bus, connect
from tests.integration.processes.processes import MIB, Process, eventually, running

TABS = 500
BODY = 20_000
PUBLICATIONS = 400


@frozen
class Site:
    """The server and 500 tabs of 498 users."""

    server: Process
    http: httpx.AsyncClient
    crowd: Bus


@pytest.fixture(scope="module")
async def site(anyio_backend: Any) -> AsyncIterator[Site]:
    users = ["ann", "ann", "ann", *(f"user{number}" for number in range(TABS - 3))]
    async with running(
        "tests.integration.web.server", **{"with": "polybus", "limits": {"outbox_bytes": 256 * 1024, "write_timeout": 4}}
    ) as server:
        async with running("tests.integration.web.crowd", url=server.url, users=users) as crowd, connect(crowd.url) as bus:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=30) as http:
                yield Site(server, http, bus)


async def seen(site: Site, body: str, tabs: int) -> dict[str, Any]:
    async def all_of_them() -> bool:
        return bool((await site.crowd.request("seen")).get(body, {}).get("tabs", 0) >= tabs)

    await eventually(all_of_them)
    answer: dict[str, Any] = (await site.crowd.request("seen"))[body]
    return answer


async def test_one_announcement_reaches_each_of_500_tabs_once(site: Site) -> None:
    assert await site.crowd.request("tabs") == TABS
    assert (await site.http.post("/announce", json="for all")).status_code == 200
    assert await seen(site, "for all", TABS) == {"tabs": TABS, "twice": 0, "users": ["ann", "user0", "user1"]}


async def _peers(site: Site, number: int) -> bool:
    return bool((await site.http.get("/stats")).json()["peers"] == number)


async def test_a_hundred_tabs_that_read_nothing_cost_bounded_memory_and_delay_nobody(site: Site) -> None:
    url = site.server.url.removeprefix("ubre+")
    async with AsyncExitStack() as stack:
        stalled = []
        for number in range(100):
            headers = {"Cookie": f"user=stalled{number}"}
            socket = await websockets.connect(url, additional_headers=headers, proxy=None, compression=None)
            stack.callback(socket.transport.abort)
            await socket.send(json.dumps({"subscribe": "wide"}))
            socket.transport.pause_reading()
            stalled.append(socket)
        client = await stack.enter_async_context(connect(site.server.url, headers={"Cookie": "user=reader"}))
        wide = await stack.enter_async_context(client.subscribe("wide"))
        before = site.server.memory()
        most, got = 0, 0

        async def read() -> None:
            nonlocal got
            async for message in wide:
                got += len(message.body) == BODY
                if got == PUBLICATIONS:
                    return

        def has_read(number: int) -> bool:
            return got == number

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            for turn in range(20):
                answer = await site.http.post(f"/wide/{PUBLICATIONS // 20}", json="x" * BODY)
                assert answer.status_code == 200
                await eventually(partial(has_read, (turn + 1) * PUBLICATIONS // 20))  # or its outbox would be too small
                most = max(most, site.server.memory() - before)
        assert got == PUBLICATIONS
        # 800 MB were addressed to them. Each may keep 256 KiB in its outbox, and uvicorn's buffer besides.
        assert most < 100 * MIB
        assert (await site.http.get("/stats")).json()["dropped"] > 0
        await site.http.post("/announce", json="all the same")
        assert (await seen(site, "all the same", TABS))["tabs"] == TABS
        await eventually(lambda: _peers(site, TABS + 1))
