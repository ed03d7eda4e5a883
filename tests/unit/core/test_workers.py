"""Handlers run in real tasks: what a task can do works inside, and what one does never touches another."""

from typing import Any

import anyio
import pytest

from polybus import Bus, connect
from polybus.testing import pair
from tests.loops import both_backends  # noqa: F401
from tests.support import eventually
from tests.unit.answering import Gated
from tests.unit.core.test_stall_warnings import Clock


async def test_scopes_and_task_groups_of_anyio_work_at_once_and_after_a_wait() -> None:
    bus = Bus()

    @bus.handle("tools")
    async def tools(body: bool) -> Any:
        if body:
            await anyio.lowlevel.checkpoint()
        log = []
        with anyio.move_on_after(0.001) as scope:
            await anyio.sleep_forever()
        log.append(scope.cancelled_caught)
        try:
            with anyio.fail_after(0.001):
                await anyio.sleep_forever()
        except TimeoutError:
            log.append(True)
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(anyio.lowlevel.checkpoint)
        log.append(anyio.get_current_task().id > 0)
        return log

    async with pair(bus) as client:
        for wait in (False, True):
            replies = [client.request("tools", wait) for _ in range(10)]
            assert [await reply for reply in replies] == [[True, True, True]] * 10


async def test_stopping_one_handler_leaves_all_others_alone() -> None:
    bus, go, started, stopped = Bus(), anyio.Event(), list[int](), list[int]()

    @bus.handle("wait")
    async def wait(body: int) -> int:
        started.append(body)
        try:
            await go.wait()
        except BaseException:
            stopped.append(body)
            raise
        return body

    async with pair(bus) as client:
        replies = [client.request("wait", number) for number in range(40)]
        await eventually(lambda: len(started) == 40)
        for reply in replies[::2]:
            reply.cancel()
        await eventually(lambda: len(stopped) == 20)
        go.set()
        assert [await reply for reply in replies[1::2]] == list(range(1, 40, 2))
        assert sorted(stopped) == list(range(0, 40, 2))
        # The workers that were stopped are gone, and the pool goes on.
        assert [await client.request("wait", number) for number in range(100, 110)] == list(range(100, 110))


async def test_a_request_that_is_cancelled_before_its_turn_never_runs() -> None:
    bus, ran = Bus(), []

    @bus.handle("note")
    async def note(body: int) -> int:
        ran.append(body)
        return body

    async with pair(bus) as client:
        await client.peers[0].extended()
        replies = [client.request("note", number) for number in range(10)]
        for reply in replies[:5]:
            reply.cancel()
        assert [await reply for reply in replies[5:]] == [5, 6, 7, 8, 9]
        assert ran == [5, 6, 7, 8, 9]
        assert bus.stats().running == 0


async def test_a_burst_beyond_the_pool_leaves_few_idle_workers() -> None:
    bus = Bus()
    gated = Gated(bus)
    async with bus:
        replies = [bus.request("wait", number) for number in range(500)]
        await eventually(lambda: gated.inside == 500)
        gated.go.set()
        for reply in replies:
            await reply
        runtime = bus._services.running
        await eventually(lambda: len(runtime.workers._idle) <= 64)
        replies = [bus.request("wait", number) for number in range(500)]
        assert [await reply for reply in replies] == list(range(500))


class Waiting:
    """A job that waits at once."""

    function = "wait"
    scope: anyio.CancelScope | None = None
    ended = False
    waited = 0
    run_plain = None

    def __init__(self, subject: int, begun: list[int], go: anyio.Event) -> None:
        self.subject = subject
        self.owner = ("here", "one")
        self._begun, self._go = begun, go

    async def run(self) -> None:
        self._begun.append(self.subject)
        await self._go.wait()


async def test_jobs_that_wait_begin_many_in_a_turn_of_the_event_loop_and_in_their_order() -> None:
    begun, go = list[int](), anyio.Event()
    async with Bus() as bus:
        workers = bus._services.running.workers
        workers.clock = lambda: 0.0
        for _ in range(2):  # with new workers, and with those that wait for work
            for number in range(400):
                workers.submit(Waiting(number, begun, go))
            turns = 0
            while len(begun) < 400:
                await anyio.lowlevel.checkpoint()
                turns += 1
            assert begun == list(range(400))
            assert turns < 100, "one in a turn would leave whoever is behind them waiting as long as others keep the loop busy"
            assert not workers._coming
            go.set()
            await eventually(lambda: len(workers._idle) >= 32)
            go = anyio.Event()
            begun.clear()


class Working(Waiting):
    """A job that works for a millisecond of a clock that it sets."""

    now = 0.0

    async def run(self) -> None:
        self._begun.append(self.subject)
        Working.now += 0.001


async def test_however_many_jobs_there_are_the_event_loop_has_its_turn_every_fifty_milliseconds() -> None:
    begun: list[int] = []
    async with Bus() as bus:
        workers = bus._services.running.workers
        workers.clock = lambda: Working.now
        for number in range(1000):
            workers.submit(Working(number, begun, anyio.Event()))
        seen = 0
        while len(begun) < 1000:
            await anyio.lowlevel.checkpoint()
            assert len(begun) - seen <= 110, "trio takes two of its turns for one of ours"
            seen = len(begun)
        assert begun == list(range(1000))


@pytest.mark.parametrize("waits", [False, True], ids=["without a wait", "that wait at their end"])
async def test_a_request_is_not_behind_all_that_another_peer_has_asked_before(waits: bool) -> None:
    bus, clock, begun = Bus(), Clock(), list[str]()

    @bus.handle("work")
    async def work(body: str) -> None:
        begun.append(body)
        clock.block(0.02)
        if waits:
            await anyio.lowlevel.checkpoint()

    async with bus.serve("ubre+memory://busy") as listener, connect(listener.url) as greedy, connect(listener.url) as modest:
        bus._services.running.workers.clock = clock
        replies = [greedy.request("work", "greedy") for _ in range(60)]
        await anyio.lowlevel.checkpoint()
        await modest.request("work", "modest")
        for reply in replies:
            await reply
    assert len(begun) == 61
    assert begun.index("modest") < 20
