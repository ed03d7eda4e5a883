"""Samples that arrive before the bus can take them."""

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

import polybus
from polybus import ConnectFailed, Limits
from polybus.plugins import DialOptions
from polybus.protocols import Up
from polybus.testing.contract.transport import FrameReceiver
from polybus.transports.zenoh import transport as module
from polybus.transports.zenoh.node import ZenohNode
from polybus.transports.zenoh.transport import Zenoh, ZenohTransport, zenoh_address
from tests.support import BOUND, eventually
from tests.unit.protocols.up.test_session import published

NARROW, TO_US = "up/device2/CD/0/4/80CD/{}/{}/{}/{}/{}", "up/*/*/*/*/*/device1/10AB/0/3/*"


HOST: Any = SimpleNamespace(limits=Limits(), time=lambda: 0.0, call_soon=lambda function: function())


def transport_of() -> tuple[ZenohTransport, FrameReceiver]:
    """A transport that has not started, and who hears it then."""
    transport = ZenohTransport(zenoh_address("zenoh://127.0.0.1:1"), Up(entity="//device1/10AB/3").fabric, HOST, dialled=False)
    return transport, FrameReceiver(transport)


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


async def test_a_client_that_is_cancelled_before_it_may_send_ends_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(ZenohNode, "open", lambda *args: opened.append(args))
    monkeypatch.setattr(module, "_GRACE", math.inf)
    transport, _ = transport_of()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(transport.open, serves=False))
        await eventually(lambda: opened)
        await transport.node.run(int)  # by then, the session is open
        assert not transport.ended.is_set()
        group.cancel_scope.cancel()
    assert transport.ended.is_set()
