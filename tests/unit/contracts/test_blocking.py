"""Contracts for threads: plain methods, asked by the blocking twin, answered in worker threads."""

import threading
from collections.abc import Iterator
from typing import Protocol, assert_type

import pytest

from polybus import Bus, Context, Identity, NotFound, Peer, notify, sync
from polybus.testing import cluster, pair
from tests.support import eventually, until

from .users import User, Users, UsersInMemory

pytestmark = pytest.mark.native


class UsersForThreads(Protocol):
    def get(self, id: int) -> User: ...
    def watch(self, id: int) -> Iterator[User]: ...
    @notify
    def touch(self, id: int) -> None: ...


def test_a_contract_of_plain_methods_blocks_its_thread_and_a_stream_that_is_left_early_stops_its_handler() -> None:
    served, users = Bus(), UsersInMemory()
    served.implement(Users, users, "user")
    with sync.Bus(served) as server, server.serve("ubre+tcp://127.0.0.1:0") as listener, sync.connect(listener.url) as bus:
        asked = bus.client(UsersForThreads, "user")
        assert_type(asked, UsersForThreads)
        assert asked.get(7) == User(7)
        assert asked.get(id=8) == User(8)
        with pytest.raises(NotFound):
            asked.get(0)
        assert [user.id for user in asked.watch(3)] == [0, 1, 2]
        asked.touch(5)
        until(lambda: users.touched == [(5, "user.touch")])
        for user in asked.watch(1_000_000):
            assert users.watching == 1
            if user.id == 3:
                break
        until(lambda: users.watching == 0)


def test_each_twin_takes_contracts_of_its_own_kind() -> None:
    bus = Bus()
    text = r"UsersForThreads\.get is a plain `def`, which would block the event loop: write `async"
    with pytest.raises(TypeError, match=text):
        bus.client(UsersForThreads)
    with sync.Bus(bus) as blocking, pytest.raises(TypeError, match=r"Users\.get is async: .* `-> Iterator"):
        blocking.client(Users)


class Threads(Protocol):
    def name(self) -> str: ...


class ThreadNames:
    def name(self) -> str:
        return threading.current_thread().name


class AsyncNames:
    async def name(self) -> str:
        return ""


async def test_plain_methods_answer_in_worker_threads() -> None:
    bus = Bus()
    bus.implement(Threads, ThreadNames(), "thread")
    async with pair(bus) as client:
        assert await client.request("thread.name") != threading.current_thread().name
    with pytest.raises(TypeError, match=r"AsyncNames\.name is async, but Threads\.name is a plain `def`"):
        bus.implement(Threads, AsyncNames(), "other")  # type: ignore[arg-type,unused-ignore]


async def test_a_user_of_another_node_is_asked_by_a_contract() -> None:
    page, users, peers = Bus(), UsersInMemory(), list[Peer]()
    page.implement(Users, users, "page")
    gateway, worker = Bus(cluster="auto"), Bus(cluster="auto")

    @gateway.handle("hello")
    async def hello(ctx: Context) -> None:
        assert ctx.peer is not None
        peers.append(ctx.peer)

    async with cluster(gateway, worker), pair(gateway, client=page, identity=Identity("ann", key="ann")) as client:
        await client.request("hello")
        ann = worker.user("ann").client(Users, "page")
        assert await ann.get(7) == User(7)
        assert [user.id async for user in ann.watch(2)] == [0, 1]
        await ann.touch(3)
        await eventually(lambda: users.touched == [(3, "page.touch")])
        (remote,) = await worker.user("ann").peers()
        assert await remote.client(Users, "page").get(8) == User(8)
