"""Samples that arrive before the bus can take them."""

from collections.abc import Callable
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import zenoh

import polybus
from polybus import ConnectFailed, Limits
from polybus.plugins import Closed, DialOptions
from polybus.protocols import Up
from polybus.testing.contract.transport import FrameReceiver
from polybus.transports.zenoh import transport as module
from polybus.transports.zenoh.node import LANE_SAMPLES, Lanes, ZenohNode
from polybus.transports.zenoh.transport import Zenoh, ZenohTransport, zenoh_address
from tests.support import BOUND, eventually
from tests.unit.protocols.up.test_session import published

NARROW, TO_US = "up/device2/CD/0/4/80CD/{}/{}/{}/{}/{}", "up/*/*/*/*/*/device1/10AB/0/3/*"


HOST: Any = SimpleNamespace(limits=Limits(), time=lambda: 0.0, call_soon=lambda function: function())


class Receiver(FrameReceiver):
    losses: list[int]

    def lost(self, count: int, why: str) -> None:
        self.losses.append(count)


def transport_of(url: str = "zenoh://127.0.0.1:1", host: Any = HOST) -> tuple[ZenohTransport, Receiver]:
    """A transport that has not started, and who hears it then."""
    transport = ZenohTransport(zenoh_address(url), Up(entity="//device1/10AB/3").fabric, host, dialled=False)
    bus = Receiver(transport)
    bus.losses = []
    return transport, bus


async def ended(transport: ZenohTransport) -> None:
    transport.close()
    await transport.ended.wait()


async def test_what_has_come_before_the_bus_took_the_session_is_handed_on_and_what_comes_later_too() -> None:
    (transport, bus), sample = transport_of(), Up(entity="//device2/CD/4").fabric.sample(published())
    transport.node.inbox.add("device2", sample)
    transport.start(bus)
    transport.hear([TO_US, NARROW])
    await transport.written()
    transport.node.inbox.add("device2", sample)
    assert await _heard(bus, 2)
    await ended(transport)


async def test_what_waits_while_filters_change_is_handed_on() -> None:
    (transport, bus), sample = transport_of(), Up(entity="//device2/CD/4").fabric.sample(published())
    transport.start(bus)
    transport.hear([TO_US, NARROW])
    await transport.written()
    transport.pause_reading()
    transport.node.inbox.add("device2", sample)
    transport.hear([TO_US])
    await transport.written()
    assert bus.frames == []
    transport.resume_reading()
    assert await _heard(bus, 1)
    await ended(transport)


async def _heard(bus: FrameReceiver, count: int) -> bool:
    """Whether so many frames come, and no more."""
    await eventually(lambda: len(bus.frames) >= count)
    return len(bus.frames) == count


async def test_a_server_whose_session_has_ended_misses_nothing_from_the_moment_it_listens_again() -> None:
    again, sent = anyio.Event(), anyio.Event()
    admitted = 0

    async def authenticate(_: object) -> str:
        nonlocal admitted
        admitted += 1
        if admitted == 2:
            again.set()
            await sent.wait()
        return "the fabric"

    bus = polybus.Bus(authenticate=authenticate)
    async with bus.serve("up+zenoh://127.0.0.1:0", protocol=Up(entity="//device1/10AB/3")) as listener:
        async with bus.subscribe("//device2/CD/4/80CD") as news:
            await bus.peers[0].aclose("a hiccup")
            await again.wait()
            url = listener.url.partition("?")[0]
            async with polybus.connect(url, protocol=Up(entity="//device2/CD/4"), wait=BOUND) as client:
                await client.publish("//device2/CD/4/80CD", "kept")
            sent.set()
            with anyio.fail_after(BOUND):
                assert (await anext(news)).body == "kept"


