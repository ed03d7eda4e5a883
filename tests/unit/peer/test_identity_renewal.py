"""A link whose identity is renewed in time stays up, with all that is on it; a token of another user ends it."""

import datetime
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, Context, Disconnected, Forbidden, Handshake, Identity, Limits, Peer, Unauthorized, connect
from polybus.broker import Broker
from polybus.plugins.extensions import core_of
from polybus.testing import NatsEngine
from polybus.testing.virtual_time import VirtualLoop
from tests.support import BOUND, eventually

LASTS = 5.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


def soon() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=LASTS)


class Door:
    """What `authenticate` was shown, and the next token of a client."""

    def __init__(self, *answers: Any) -> None:
        self.shown: list[str] = []
        self.answers = list(answers)

    def __call__(self, handshake: Handshake) -> Any:
        self.shown.append(handshake.headers["authorization"])
        given = self.answers.pop(0) if self.answers else "ann"
        if isinstance(given, Exception):
            raise given
        return given and Identity({"token": self.shown[-1]}, key=given, expires_at=soon())

    def headers(self) -> Mapping[str, str]:
        return {"authorization": f"Bearer {len(self.shown)}"}


def served(door: Door, **limits: Any) -> Bus:
    bus = Bus(authenticate=door, limits=Limits(**limits))

    @bus.handle("count")
    async def count() -> AsyncIterator[int]:
        for number in range(60):
            yield number
            await anyio.sleep(1)

    @bus.handle("who")
    async def who(ctx: Context) -> Any:
        return ctx.identity

    return bus


@pytest.mark.parametrize("protocol", ["ubre", "csb", "jrep"])
async def test_a_stream_of_a_minute_outlasts_tokens_of_five_seconds(protocol: str) -> None:
    door = Door()
    async with served(door).serve(f"{protocol}+memory://renewal") as listener:
        async with connect(listener.url, headers=door.headers) as bus:
            with anyio.fail_after(10 * BOUND):
                async with bus.stream("count") as items:
                    assert [item async for item in items] == list(range(60))
            assert await bus.request("who") == {"token": door.shown[-1]}
            assert bus.stats().reconnects == 0
    assert len(door.shown) == len(set(door.shown)) >= 60 / LASTS


@pytest.mark.parametrize(
    ("answer", "words", "comes_back"),
    [("bob", "another user", True), (None, "not authenticated", True), (Forbidden("not any more"), "not any more", False)],
)
async def test_a_token_that_is_refused_ends_the_link_and_is_in_the_log(
    answer: Any, words: str, comes_back: bool, caplog: pytest.LogCaptureFixture
) -> None:
    door = Door("ann", answer)
    async with served(door).serve("ubre+memory://renewal") as listener:
        async with connect(listener.url, headers=door.headers, backoff=Backoff(0.01, 0.05)) as bus:
            with anyio.fail_after(BOUND), pytest.raises(Disconnected if comes_back else Forbidden, match=words):
                async with bus.stream("count") as items:
                    _ = [item async for item in items]
            if comes_back:
                assert await bus.request("who") == {"token": "Bearer 2"}
            else:
                with pytest.raises(Forbidden):
                    await bus.request("who")
            assert bus.stats().reconnects == comes_back
    refused = [record.getMessage() for record in caplog.records if record.name == "polybus.security"]
    assert refused
    assert all(words in text and "authorization" in text for text in refused)


async def test_a_client_with_a_fixed_token_is_told_and_does_not_come_back() -> None:
    door = Door()
    async with served(door).serve("ubre+memory://renewal") as listener:
        async with connect(listener.url, headers={"authorization": "fixed"}) as bus, bus.subscribe("news") as news:
            with pytest.raises(Unauthorized, match="expired"):
                await anext(news)
            with pytest.raises(Unauthorized, match="expired"):
                await bus.request("who")
            assert (bus.stats().reconnects, door.shown) == (0, ["fixed"])


async def test_a_token_that_cannot_be_looked_at_now_is_brought_again_before_the_old_one_ends() -> None:
    door = Door("ann", ConnectionError("no database"))
    async with served(door).serve("ubre+memory://renewal") as listener, connect(listener.url, headers=door.headers) as bus:
        await anyio.sleep(2 * LASTS)
        assert await bus.request("who") == {"token": door.shown[-1]}
        assert bus.stats().reconnects == 0
    assert len(door.shown) > 3


async def test_of_many_tokens_a_server_looks_at_two_a_second_and_at_a_few_at_once() -> None:
    door = Door()
    async with served(door).serve("ubre+memory://renewal") as listener, connect(listener.url, headers=door.headers) as bus:
        assert await bus.peers[0].extended()
        for number in range(200):
            _ = core_of(bus.peers[0]).negotiation._send({"token": str(number)})
            await anyio.sleep(0.01)
        assert await bus.request("who") == {"token": door.shown[-1]}
    assert 7 <= len(door.shown) - 1 <= 10


