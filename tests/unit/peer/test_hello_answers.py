"""What a server says in its answer to a hello, and what a client does about it."""

import datetime
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import pytest

from polybus import Backoff, Bus, Handshake, Identity, Limits, NoHandler, Peer, connect
from polybus._core.runtime.runtime import ALL_ANSWERED
from polybus.events import LinkRetrying, LinkUp
from polybus.plugins.extensions import core_of
from polybus.plugins.hello import backoff_told
from polybus.testing import pair
from polybus.transports.upgrades import CLOSES, HandshakeRejected
from tests.raw import RawPeer
from tests.support import free_port, next_event
from tests.unit.answering import answering

RETRY = Backoff(initial=0.5, maximum=20)
SAID = {"retry": {"initial": 500, "maximum": 20_000}}
LIMITS = Limits(message=5000, subject=50, subscriptions=7, headers=100)
Ask = Callable[[dict[str, Any]], Awaitable[Any]]


@asynccontextmanager
async def asked(bus: Bus, **options: Any) -> AsyncIterator[Ask]:
    """What a program that writes frames by hand asks, and is answered."""
    async with bus.serve("ubre+tcp://127.0.0.1:0", **options) as listener:
        async with await anyio.connect_tcp("127.0.0.1", urlsplit(listener.url).port or 0) as stream:
            raw = RawPeer(stream)

            async def ask(frame: dict[str, Any]) -> Any:
                await raw.send(frame)
                return await raw.receive() if "request" in frame else None

            yield ask


def hello(**facts: Any) -> dict[str, Any]:
    return {"request": "_polybus.hello", "id": 1, "body": {"v": 1, **facts}}


@pytest.mark.parametrize(
    ("options", "question", "answer"),
    [
        ({}, {}, {}),
        ({"retry": RETRY}, {}, SAID),
        ({"retry": Backoff(initial=1e-6, maximum=1e-6)}, {}, {"retry": {"initial": 1, "maximum": 1}}),
        ({}, {"limits": True}, {"limits": {"message": 5000, "subject": 50, "subscriptions": 7}}),
        ({}, {"confirm": ["a", "b.*", 7, None]}, {"refused": ["a", "b.*", 7]}),
        ({}, {"confirm": "a", "token": "x"}, {}),
    ],
)
async def test_a_server_says_what_it_was_told_and_what_it_was_asked(options: Any, question: Any, answer: Any) -> None:
    async with asked(Bus(limits=LIMITS), **options) as ask:
        assert await ask(hello(**question)) == {"success": 1, "body": {"v": 1, **answer}}


async def test_a_hello_that_asks_about_too_many_patterns_is_refused_and_says_how_many_it_may_be() -> None:
    async with asked(Bus(limits=Limits(subscriptions=1021))) as ask:
        patterns = [f"n.{number}" for number in range(1025)]
        for pattern in patterns:
            await ask({"subscribe": pattern})
        refused = await ask(hello(confirm=patterns))
        assert (refused["code"], "1025 patterns" in refused["body"], "1024" in refused["body"]) == (3, True, True)
        assert (await ask(hello(confirm=patterns[:1024])))["body"]["refused"] == patterns[1021:1024]


