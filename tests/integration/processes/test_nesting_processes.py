"""Buses in buses, and buses joined by gateways, in processes of their own: what the end, the flood or the loop of one does."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import anyio
import pytest

from polybus import Backoff, ConnectFailed, Disconnected, connect
from polybus.events import LinkDown, LinkUp
from tests.loops import FULL
from tests.support import free_port

from .processes import BOUND, MIB, eventually, running

pytestmark = pytest.mark.anyio

ROUNDS = int(os.environ.get("POLYBUS_KILL_ROUNDS", "2"))
BACKOFF = Backoff(initial=0.02, maximum=0.2)
# The protocol outside, and the one inside.
PAIRS = [("ubre+tcp", "csb"), ("csb+tcp", "uprotocol"), ("jrep+ws", "ubre"), ("uprotocol+ws", "jrep")]


def _each(pairs: list[tuple[str, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("outside", "inside"), pairs, ids=["-in-".join(pair[::-1]) for pair in pairs])


pairs = _each(PAIRS)
some = _each(PAIRS if FULL else PAIRS[::3])
"""For tests that take seconds each: two of them have all four protocols."""


@pytest.fixture(scope="module", params=[("asyncio", {})], ids=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """One is enough: what is tried here are the processes."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


def address(outside: str) -> str:
    return f"{outside}://127.0.0.1:{free_port()}"


@pairs
async def test_the_end_of_an_inner_link_has_its_reason_and_leaves_the_outer_one_alone(outside: str, inside: str) -> None:
    async with running("nest_role", role="server", url=address(outside), inside=inside) as server:
        async with (
            connect(server.url, backoff=BACKOFF) as out,
            connect(out.tunnel("plant.7"), protocol=inside, backoff=BACKOFF) as within,
        ):
            events = within.events()
            pending = [within.request("endless", timeout=100) for _ in range(10)]
            assert await within.request("echo", 1) == 1
            outer = out.request("endless", timeout=100)
            await out.request("close inner", "closed for today")
            for reply in pending:
                with pytest.raises(Disconnected, match="closed for today"):
                    await reply
            seen: list[Any] = []
            with anyio.fail_after(BOUND):
                async for event in events:
                    seen.append(event)
                    if isinstance(event, LinkUp):
                        break
            assert [(one.code, one.reason) for one in seen if isinstance(one, LinkDown)] == [(4000, "closed for today")]
            assert await within.request("echo", 2) == 2
            assert not outer.done() and out.stats().reconnects == 0
            await eventually(lambda: _one_tunnel(out))
        assert "Traceback" not in server.log()


@pytest.mark.parametrize(("outside", "inside"), PAIRS[::2])
async def test_an_outer_server_that_drains_answers_what_runs_inside_and_then_says_goodbye(outside: str, inside: str) -> None:
    async with running("nest_role", role="server", url=address(outside), inside=inside) as server:
        async with connect(server.url) as out, connect(out.tunnel("plant.7"), protocol=inside) as within:
            outer, inner = out.events(), within.events()
            pending = [within.request("held", timeout=BOUND) for _ in range(10)]
            assert await within.request("echo", 1) == 1
            await out.publish("drain")
            assert [await reply for reply in pending] == ["let go"] * 10
            for events in (inner, outer):
                with anyio.fail_after(BOUND):
                    while not isinstance(down := await anext(events), LinkDown):
                        pass
                assert (down.code, down.reason) == (1001, "the bus is leaving")
        assert "Traceback" not in server.log()


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
            await eventually(lambda: sum(len(peer.channels or ()) for peer in out.peers) == 1)
        group.cancel_scope.cancel()


async def _one_tunnel(out: Any) -> bool:
    """Whether the server has one peer in a tunnel, which asks nothing."""
    state = await out.request("state")
    assert (state["inner"]["peers"], state["inner"]["calls"], state["outer"]["channels"]) == (1, 0, 1)
    return True


async def _serving(url: str, inside: str, *, task_status: anyio.abc.TaskStatus[Any]) -> None:
    async with running("nest_role", role="server", url=url, inside=inside) as server:
        task_status.started(server)
        await anyio.sleep_forever()


@some
async def test_an_inner_flood_costs_neither_the_outer_bus_nor_the_memory_of_its_server(outside: str, inside: str) -> None:
    async with running("nest_role", role="server", url=address(outside), inside=inside) as server:
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


@pairs
async def test_a_tunnel_that_leads_back_to_its_server_ends_at_the_limit_of_hops(outside: str, inside: str) -> None:
    async with running("nest_role", role="server", url=address(outside), inside=inside) as server:
        async with connect(server.url) as out:
            bus, levels = out, 0
            stack = []
            with pytest.raises(ConnectFailed, match=r"the limit is 8 \(Limits\.hops\)"):
                while True:
                    joined = connect(bus.tunnel("deeper"), protocol=inside)
                    bus = await joined.__aenter__()
                    stack.append(joined)
                    levels += 1
                    assert await bus.request("echo", levels) == levels
            assert levels == 8
            while stack:
                await stack.pop().__aexit__(None, None, None)
            await eventually(lambda: _alone(out))


async def _alone(out: Any) -> bool:
    state = (await out.request("state"))["outer"]
    return bool(state["peers"] == 1 and state["channels"] == 0)


async def test_a_ring_of_three_servers_and_three_gateways_delivers_each_publication_once() -> None:
    wires = ("ubre+tcp", "csb+ws", "jrep+tcp")
    servers = [(address(wire), name) for wire, name in zip(wires, "abc", strict=True)]
    async with anyio.create_task_group() as group:
        for url, _ in servers:
            await group.start(_serving, url, "csb")
        for (left, _), (right, _) in zip(servers, servers[1:] + servers[:1], strict=True):
            await group.start(_joining, left, right)
        heard: dict[str, Counter[Any]] = {name: Counter() for _, name in servers}
        ready: dict[str, anyio.Event] = {name: anyio.Event() for _, name in servers}

        async def listen(url: str, name: str) -> None:
            async with connect(url) as bus, bus.subscribe("ring.*") as ring:
                ready[name].set()
                async for message in ring:
                    heard[name][message.body] += 1

        for url, name in servers:
            group.start_soon(listen, url, name)
            await ready[name].wait()
        async with anyio.create_task_group() as publishing:
            for url, name in servers:
                publishing.start_soon(_publish, url, name)
        await eventually(lambda: all(len(seen) >= 150 for seen in heard.values()))
        # Whatever went round once more would be here before this has gone round.
        await _publish(servers[0][0], "end", 1)
        await eventually(lambda: all(seen["end0"] for seen in heard.values()))
        assert all(set(seen.values()) == {1} and len(seen) == 151 for seen in heard.values()), heard
        group.cancel_scope.cancel()


async def _joining(left: str, right: str, *, task_status: anyio.abc.TaskStatus[Any]) -> None:
    async with running("nest_role", role="gateway", left=left, right=right) as gateway:
        task_status.started(gateway)
        await anyio.sleep_forever()


async def _publish(url: str, name: str, count: int = 50) -> None:
    async with connect(url) as bus:
        for number in range(count):
            await bus.publish("ring.news", f"{name}{number}")
