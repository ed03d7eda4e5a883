"""Invariant 1: every request ends, whatever is done, lost, cut and closed, and in whatever order."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polybus import Backoff, Bus, BusError, Channel, Context, Limits, Reply
from polybus.testing import Faults, pair

# Short times, so that what is lost in a fault is given up soon.
from tests.loops import virtual_time  # noqa: F401
from tests.support import BOUND

LIMITS = Limits(running=3, waiting=2, pending=20, outbox=8, ping_interval=0.2, ping_timeout=0.2, close_timeout=0.2)

ACTIONS = st.sampled_from(
    ["ask", "ask", "ask_slow", "ask_failing", "ask_nobody", "ask_back", "cancel", "give_up", "publish", "notify"]
    + ["subscribe", "stream", "channel", "kick", "abort", "turn", "turn", "settle", "settle"]
)
FAULTS = st.builds(
    Faults,
    seed=st.integers(0, 1000),
    drop=st.sampled_from([0.0, 0.0, 0.2]),
    duplicate=st.sampled_from([0.0, 0.2]),
    cut_after=st.sampled_from([None, 5, 12]),
)


class World:
    """A server, a client, and all that was begun between them."""

    def __init__(self) -> None:
        self.server = Bus(limits=LIMITS)
        self.started = self.ended = 0
        self.replies: list[Reply[Any]] = []
        handle = self.server.handle
        handle("echo")(self.echo)
        handle("slow")(self.slow)
        handle("fails")(self.fails)
        handle("count")(self.count)
        handle("mirror")(self.mirror)
        handle("back")(self.back)

    async def echo(self, body: Any) -> Any:
        return body

    @contextmanager
    def running(self) -> Iterator[None]:
        self.started += 1
        try:
            yield
        finally:
            self.ended += 1

    async def slow(self) -> None:
        with self.running():
            await anyio.sleep_forever()

    async def fails(self) -> None:
        raise RuntimeError("on purpose")

    async def count(self) -> Any:
        with self.running():
            for number in range(1000):
                yield number

    async def mirror(self, channel: Channel[int, int]) -> None:
        with self.running():
            async for item in channel:
                await channel.send(item)

    async def back(self, ctx: Context) -> Any:
        assert ctx.peer is not None
        return await ctx.peer.request("home", 1, timeout=0.1)

    async def act(self, action: str, client: Bus, group: Any) -> None:
        ask = {"ask": "echo", "ask_slow": "slow", "ask_failing": "fails", "ask_nobody": "nobody", "ask_back": "back"}
        if action in ask:
            self.replies.append(client.request(ask[action], timeout=0.1))
        elif action == "cancel":
            for reply in self.replies[-2:]:
                reply.cancel()
        elif action == "give_up" and self.replies:
            with anyio.move_on_after(0):
                await self.replies[-1]
        elif action == "settle" and self.replies:
            await self.replies[-1]
        elif action == "publish":
            client.publish_nowait("news", 1)
            self.server.publish_nowait("news", 2)
        elif action == "notify":
            await client.notify("echo", 1)
        elif action == "kick":
            for peer in self.server.peers:
                await peer.aclose("kicked")
        elif action == "turn":
            await anyio.lowlevel.checkpoint()
        elif action in ("subscribe", "stream", "channel"):
            group.start_soon(self.use, action, client)

    async def use(self, action: str, client: Bus) -> None:
        with anyio.move_on_after(0.05):
            try:
                if action == "subscribe":
                    async with client.subscribe("new*" if len(self.replies) % 2 else "news") as news:
                        await anext(aiter(news))
                elif action == "stream":
                    async with client.stream("count") as numbers:
                        for _ in range(70):
                            await anext(numbers)
                else:
                    async with client.channel("mirror") as channel:
                        await channel.send(1)
                        await anext(channel)
            except (BusError, StopAsyncIteration):
                return


async def play(actions: list[str], faults: Faults, reconnect: bool) -> None:
    world = World()
    client = Bus(limits=LIMITS)

    @client.handle("home")
    async def home(body: Any) -> Any:
        return body

    with anyio.fail_after(BOUND):
        try:
            async with pair(world.server, client=client, faults=faults, reconnect=reconnect), anyio.create_task_group() as all_:
                for action in actions:
                    with suppress(BusError):
                        await world.act(action, client, all_)
                        if action == "abort":
                            await client.aclose()
        except BusError:
            pass  # the faults did not let the connection stand
        for reply in world.replies:
            assert reply.done()
            with suppress(BusError):
                await reply
        assert world.started == world.ended
        for bus in (world.server, client):
            stats = bus.stats()
            assert (stats.pending, stats.running, stats.waiting, stats.queued, stats.links) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions=st.lists(ACTIONS, min_size=1, max_size=25), faults=FAULTS, reconnect=st.booleans())
def test_nothing_is_left_whatever_interleaves(backend: str, actions: list[str], faults: Faults, reconnect: bool) -> None:
    anyio.run(play, actions, faults, reconnect, backend=backend)


def test_pauses_between_attempts_stay_within_their_bound() -> None:
    backoff = Backoff(initial=0.5, maximum=4)
    assert [backoff.delay(attempt, lambda: 1.0) for attempt in range(6)] == [0.5, 1, 2, 4, 4, 4]
    assert backoff.delay(3, lambda: 0.0) == 0
    assert backoff.delay(10_000, lambda: 1.0) == 4
