"""What holds on every transport, on every event loop."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from polybus.errors import BusError, ConnectFailed, Forbidden, TooManyRequests, Unauthorized, Unavailable
from polybus.limits import Limits
from polybus.plugins import Admission, Closed, Identity
from tests.loops import every_loop  # noqa: F401  # a fixture
from tests.support import BOUND

from .support import dial, fill, joined, running, serving

SCHEMES = ["memory", "tcp", "unix", "ws"]
SOCKETS = ["tcp", "unix", "ws"]


@pytest.fixture(params=SCHEMES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


@pytest.fixture(params=SOCKETS)
def socket_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


def url_of(scheme: str, tmp_path: Path) -> str:
    addresses = {"memory": "memory://orders", "unix": f"unix://{tmp_path}/s", "ws": "ws://127.0.0.1:0/bus"}
    return addresses.get(scheme, "tcp://127.0.0.1:0")


@pytest.mark.parametrize(("code", "error"), [(1001, None), (4401, Unauthorized), (4403, Forbidden)])
async def test_a_closing_side_tells_the_other_why(
    anyio_backend: Any, url: str, code: int, error: type[BusError] | None
) -> None:
    async with joined(anyio_backend, url) as (_, here, there):
        here.transport.send(b"last words")
        here.transport.close(code, "going home")
        why = await there.end()
        assert (why.code, why.reason, type(why.error)) == (code, "going home", error or type(None))
        assert there.frames == [b"last words"]
        assert await here.end() == Closed(code, "going home")
        here.transport.send(b"ignored")
        here.transport.close()
        here.transport.abort(Closed())


async def test_what_came_before_start_is_delivered_after_it(anyio_backend: Any, url: str) -> None:
    async with joined(anyio_backend, url, late=True) as (_, here, there):
        here.transport.send(b"early")
        here.transport.close(1001, "gone")
        await anyio.lowlevel.checkpoint()
        there.transport.start(there)
        assert there.frames == []
        assert await there.end() == Closed(1001, "gone")
        assert there.frames == [b"early"]
        await here.end()


@pytest.mark.parametrize("at_the_door", [True, False])
async def test_a_busy_server_says_so(anyio_backend: Any, url: str, at_the_door: bool) -> None:
    async with running(anyio_backend) as host, serving(host, url) as server:
        if at_the_door:
            server.gate.refusal_at_the_door = TooManyRequests("10 connections are enough")
        else:
            server.gate.refusal = Unavailable("draining: 10 connections are enough")
        try:
            why = await (await dial(host, server.url)).end()
            assert why.code == 1013
            assert "10 connections are enough" in why.reason
        except ConnectFailed as error:
            assert "10 connections are enough" in error.reason
        if not at_the_door:
            await server.gate.until(lambda: server.gate.gone == 1)
        assert (server.gate.knocks, len(server.gate.receivers)) == (1, 0)


async def test_who_does_not_decide_in_time_decides_no_more(anyio_backend: Any, url: str) -> None:
    async with running(anyio_backend, Limits(handshake_timeout=0.2)) as host, serving(host, url) as server:
        gate = server.gate
        gate.patient = True
        with suppress(ConnectFailed):
            assert (await (await dial(host, server.url)).end()).code == 1006
        await gate.until(lambda: gate.gone == 1)
        gate.waiting.pop()(Admission(Identity("somebody"), gate.handshakes[-1]))
        assert gate.receivers == []


async def test_a_peer_that_takes_nothing_ends_the_connection(anyio_backend: Any, socket_url: str) -> None:
    async with joined(anyio_backend, socket_url, Limits(ping_interval=1e9), late=True) as (host, here, there):
        await fill(here)
        now = host.time()
        here.transport.tick(now)
        here.transport.tick(now + 9.9)
        await anyio.lowlevel.checkpoint()
        assert (here.why, here.paused) == (None, True)
        # The kernel goes on taking bytes for a while, which is progress.
        with anyio.fail_after(BOUND):
            while here.why is None:
                now += 10
                here.transport.tick(now)
                await anyio.wait_all_tasks_blocked()
        why = await here.end()
        assert (why.code, why.stalled) == (1006, True), "a server logs that"
        assert "write stalled" in why.reason
        there.transport.start(there)
        await there.end()
