"""While the engine of a cluster is away, in virtual time: errors and pages of health say so, and since when."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest

from polybus import Bus, Cluster, ConnectFailed, DeadlineExceeded, Disconnected, Store, Unavailable, connect, running
from polybus.fastapi import readiness_endpoint
from polybus.protocols.nats.operations import NatsOperation
from polybus.running import BusProcess
from polybus.testing import NatsEngine
from tests.loops import virtual_asyncio  # noqa: F401
from tests.support import eventually


class Refusing(NatsEngine):
    """An engine that lets nobody in while it is away."""

    away = False
    refusal = ""
    """What each client is told that wants to subscribe, if anything."""
    refused = 0

    def read(self, frame: bytes) -> NatsOperation:
        operation = super().read(frame)
        if self.refusal and operation.verb == "SUB":
            self.refused += 1
            self.say(self.refusal.format(inbox=operation.subject))
        return operation

    def admit(self, handshake: Any, decided: Any) -> None:
        if self.away:
            decided(ConnectFailed(self.url, "no server listens there"))
        else:
            super().admit(handshake, decided)

    async def leave(self) -> None:
        self.away = True
        await self.cut()


@pytest.fixture
async def engine() -> AsyncIterator[Refusing]:
    async with Refusing() as engine:
        yield engine


async def streamed(bus: Bus) -> None:
    async with bus.stream("a.b", timeout=2) as items:
        async for _ in items:
            pass


async def seven() -> int:
    return 7


async def eight() -> int:
    return 8


VERBS: dict[str, tuple[Callable[[Bus], Awaitable[object]], type[Exception]]] = {
    "request": (lambda bus: bus.request("a.b", timeout=2), Disconnected),
    "user": (lambda bus: bus.user("ann").request("a.b", timeout=2), Disconnected),
    "stream": (streamed, Disconnected),
    "publish to a store": (lambda bus: bus.publish("kept.x", 1, timeout=2), DeadlineExceeded),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_an_error_says_since_when_the_link_to_the_engine_is_down(engine: Refusing, verb: str) -> None:
    act, error = VERBS[verb]
    async with Bus(cluster=Cluster(engine.url, stores=[Store("kept", "kept.>")])) as bus:
        await anyio.sleep(1)
        await engine.leave()
        await anyio.sleep(10)
        with pytest.raises(error, match=r"the link to the engine of the cluster is down since 1[12] s: .") as caught:
            await act(bus)
        assert not re.search("check the handler|did not come back", str(caught.value))
        engine.away = False


@pytest.mark.parametrize("refusal", ["Authorization Violation", 'Permissions Violation for Subscription to "{inbox}"'])
async def test_a_node_that_its_engine_refuses_for_a_while_says_so_and_comes_back(engine: Refusing, refusal: str) -> None:
    bus = Bus(cluster=engine.url)
    bus.handle("a.b")(seven)
    async with bus:
        await anyio.sleep(1)
        engine.refusal = refusal
        await engine.cut()
        await anyio.sleep(60)
        assert re.match(f"the link to the engine of the cluster is down since 6. s: .*{refusal[:20]}", bus.why_not_ready)
        assert engine.refused < 10, "it is not asked as often as an engine that is away"
        engine.refusal = ""
        await eventually(lambda: bus.why_not_ready == "", 30)
        assert await bus.request("a.b") == 7


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Callable[[Bus], BusProcess]:
    monkeypatch.setattr(running, "_check_loop", lambda backend, uvloop: None)  # the tests have one

    def serving(bus: Bus) -> BusProcess:
        process = BusProcess(bus, (), {})
        process._serving, process._signalled = True, anyio.Event()
        return process

    return serving


async def test_a_node_without_its_engine_is_not_ready_after_a_while_and_refuses_what_clients_ask(
    engine: Refusing, serving: Callable[[Bus], BusProcess]
) -> None:
    worker, gateway = Bus(cluster=engine.url), Bus(cluster=Cluster(engine.url, outage=5))
    worker.handle("a.b")(seven)
    gateway.handle("own")(eight)
    gateway.forward("a.>")
    endpoint: Any = readiness_endpoint(gateway)
    run = serving(gateway)

    async def page() -> tuple[int, str]:
        answer = await endpoint(None)
        assert run._ready() == (answer.status_code, answer.body.decode())
        return run._ready()

    async with gateway, worker, gateway.serve("ubre+memory://outage"), connect("ubre+memory://outage") as client:
        assert await client.request("a.b") == 7
        await engine.leave()
        await anyio.sleep(4.9)
        assert (gateway.ready, gateway.why_not_ready) == (True, "")
        assert await page() == (200, "OK\n")
        with pytest.raises(DeadlineExceeded):  # it waits for the engine
            await client.request("a.b", timeout=0.05)
        asked = [await gateway.nodes(), await gateway.present("news"), await gateway.user("ann").peers()]
        assert [found.complete for found in asked] == [False] * 3
        await anyio.sleep(0.1)
        assert re.match("[(]503, 'the link to the engine of the cluster is down since [0-9.]+ s: .", str(await page()))
        assert (gateway.ready, await client.request("own")) == (True, 8), "its own clients and handlers go on"
        with pytest.raises(Unavailable, match="down since [0-9.]+ s: ."):
            await client.request("a.b", timeout=60)
        engine.away = False
        await eventually(lambda: gateway.why_not_ready == "", 10)
        assert await page() == (200, "OK\n")
        assert (await client.request("a.b"), (await gateway.nodes()).complete) == (7, True)
    assert await page() == (503, "it does not take requests\n")


class Frozen(NatsEngine):
    """An engine that reads nothing while it is stopped, and holds its connections, as a process does after SIGSTOP."""

    stopped = False

    def read(self, frame: bytes) -> NatsOperation:
        return NatsOperation("+OK") if self.stopped else super().read(frame)


@pytest.mark.parametrize(("outage", "until"), [(5, 5), (1, 3)])
async def test_a_node_whose_engine_is_frozen_is_not_ready_as_soon_as_after_an_outage(outage: float, until: float) -> None:
    async with Frozen() as engine, Bus(cluster=Cluster(engine.url, outage=outage)) as bus:
        await anyio.sleep(60)
        assert bus.why_not_ready == "", "an idle engine is asked for a sign of life"
        engine.stopped = True
        await anyio.sleep(until - 3)
        assert bus.why_not_ready == ""
        await anyio.sleep(5)
        assert re.match(r"nothing has come from the engine of the cluster for [0-9.]+ s: is it stopped\?", bus.why_not_ready)
        engine.stopped = False
        engine.inform()
        await eventually(lambda: bus.why_not_ready == "")


async def test_an_error_says_that_the_engine_is_silent_and_not_to_look_at_the_handler() -> None:
    async with Frozen() as engine, Bus(cluster=engine.url) as bus:
        worker = Bus(cluster=engine.url)
        worker.handle("a.b")(anyio.sleep_forever)
        async with worker:
            await anyio.sleep(1)
            with pytest.raises(DeadlineExceeded, match="increase timeout=, or check the handler$"):
                await bus.request("a.b", timeout=8)
            engine.stopped = True
            with pytest.raises(DeadlineExceeded, match=r"nothing has come from the engine of the cluster for [0-9.]+ s: is it"):
                await bus.request("a.b", timeout=8)
            engine.stopped = False


async def test_a_service_whose_clients_come_by_a_link_that_is_down_is_not_ready_after_a_while(
    engine: Refusing, serving: Callable[[Bus], BusProcess]
) -> None:
    bus = Bus()
    run = serving(bus)
    async with bus, bus.connect(engine.url) as network:
        run._entrances.append(network)
        await anyio.sleep(1)
        await engine.leave()
        await anyio.sleep(4.9)
        assert run._ready() == (200, "OK\n")
        await anyio.sleep(0.2)
        code, text = run._ready()
        assert code == 503
        assert re.match(r"the link to nats\+memory://nats-\w+ is down since 5.1 s: .", text)
        engine.away = False
        await eventually(lambda: run._ready() == (200, "OK\n"), 60)