async def test_a_session_that_never_opens_times_out_after_both_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: ZenohTransport, *, serves: bool) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(ZenohTransport, "open", never)
    host: Any = SimpleNamespace(limits=Limits(connect_timeout=0.01, handshake_timeout=0.02), time=lambda: 0.0)
    options = DialOptions(
        host=host, reads=frozenset({"binary"}), writes="binary", subprotocol="up", adapter=Up(entity="//device1/10AB/3")
    )
    with pytest.raises(ConnectFailed, match=r"timed out after 0\.03 s \(Limits\.connect_timeout and handshake_timeout\)"):
        await Zenoh().connector("zenoh://127.0.0.1:1").connect(options)


async def test_a_connect_that_is_cancelled_while_its_session_opens_closes_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions, cancelled, really_open = list[Any](), Event(), zenoh.open

    def slowly_open(config: Any) -> Any:
        sessions.append(really_open(config))
        assert cancelled.wait(BOUND)
        return sessions[0]

    async with polybus.Bus().serve("up+zenoh://127.0.0.1:0", protocol=Up(entity="//device2/CD/4")) as listener:
        monkeypatch.setattr(zenoh, "open", slowly_open)
        transport, _ = transport_of(listener.url.partition("?")[0].partition("+")[2])
        async with anyio.create_task_group() as group:
            group.start_soon(partial(transport.open, serves=False))
            await eventually(lambda: sessions)
            group.cancel_scope.cancel()
        assert transport.ended.is_set()
        assert not sessions[0].is_closed()
        cancelled.set()
        await eventually(sessions[0].is_closed)


class EarlyClient:
    """A client whose node has opened no session: the test tells which keys have subscribers."""

    tell: Callable[..., None]

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written = list[Any]()
        monkeypatch.setattr(ZenohNode, "open", lambda *_: None)
        monkeypatch.setattr(ZenohNode, "seek", lambda _, key, told: setattr(self, "tell", partial(told, key)))
        monkeypatch.setattr(Lanes, "add", self.add)
        monkeypatch.setattr(module, "_ROUTED", 0.0)
        self.spawned = list[Any]()
        host: Any = SimpleNamespace(**vars(HOST), spawn=lambda *call: self.spawned.append(partial(*call)))
        self.transport, self.bus = transport_of(host=host)

    def add(self, sample: Any) -> bool:
        self.written.append(sample)
        return True

    async def send(self) -> None:
        await self.transport.open(serves=False)
        self.transport.start(self.bus)
        self.transport.hear([TO_US])
        await self.transport.written()
        self.transport.send(published())


async def test_a_client_writes_a_sample_without_a_subscriber_when_its_first_second_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = EarlyClient(monkeypatch)
    await client.send()
    client.tell(has_subscriber=False)
    client.transport.tick(module.EARLY / 2)
    assert client.written == []
    client.transport.tick(module.EARLY)
    assert len(client.written) == 1
    client.transport.send(published())
    assert len(client.written) == 2
    await ended(client.transport)


@pytest.mark.parametrize("until", ["subscriber", "time"])
async def test_a_client_that_closes_at_once_closes_when_its_samples_are_written(
    monkeypatch: pytest.MonkeyPatch, until: str
) -> None:
    client = EarlyClient(monkeypatch)
    await client.send()
    client.transport.close()
    client.tell(has_subscriber=False)
    await client.transport.node.run(int)
    assert not client.transport.ended.is_set()
    if until == "subscriber":
        client.tell(has_subscriber=True)
        assert client.written == []  # a router announces a subscriber before it has a route
        (later,) = client.spawned
        await later()
    else:
        client.transport.tick(module.EARLY)
    await client.transport.ended.wait()
    assert len(client.written) == 1
    assert client.bus.losses == []


async def test_samples_that_wait_for_a_subscriber_when_the_connection_ends_are_counted_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = EarlyClient(monkeypatch)
    await client.send()
    client.transport.abort(Closed(1006, "cut"))
    client.tell(has_subscriber=True)
    assert client.written == []
    assert client.bus.losses == [1]


async def test_more_samples_than_may_wait_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    client = EarlyClient(monkeypatch)
    await client.send()
    for _ in range(LANE_SAMPLES - 1):
        client.transport.send(published())
    assert client.written == []
    client.transport.send(published())
    assert len(client.written) == LANE_SAMPLES + 1
    await ended(client.transport)
