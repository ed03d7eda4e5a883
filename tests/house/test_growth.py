"""What one more, one less and one of many costs in tables that a peer or an application makes grow: the same at any size.

Counted are the lines of polybus that run, a line of a loop each time: a figure that no machine can shake, and that a loop over
all that is there shows in whatever way it is written, but where C does it.
"""

import asyncio
import gc
import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self

import anyio
import pytest

import polybus
from polybus import Broker, Bus, Identity, Limits, Peer, Reply, connect
from polybus._core.runtime.deadline_timer import DeadlineTimer
from polybus._core.runtime.runtime import Runtime
from polybus.plugins.extensions import core_of
from polybus.testing import pair
from tests.support import eventually

from .raw import raw_server

pytestmark = pytest.mark.native

PACKAGE = str(Path(polybus.__file__).parent)
FEW, MANY = 10, 110
TIMES = 4
LIMITS = Limits(subscriptions=10_000, outbox=10_000)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def no_housekeeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """What clients in the same process do by the clock is no part of what is counted."""

    async def never(self: Runtime) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(Runtime, "_keep_house", never)


class Work:
    """The lines of polybus that run while it is entered."""

    def __init__(self) -> None:
        self.lines = 0

    def __enter__(self) -> Self:
        gc.disable()
        sys.settrace(self._called)
        sys._getframe(1).f_trace = None
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        gc.enable()

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._ran if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _ran(self, frame: FrameType, event: str, _: Any) -> Any:
        self.lines += event == "line"
        return self._ran


class Table:
    """A table that has been filled, and what is done with one of its entries, or with one more."""

    def __init__(self) -> None:
        self.costs: list[int] = []

    async def act(self, function: Callable[[], Any]) -> None:
        """Do it, and count until all that follows has happened."""
        with Work() as work:
            outcome = function()
            if isinstance(outcome, Awaitable):
                await outcome
            for _ in range(20):
                await asyncio.sleep(0)
        self.costs.append(work.lines)

    async def act_often(self, function: Callable[[], Any]) -> None:
        for _ in range(TIMES):
            await self.act(function)


Case = Callable[[int, Table], Awaitable[None]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__.strip("_").replace("_", " ")] = function
    return function


