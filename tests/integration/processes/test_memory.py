"""No peer makes a server grow: measured in the memory of a real process."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from polybus import Bus, connect
from tests.raw import frame, raw_peer

from .processes import BOUND, MIB, Process, control, eventually, loop_of, running

SERIES = 200
"""Publications that the server makes in one go; between two series its memory is looked at."""


class Growth:
    """How much a process has grown at most since this was made."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._before = process.memory()
        self.most = 0

    def look(self) -> int:
        self.most = max(self.most, self._process.memory() - self._before)
        return self.most


async def publish(bus: Bus, growth: Growth, count: int, size: int, series: int, arrived: Callable[[int], bool]) -> None:
    """Have the server publish, not faster than those who read can take it on a busy machine."""
    for first in range(0, count, series):
        await bus.request("publish", {"subject": "big", "count": series, "size": size, "first": first}, timeout=BOUND)
        await eventually(partial(arrived, first + series))
        growth.look()


@contextmanager
def stalled(server: Process, count: int, *messages: Any) -> Iterator[list[socket.socket]]:
    """Connections that say something and then never read."""
    with ExitStack() as stack:
        sockets = []
        path = server.url.partition("unix://")[2]
        for _ in range(count):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX if path else socket.AF_INET))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(path or ("127.0.0.1", server.port))
            sock.sendall(b"".join(map(frame, messages)))
            sockets.append(sock)
        yield sockets


@pytest.mark.parametrize(
    ("anyio_backend", "when_full"),
    [(("asyncio", {}), "drop_oldest"), (("trio", {}), "drop_newest"), (("asyncio", {}), "disconnect")],
    ids=["asyncio-drop_oldest", "trio-drop_newest", "asyncio-disconnect"],
)
async def test_a_stalled_subscriber_costs_little_and_the_others_get_everything(anyio_backend: Any, when_full: str) -> None:
    count = 10_000
    heard: list[int] = []
    async with (
        # On a slow machine this takes longer than a peer is waited for by default.
        running(when_full=when_full, limits={"write_timeout": 10 * BOUND}, **loop_of(anyio_backend)) as server,
        connect(server.url) as bus,
        connect(server.url) as healthy,
        healthy.subscribe("big") as news,
        anyio.create_task_group() as group,
    ):

        async def read() -> None:
            async for message in news:
                heard.append(message.body["n"])  # noqa: PERF401  # it is looked at meanwhile

        group.start_soon(read)
        await bus.request("publish", {"subject": "warm.up", "count": SERIES, "size": 10_000})
        with stalled(server, 1, {"subscribe": "big"}):
            await eventually(lambda: _peers(bus, 3))
            growth = Growth(server)
            await publish(bus, growth, count, 10_000, SERIES, lambda number: len(heard) >= number)
            assert heard == list(range(count))
            if when_full == "disconnect":
                await eventually(lambda: _peers(bus, 2))
            seen = await control(bus)
            assert seen["counted"]["event.PeerSlow"] >= 1
            if when_full != "disconnect":
                assert seen["stats"]["peers"] == 3
                # All but what the system's buffers and the outbox hold.
                assert seen["stats"]["dropped"] > count / 2
            assert growth.look() < 8 * MIB
        group.cancel_scope.cancel()


async def _peers(bus: Bus, number: int) -> bool:
    return bool((await control(bus))["stats"]["peers"] == number)


@pytest.mark.parametrize(
    ("anyio_backend", "count", "size", "kept"),
    [(("asyncio", {}), 20_000, 0, 4096), (("trio", {}), 2_000, 50_000, 16 * MIB // 50_000)],
    ids=["asyncio-small", "trio-large"],
)
async def test_a_flood_of_slow_requests_runs_64_keeps_some_and_refuses_the_rest(
    anyio_backend: Any, count: int, size: int, kept: int
) -> None:
    async with running(**loop_of(anyio_backend)) as server, connect(server.url) as bus, raw_peer(server.url) as flooder:
        await bus.request("echo", "x" * 500_000)
        growth = Growth(server)

        async def ask() -> None:
            body = {"seconds": 600, "padding": "x" * size}
            for first in range(0, count, 50):
                await flooder.send(*({"request": "sleep", "id": n, "body": body} for n in range(first, first + 50)))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            with anyio.fail_after(BOUND):
                for number in range(count - 64 - kept):
                    answer = await flooder.receive()
                    assert (answer["code"], answer["reason"]) == (8, "too_many_requests")
                    if number % 200 == 0:
                        growth.look()

        async def all_have_come() -> bool:
            seen = await control(bus)
            stats = seen["stats"]
            assert seen["counted"]["started"] == 64
            # Eight run at first; the others of the 64 begin as these are seen to wait, some when nothing comes in their place.
            assert kept * 0.98 - 56 <= stats["waiting"] <= kept * 1.02
            assert stats["running"] - 1 + stats["waiting"] + stats["refused"] == count
            return True

        await eventually(all_have_come)
        assert growth.look() < (64 + kept) * (size + 3_000) + 8 * MIB
        await flooder.close()

        async def over() -> bool:
            stats = (await control(bus))["stats"]
            return bool(stats["running"] == 1 and stats["waiting"] == 0)

        await eventually(over)


async def test_a_peer_that_asks_and_never_reads_the_answers_loses_its_link(anyio_backend: Any) -> None:
    async with running(limits={"write_timeout": 2.0}, **loop_of(anyio_backend)) as server, connect(server.url) as bus:
        await bus.request("echo", "x" * 500_000)
        growth = Growth(server)
        async with raw_peer(server.url) as greedy:
            with anyio.fail_after(BOUND), pytest.raises(anyio.BrokenResourceError):
                number = 0
                while True:
                    number += 1
                    await greedy.send({"request": "echo", "id": number, "body": "x" * 10_000})
        await eventually(lambda: _peers(bus, 1))
        assert growth.look() < 16 * MIB + 4 * MIB + 8 * MIB, "waiting requests, the outbox and the rest"


async def test_three_hundred_large_answers_that_a_peer_asks_for_and_never_reads_cost_no_more_than_eight_mib(
    anyio_backend: Any,
) -> None:
    asked = [{"request": "document", "id": number, "body": {"size": 900_000}} for number in range(300)]
    async with running(limits={"write_timeout": 10 * BOUND}, **loop_of(anyio_backend)) as server, connect(server.url) as bus:
        for _ in range(3):
            await bus.request("document", {"size": 900_000})
        growth = Growth(server)
        with stalled(server, 1, *asked):

            async def all_have_come() -> bool:
                stats = (await control(bus))["stats"]
                return bool(stats["received"] >= 300 and stats["waiting"] > 250)

            await eventually(all_have_come)
            for _ in range(200):  # of a peer that reads, which sees that nobody else is held up
                await bus.request("echo", "x")
                growth.look()
    assert growth.most < 8 * MIB + 4 * MIB, "answers, and what malloc keeps of the pieces"