async def test_headers_without_a_token_or_that_fail_are_not_shown_and_the_link_comes_back_when_its_identity_has_ended() -> None:
    asked = 0

    def failing() -> Mapping[str, str]:
        nonlocal asked
        asked += 1
        if 1 < asked < 5:
            raise OSError("no token")
        return {"authorization": "Bearer a"}

    door = Door()
    async with served(door).serve("ubre+memory://renewal") as listener:
        for headers in (lambda: {"authorization": "Basic YQ=="}, failing):
            before = len(door.shown)
            async with connect(listener.url, headers=headers) as bus:
                await anyio.sleep(LASTS)
                stats = bus.stats
                await eventually(lambda: stats().reconnects == 1)  # noqa: B023  # within this turn
                assert len(door.shown) == before + 2


@pytest.mark.parametrize("has_own", [False, True])
async def test_a_tunnel_has_the_renewed_identity_of_its_opener_unless_the_inner_bus_admits_by_itself(has_own: bool) -> None:
    door = Door()
    outer, middle, inner = served(door), Bus(), Bus(authenticate=(lambda handshake: "own") if has_own else None)
    outer.handle_tunnels("middle", middle, protocol="ubre")
    middle.handle_tunnels("inner", inner, protocol="csb")

    @inner.handle("who")
    async def who(ctx: Context) -> Any:
        return ctx.identity

    async with (
        outer.serve("ubre+memory://renewal") as listener,
        connect(listener.url, headers=door.headers) as bus,
        connect(bus.tunnel("middle"), protocol="ubre", bus=Bus()) as between,
        connect(between.tunnel("inner"), protocol="csb", bus=Bus()) as within,
    ):
        for _ in range(3):
            peer = core_of(inner.peers[0])
            peer.grants = {"news": True}
            now = {"token": door.shown[-1]}
            assert await within.request("who") == ("own" if has_own else now)
            assert await bus.request("who") == now
            await anyio.sleep(LASTS)
            assert (peer.grants is None) is not has_own
    assert len(door.shown) > 3


HOSTILE = {"v": 1, "expires_in": 10, "retry": {"initial": 86_400_000, "maximum": 86_400_000}}


@asynccontextmanager
async def behind_a_broker(bus: Bus, headers: Any) -> AsyncIterator[Peer]:
    async with (
        Broker("csb+memory://clients", "csb+memory://servers") as broker,
        connect(broker.server_urls[0], bus=bus, headers=headers),
        connect(broker.client_urls[0]) as client,
    ):
        await client.request("who")
        yield bus.peers[0]


@asynccontextmanager
async def on_nats(bus: Bus, headers: Any) -> AsyncIterator[Peer]:
    async with NatsEngine() as engine, connect(engine.url, bus=bus, headers=headers):
        yield bus.peers[0]


@pytest.mark.parametrize("crowd", [behind_a_broker, on_nats])
async def test_an_answer_of_another_client_gets_no_token_and_changes_no_pauses(crowd: Any) -> None:
    asked: list[int] = []

    def headers() -> Mapping[str, str]:
        asked.append(1)
        return {}

    bus = Bus()
    bus.handle("who")(anyio.lowlevel.checkpoint)
    async with crowd(bus, headers) as peer:
        link, before = core_of(peer).link, list(asked)
        pauses = link.dialer._backoff
        core_of(peer).negotiation.answered(HOSTILE)
        await anyio.sleep(LASTS)
        assert (asked, link.dialer._backoff) == (before, pauses)


@pytest.mark.parametrize(
    "left", [10**400, -1, -(10**400), 1e300, float("nan"), float("inf"), True, None, "1", [3]], ids=lambda left: repr(left)[:9]
)
async def test_an_odd_time_until_an_identity_expires_is_ignored(left: Any) -> None:
    door = Door()
    async with served(door).serve("ubre+memory://renewal") as listener, connect(listener.url, headers=door.headers) as bus:
        negotiation = core_of(bus.peers[0]).negotiation
        negotiation.renewal.busy = False
        negotiation.answered({"v": 1, "expires_in": left})
        assert not negotiation.renewal.busy


@pytest.mark.parametrize("headers", [None, {"authorization": "Bearer a"}])
async def test_a_client_without_a_function_for_headers_shows_nothing(headers: Any, caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus(authenticate=lambda handshake: Identity("ann", expires_at=soon()))
    async with bus.serve("ubre+memory://renewal") as listener, connect(listener.url, headers=headers) as client:
        assert await client.peers[0].extended()
        received = bus.stats().received
        await anyio.sleep(0.9 * LASTS)
        assert bus.stats().received == received
        assert not caplog.records