@asynccontextmanager
async def all_of(blocks: Iterable[AbstractAsyncContextManager[Any]]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for block in blocks:
            await stack.enter_async_context(block)
        yield


def _entering(made: Callable[[], AbstractAsyncContextManager[Any]]) -> Callable[[], Awaitable[None]]:
    async def enter() -> None:
        async with made():
            pass

    return enter


async def _entered(made: Callable[[], AbstractAsyncContextManager[Any]], table: Table) -> None:
    """Enter and leave one more."""
    await table.act_often(_entering(made))


@asynccontextmanager
async def pending(count: int) -> AsyncIterator[tuple[Bus, Peer, list[Reply[Any]]]]:
    async with raw_server() as (url, _), connect(url) as bus:
        (peer,) = bus.peers
        replies = [bus.request("h", 1, timeout=1000 + number) for number in range(count)]
        yield bus, peer, replies
        for reply in replies:
            reply.cancel()


@case
async def _one_more_request(count: int, table: Table) -> None:
    async with pending(count) as (bus, _, _):
        await table.act_often(lambda: bus.request("h", 1, timeout=30).done())


@case
async def _a_request_that_is_given_up(count: int, table: Table) -> None:
    async with pending(count) as (_, _, replies):
        for reply in replies[:TIMES]:
            await table.act(reply.cancel)


@case
async def _the_deadline_of_one_request_of_many(count: int, table: Table) -> None:
    async with pending(count) as (_, peer, replies):
        core_of(peer).expire(replies[0].deadline - 0.5)
        for reply in replies[:TIMES]:
            await table.act(partial(core_of(peer).expire, reply.deadline))


@case
async def _the_deadline_of_one_unsent_request_of_many(count: int, table: Table) -> None:
    async with pending(0) as (bus, peer, replies):
        link = core_of(peer).link
        link.pause_writing()
        replies += [bus.request("h", 1, timeout=1000 + number) for number in range(count)]
        assert link.outbox is not None
        for reply in replies[:TIMES]:
            await table.act(partial(link.outbox.expire, reply.deadline))
            assert reply.done()
        link.resume_writing()


@case
async def _the_deadline_of_one_peer_of_many(count: int, table: Table) -> None:
    class Owner:
        def expire(self, now: float) -> float:
            return math.inf

    runtime = Runtime(Limits())
    now = runtime.time()
    for number in range(count):
        runtime.deadlines.watch(Owner(), now + 1000 + number)
    for _ in range(TIMES):
        runtime.deadlines.watch(Owner(), now - 1)
        await table.act(runtime.deadlines.expire_overdue)


async def _one_of_many_that_run(count: int, table: Table, local: bool) -> None:
    bus, release = Bus(limits=Limits(running=10_000, total_running=10_000)), asyncio.Event()

    @bus.handle("slow")
    async def slow() -> None:
        await release.wait()

    @bus.handle("quick")
    async def quick() -> None: ...

    async with pair(bus) as client:
        asker = bus if local else client
        replies = [asker.request("slow", timeout=100) for _ in range(count)]
        await eventually(lambda: bus.stats().running == count)
        await table.act_often(lambda: asker.request("quick", timeout=30).wait())
        release.set()
        for reply in replies:
            await reply


@case
async def _a_request_of_a_bus_to_itself(count: int, table: Table) -> None:
    await _one_of_many_that_run(count, table, local=True)


@case
async def _one_of_many_requests_that_run_is_answered(count: int, table: Table) -> None:
    await _one_of_many_that_run(count, table, local=False)


@case
async def _one_of_many_streams(count: int, table: Table) -> None:
    bus, release = Bus(limits=Limits(channels=10_000, running=10_000, total_running=10_000)), asyncio.Event()

    @bus.handle("slow")
    async def slow() -> AsyncIterator[int]:
        await release.wait()
        yield 1

    @bus.handle("quick")
    async def quick() -> AsyncIterator[int]:
        yield 1

    async def read() -> None:
        async with client.stream("quick", timeout=100) as numbers:
            assert [number async for number in numbers] == [1]

    async with pair(bus, client=Bus(limits=Limits(channels=10_000))) as client:
        async with all_of(client.stream("slow", timeout=100) for _ in range(count)):
            await table.act_often(read)
            release.set()


@case
async def _one_more_subscription_and_one_less(count: int, table: Table) -> None:
    async with pair(Bus(limits=LIMITS), client=Bus(limits=LIMITS)) as bus:
        async with all_of(bus.subscribe(f"n.{number}") for number in range(count)):
            await _entered(lambda: bus.subscribe("n.more"), table)


@case
async def _one_more_subscription_to_a_peer_and_one_less(count: int, table: Table) -> None:
    async with pair(Bus(limits=LIMITS), client=Bus(limits=LIMITS)) as bus:
        (peer,) = bus.peers
        async with all_of(peer.subscribe(f"n.{number}") for number in range(count)):
            await _entered(lambda: peer.subscribe("n.more"), table)


@case
async def _one_subscription_of_a_server_with_many_clients(count: int, table: Table) -> None:
    bus, url = Bus(), "ubre+memory://growth-clients"
    async with bus.serve(url), all_of(connect(url) for _ in range(count)):
        await _entered(lambda: bus.subscribe("n.more"), table)


@case
async def _one_more_member_of_a_group_and_one_less(count: int, table: Table) -> None:
    async with pair(Bus(limits=LIMITS), client=Bus(limits=LIMITS)) as bus:
        async with all_of(bus.subscribe(f"n.{number % 10}", group="g") for number in range(count)):
            await _entered(lambda: bus.subscribe("n.3", group="g"), table)


@case
async def _a_publication_to_one_subscriber_of_many_subjects(count: int, table: Table) -> None:
    async with pair(server := Bus(limits=LIMITS), client=Bus(limits=LIMITS)) as bus:
        async with all_of(bus.subscribe(f"n.{number}.*") for number in range(count)):
            for number in range(TIMES):
                await table.act(partial(server.publish, f"n.{number}.x", 1))


@case
async def _interests_of_clients_of_a_node(count: int, table: Table) -> None:
    bus = Bus()
    announcer = bus._pubsub.announcer
    for number in range(count):
        announcer.add_behind(f"n.{number}")
    for _ in range(TIMES):
        await table.act(lambda: announcer.add_behind("n.more"))
        await table.act(lambda: announcer.remove_behind("n.more"))


@case
async def _a_publication_that_waits_in_an_outbox_with_many(count: int, table: Table) -> None:
    async with raw_server() as (url, _), connect(url, bus=Bus(limits=LIMITS)) as bus:
        (peer,) = bus.peers
        core_of(peer).link.pause_writing()
        for number in range(count):
            await bus.publish("n", number, timeout=100 + number)
        await table.act_often(lambda: bus.publish("n", 1, timeout=30))
        core_of(peer).link.resume_writing()


def _forget_deadlines(deadlines: DeadlineTimer) -> None:
    deadlines._armed = math.inf


async def _watched(made: Callable[[], AbstractAsyncContextManager[Any]], table: Table) -> None:
    """Count without what is done by the clock: clients that are there said hello, for which they wait a second at the most."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeadlineTimer, "expire_overdue", _forget_deadlines)
        for _ in range(3 * TIMES):
            await table.act(_entering(made))


@asynccontextmanager
async def _reader(url: str) -> AsyncIterator[None]:
    async with connect(url) as client, client.subscribe("news"):
        yield


async def _coming_and_going(count: int, table: Table, protocol: str) -> None:
    bus, url = Bus(authenticate=lambda _: Identity("one", key="one")), f"{protocol}+memory://growth-{protocol}"

    @bus.on("n.>")
    async def hear() -> None: ...

    async with bus.serve(url), all_of(_reader(url) for _ in range(count)):
        await _watched(lambda: _reader(url), table)


@case
async def _the_peers_of_one_of_many_users(count: int, table: Table) -> None:
    users, url = iter(range(count + 1)), "ubre+memory://growth-users"
    bus = Bus(authenticate=lambda _: Identity("user", key=f"user {next(users)}"))
    async with bus.serve(url), all_of(connect(url) for _ in range(count)):
        await table.act_often(lambda: bus.peers_of("user 3"))
        assert len(bus.peers_of("user 3")) == 1


for _protocol in ("ubre", "csb", "jrep", "uprotocol"):
    CASES[f"one client of many comes and goes, {_protocol}"] = partial(_coming_and_going, protocol=_protocol)


@case
async def _one_client_of_a_broker_comes_and_goes(count: int, table: Table) -> None:
    url = "csb+memory://growth-clients"
    async with Broker(url, "csb+memory://growth-servers"), connect("csb+memory://growth-servers?side=broker-server"):
        async with all_of(connect(url) for _ in range(count)):
            await _watched(lambda: connect(url), table)


@case
async def _one_link_of_a_bus_that_has_dialled_many(count: int, table: Table) -> None:
    bus, url = Bus(), "ubre+memory://growth-dialled"
    async with Bus().serve(url), bus, all_of(bus.connect(url) for _ in range(count)):
        await _watched(lambda: bus.connect(url), table)


async def cost(name: str, count: int) -> int:
    table = Table()
    await CASES[name](count, table)
    return min(table.costs[1:])


@pytest.mark.parametrize("name", CASES)
async def test_it_costs_the_same_however_many_there_are(name: str) -> None:
    few, many = await cost(name, FEW), await cost(name, MANY)
    assert many - few < (MANY - FEW) / 2, "half a line for each of the others"
