"""Servers that leave in good order."""

import signal
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest

from polybus import Backoff, Bus, Unavailable, connect
from tests.support import free_port

from .processes import BOUND, Process, asyncio_and_trio, control, eventually, loop_of, running  # noqa: F401  # pytest finds the fixture by its name here

SOON = Backoff(initial=0.02, maximum=0.2)


async def probe(port: int, path: str) -> int:
    with anyio.fail_after(BOUND):
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            answer = b""
            try:
                while True:
                    answer += await stream.receive()
            except anyio.EndOfStream:
                return int(answer.split()[1])


async def started(bus: Bus, number: int) -> None:
    """Wait until so many `sleep` handlers have begun: where a second has passed meanwhile, more have."""

    async def enough() -> bool:
        return bool((await control(bus))["counted"]["started"] >= number)

    await eventually(enough)


@pytest.mark.parametrize("told", [(signal.SIGTERM,), (signal.SIGHUP, signal.SIGHUP)], ids=["sigterm", "terminal"])
async def test_after_sigterm_all_running_requests_are_answered_and_the_exit_status_is_0(
    anyio_backend: Any, told: tuple[signal.Signals, ...]
) -> None:
    # 100 handlers of a second: 64 of them run at the same time, the others wait for a place.
    async with running(run={"drain": BOUND}, **loop_of(anyio_backend)) as server, connect(server.url, backoff=SOON) as bus:
        async with connect(server.url) as other:
            replies = [bus.request("sleep", 1, timeout=BOUND) for _ in range(100)]
            await started(other, 64)
        for number in told:
            server.signal(number)
        with anyio.fail_after(BOUND):
            assert [await reply for reply in replies] == ["slept"] * 100
        assert await server.ended() == 0
        assert "Traceback" not in server.log()


async def refuses(bus: Bus) -> bool:
    try:
        await bus.request("echo", 2)
    except Unavailable:
        return True
    return False


async def test_a_draining_server_takes_no_new_requests_and_says_so_to_its_load_balancer(anyio_backend: Any) -> None:
    port = free_port()
    arguments = {"drain": BOUND, "health": f"http://127.0.0.1:{port}"}
    begun, go_on = anyio.Event(), anyio.Event()
    client = Bus()

    @client.handle("held")
    async def held() -> str:
        begun.set()
        await go_on.wait()
        return "let go"

    async with running(run=arguments, **loop_of(anyio_backend)) as server, connect(server.url, bus=client) as bus:
        assert (await probe(port, "/livez"), await probe(port, "/readyz"), await probe(port, "/other")) == (200, 200, 404)
        running_one = bus.request("ask.back", {"subject": "held"}, timeout=BOUND)
        await begun.wait()
        server.signal(signal.SIGTERM)
        await eventually(lambda: refuses(bus))
        assert (await probe(port, "/livez"), await probe(port, "/readyz")) == (200, 503)
        with pytest.raises(OSError):  # which a load balancer takes for a reason to try another one
            await anyio.connect_tcp("127.0.0.1", urlsplit(server.url).port or 0)
        go_on.set()
        assert await running_one == "let go"
        assert await server.ended() == 0
