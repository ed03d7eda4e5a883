"""In-process connections by name and as pipes."""

import ssl
import threading
from typing import Any

import anyio
import pytest

from polybus.errors import ConnectFailed, LocalProtocolError
from polybus.limits import Limits
from polybus.plugins import ListenOptions
from polybus.transports import Memory
from polybus.transports.memory import PipeEnd, pipe
from tests.loops import both_backends  # noqa: F401

from .support import BOTH, Gate, Host, Receiver, dial, joined, running, serving


async def listen(host: Host, end: PipeEnd, **more: Any) -> Gate:
    gate = Gate(host)
    options: Any = {"reads": BOTH, "writes": "binary", "subprotocol": "test.v1", **more}
    await end.listen(ListenOptions(host=host, gate=gate, protocol="test", **options))
    return gate


async def test_the_handshake_shows_headers_path_and_query(anyio_backend: Any) -> None:
    async with running(anyio_backend) as host, serving(host, "memory://orders") as server:
        await dial(host, "memory://orders/a/b?x=1", headers={"Authorization": "Bearer t", "Cookie": "s=1"})
        shown = server.gate.handshakes[0]
        assert (shown.transport, shown.path, shown.query) == ("memory", "/a/b", {"x": "1"})
        assert shown.headers["authorization"] == "Bearer t"
        assert shown.cookies == {"s": "1"}


@pytest.mark.native
async def test_two_event_loops_in_two_threads_do_not_meet(anyio_backend: Any) -> None:
    async def elsewhere() -> str:
        async with running(anyio_backend) as host:
            async with serving(host, "memory://orders") as server:
                assert server.gate.knocks == 0
            try:
                await dial(host, "memory://orders")
            except ConnectFailed as error:
                return error.reason
            return "connected"

    async with running(anyio_backend) as host, serving(host, "memory://orders"):
        found: list[str] = []
        thread = threading.Thread(
            target=lambda: found.append(anyio.run(elsewhere, backend=anyio_backend[0], backend_options=anyio_backend[1]))
        )
        thread.start()
        await anyio.to_thread.run_sync(thread.join)
        assert found == ["no server has this name in this event loop"]


def test_a_name_is_needed() -> None:
    with pytest.raises(ValueError, match="the name is missing"):
        Memory().connector("memory://")
    assert Memory().is_private("memory://x")


@pytest.mark.parametrize("connects_first", [True, False])
async def test_a_pipe_joins_a_client_and_a_server(anyio_backend: Any, connects_first: bool) -> None:
    async with running(anyio_backend) as host:
        here, there = pipe()
        gates: list[Gate] = []
        clients: list[Receiver] = []
        assert not here.reconnects

        async def connect() -> None:
            clients.append(await dial(host, here))

        async def serve() -> None:
            gates.append(await listen(host, there))

        async with anyio.create_task_group() as group:
            for step in (connect, serve) if connects_first else (serve, connect):
                group.start_soon(step)
                await anyio.wait_all_tasks_blocked()
        server = await gates[0].peer()
        clients[0].transport.send(b"hello")
        assert await server.received(1) == [b"hello"]


async def test_a_pipe_joins_two_that_connect(anyio_backend: Any) -> None:
    async with running(anyio_backend) as host:
        ends = pipe()
        got: dict[int, Receiver] = {}

        async def connect(number: int) -> None:
            got[number] = await dial(host, ends[number])

        async with anyio.create_task_group() as group:
            group.start_soon(connect, 0)
            group.start_soon(connect, 1)
        got[0].transport.send(b"from 0")
        got[1].transport.send(b"from 1")
        assert await got[1].received(1) == [b"from 0"]
        assert await got[0].received(1) == [b"from 1"]


async def test_an_end_is_used_once(anyio_backend: Any) -> None:
    async with running(anyio_backend) as host:
        here, there = pipe()
        await listen(host, there)
        await dial(host, here)
        for end in (here, there):
            for use in (dial, listen):
                with pytest.raises(LocalProtocolError, match=r"create another pipe\(\)"):
                    await use(host, end)


async def test_tls_has_no_place_in_memory(anyio_backend: Any) -> None:
    async with running(anyio_backend) as host:
        for use, end in ((dial, "memory://orders"), *((use, end) for use in (dial, listen) for end in pipe())):
            with pytest.raises(LocalProtocolError, match="tls="):
                await use(host, end, tls=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))  # type: ignore[arg-type]


async def test_a_pipe_whose_other_end_is_not_used(anyio_backend: Any) -> None:
    async with running(anyio_backend, Limits(connect_timeout=0.05)) as host:
        here, _ = pipe()
        with pytest.raises(ConnectFailed, match="the other end of the pipe is not used"):
            await dial(host, here)


async def test_two_hundred_and_fifty_six_small_frames_are_enough_to_pause(anyio_backend: Any) -> None:
    async with joined(anyio_backend, "memory://orders") as (_, here, there):
        await anyio.wait_all_tasks_blocked()
        for _ in range(256):
            here.transport.send(b"x")
        assert here.pauses == 0
        here.transport.send(b"x")
        assert here.pauses == 1
        await there.received(257)
        await here.until(lambda: not here.paused)
