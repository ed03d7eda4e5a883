"""A cluster over real NATS servers: the tests of the engine in memory, foreign programs in it, and servers that are killed."""

# ruff: noqa: F401  # the tests of the engine in memory are imported to be found here

import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
import trustme

from polybus import Bus, Cluster, ConnectFailed, Disconnected, Store
from polybus.events import ClusterGap
from polybus.testing import cluster
from tests.integration.interop.nats_servers import VERSIONS, NatsServer, certified, nats_server
from tests.refusal import refused
from tests.support import BOUND, eventually, free_port, next_event
from tests.unit.cluster.test_one_bus import (
    test_a_cancelled_request_stops_the_handler_at_the_other_node,
    test_a_user_is_asked_told_and_found_at_any_node,
    test_streams_and_channels_lead_from_node_to_node,
    test_what_a_client_asks_goes_on_to_the_cluster_where_the_bus_forwards_it,
)


@pytest.fixture(scope="module", params=VERSIONS)
def engine(request: pytest.FixtureRequest) -> Iterator[NatsServer]:
    with nats_server(request.param) as server:
        yield server


@pytest.fixture
async def foreign(engine: NatsServer) -> AsyncIterator[Any]:
    nats = pytest.importorskip("nats")
    client = await nats.connect(engine.address)
    yield client
    await client.close()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_foreign_program_is_asked_and_asks_in_the_cluster(engine: NatsServer, foreign: Any) -> None:
    bus = Bus(cluster=Cluster(engine.url + "/shop"))

    @bus.handle("double")
    async def double(n: int) -> int:
        return 2 * n

    async def answer(message: Any) -> None:
        await message.respond(b"43")

    async with bus:
        reply = await foreign.request("shop.r.double", b"21", timeout=BOUND)
        assert json.loads(reply.data) == 42
        await foreign.subscribe("shop.r.theirs", queue="h", cb=answer)
        own = await foreign.request("shop.r.theirs", b"1", timeout=BOUND)
        assert own.data == b"43"  # `flush` of this client may overtake the subscription
        assert await bus.request("theirs", 1) == 43
        async with bus.subscribe("news.*") as news:
            await foreign.publish("shop.p.news.today", b'{"n": 1}')
            assert (await news.receive(BOUND)).body == {"n": 1}


async def carry(near_port: int, far_port: int, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Be a network between two servers, until cancelled."""

    async def pump(source: anyio.abc.SocketStream, sink: anyio.abc.SocketStream) -> None:
        with suppress(anyio.BrokenResourceError):
            async for data in source:
                await sink.send(data)

    async def serve(near: anyio.abc.SocketStream) -> None:
        async with near, await anyio.connect_tcp("127.0.0.1", far_port) as far, anyio.create_task_group() as both:
            both.start_soon(pump, near, far)
            await pump(far, near)
            both.cancel_scope.cancel()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=near_port) as listener:
        task_status.started()
        await listener.serve(serve)


async def test_during_a_partition_each_half_goes_on_and_afterwards_they_are_one_again() -> None:
    first, second, cable = free_port(), free_port(), free_port()
    config = 'cluster {{ name: c, listen: "127.0.0.1:{}", routes: [{}] }}'
    theirs = config.format(second, f'"nats-route://127.0.0.1:{cable}"')
    with nats_server("wheel", config.format(first, "")) as one, nats_server("wheel", theirs) as two:
        here, there, begun = Bus(cluster=f"{one.url}/shop"), Bus(cluster=f"{two.url}/shop"), anyio.Event()

        @there.handle("forever")
        async def forever() -> None:
            begun.set()
            await anyio.sleep_forever()

        async def are_one() -> bool:
            return [len(await bus.nodes()) for bus in (here, there)] == [2, 2]

        async with here, there, here.subscribe("news") as ours, there.subscribe("news") as others:
            async with anyio.create_task_group() as network:
                await network.start(carry, cable, first)
                await eventually(are_one, BOUND)
                reply = here.request("forever", timeout=4 * BOUND)
                await begun.wait()
                network.cancel_scope.cancel()
            with anyio.fail_after(BOUND), pytest.raises(Disconnected):
                await reply
            await here.publish("news", "ours")
            await there.publish("news", "theirs")
            async with anyio.create_task_group() as network:
                await network.start(carry, cable, first)
                await eventually(are_one, BOUND)
                await here.publish("news", "of all")
                assert [(await ours.receive(BOUND)).body for _ in range(2)] == ["ours", "of all"]
                assert [(await others.receive(BOUND)).body for _ in range(2)] == ["theirs", "of all"]
                network.cancel_scope.cancel()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_killed_engine_costs_what_was_under_way_and_nothing_that_waits(version: str) -> None:
    with nats_server(version) as server:
        asker, worker = Bus(cluster=server.url), Bus(cluster=server.url)
        begun = anyio.Event()

        @worker.handle("forever")
        async def forever() -> None:
            begun.set()
            await anyio.sleep_forever()

        @worker.handle("double")
        async def double(n: int) -> int:
            return 2 * n

        async with cluster(asker, worker, url=server.url):
            reply = asker.request("forever", timeout=60)
            with anyio.fail_after(BOUND):
                await begun.wait()
            events = asker.events()
            server.kill()
            with pytest.raises(Disconnected) as caught:
                await reply
            assert caught.value.sent
            waiting = [asker.request("double", n, timeout=60) for n in range(20)]
            await anyio.to_thread.run_sync(server.start)
            assert [await one for one in waiting] == [2 * n for n in range(20)]
            await next_event(events, ClusterGap)
            await eventually(lambda: asker.stats().queued == 0)


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.mark.parametrize("version", VERSIONS)
async def test_nodes_trust_an_authority_of_their_own_and_show_a_certificate(version: str, tmp_path: Path) -> None:
    authority, files = certified(tmp_path, "localhost", "127.0.0.1")
    tls = f'tls {{ {files}, ca_file: "{tmp_path / "ca.pem"}", verify: true }}'
    config = f'{tls}\njetstream {{ store_dir: "{tmp_path / "js"}" }}'
    stranger, ours = trusting(authority), trusting(authority)
    authority.issue_cert("shop@example.org").configure_cert(ours)
    with nats_server(version, config) as server:
        url = f"nats+tls://localhost:{server.port}/shop"
        asker, worker = (Bus(cluster=Cluster(url, tls=ours, stores=[Store("work", "work.>")])) for _ in range(2))

        @worker.handle("double")
        async def double(n: int) -> int:
            return 2 * n

        async with worker, asker:
            assert await asker.request("double", 21, timeout=BOUND) == 42
            await asker.publish("work.x", 1, timeout=BOUND)
            server.kill()
            await anyio.to_thread.run_sync(server.start)
            assert await asker.request("double", 4, timeout=BOUND) == 8
        for context, text in ((None, "the server's certificate is not trusted"), (stranger, "cannot connect to")):
            await refused(Bus(cluster=Cluster(url, tls=context, wait=0)), ConnectFailed, match=text)
