"""Requests that expire, URIs as subjects, and no subscriptions on the wire."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, DeadlineExceeded, Kind, Message, Reply, connect
from polybus.plugins import Transport
from tests.loops import virtual_time  # noqa: F401
from tests.support import BOUND

from .common import dump, load
from .expiring import Expiring
from .wires import Dial, End

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.offset = 0.0

    def __call__(self) -> float:
        return anyio.current_time() + self.offset


class BareClient:
    """Speaks the wire and subscribes to nothing, for there is no word for it."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.came = anyio.Event()

    def dial(self, options: Any) -> Transport:
        self.end = End(options.host, self._take, lambda why: None)
        return self.end

    def _take(self, frame: bytes) -> None:
        self.heard.append(load(frame))
        self.came.set()


async def test_what_has_expired_on_arrival_is_answered_by_the_bus_and_never_handled() -> None:
    late, server, ran = Clock(), Bus(), list[int]()
    late.offset = 3600

    @server.handle("work")
    async def work() -> None:
        ran.append(1)

    with anyio.fail_after(BOUND):
        async with server.serve("expiring+memory://late", protocol=Expiring(clock=late)):
            async with connect("expiring+memory://late", protocol=Expiring(clock=Clock())) as bus:
                with pytest.raises(DeadlineExceeded) as caught:
                    await bus.request("work", timeout=60)
                assert caught.value.where == "remote"
    assert ran == []


async def test_the_time_that_a_request_waited_for_its_link_is_taken_from_its_time_to_live() -> None:
    seen: list[float | None] = []
    server, ticking = Bus(), Clock()

    @server.handle("work")
    async def work(message: Message) -> None:
        seen.append(message.ttl)

    with anyio.fail_after(BOUND):
        async with server.serve("expiring+memory://wait", protocol=Expiring(clock=ticking)):
            slow = Backoff(initial=0.05, jitter=False)
            async with connect("expiring+memory://wait", protocol=Expiring(clock=ticking), backoff=slow) as bus:
                await server.peers[0].aclose()
                while bus.peers[0].connected:
                    await anyio.lowlevel.checkpoint()
                await bus.request("work", timeout=20)
    assert seen[0] is not None
    assert 0 < seen[0] <= 20 - 0.04  # the pause before the new attempt


def test_a_request_without_a_time_to_live_is_refused_and_told_so() -> None:
    session = Expiring().session("server")
    session.receive(dump({"type": "req.v1", "id": "7", "sink": "/polybus/1/rpc.a", "at": 0}), 0.0)
    (frame,) = session.frames_to_send()
    answer = load(frame)
    assert (answer["type"], answer["id"]) == ("res.v1", "7")
    assert "time to live" in answer["status"]["text"]


def test_subjects_are_uris_on_the_wire_and_names_above_it() -> None:
    here = Expiring(entity="//car/body/1", peer="//cloud/fleet/2").session("client")
    there = Expiring(entity="//cloud/fleet/2", peer="//car/body/1").session("server")
    here.start(0.0)
    for message in (
        Message(Kind.REQUEST, "user.get", ttl=1.0),
        Message(Kind.PUBLISH, "news.today"),
        Message(Kind.PUBLISH, "//other/thing/1/door#Message"),
    ):
        here.send(message, 0.0)
    frames = here.frames_to_send()
    documents = [load(frame) for frame in frames]
    assert documents[0]["sink"] == "//cloud/fleet/2/rpc.user.get"
    assert documents[1]["source"] == "//car/body/1/news.today#Message"
    for frame in frames:
        there.receive(frame, 0.0)
    subjects = [event.subject for event in there.events() if isinstance(event, Message)]
    assert subjects == ["user.get", "news.today", "//other/thing/1/door#Message"]


async def test_uri_patterns_are_matched_by_their_segments() -> None:
    server = Bus()
    with anyio.fail_after(BOUND):
        async with server.serve("expiring+memory://uris", protocol=Expiring()):
            async with connect("expiring+memory://uris", protocol=Expiring()) as bus:
                async with (
                    bus.subscribe("//*/body/1/door.front#Message") as any_car,
                    bus.subscribe("//car/body/>") as one_car,
                    bus.subscribe("//car/body/1/door.front#Message") as exact,
                    bus.subscribe("car.*") as dotted,
                ):
                    for uri in (
                        "//car/body/1/door.front#Message",
                        "//van/body/1/door.front#Message",
                        "//car/body/2/x",
                        "car.x",
                    ):
                        await server.publish(uri, uri)
                    assert [(await anext(any_car)).body[:5] for _ in range(2)] == ["//car", "//van"]
                    assert [(await anext(one_car)).body[-1] for _ in range(2)] == ["e", "x"]
                    assert (await anext(exact)).subject == "//car/body/1/door.front#Message"
                    assert (await anext(dotted)).body == "car.x"


async def test_a_bare_client_gets_every_publication_and_one_of_ours_what_it_wants() -> None:
    server, bare = Bus(), BareClient()
    with anyio.fail_after(BOUND):
        async with server.serve("expiring+memory://all", protocol=Expiring()):
            async with connect("expiring+memory://all", protocol=Expiring()) as ours:
                async with ours.subscribe("b") as wanted:
                    # The other side of this connection knows nothing of polybus.
                    async with server.connect(Dial(bare.dial), protocol=Expiring()):
                        await server.publish("a", 1)
                        await server.publish("b", 2)
                        assert (await anext(wanted)).body == 2
                        await bare.came.wait()
                before = server.stats().sent
                await server.publish("a", 1)
                assert server.stats().sent == before
    assert [document["data"] for document in bare.heard if document["type"] == "pub.v1"] == [1, 2]


async def test_a_client_that_never_said_hello_is_taken_for_bare_until_it_does() -> None:
    server = Bus()
    with anyio.fail_after(BOUND):
        async with server.serve("expiring+memory://hello", protocol=Expiring()):
            async with connect("expiring+memory://hello", protocol=Expiring()) as bus:
                before = server.stats().sent
                await server.publish("a", 1)
                assert server.stats().sent == before + 1
                async with bus.subscribe("b"):
                    before = server.stats().sent
                    await server.publish("a", 1)
                    assert server.stats().sent == before


async def test_a_deadline_is_always_on_the_wire() -> None:
    server, seen = Bus(), list[float | None]()

    @server.handle("work")
    async def work(message: Message) -> None:
        seen.append(message.ttl)

    with anyio.fail_after(BOUND):
        async with server.serve("expiring+memory://ttl", protocol=Expiring()):
            async with connect("expiring+memory://ttl", protocol=Expiring()) as bus:
                reply: Reply[Any] = bus.request("work", timeout=20)
                await reply
    assert seen[0] is not None
    assert 0 < seen[0] <= 20
