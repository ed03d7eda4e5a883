"""Faults of a cluster of real processes over real NATS servers, in rounds, by a seed that is printed.

After each round all know all, everything is answered and heard once, and nothing is left: no request, no task.
What was under way when something broke may be lost, and is said to be; what no handler has seen is not.
"""

import os
import random
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.loops import ASYNCIO, FULL, PARAMS, TRIO

from .cluster_world import FINE, World, engines, heard_at, world_at
from .processes import BOUND, eventually

ROUNDS = int(os.environ.get("POLYBUS_KILL_ROUNDS", "20" if FULL else "1"))
"""Of each fault, half of them on each loop. POLYBUS_KILL_ROUNDS=20 is for those who have the time."""
SEED = int(os.environ.get("POLYBUS_FAULT_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
SOON = 2.0
"""Seconds within which those who have asked a node that is gone are told."""
BULK = 400
"""Publications of 60 kB: more than outboxes and the system's buffers hold."""
SURE = FINE - {"Unavailable"}


async def node_killed(world: World) -> frozenset[str]:
    """`kill -9` of a node: all who wait for it are told, and nobody else."""
    replies = await world.hold()
    victim = world.rng.choice(world.members)
    theirs = victim.taken("hold")
    since = world.pulse.seconds, anyio.current_time()
    victim.process.kill()
    world.lose(victim)
    await world.lost({number: replies.pop(number) for number in theirs if number in replies})
    world.figures.append(anyio.current_time() - since[1])
    assert world.pulse.seconds - since[0] <= SOON
    assert not any(reply.done() for reply in replies.values())
    assert await world.released(replies) == set()
    await world.start()
    return FINE


async def engine_killed(world: World) -> frozenset[str]:
    """`kill -9` of the only engine: what is under way ends at once, what is new waits and is answered."""
    replies = await world.hold()
    (server,) = world.servers
    since = anyio.current_time()
    server.kill()
    await world.lost(replies)
    world.figures.append(anyio.current_time() - since)
    waiting = {number: world.askers[number % 2].request("work", number, timeout=BOUND) for number in _numbers(world, 20)}
    await anyio.to_thread.run_sync(server.start)
    for number, reply in waiting.items():
        assert await reply == number
    return SURE


async def some_of_three_killed(world: World) -> frozenset[str]:
    """`kill -9` of one or two engines of three: the others go on, or all meet at the last."""
    before = await world.reconnects()
    replies = await world.hold()
    holders = {number: member for member in world.members for number in member.taken("hold")}
    world.down.update(world.rng.sample(list(world.servers), world.rng.choice([1, 2])))
    for server in world.down:
        server.kill()
    await world.more()
    lost = await world.released(replies)
    world.figures.append(len(lost))
    after = await world.reconnects()
    back = {end for end in before if after[end] > before[end]}
    assert lost == {number for number in replies if back & {world.asked_by[number], holders[number]}}
    for server in world.down:
        await anyio.to_thread.run_sync(server.start)
    world.down.clear()
    return FINE


async def node_stopped(world: World) -> frozenset[str]:
    """SIGSTOP of a node: for a moment, which costs nothing; then for longer than it may be silent, which costs what it has."""
    replies = await world.hold()
    victim = world.rng.choice(world.members)
    theirs = {number: replies[number] for number in victim.taken("hold") if number in replies}
    try:
        victim.process.signal(signal.SIGSTOP)
        await world.passed(0.5)
        victim.process.signal(signal.SIGCONT)
        await world.more()
        assert not any(reply.done() for reply in replies.values())
        victim.process.signal(signal.SIGSTOP)
        since = anyio.current_time()
        await world.lost(theirs)
        world.figures.append(anyio.current_time() - since)
        await world.passed(2 * world.rng.random())
    finally:
        victim.process.signal(signal.SIGCONT)
    rest = {number: reply for number, reply in replies.items() if number not in theirs}
    assert await world.released(rest) == set()
    return FINE


async def engine_stopped(world: World) -> frozenset[str]:
    """SIGSTOP of the only engine: what is under way ends when it has been silent for too long."""
    replies = await world.hold()
    (server,) = world.servers
    server.signal(signal.SIGSTOP)
    try:
        await world.lost(replies)
    finally:
        server.signal(signal.SIGCONT)
    return FINE


async def lame_duck(world: World) -> frozenset[str]:
    """SIGUSR2 to one engine of three: its nodes finish what they have, go to the others, and lose nothing."""
    replies = await world.hold()
    server = world.rng.choice(world.servers)
    world.down.add(server)
    server.signal(signal.SIGUSR2)
    await world.more()
    assert await world.released(replies) == set()
    await anyio.to_thread.run_sync(server.ended)
    await anyio.to_thread.run_sync(server.start)
    world.down.clear()
    return frozenset({"good"})


async def node_stalled(world: World) -> frozenset[str]:
    """A node reads nothing more, until the engine cuts it; it comes back, and hears what is published then."""
    member, news, bulk = world.rng.choice(world.members), f"news.{world.number()}", "x" * 60_000
    others = [one for one in world.members if one is not member]
    before = (await member.tell())["stats"]["reconnects"]
    member.process.signal(signal.SIGSTOP)
    try:
        for number in range(BULK):
            await world.askers[0].publish(news, [number, bulk], timeout=BOUND)
            if number % 20 == 19:  # no faster than those read who do
                for one in others:
                    await eventually(lambda: heard_at(one, news, list(range(number + 1))))  # noqa: B023
    finally:
        member.process.signal(signal.SIGCONT)

    async def back() -> bool:
        return bool((await member.tell())["stats"]["reconnects"] > before)

    await eventually(back)
    heard = (await member.tell(news))["heard"]
    assert heard == sorted(set(heard))
    world.figures.append(BULK - len(heard))
    return FINE


def _numbers(world: World, count: int) -> list[int]:
    return [world.number() for _ in range(count)]


FAULTS: list[tuple[Callable[[World], Awaitable[frozenset[str]]], int]] = [
    (node_killed, 1),
    (engine_killed, 1),
    (some_of_three_killed, 3),
    (node_stopped, 1),
    (engine_stopped, 1),
    (lame_duck, 3),
    (node_stalled, 1),
]


def _cases() -> Iterator[Any]:
    """Each fault; the loop is that of the nodes which ask, while those in processes of their own have one by chance."""
    for number, (fault, servers) in enumerate(FAULTS):
        for loop in (ASYNCIO, TRIO) if ROUNDS > 1 else ((ASYNCIO, TRIO)[number % 2],):
            yield pytest.param(*PARAMS[loop].values, fault, servers, id=f"{loop}-{fault.__name__}")


@pytest.mark.timeout(120 + 60 * ROUNDS)
@pytest.mark.parametrize(("anyio_backend", "fault", "servers"), [*_cases()])
async def test_a_fault_costs_what_it_must_and_leaves_nothing_behind(
    fault: Callable[[World], Awaitable[frozenset[str]]], servers: int, tmp_path: Path
) -> None:
    print(f"POLYBUS_FAULT_SEED={SEED}")
    rng = random.Random(f"{SEED} {fault.__name__}")
    with engines(servers) as found, anyio.fail_after(100 + 60 * ROUNDS):
        async with world_at(found, rng, tmp_path) as world:
            total = world.outcomes.copy()
            for _ in range((ROUNDS + 1) // 2):
                async with world.traffic():
                    allowed = await fault(world)
                await world.settled(allowed)
                total.update(world.outcomes)
                world.outcomes.clear()
            figures = [round(figure, 2) for figure in sorted(world.figures)]
            print(f"{fault.__name__}: {(ROUNDS + 1) // 2} rounds, {dict(total)}, {figures}")
