"""Our bus as a client over HTTP of servers that behave as a real Errai does, well and badly."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from starlette.responses import Response

from polybus import Backoff, Bus, ConnectFailed, Disconnected, Forbidden, Limits, Unauthorized, connect
from polybus.bindings.jrep_http import client
from polybus.events import LinkUp
from tests.refusal import refused
from tests.support import BOUND, eventually, next_event
from tests.unit.transports.errai_servlets import DefaultBlockingServlet, Servlet, serving

JSON = "application/json; charset=utf-8"


@asynccontextmanager
async def joined(servlet: Servlet) -> AsyncIterator[Bus]:
    with anyio.fail_after(BOUND):
        async with serving(servlet) as url, connect(f"jrep+{url}", backoff=Backoff(initial=0.001, maximum=0.01)) as bus:
            yield bus


def polls(servlet: Servlet) -> int:
    return sum(query.get("wait") == "1" and "phase" not in query for _, query in servlet.requests)


async def test_a_bus_talks_to_a_server_as_errai_s_own_client_does() -> None:
    servlet = Servlet()
    async with joined(servlet) as bus:
        value = {"a": [1, 2**40, None], "b": {1.5}}
        assert await bus.request("EchoService", value) == value
        async with bus.subscribe("news") as news:
            servlet.publish("news", "from the poll")
            assert (await anext(news)).body == "from the poll"
    queries = [query for _, query in servlet.requests]
    assert (queries[0]["phase"], queries[-1]["phase"]) == ("connection", "disconnect")
    assert len({query["clientId"] for query in queries}) == 1
    assert len({query["z"] for query in queries}) == len(queries)
    commands = [message["CommandType"] for _, message in servlet.log if "CommandType" in message]
    assert (commands[0], commands[-1]) == ("Associate", "Disconnect")


class Guarded(Servlet):
    """Wants a token against forged requests, and says which."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if dict(scope["headers"]).get(b"errai-csrf-token") == b"t-1":
            await super().__call__(scope, receive, send)
        else:
            await self.respond(send, b"no token", status=403, headers=[(b"errai-csrf-token", b"t-1")])


async def test_a_csrf_token_is_sent_back_and_kept() -> None:
    async with joined(Guarded()) as bus:
        assert await bus.request("EchoService", 1) == 1


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (Response("who are you", 401), Unauthorized, "who are you"),
        (Response("not you", 403), Forbidden, "not you"),
        (Response("<html>", 500, media_type="text/html"), ConnectFailed, "answered 500"),
        (Response("<html>", 200, media_type="text/html"), ConnectFailed, "text/html"),
        (Response("x" * 9_000_000, 200, media_type=JSON), ConnectFailed, "more than"),
    ],
    ids=["401", "403", "500", "html", "endless"],
)
async def test_an_answer_that_is_none_fails_the_connect_with_its_reason(answer: Response, error: Any, text: str) -> None:
    async with serving(Servlet(), answer) as url:
        await refused(connect(f"jrep+{url}"), error, match=text)


def test_a_channel_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="channel='pigeon' must be one of auto, websocket, events, poll"):
        connect("jrep+http://127.0.0.1:1?channel=pigeon")


# -- streams of events that end, and short polls ---------------------------------------------------------------------------


class Cutting(DefaultBlockingServlet):
    """Ends its streams when told to, in order or not."""

    breaks = False

    async def fetch(self, key: tuple[str, str], query: dict[str, str], send: Any) -> None:
        async def last(event: Any) -> None:
            if query.get("sse") == "1" and event["type"] == "http.response.body" and not event.get("more_body"):
                self.queues[key].stopped = False
                if self.breaks:
                    raise ConnectionResetError("the server dies")
            await send(event)

        await super().fetch(key, query, last)

    def cut(self) -> None:
        assert self.loop is not None
        for queue in self.queues.values():
            queue.stopped = True
            self.loop.call_soon_threadsafe(queue.changed.set)


async def test_a_stream_that_ends_in_order_is_opened_again_and_nothing_is_lost() -> None:
    servlet = Cutting()
    async with joined(servlet) as bus:
        for number in range(3):
            await eventually(lambda: servlet.streams == number + 1)  # noqa: B023  # it is waited for at once
            assert await bus.request("EchoService", number) == number
            servlet.cut()
        assert bus.stats().reconnects == 0


async def test_a_stream_that_breaks_off_is_a_lost_link() -> None:
    servlet = Cutting(post_wins=False)
    servlet.breaks = True
    async with joined(servlet) as bus:
        assert await bus.request("LateService") == "late"
        await eventually(lambda: servlet.begun)
        events = bus.events()
        reply = bus.request("silence")
        await eventually(lambda: servlet.values("silence"))
        servlet.cut()
        with pytest.raises(Disconnected) as caught:
            await reply
        assert caught.value.sent
        await next_event(events, LinkUp)
        assert await bus.request("EchoService", "again") == "again"


class ShortPolling(Servlet):
    flags = "ShortPolling"

    def offers(self) -> dict[str, str]:
        return {"PollFrequency": "100"}


async def test_a_server_that_lets_nobody_wait_is_asked_every_now_and_then() -> None:
    servlet = ShortPolling()
    async with joined(servlet) as bus, bus.subscribe("news") as news:
        servlet.publish("news", "at the next poll")
        assert (await anext(news)).body == "at the next poll"
        assert polls(servlet) == 0


class AtOnce(Servlet):
    """Says that it lets clients wait, and does not."""

    async def fetch(self, key: tuple[str, str], query: dict[str, str], send: Any) -> None:
        await super().fetch(key, {**query, "wait": ""}, send)


async def test_a_server_that_answers_polls_at_once_is_not_asked_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_LULL", 2 * BOUND)
    servlet = AtOnce()
    async with joined(servlet) as bus:
        for number in range(50):
            assert await bus.request("EchoService", number) == number
        assert polls(servlet) <= 2, "one that does not wait, and one that should have"


COUNT = 16_275
"""Messages in the longest payload that was met: 1.6 MB. Errai's servlets put all that waits into one (notes 2, S1)."""


async def test_a_poll_that_brings_more_than_sixteen_thousand_messages_is_read_and_the_link_stays() -> None:
    servlet = Servlet()
    async with joined(servlet) as bus, bus.subscribe("news", queue=100) as news:
        burst = [{"ToSubject": "news", "Value": f"{n:06} {'x' * 60}"} for n in range(COUNT)]
        assert len(json.dumps(burst)) > Limits().message
        assert servlet.loop is not None
        servlet.loop.call_soon_threadsafe(lambda: [*map(servlet.deliver, burst)])
        assert [(await anext(news)).body for _ in range(COUNT)] == [one["Value"] for one in burst]
        assert bus.stats().reconnects == 0
