"""polybus under a plain `asyncio.run`, which tells anyio less about the loop than `anyio.run` does.

The cancellations of asyncio itself, too: they go through every shielded scope of anyio (`asyncio.timeout`, `asyncio.TaskGroup`,
`Task.cancel`).
"""

import asyncio
import datetime
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from polybus import Bus, Identity, Peer, Route, bridge, connect
from polybus.broker import Broker
from polybus.testing import NatsEngine, pair

TOMORROW = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)


def doubling(lifespan: Callable[[Bus], AbstractAsyncContextManager[None]] | None = None, **hooks: Any) -> Bus:
    bus = Bus(lifespan=lifespan, **hooks)

    @bus.handle("double")
    async def double(number: int) -> int:
        return 2 * number

    return bus


@pytest.mark.parametrize("protocol", ["ubre", "csb", "jrep"])
def test_a_task_of_a_peer_starts_in_the_callback_of_a_socket_under_plain_asyncio(protocol: str) -> None:
    async def allows(peer: Peer, verb: str, subject: str | int) -> bool:
        await asyncio.sleep(0)
        return True

    came = asyncio.Event()
    server = doubling(authenticate=lambda handshake: Identity("ann", expires_at=TOMORROW), authorize=allows)

    @server.on("news")
    async def news() -> None:
        came.set()

    async def main() -> None:
        async with asyncio.timeout(10), server.serve(f"{protocol}+ws://127.0.0.1:0/bus") as listener:
            async with connect(listener.url, headers=lambda: {"authorization": "Bearer x"}) as client:
                assert [await peer.extended() for peer in client.peers] == [True]  # which says when the identity expires
                await client.publish("news")
                await came.wait()
                assert await client.request("double", 21) == 42
                assert client.stats().reconnects == 0

    asyncio.run(main())


# -- cancellation at every turn of the event loop ---------------------------------------------------------------------------


@asynccontextmanager
async def slow_lifespan(bus: Bus) -> AsyncIterator[None]:
    await asyncio.sleep(0)
    yield
    await asyncio.sleep(0)


async def alone(bus: Bus, folder: Path) -> None:
    async with bus:
        assert await bus.request("double", 21) == 42


async def served(bus: Bus, folder: Path, url: str = "") -> None:
    async with bus.serve(url or f"ubre+memory://{secrets.token_hex(4)}") as listener, connect(listener.url) as client:
        assert await client.request("double", 21) == 42


async def at_an_address(bus: Bus, folder: Path) -> None:
    await served(bus, folder, f"ubre+unix://{folder / 'bus'}")


async def paired(bus: Bus, folder: Path) -> None:
    async with pair(bus) as client:
        assert await client.request("double", 21) == 42


async def bridged(bus: Bus, folder: Path) -> None:
    other = Bus()
    async with bridge(other, bus, routes=[Route("far.double", "double")]), pair(other) as client:
        assert await client.request("far.double", 21) == 42


async def brokered(bus: Bus, folder: Path) -> None:
    async with Broker(f"csb+unix://{folder / 'clients'}", f"csb+unix://{folder / 'servers'}"):
        pass


async def clustered(bus: Bus, folder: Path) -> None:
    async with NatsEngine() as engine, Bus(cluster=engine.url):
        pass


def places() -> frozenset[tuple[int, ...]]:
    """Where each task of the running event loop waits, from its coroutine to the innermost: offsets of instructions."""

    def chain(waiting: Any) -> Iterator[int]:
        while hasattr(waiting, "cr_frame"):
            yield waiting.cr_frame.f_lasti if waiting.cr_frame else -1
            waiting = waiting.cr_await

    return frozenset(tuple(chain(task.get_coro())) for task in asyncio.all_tasks())


async def take(turns: int, task: asyncio.Task[None]) -> None:
    """Let a task run for so many turns of the event loop. While all tasks wait for the system there may be thousands: of those
    in which no task moves, only a few in a row count.
    """
    same, now = 0, places()
    while turns and not task.done():
        await asyncio.sleep(0)
        before, now = now, places()
        same = same + 1 if now == before else 0
        turns -= same < 5


@pytest.mark.native
@pytest.mark.parametrize("how", ["task", "scope"])
@pytest.mark.parametrize("use", [alone, served, at_an_address, paired, bridged, brokered, clustered])
def test_a_bus_that_is_cancelled_at_any_turn_leaves_nothing_and_may_be_used_again(
    use: Callable[[Bus, Path], Coroutine[None, None, None]], how: str, tmp_path: Path
) -> None:
    bus = doubling(slow_lifespan)

    async def within(scope: anyio.CancelScope) -> None:
        with scope:
            await use(bus, tmp_path)

    async def cancelled_at(turns: int) -> bool:
        """Whether it was still running by then."""
        scope = anyio.CancelScope()
        task = asyncio.ensure_future(within(scope))
        await take(turns, task)
        was_over = task.done()
        (task if how == "task" else scope).cancel()
        await asyncio.wait([task])
        if how == "task" and not was_over:
            assert task.cancelled()
        else:  # a scope cancels at the next wait that is not shielded, if there is any
            assert task.exception() is None
        assert bus._services.runtime is None
        assert len(asyncio.all_tasks()) == 1
        await alone(bus, tmp_path)
        return not was_over

    async def main() -> None:
        async with asyncio.timeout(60):
            for turns in itertools.count():
                if not await cancelled_at(turns):
                    return

    asyncio.run(main())
