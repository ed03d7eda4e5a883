"""`def` handlers whose request is over: their threads are counted until they return, and nobody waits for ever."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.to_thread
import pytest
from fast_depends import Depends

from polybus import Bus, BusError, Context, Limits, connect
from polybus._core.runtime.workers import Line, Places
from polybus.testing import pair
from tests.loops import ASYNCIO, PARAMS, every_loop  # noqa: F401
from tests.support import BOUND, eventually

QUICK = Limits(close_timeout=0.1)
THREADS = QUICK.threads


class Stuck:
    """A `def` handler that returns when it is told to."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.inside = 0
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self) -> str:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.go.wait(30)
        with self._lock:
            self.inside -= 1
        return "returned"


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    """Whatever the test does, its threads end."""
    stuck = Stuck()
    yield stuck
    stuck.go.set()


def session() -> Iterator[str]:
    yield "session"


def with_stuck(stuck: Stuck, limits: Limits = QUICK) -> Bus:
    bus = Bus(limits=limits)
    bus.handle("stuck")(stuck.__call__)

    @bus.handle("quick")
    def quick() -> str:
        return threading.current_thread().name

    @bus.handle("here")
    async def here() -> None:
        pass

    return bus


async def test_requests_that_are_cancelled_one_after_the_other_do_not_start_ever_more_threads(stuck: Stuck) -> None:
    bus, before = with_stuck(stuck), set(threading.enumerate())
    async with pair(bus) as client:
        for turn in range(1, 16):
            replies = [client.request("stuck") for _ in range(20)]
            await client.request("here")  # so those before have begun
            # A thread that is not yet inside when its request is cancelled returns at once, and is not stuck.
            await eventually(lambda: stuck.inside == min(20 * turn, THREADS))  # noqa: B023  # called in this round
            for reply in replies:
                reply.cancel()
        started = set(threading.enumerate()) - before  # those of other tests are none of ours, and end when they like
        # Of 300 requests. Another thread is begun where one that has returned is not idle yet.
        assert len(started) < 2 * THREADS
        stuck.go.set()
        await eventually(lambda: bus.stats().running == 0)
        assert await client.request("quick")
    assert stuck.most <= THREADS


async def test_a_cancelled_handler_keeps_its_place_until_its_thread_returns(stuck: Stuck) -> None:
    async with pair(bus := with_stuck(stuck, Limits(running=2, close_timeout=0.1))) as client, pair(bus) as other:
        replies = [client.request("stuck") for _ in range(2)]
        await eventually(lambda: stuck.inside == 2)
        for reply in replies:
            reply.cancel()
        await eventually(lambda: bus._services.running.stopping == 2)
        waits = client.request("quick")
        await eventually(lambda: bus.stats().waiting == 1)
        await other.request("here")  # when that is over, the next one that waits is looked for
        assert (bus.stats().running, bus.stats().waiting) == (2, 1)
        stuck.go.set()
        assert await waits
        await eventually(lambda: bus.stats().running == 0)


async def test_threads_go_round_among_the_peers_that_wait(stuck: Stuck) -> None:
    bus, order = with_stuck(stuck, Limits(threads=1)), list[str]()

    @bus.handle("note")
    def note(name: str) -> None:
        order.append(name)

    async with (
        bus.serve("ubre+memory://round"),
        connect("ubre+memory://round") as greedy,
        connect("ubre+memory://round") as modest,
    ):
        replies: list[Any] = [greedy.request("stuck")]
        await eventually(lambda: stuck.inside == 1)
        replies += [greedy.request("note", "greedy") for _ in range(20)]
        await eventually(lambda: bus.stats().running == 21)
        replies += [modest.request("note", "modest") for _ in range(2)]
        await eventually(lambda: bus.stats().running == 23)
        stuck.go.set()
        for reply in replies:
            await reply
    assert order[:4].count("modest") == 2
    assert len(order) == 22


def test_turns_go_round_among_addresses_and_the_peers_of_each() -> None:
    line, of_a, of_b, of_c = Line[str](), ("A", "1"), ("A", "2"), ("B", "1")
    waiting = {"a1": of_a, "a2": of_a, "a3": of_a, "b1": of_b, "b2": of_b, "c1": of_c, "c2": of_c, "c3": of_c}
    for one, owner in waiting.items():
        line.append(one, owner)
    assert "a2" in line and line.remove("a2")
    assert "a2" not in line and not line.remove("a2")
    line.append("b0", of_b, first=True)
    assert line.remove("b0")
    assert [line.pop() for _ in range(len(line))] == ["a1", "c1", "b1", "c2", "a3", "c3", "b2"]
    assert len(line) == 0