class Door:
    """An `authenticate` for a minute."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def __call__(self, handshake: Handshake) -> Identity:
        self.shown.append(handshake.headers.get("authorization", ""))
        return Identity("ann", expires_at=datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=60))


async def test_the_reference_has_each_member_of_an_answer_each_code_of_a_close_and_the_last_word_of_a_drain() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/ubre.md").read_text()
    members = page.partition("| member of a hello |")[2].partition("\n\n")[0]
    async with asked(Bus(authenticate=Door(), limits=LIMITS), retry=RETRY) as ask:
        answer = (await ask(hello(limits=True, confirm=["a"], token="x")))["body"]
    assert {*answer, *answer["limits"], *answer["retry"]} <= {*re.findall(r"\w+", members)}
    closes = [HandshakeRejected(status, "").close([CLOSES]) for status in (401, 403, 429, 503)]
    codes = {"1001", *(str(close[0]) for close in closes if close is not None)}
    assert codes == {*re.findall(r"^\| (\d{4})", page, re.M)}
    assert f"| 1001, `{ALL_ANSWERED}` |" in page


async def test_a_token_that_no_header_can_hold_or_that_is_too_long_renews_nothing() -> None:
    door = Door()
    async with asked(Bus(authenticate=door, limits=LIMITS)) as ask:
        for token in ("x" * 101, 7, None, ["a"], "", "a\r\nx: y", "a\0", "a\u2028", "a b", "\u00e9"):
            assert 50_000 < (await ask(hello(token=token)))["body"]["expires_in"] <= 60_000
        assert door.shown == [""]
        assert (await ask(hello(token="x" * 100)))["body"]["expires_in"] > 50_000
        assert door.shown == ["", "Bearer " + "x" * 100]


async def test_a_client_comes_back_as_the_server_says() -> None:
    server = Bus(limits=Limits(close_timeout=0.1))
    async with server.serve("ubre+ws://127.0.0.1:0/bus", retry=Backoff(initial=0.001, maximum=0.001)) as listener:
        async with connect(listener.url, backoff=Backoff(initial=600, maximum=600)) as bus, bus.subscribe("n.*"):
            events = bus.events()
            for peer in server.peers:
                await peer.aclose()
            assert (await next_event(events, LinkRetrying)).delay <= 0.001


async def test_the_pauses_of_a_server_do_not_outlive_it_at_its_address() -> None:
    own, soon, limits = Backoff(initial=600, maximum=600), Backoff(initial=0.001, maximum=0.001), Limits(close_timeout=0.1)
    url = f"ubre+ws://127.0.0.1:{free_port()}/bus"
    async with AsyncExitStack() as stack:
        async with Bus(limits=limits).serve(url, retry=soon):
            bus = await stack.enter_async_context(connect(url, backoff=own))
            async with bus.subscribe("n.*"):
                pass
            events = bus.events()
        assert (await next_event(events, LinkRetrying)).delay <= 0.001
        server = answering(limits=limits)
        async with server.serve(url):
            await next_event(events, LinkUp)
            await bus.request("echo")
            for peer in server.peers:
                await peer.aclose()
            assert (await next_event(events, LinkRetrying)).delay > 0.001


@pytest.mark.parametrize("answer", [{"v": 1}, "not polybus", NoHandler("not polybus either")], ids=str)
async def test_each_answer_says_anew_which_pauses_count(answer: Any) -> None:
    async with pair(Bus(), reconnect=True) as client:
        assert await client.peers[0].extended()
        negotiation, dialer = core_of(client.peers[0]).negotiation, core_of(client.peers[0]).link.dialer
        own = dialer._backoff
        negotiation.answered({"v": 1, **SAID})
        assert dialer._backoff.maximum == RETRY.maximum != own.maximum
        if isinstance(answer, Exception):
            negotiation._send({}).fail(answer)
        else:
            negotiation.answered(answer)
        assert dialer._backoff == own


@pytest.mark.parametrize("retry", [None, {}, [], {"initial": 5}, {"initial": "5", "maximum": 5}, {"initial": 0, "maximum": 5}])
def test_what_are_no_pauses_is_not_heeded(retry: Any) -> None:
    for odd in (retry, *({"initial": 5, "maximum": last} for last in (float("nan"), float("inf"), True))):
        assert backoff_told(RETRY, odd) is RETRY


def test_a_maximum_below_the_initial_pause_limits_each_pause() -> None:
    told = backoff_told(RETRY, {"initial": 5000, "maximum": 5})
    assert [told.bound(attempt) for attempt in (0, 1, 9)] == [0.005] * 3


async def test_an_asynchronous_authorize_is_asked_for_several_at_a_time_and_what_it_allows_is_done_in_order() -> None:
    asking, most, heard = 0, 0, list[str]()

    async def authorize(peer: Peer, verb: str, subject: str | int) -> bool:
        nonlocal asking, most
        asking += 1
        most = max(most, asking)
        number = int(str(subject).rpartition(".")[2])
        for _ in range(2 if number % 3 else 4):  # the answers come in another order than the questions
            await anyio.lowlevel.checkpoint()
        asking -= 1
        return number % 10 != 0

    bus = Bus(authorize=authorize)
    bus.on("said.*")(lambda body: heard.append(body))
    async with asked(bus) as ask:
        patterns = [f"n.{number}" for number in range(200)]
        for pattern in patterns:
            await ask({"subscribe": pattern})
            await ask({"publish": pattern.replace("n", "said"), "body": pattern})
        assert (await ask(hello(confirm=patterns)))["body"]["refused"] == patterns[::10]
        await bus.drain()
    assert 1 < most <= 32
    assert heard == [pattern for pattern in patterns if pattern not in patterns[::10]]
