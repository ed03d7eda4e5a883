"""Buses in buses, in processes of their own: what the end or the flood of one does to the other."""

import os
from typing import Any

import anyio
import pytest

from polybus import Backoff, Disconnected, connect
from polybus.plugins.extensions import core_of
from tests.loops import FULL
from tests.support import free_port

from .processes import BOUND, MIB, eventually, running

ROUNDS = int(os.environ.get("POLYBUS_KILL_ROUNDS", "2"))
BACKOFF = Backoff(initial=0.02, maximum=0.2)
# The protocol outside, and the one inside.
PAIRS = [("ubre+tcp", "csb"), ("csb+tcp", "uprotocol"), ("jrep+ws", "ubre"), ("uprotocol+ws", "jrep")]


def _each(pairs: list[tuple[str, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("outside", "inside"), pairs, ids=["-in-".join(pair[::-1]) for pair in pairs])


pairs = _each(PAIRS)
some = _each(PAIRS if FULL else PAIRS[::3])
"""For tests that take seconds each: two of them have all four protocols."""


def address(outside: str) -> str:
    return f"{outside}://127.0.0.1:{free_port()}"


@pytest.mark.timeout(300)
@some
async def test_a_kill_of_the_outer_server_fails_what_is_in_flight_and_both_levels_come_back(outside: str, inside: str) -> None:
    url = address(outside)
    async with anyio.create_task_group() as group:
        server = await group.start(_serving, url, inside)
        async with (
            connect(url, backoff=BACKOFF) as out,
            connect(out.tunnel("plant.7"), protocol=inside, backoff=BACKOFF) as within,
        ):
            for turn in range(ROUNDS):
                assert await within.request("echo", turn, timeout=BOUND) == turn
                pending = [bus.request("endless", timeout=100) for bus in (within, out) for _ in range(10)]
                assert await within.request("echo", "now") == "now"
                server.kill()
                for reply in pending:
                    with anyio.fail_after(BOUND), pytest.raises(Disconnected) as caught:
                        await reply
                    assert caught.value.sent
                await server.ended()
                server = await group.start(_serving, url, inside)
            assert await within.request("echo", "at last", timeout=BOUND) == "at last"
            await eventually(lambda: _one_tunnel(out))
            await eventually(lambda: out.stats().pending == within.stats().pending == 0)
            await eventually(lambda: sum(len(core_of(peer).channels or ()) for peer in out.peers) == 1)
        group.cancel_scope.cancel()


async def _one_tunnel(out: Any) -> bool:
    """Whether the server has one peer in a tunnel, which asks nothing."""
    state = await out.request("state")
    assert (state["inner"]["peers"], state["inner"]["calls"], state["outer"]["channels"]) == (1, 0, 1)
    return True


async def _serving(url: str, inside: str, *, task_status: anyio.abc.TaskStatus[Any]) -> None:
    async with running("nest_role", url=url, inside=inside) as server:
        task_status.started(server)
        await anyio.sleep_forever()


@some
async def test_an_inner_flood_costs_neither_the_outer_bus_nor_the_memory_of_its_server(outside: str, inside: str) -> None:
    async with running("nest_role", url=address(outside), inside=inside) as server:
        async with (
            connect(server.url, backoff=BACKOFF) as out,
            connect(out.tunnel("plant.7"), protocol=inside, backoff=BACKOFF) as within,
            anyio.create_task_group() as group,
        ):
            await within.request("echo", 1)
            before, total = server.memory(), 8000

            async def flood() -> None:
                for number in range(total):
                    await within.publish("flood", {"n": number, "data": "x" * 5000}, timeout=BOUND)

            group.start_soon(flood)
            for number in range(200):
                assert await out.request("echo", number, timeout=BOUND) == number
            await eventually(lambda: _came(out, total))
            # 40 MB for a handler that holds still: the newest 100 wait for it.
            assert server.memory() - before < 10 * MIB
            await out.request("let go")
            await eventually(lambda: _heard(out, total - 1))
            assert within.stats().reconnects == out.stats().reconnects == within.stats().dropped == 0
        assert "Traceback" not in server.log()


async def _came(out: Any, total: int) -> bool:
    return bool((await out.request("state"))["received"] >= total)


async def _heard(out: Any, number: int) -> bool:
    return bool((await out.request("state"))["heard"] == number)