class Placed:
    def __init__(self, places: Places, owner: tuple[str, str], running: list["Placed"]) -> None:
        self.owner = owner
        self._places, self._running = places, running

    def proceed(self) -> None:
        assert self._places.take(self)
        self._running.append(self)


def test_waiting_addresses_get_the_slots_of_a_handler_in_turn_and_so_do_their_links() -> None:
    places, running = Places(1), list[Placed]()
    first, *others = (Placed(places, (name[0], name), running) for name in ("A1", "A1", "A2", "A3", "B1", "B1"))
    first.proceed()
    for call in others:
        places.wait(call)
    for _ in others:
        places.leave(running[-1])
    assert [call.owner[1] for call in running] == ["A1", "A1", "B1", "A2", "B1", "A3"]


async def test_leaving_does_not_wait_for_ever_for_a_thread_and_leaves_nothing_on_the_loop(stuck: Stuck) -> None:
    bus = with_stuck(stuck)
    bus.on("stuck")(stuck.__call__)
    for life in (1, 2, 3):
        with pytest.raises(KeyError):
            async with pair(bus) as client:
                _ = client.request("stuck"), bus.request("stuck")
                await client.publish("stuck")
                await eventually(lambda: stuck.inside == 3 * life)  # noqa: B023  # called in this round
                raise KeyError
        assert bus.stats().running == 0
        with suppress(RuntimeError):  # of trio
            await eventually(lambda: len(asyncio.all_tasks()) <= 3)
    assert stuck.inside == 9
    stuck.go.set()
    await eventually(lambda: stuck.inside == 0)
    async with pair(bus) as client:
        assert await client.request("stuck") == "returned"


async def test_threads_that_were_left_alone_count_in_the_next_life_too(stuck: Stuck) -> None:
    bus = with_stuck(stuck)
    for _ in range(3):
        with pytest.raises(KeyError):
            async with bus:
                replies = [bus.request("stuck") for _ in range(THREADS)]
                await eventually(lambda: stuck.inside >= THREADS)
                raise KeyError
        assert all(reply.done() for reply in replies)
    assert stuck.most <= THREADS + 2


async def test_a_drain_does_not_wait_for_a_thread_that_nobody_waits_for(stuck: Stuck) -> None:
    async with pair(bus := with_stuck(stuck)) as client:
        reply = client.request("stuck")
        await eventually(lambda: stuck.inside == 1)
        reply.cancel()
        await eventually(lambda: bus._services.running.stopping == 1)
        await bus.drain()
        assert stuck.inside == 1


async def test_a_thread_that_asks_the_bus_is_told_that_its_request_was_cancelled() -> None:
    bus, told, asking = Bus(limits=QUICK), [], threading.Event()

    @bus.handle("endless")
    async def endless() -> None:
        await anyio.sleep_forever()

    @bus.handle("ask")
    def ask(ctx: Context) -> None:
        asking.set()
        try:
            ctx.bus.request("endless")
        except BaseException as error:
            told.append(error)
            raise

    async with pair(bus) as client:
        reply = client.request("ask")
        await eventually(asking.is_set)
        await eventually(lambda: bus.stats().pending)
        reply.cancel()
        with pytest.raises(BusError):
            await reply
        await bus.aclose()
        await eventually(lambda: told)


async def test_the_clean_up_of_a_cancelled_call_runs_though_all_threads_are_taken(stuck: Stuck) -> None:
    bus, diary = with_stuck(stuck, Limits(threads=1)), []

    def session() -> Iterator[str]:
        diary.append("opened")
        try:
            yield "session"
        finally:
            diary.append("closed")

    @bus.handle("load")
    async def load(db: Annotated[str, Depends(session)]) -> None:
        await anyio.sleep_forever()

    async with pair(bus) as client:
        loading = client.request("load")
        await eventually(lambda: diary == ["opened"])
        reply = client.request("stuck")
        await eventually(lambda: stuck.inside == 1)
        loading.cancel()
        await eventually(lambda: diary == ["opened", "closed"])
        stuck.go.set()
        assert await reply == "returned"


async def test_calls_that_begin_wait_for_those_that_may_not_wait(stuck: Stuck) -> None:
    bus = with_stuck(stuck, Limits(threads=3))

    @bus.handle("report")
    def report(db: Annotated[str, Depends(session)]) -> str:
        return stuck()

    async with pair(bus) as client:
        replies = [client.request("report") for _ in range(20)]
        await eventually(lambda: stuck.inside == 3)
        late = client.request("quick")
        await client.request("here")
        assert (stuck.inside, late.done()) == (3, False)
        stuck.go.set()
        assert [await reply for reply in replies] == 20 * ["returned"]
        assert await late
    assert stuck.most == 3


