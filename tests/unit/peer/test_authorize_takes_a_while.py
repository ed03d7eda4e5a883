"""What happens behind an asynchronous `authorize` that takes a while: bounds, deadlines and errors, in virtual time."""

from typing import Any

import anyio
import pytest

from polybus import Bus, Limits, Peer, TooLarge, connect
from polybus._core.peer.peer_core import PeerCore
from polybus.plugins.extensions import core_of
from polybus.testing import pair
from tests.loops import virtual_asyncio  # noqa: F401  # the fixture `anyio_backend`


class Slow:
    """An `authorize` that decides nothing of this kind before it is released."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.released = anyio.Event()

    async def __call__(self, peer: Peer, verb: str, subject: Any) -> bool:
        if verb == self.verb:
            await self.released.wait()
        return True


def hearing(bus: Bus) -> list[Any]:
    heard: list[Any] = []

    @bus.on("news")
    async def hear(body: Any) -> None:
        heard.append(body)

    return heard


@pytest.mark.parametrize(("room", "comes"), [(True, [0, 1, 2]), (False, [])], ids=["full queue", "no memory"])
async def test_what_has_no_room_behind_authorize_is_dropped(
    room: bool, comes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Bus(authorize=(slow := Slow("publish")), limits=Limits(waiting=2))
    heard = hearing(server)
    async with pair(server) as client:
        if not room:
            monkeypatch.setattr(PeerCore, "hold", lambda *of: False)
        for number in range(6):
            client.publish_nowait("news", number)
        await anyio.sleep(1)
        assert server.stats().dropped == 6 - len(comes)
        slow.released.set()
        await anyio.sleep(1)
        assert heard == comes


async def test_a_subscription_that_is_taken_back_before_authorize_has_decided_is_none() -> None:
    server = Bus(authorize=(slow := Slow("subscribe")))
    async with pair(server) as client:
        async with client.subscribe("news"):
            await anyio.sleep(0.1)
        await anyio.sleep(0.1)
        slow.released.set()
        await anyio.sleep(0.1)
        before = server.stats().sent
        await server.publish("news", 1)
        assert server.stats().sent == before


@pytest.mark.parametrize(
    ("when_full", "published", "timeout", "took", "comes"),
    [
        ("drop_oldest", 1, 5, [5], []),
        ("drop_oldest", 1, 50, [10], [0]),
        ("drop_oldest", 3, 50, [10, 10, 10], [0, 2]),
        ("drop_newest", 3, 50, [0, 10, 10], [0, 1]),
        ("disconnect", 3, 50, [0, 0, 0], []),
    ],
)
async def test_a_publisher_waits_for_authorize_until_its_deadline_and_not_for_what_was_dropped(
    when_full: Any, published: int, timeout: float, took: list[float], comes: list[int]
) -> None:
    client = Bus()
    heard, server = hearing(client), Bus(authorize=(slow := Slow("deliver")), limits=Limits(outbox=1))
    url = "ubre+memory://authorize"
    async with server.serve(url, when_full=when_full), connect(url, bus=client), anyio.create_task_group() as group:
        await anyio.sleep(1)
        began, ended = anyio.current_time(), list[float]()

        async def publish(number: int) -> None:
            await server.publish("news", number, timeout=timeout)
            ended.append(round(anyio.current_time() - began))

        for number in range(published):
            group.start_soon(publish, number)
        await anyio.sleep(10)
        slow.released.set()
        await anyio.sleep(1)
        assert (heard, ended) == (comes, took)
        assert server.stats().dropped == (1 if when_full == "disconnect" else published - len(comes))


async def test_a_publication_that_cannot_be_sent_once_authorize_has_decided_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = Bus()
    heard, server = hearing(client), Bus(authorize=(slow := Slow("deliver")))
    async with pair(server, client=client):
        await anyio.sleep(1)
        link = core_of(server.peers[0]).link
        publish = type(link).publish

        def narrow(link: Any, message: Any, *more: Any) -> Any:
            if b"large" in message.raw:
                raise TooLarge("not on this wire")
            return publish(link, message, *more)

        monkeypatch.setattr(type(link), "publish", narrow)
        for body in ("large", "small"):
            server.publish_nowait("news", body)
        slow.released.set()
        await anyio.sleep(1)
        assert heard == ["small"]
    assert "could not be published" in caplog.text
    assert server.stats().dropped == 1
