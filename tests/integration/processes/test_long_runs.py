"""A server that has been busy for long is as it was: nothing is left behind, and what was too much passes."""

from typing import Any

import anyio
import psutil
import pytest

from polybus import Bus, Limits, connect
from polybus.events import BusEvent, LinkDown

from .processes import BOUND, MIB, Process, control, eventually, loop_of, running


async def settled(bus: Bus, server: Process, peers: int) -> dict[str, Any]:
    """What the server has counted when so many peers are left."""

    async def alone() -> bool:
        return bool((await control(bus))["stats"]["peers"] == peers)

    await eventually(alone)
    await bus.request("control", "tidy up")
    return await control(bus)


@pytest.mark.timeout(300)
async def test_connections_that_come_and_go_leave_nothing(anyio_backend: Any) -> None:
    async def cycles(number: int) -> None:
        for cycle in range(number):
            async with connect(server.url) as passing, passing.subscribe("news"):
                unanswered = passing.request("sleep", 600)
                assert await passing.request("echo", cycle) == cycle  # so that one has begun
            assert unanswered.done()

    async with running(urls=["ubre+ws://127.0.0.1:0"], **loop_of(anyio_backend)) as server, connect(server.url) as bus:
        await cycles(30)
        before, memory, files = await settled(bus, server, 1), server.memory(), server.files()
        ours = psutil.Process().num_fds()
        with anyio.fail_after(3 * BOUND):
            await cycles(300)

        async def nothing_left() -> bool:
            after = await settled(bus, server, 1)
            assert after["tasks"] <= before["tasks"] + 2
            assert after["stats"]["running"] == 1
            assert after["counted"]["cancelled"] == after["counted"]["started"] == 330
            assert server.files() <= files + 1
            return True

        await eventually(nothing_left)
        assert server.memory() - memory < 2 * MIB
        await eventually(lambda: psutil.Process().num_fds() <= ours)


@pytest.mark.parametrize(
    ("anyio_backend", "transport"), [(("asyncio", {}), "tcp"), (("trio", {}), "ws")], ids=["asyncio-tcp", "trio-ws"]
)
async def test_a_blocked_event_loop_does_not_cost_the_peer_its_link(anyio_backend: Any, transport: str) -> None:
    # A third of the default times: the silence that a peer takes is 7.7 s in place of 23 s, and the loop is blocked for longer
    # than the server itself would wait for a sign of life from anybody: 3 s.
    scaled = Limits(ping_interval=5.0, ping_timeout=2.7)
    impatient = dict.fromkeys(("ping_interval", "ping_timeout", "write_timeout", "frame_timeout"), 1.5)
    async with (
        running(urls=[f"ubre+{transport}://127.0.0.1:0"], limits=impatient, **loop_of(anyio_backend)) as server,
        connect(server.url, limits=scaled) as bus,
        anyio.create_task_group() as group,
    ):
        seen: list[BusEvent] = []

        async def watch() -> None:
            async for event in bus.events():
                seen.append(event)  # noqa: PERF401  # it is looked at meanwhile

        group.start_soon(watch)
        async with connect(server.url, limits=scaled) as bystander, bystander.subscribe("news") as news:
            for round in range(2):
                blocked = bus.request("block", 3.4, timeout=BOUND)
                waiting = [bystander.request("echo", "x" * 10_000, timeout=BOUND) for _ in range(50)]
                assert await blocked == "blocked"
                for reply in waiting:
                    await reply
                await bus.request("publish", {"subject": "news", "first": round})
                with anyio.fail_after(BOUND):
                    assert (await anext(news)).body == round
            assert bystander.stats().reconnects == 0
        assert bus.stats().reconnects == 0
        assert not any(isinstance(event, LinkDown) for event in seen)
        group.cancel_scope.cancel()