async def test_a_thread_that_waits_in_a_blocking_verb_does_not_count_and_counts_again_afterwards(stuck: Stuck) -> None:
    bus, answered = with_stuck(stuck, Limits(threads=1)), anyio.Event()

    @bus.handle("slow")
    async def slow() -> None:
        await answered.wait()

    @bus.handle("ask")
    def ask(ctx: Context) -> str:
        ctx.bus.request("slow", timeout=BOUND)
        return stuck()

    async with pair(bus) as client:
        asking = [client.request("ask", timeout=BOUND) for _ in range(5)]
        await eventually(lambda: bus.stats().running == 10)
        assert await client.request("quick")
        answered.set()
        await eventually(lambda: stuck.inside == 5)
        late = client.request("quick")
        await client.request("here")
        assert not late.done()
        stuck.go.set()
        assert [await reply for reply in asking] == 5 * ["returned"]
        assert await late


async def test_a_call_that_is_cancelled_in_line_takes_no_thread(stuck: Stuck) -> None:
    async with pair(with_stuck(stuck, Limits(threads=1))) as client:
        first = client.request("stuck")
        await eventually(lambda: stuck.inside == 1)
        waiting = [client.request("quick") for _ in range(4)]
        await client.request("here")
        for reply in waiting[::2]:
            reply.cancel()
        stuck.go.set()
        assert await first == "returned"
        for reply in waiting[1::2]:
            assert await reply
        assert await client.request("quick")


async def test_what_a_handler_leaves_behind_waits_for_a_thread_as_others_do(stuck: Stuck) -> None:
    bus, answers = with_stuck(stuck, Limits(threads=1)), list[str]()

    async def later() -> None:
        await over.wait()
        answers.append(await bus.request("quick", timeout=BOUND))

    @bus.handle("leave")
    async def leave(db: Annotated[str, Depends(session)]) -> None:
        group.start_soon(later)

    over = anyio.Event()
    async with pair(bus) as client, anyio.create_task_group() as group:
        await client.request("leave")
        reply = client.request("stuck")
        await eventually(lambda: stuck.inside == 1)
        over.set()
        await eventually(lambda: bus.stats().running == 2)
        await client.request("here")
        assert not answers
        stuck.go.set()
        await reply
    assert answers


async def test_threads_that_are_all_taken_are_told_once_with_the_remedy(
    stuck: Stuck, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polybus._core.runtime.threads._FULL", 0.01)
    bus = with_stuck(stuck, Limits(threads=2))

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "Limits.threads" in record.getMessage()]

    async with pair(bus) as client:
        for _ in range(2):
            stuck.go.clear()
            replies = [client.request("stuck") for _ in range(5)]
            await eventually(told)
            stuck.go.set()
            for reply in replies:
                await reply
    line, *counted = told()
    assert all(each.startswith("1 more within ") for each in counted), "told once a minute, and at the end how often"
    assert all(part in line for part in ("all 2 threads", "calls wait for one", "raise Limits.threads"))


async def test_a_def_dependency_is_entered_and_left_in_one_context() -> None:
    bus, tenant, seen = Bus(), ContextVar("tenant", default="nobody"), list[str]()

    def use() -> Iterator[str]:
        token = tenant.set("shop")
        try:
            yield tenant.get()
        finally:
            seen.append(tenant.get())
            tenant.reset(token)
            seen.append(tenant.get())

    @bus.handle("who")
    async def who(used: Annotated[str, Depends(use)]) -> str:
        return f"{used}, {tenant.get()}"

    @bus.handle("thread")
    def thread(used: Annotated[str, Depends(use)]) -> str:
        return f"{used}, {tenant.get()}"

    async with pair(bus) as client:
        assert await client.request("who") == "shop, nobody"
        assert await client.request("thread") == "shop, nobody"
    assert seen == 2 * ["shop", "nobody"]


@pytest.mark.parametrize("anyio_backend", [PARAMS[ASYNCIO]])  # whose recordings have processes, which are dear
async def test_what_polybus_does_in_threads_waits_for_none_of_anyio(tmp_path: Path) -> None:
    bus, anyios = with_stuck(Stuck()), anyio.to_thread.current_default_thread_limiter()
    for _ in range(int(anyios.total_tokens)):
        anyios.acquire_on_behalf_of_nowait(object())
    async with (
        bus.serve("ubre+memory://recorded") as server,
        connect(server.url, record=tmp_path / "capture") as client,
        client.record(tmp_path / "another"),
    ):
        assert await client.request("quick")
