"""SIGTERM: what `polybus.fastapi.run` keeps, and what plain uvicorn loses."""

from __future__ import annotations

import json
import signal
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import anyio
import httpx
import pytest
import websockets

from polybus import BusError, ConnectFailed, Disconnected, connect
from tests.integration.processes.processes import Process, eventually, running

pytestmark = pytest.mark.anyio

HEADERS = {"Cookie": "user=ann"}


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The processes choose their own event loop; the test itself needs one."""
    return "asyncio", {"use_uvloop": False}


async def stopped_with_a_hundred_running(server: Process) -> Counter[str]:
    """What becomes of a hundred requests, of four clients, whose handlers run when SIGTERM comes."""
    outcomes: Counter[str] = Counter()

    async def ask(client: Any, number: int) -> None:
        try:
            answer = await client.request("until.drain", number, timeout=20)
            outcomes["answered" if answer == number else "wrong"] += 1
        except Disconnected as error:
            outcomes["lost" if error.sent else "unsent"] += 1
        except BusError as error:
            outcomes[type(error).__name__] += 1

    stats = f"{server.url.removeprefix('ubre+ws').removesuffix('/bus')}/stats"
    async with AsyncExitStack() as stack, httpx.AsyncClient() as http:
        clients = [await stack.enter_async_context(connect(server.url, headers=HEADERS, wait=30)) for _ in range(4)]
        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(ask, clients[number % 4], number)

            async def all_run() -> bool:
                return bool((await http.get(f"http{stats}")).json()["running"] == 100)

            await eventually(all_run)
            server.signal(signal.SIGTERM)
    return outcomes


@pytest.fixture(params=[{}, {"ws": "wsproto"}], ids=["adopted", "asgi"])
def run(request: pytest.FixtureRequest) -> Any:
    """Options for uvicorn: with the second one it keeps its connections."""
    return request.param


@pytest.mark.parametrize("mounted", [False, True], ids=["app", "mounted"])
async def test_a_hundred_running_handlers_answer_before_the_server_goes(run: Any, mounted: bool) -> None:
    async with running("tests.integration.web.server", **{"with": "polybus", "mounted": mounted, "run": run}) as server:
        assert await stopped_with_a_hundred_running(server) == {"answered": 100}
        assert await server.ended() == 0
        assert server.log() == ""


async def test_under_plain_uvicorn_all_of_them_are_lost_and_the_askers_are_told(run: Any) -> None:
    async with running("tests.integration.web.server", **{"with": "uvicorn", "run": run}) as server:
        assert await stopped_with_a_hundred_running(server) == {"lost": 100}
        assert await server.ended() == -signal.SIGTERM


async def test_clients_are_told_to_go_elsewhere_and_new_ones_find_nobody(run: Any) -> None:
    async with running("tests.integration.web.server", **{"with": "polybus", "run": run}) as server:
        url = server.url.removeprefix("ubre+")
        async with connect(server.url, headers=HEADERS, wait=30) as client:
            async with websockets.connect(url, additional_headers=HEADERS, proxy=None) as socket:
                reply = client.request("until.drain", 1)
                while not await client.request("whoami"):
                    pass
                server.signal(signal.SIGTERM)
                assert await reply == 1
                with pytest.raises(websockets.ConnectionClosed) as caught:
                    await socket.recv()
                assert caught.value.rcvd is not None
                assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1001, "the bus is leaving")
        assert await server.ended() == 0
        with pytest.raises(ConnectFailed):
            async with connect(server.url, headers=HEADERS):
                pass


async def test_handlers_that_do_not_end_and_peers_that_do_not_read_hold_nobody_up_for_longer_than_the_drain(run: Any) -> None:
    options = {"with": "polybus", "run": {"drain": 0.3, **run}, "limits": {"close_timeout": 0.2}}
    async with running("tests.integration.web.server", **options) as server, AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(server.url, headers=HEADERS, wait=30))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}"))
        for _ in range(3):
            socket = await websockets.connect(
                server.url.removeprefix("ubre+"), additional_headers=HEADERS, proxy=None, compression=None
            )
            stack.callback(socket.transport.abort)
            await socket.send(json.dumps({"subscribe": "wide"}))
            socket.transport.pause_reading()
        assert (await http.post("/wide/300", json="x" * 20_000)).status_code == 200
        reply = client.request("never", timeout=20)
        assert await client.request("whoami") == "ann"
        server.signal(signal.SIGTERM)
        with pytest.raises(Disconnected):
            await reply
        assert await server.ended() == 0


async def test_a_second_signal_ends_at_once(run: Any) -> None:
    async with running("tests.integration.web.server", **{"with": "polybus", "run": {"drain": 1000, **run}}) as server:
        async with connect(server.url, headers=HEADERS, wait=30) as client:
            async with websockets.connect(server.url.removeprefix("ubre+"), additional_headers=HEADERS, proxy=None) as socket:
                reply = client.request("never", timeout=100)
                assert await client.request("whoami") == "ann"
                server.signal(signal.SIGTERM)
                drained = client.request("until.drain", 1)  # refused or answered: the drain has begun
                with pytest.raises(BusError):
                    await drained
                    raise Disconnected("answered")
                server.signal(signal.SIGTERM)
                with pytest.raises(Disconnected):
                    await reply
                assert socket.subprotocol is None
        assert await server.ended() == 0
