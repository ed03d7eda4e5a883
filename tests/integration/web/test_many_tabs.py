"""Many tabs on one uvicorn: those who read nothing harm nobody."""

import json
from contextlib import AsyncExitStack
from functools import partial

import anyio
import httpx
import websockets

from polybus import connect
from tests.integration.processes.processes import MIB, eventually, running

BODY, PUBLICATIONS, TURNS = 20_000, 400, 20


async def test_a_hundred_tabs_that_read_nothing_cost_bounded_memory_and_delay_nobody() -> None:
    limits = {"outbox_bytes": 256 * 1024, "write_timeout": 4}
    async with running("tests.integration.web.server", limits=limits) as server, AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=30))
        client = await stack.enter_async_context(connect(server.url, headers={"Cookie": "user=reader"}, wait=30))
        wide = await stack.enter_async_context(client.subscribe("wide"))
        for number in range(100):
            url, headers = server.url.removeprefix("ubre+"), {"Cookie": f"user=stalled{number}"}
            socket = await websockets.connect(url, additional_headers=headers, proxy=None, compression=None)
            stack.callback(socket.transport.abort)
            await socket.send(json.dumps({"subscribe": "wide"}))
            socket.transport.pause_reading()
        before, most, got = server.memory(), 0, 0

        async def read() -> None:
            nonlocal got
            async for message in wide:
                got += len(message.body) == BODY
                if got == PUBLICATIONS:
                    return

        def has_read(number: int) -> bool:
            return got == number

        async def peers() -> int:
            return int((await http.get("/stats")).json()["peers"])

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            for turn in range(1, TURNS + 1):
                answer = await http.post(f"/wide/{PUBLICATIONS // TURNS}", json="x" * BODY)
                assert answer.status_code == 200
                await eventually(partial(has_read, turn * PUBLICATIONS // TURNS))  # or its outbox would be too small
                most = max(most, server.memory() - before)
        # 800 MB were addressed to them. Each may keep 256 KiB in its outbox, and uvicorn's buffer besides.
        assert most < 100 * MIB
        assert (await http.get("/stats")).json()["dropped"] > 0
        while await peers() > 1:  # noqa: ASYNC110  # those that read nothing are cut after the write timeout
            await anyio.sleep(0.05)
