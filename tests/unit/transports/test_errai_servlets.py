"""Our bus as a client of Errai's own servlets, by stand-ins that behave as the real ones do, on every event loop."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, ConnectFailed, Disconnected, Limits, Unauthorized, connect
from polybus.bindings.jrep_http import client as _errai_client
from polybus.bindings.jrep_http import requests
from polybus.events import LinkDown
from tests.loops import both_backends  # noqa: F401
from tests.refusal import refused
from tests.support import BOUND, eventually, next_event

from .errai_servlets import (
    CollectingProxy,
    DefaultBlockingServlet,
    Jsr356Servlet,
    LegacyBlockingServlet,
    PollingServlet,
    Servlet,
    serving,
)

pytestmark = pytest.mark.native
SOON = Backoff(initial=0.001, maximum=0.01)


@asynccontextmanager
async def client(servlet: Servlet, query: str = "", application: Any = None, **options: Any) -> AsyncIterator[Bus]:
    with anyio.fail_after(BOUND):
        async with serving(servlet, application) as url, connect(f"jrep+{url}{query}", backoff=SOON, **options) as bus:
            yield bus


# -- events (B1)


@pytest.mark.parametrize("post_wins", [True, False], ids=["answers with the post", "answers as events"])
@pytest.mark.parametrize("query", ["", "?channel=events"], ids=["auto", "events"])
async def test_the_first_request_is_answered_by_a_servlet_that_sends_no_byte_of_its_events_before(
    query: str, post_wins: bool
) -> None:
    servlet = DefaultBlockingServlet(post_wins)
    async with client(servlet, query) as bus:
        for number in range(20):
            assert await bus.request("EchoService", number) == number
        assert await bus.request("LateService") == "late"
        assert bus.stats().reconnects == bus.stats().malformed == 0
    assert servlet.streams == 1
    assert sum(query.get("wait") == "1" and "phase" not in query for _, query in servlet.requests) == 0, "nobody polls"


@pytest.mark.parametrize("query", ["", "?channel=events"], ids=["auto", "events"])
async def test_events_of_a_blocking_servlet_stay_up_while_nothing_happens_and_carry_what_comes_then(
    query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_errai_client, "_MOMENT", 0.001)
    servlet = DefaultBlockingServlet()
    async with client(servlet, query) as bus, bus.subscribe("news") as news:
        await eventually(lambda: len(servlet.values("ServerEchoService")) > 3)  # each answer comes with its post
        for number in range(100):
            servlet.publish("news", number)
        assert [(await anext(news)).body for _ in range(100)] == list(range(100))
        asked = len(servlet.values("ServerEchoService"))
        assert await bus.request("EchoService", 1) == 1
        assert len(servlet.values("ServerEchoService")) <= asked + 1, "it has shown that it carries"
        assert (servlet.streams, bus.stats().reconnects, bus.stats().malformed) == (1, 0, 0)


async def test_answers_that_a_proxy_collects_come_and_the_next_connection_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_errai_client, "PATIENCE", 1.0)
    servlet = DefaultBlockingServlet(post_wins=False)
    async with client(servlet, application=CollectingProxy(servlet)) as bus, bus.subscribe("news") as news:
        events = bus.events()
        await eventually(lambda: servlet.streams)
        assert await bus.request("EchoService", "into the stream") == "into the stream"
        assert "held up on the way: the next connection does without" in (await next_event(events, LinkDown)).reason
        assert await bus.request("EchoService", "by poll") == "by poll"
        await eventually(lambda: servlet.subscribed("news"))
        servlet.publish("news", 1)
        assert (await anext(news)).body == 1
        assert servlet.streams == 1
        assert servlet.values("EchoService") == ["into the stream", "by poll"]


async def test_who_wants_events_alone_is_told_each_time_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_errai_client, "PATIENCE", 0.05)
    monkeypatch.setattr(_errai_client, "_MOMENT", 0.001)
    servlet = DefaultBlockingServlet(post_wins=False)
    async with client(servlet, "?channel=events", CollectingProxy(servlet)) as bus:
        events = bus.events()
        for _ in range(3):
            assert (
                "held up on the way: use channel=poll behind a proxy that buffers"
                in (await next_event(events, LinkDown)).reason
            )
    assert servlet.streams >= 3


@pytest.mark.parametrize("patience", [0.1, 0.105], ids=["", "though a timer is a little early"])
async def test_a_stream_that_never_begins_is_not_tried_again(patience: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_errai_client, "POLL", patience)
    monkeypatch.setattr(requests, "POLL", 0.1)
    servlet = DefaultBlockingServlet()
    servlet.held = ("GET",)
    async with client(servlet) as bus:
        events = bus.events()
        assert "did not answer in time" in (await next_event(events, LinkDown)).reason
        monkeypatch.undo()
        assert await bus.request("LateService") == "late"
        assert servlet.streams == 1


# -- the other servlets


async def test_requests_and_publications_come_by_polls() -> None:
    made = PollingServlet()
    async with client(made) as bus, bus.subscribe("news") as news:
        for number in range(5):
            assert await bus.request("EchoService", number) == number
            assert await bus.request("LateService") == "late"
        for number in range(100):
            made.publish("news", number)
        assert [(await anext(news)).body for _ in range(100)] == list(range(100))
        assert bus.stats().malformed == bus.stats().reconnects == 0


@pytest.mark.parametrize("servlet", [DefaultBlockingServlet, PollingServlet])
async def test_a_clean_leave_is_no_malformed_message(servlet: type[Servlet], caplog: pytest.LogCaptureFixture) -> None:
    made = servlet()
    with caplog.at_level(logging.WARNING):
        async with client(made, "?channel=poll") as bus:
            await eventually(lambda: any(query.get("wait") == "1" and "phase" not in query for _, query in made.requests))
            events = bus.events()
        assert bus.stats().malformed == 0
    assert not caplog.records
    assert [event async for event in events if type(event).__name__ == "FrameRefused"] == []


# -- the WebSocket (S6)


async def test_what_is_too_large_for_the_endpoint_is_posted_and_the_socket_stays_and_all_is_in_order() -> None:
    servlet = Jsr356Servlet()
    async with client(servlet, limits=Limits(close_timeout=BOUND)) as bus:  # its last word arrives on a busy machine, too
        await eventually(lambda: servlet.upgrades and any(queue.socket for queue in servlet.queues.values()))
        assert await bus.request("EchoService", 0) == 0
        sizes = [1, 2, 10_000, 3, 100_000, 200_000, 4, 7_000, 9_000, 5]
        for size in sizes:
            await bus.publish("sizes", "x" * size)
        assert await bus.request("EchoService", "y" * 500_000) == "y" * 500_000
        assert await bus.request("EchoService", "z") == "z"
        assert [len(value) for value in servlet.values("sizes")] == sizes
        assert bus.stats().malformed == bus.stats().reconnects == 0
    ways = {len(message["Value"]): way for way, message in servlet.log if message["ToSubject"] == "sizes"}
    assert ways[10_000] == ways[200_000] == "POST"
    assert ways[1] == "socket"
    assert 0 < servlet.largest <= 8192
    assert servlet.upgrades == 1
    assert (servlet.log[-1][0], servlet.log[-1][1]["CommandType"]) == ("socket", "Disconnect")


async def test_the_size_from_which_frames_are_posted_can_be_chosen() -> None:
    servlet = Jsr356Servlet()
    servlet.most = 0
    async with client(servlet, "?frame=0") as bus:
        await eventually(lambda: any(queue.socket for queue in servlet.queues.values()))
        assert await bus.request("EchoService", "y" * 100_000) == "y" * 100_000
    assert servlet.largest > 100_000
    with pytest.raises(ValueError, match="frame='some' must be a number of bytes"):
        connect("jrep+http://127.0.0.1:1?frame=some")


# -- what is said of a request that failed (M1), and of other failures


async def test_what_was_never_posted_is_asked_over_the_next_connection_and_nothing_else_is_said_to_be_sent() -> None:
    servlet = DefaultBlockingServlet()
    async with client(servlet, "?channel=poll") as bus:
        assert await bus.request("EchoService", 0) == 0
        servlet.held = ("POST",)
        posted = bus.request("EchoService", "posted")
        count = len(servlet.requests)
        await eventually(lambda: len(servlet.requests) > count)
        waiting = [bus.request("EchoService", number) for number in range(5)]
        events = bus.events()
        servlet.status = 500
        servlet.release()
        with pytest.raises(Disconnected) as caught:
            await posted
        assert caught.value.sent and "answered 500" in caught.value.reason
        await next_event(events, LinkDown)
        servlet.status = 200
        assert [await reply for reply in waiting] == list(range(5))


async def test_a_publication_that_fails_ends_the_link_with_the_server_s_words_and_one_that_is_answered_401_for_good() -> None:
    servlet = DefaultBlockingServlet()
    async with client(servlet) as bus:
        events = bus.events()
        servlet.status = 503
        await bus.publish("news", 1)
        assert (await next_event(events, LinkDown)).reason.endswith("the server answered 503")
        servlet.status = 200
        assert await bus.request("EchoService", 1) == 1
        servlet.status = 401
        await bus.publish("news", 1)
        await next_event(events, LinkDown)
        await eventually(lambda: not bus.peers)
        with pytest.raises(Unauthorized):
            await bus.request("EchoService", 1)


async def test_a_server_that_is_still_loading_is_waited_for_with_wait_and_else_the_error_says_so() -> None:
    servlet = DefaultBlockingServlet()
    servlet.held = ("POST",)
    limits = Limits(handshake_timeout=0.5)
    with anyio.fail_after(BOUND):
        async with serving(servlet) as url:
            early = connect(f"jrep+{url}", limits=limits)
            await refused(early, ConnectFailed, match=r"did not complete in 0.5 s .*still be starting.*wait=")

            async def load() -> None:
                await eventually(lambda: len(servlet.requests) > 2)
                servlet.release()

            async with anyio.create_task_group() as group:
                group.start_soon(load)
                async with connect(f"jrep+{url}", limits=limits, wait=BOUND, backoff=SOON) as bus:
                    assert await bus.request("EchoService", 1) == 1


# -- subscriptions (M5)


@pytest.mark.parametrize("channel", ["poll", "events", "websocket"])
async def test_a_subscription_is_entered_when_the_server_has_been_told(channel: str) -> None:
    servlet = Jsr356Servlet()
    async with client(servlet, f"?channel={channel}") as bus:
        for number in range(3):
            async with bus.subscribe(f"news.{number}") as news:
                if channel == "websocket":  # written, which on a socket is all that can be known
                    await eventually(lambda number=number: servlet.subscribed(f"news.{number}"))  # type: ignore[misc]
                assert servlet.subscribed(f"news.{number}")
                servlet.publish(f"news.{number}", number)
                assert (await anext(news)).body == number


async def test_who_subscribes_what_it_publishes_gets_it_from_its_own_bus_and_from_the_server() -> None:
    """As with Errai's own client (M6); the documentation says what to do about it."""
    servlet = DefaultBlockingServlet()
    async with client(servlet) as bus, bus.subscribe("news") as both, bus.subscribe("news", local=False) as remote:
        await bus.publish("news", "mine")
        assert await bus.request("EchoService", 1) == 1
        servlet.publish("news", "last")
        assert [(await anext(both)).body for _ in range(3)] == ["mine", "mine", "last"]
        assert [(await anext(remote)).body for _ in range(2)] == ["mine", "last"]


# -- legacy (S5)


@pytest.mark.parametrize("dialect", ["auto", "legacy"])
async def test_a_server_until_2_3_is_reached_and_polled_in_its_own_way(dialect: str) -> None:
    servlet = LegacyBlockingServlet()
    async with client(servlet, f"?dialect={dialect}") as bus, bus.subscribe("news") as news:
        servlet.publish("news", 1)
        assert (await anext(news)).body == 1
        for number in range(10):
            assert await bus.request("EchoService", number) == number
        # It is told where it may answer, and no longer than that.
        subjects = {"ClientBus", "ClientBusErrors", "news"}
        await eventually(lambda: [queue.subjects for queue in servlet.queues.values()] == [subjects])
        assert bus.stats().malformed == bus.stats().reconnects == 0
    assert not any(query.get("wait") == "1" and "phase" not in query for _, query in servlet.requests)
    assert "GET" in [method for method, _ in servlet.requests]
