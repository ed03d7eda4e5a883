"""Our bus as a client over HTTP: of a server that behaves as a real Errai does, well and badly, and of one of ours."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from polybus import Backoff, ConnectFailed, Disconnected, Forbidden, Limits, Unauthorized, connect
from polybus.bindings.jrep_http import client
from polybus.events import LinkUp
from tests.refusal import refused
from tests.support import BOUND, eventually, next_event

from .support import running

JSON = "application/json; charset=utf-8"
SERVICES = {"RemoteServices": "ServerBus,echo", "CapabilitiesFlags": "LongPolling", "ConnectionSessionKey": "k"}


class Errai:
    """Answers as the recorded server does: markers in values, replies on any POST or poll, empty bodies now and then."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.queries: list[dict[str, str]] = []
        self.waiting: list[dict[str, Any]] = []
        self.changed = anyio.Event()
        self.token = ""
        self.spoiled: Response | None = None
        self.media: str | None = JSON

    async def answer(self, request: Request) -> Response:
        if self.spoiled is not None:
            return self.spoiled
        if self.token and request.headers.get("Errai-CSRF-Token") != self.token:
            return Response("no token", 403, {"Errai-CSRF-Token": self.token})
        assert request.headers["content-type"] == JSON
        self.queries.append(dict(request.query_params))
        for message in await request.json():
            self.seen.append(message)
            self.take(message)
        if request.query_params.get("wait") == "1" and request.query_params.get("phase") != "connection":
            with anyio.move_on_after(0.2):
                while not self.waiting:
                    await self.changed.wait()
        answer, self.waiting = self.waiting, []
        self.changed = anyio.Event()
        response = Response(json.dumps(answer) if answer else "", media_type=self.media)
        response.set_cookie("JSESSIONID", "s")
        return response

    def take(self, message: dict[str, Any]) -> None:
        if message.get("CommandType") == "Associate":
            self.say({"ToSubject": "ClientBus", "CommandType": "FinishAssociation", **SERVICES})
        elif message["ToSubject"] == "echo":
            self.say({"ToSubject": message["ReplyTo"], "Value": message["Value"]})
        elif "ErrorTo" in message:
            failed = {"ErrorMessage": "Error calling remote service", "AdditionalDetails": "<pre>"}
            self.say({"ToSubject": message["ErrorTo"], **failed})

    def say(self, message: dict[str, Any]) -> None:
        self.waiting.append(message)
        self.changed.set()


@asynccontextmanager
async def errai() -> AsyncIterator[tuple[Errai, str]]:
    server = Errai()
    app = Starlette(routes=[Route("/app/{name}.erraiBus", server.answer, methods=["POST"])])
    with anyio.fail_after(BOUND):
        async with running(app) as uvicorn:
            yield server, f"jrep+http://127.0.0.1:{uvicorn.port}/app"


async def test_a_bus_talks_to_a_server_that_speaks_as_errai() -> None:
    async with errai() as (server, url), connect(url) as bus:
        value = {"a": [1, 2**40, None], "b": {1.5}}
        assert await bus.request("echo", value) == value
        async with bus.subscribe("news") as news:
            server.say({"ToSubject": "news", "Value": "from the poll"})
            assert (await anext(news)).body == "from the poll"
    assert server.queries[0]["phase"] == "connection"
    assert len({query["clientId"] for query in server.queries}) == 1
    counts = [int(query["z"]) for query in server.queries]
    assert len(set(counts)) == len(counts)
    assert any(message.get("CommandType") == "RemoteSubscribe" and message["Subject"] == "news" for message in server.seen)
    assert server.seen[-1]["CommandType"] == "Disconnect"
    assert server.queries[-1]["phase"] == "disconnect"


async def test_a_csrf_token_is_sent_back_and_kept() -> None:
    async with errai() as (server, url):
        server.token = "t-1"
        async with connect(url) as bus:
            assert await bus.request("echo", 1) == 1


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
    async with errai() as (server, url):
        server.spoiled = answer
        await refused(connect(url), error, match=text)


def test_a_channel_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="channel='pigeon' must be one of auto, websocket, events, poll"):
        connect("jrep+http://127.0.0.1:1?channel=pigeon")


# -- our client on a stream of events, and on short polls -----------------------------------------------------------------


SOON = Backoff(initial=0.001, maximum=0.01)


class Streaming(Errai):
    """Says everything on a stream of events, as told by `script`."""

    flags = "LongPolling,SSE"

    def __init__(self) -> None:
        super().__init__()
        self.script = "good"
        self.streams = self.polls = 0
        self.cut = anyio.Event()

    def take(self, message: dict[str, Any]) -> None:
        if message.get("CommandType") == "Associate":
            services = {"RemoteServices": "ServerBus,echo", "CapabilitiesFlags": self.flags, "ConnectionSessionKey": "k"}
            self.say({"ToSubject": "ClientBus", "CommandType": "FinishAssociation", "PollFrequency": "100", **services})
        elif message["ToSubject"] != "silence":
            super().take(message)

    async def answer(self, request: Request) -> Response:
        query = request.query_params
        if request.method == "POST":
            self.polls += request.url.path.rpartition("/")[2].startswith("in.")
            if query.get("phase") == "connection" or self.script == "short":
                return await super().answer(request)
            if self.streams == 0 and self.script != "at once":
                return await super().answer(request)
            for message in await request.json():
                self.seen.append(message)
                self.take(message)
            if self.script == "at once":
                answer, self.waiting = self.waiting, []
                return Response(json.dumps(answer), media_type="application/json")
            return Response("[]", media_type="application/json")
        assert query["sse"] == "1"
        if self.script == "at once":
            return Response("no events", 404)
        self.streams += 1
        return StreamingResponse(self.events(), media_type="text/event-stream")

    async def events(self) -> AsyncIterator[bytes]:
        cut = self.cut
        yield b"retry: 5\n\n"
        while not cut.is_set():
            if self.waiting:
                waiting, self.waiting = self.waiting, []
                yield b"data: %b\n\n" % json.dumps(waiting).encode()
            await anyio.sleep(0.001)
        if self.script == "broken":
            raise ConnectionResetError("the server dies")


@asynccontextmanager
async def streaming(script: str = "good") -> AsyncIterator[tuple[Streaming, str]]:
    server = Streaming()
    server.script = script
    if script == "short":
        server.flags = "ShortPolling"
    app = Starlette(routes=[Route("/{name}.erraiBus", server.answer, methods=["GET", "POST"])])
    with anyio.fail_after(BOUND):
        async with running(app) as uvicorn:
            try:
                yield server, f"jrep+http://127.0.0.1:{uvicorn.port}"
            finally:
                server.cut.set()


async def test_a_stream_that_ends_in_order_is_opened_again_and_nothing_is_lost() -> None:
    async with streaming() as (server, url), connect(url) as bus:
        for number in range(3):
            await eventually(lambda number=number: server.streams == number + 1)  # type: ignore[misc]
            assert await bus.request("echo", number) == number
            server.cut.set()
            server.cut = anyio.Event()
        assert bus.stats().reconnects == 0


async def test_a_stream_that_breaks_off_is_a_lost_link() -> None:
    async with streaming("broken") as (server, url), connect(url, backoff=SOON) as bus:
        await eventually(lambda: server.streams)
        server.script = "broken"
        events = bus.events()
        reply = bus.request("silence")
        await eventually(lambda: any(message["ToSubject"] == "silence" for message in server.seen))
        server.cut.set()
        with pytest.raises(Disconnected) as caught:
            await reply
        assert caught.value.sent
        server.cut = anyio.Event()
        await next_event(events, LinkUp)
        assert await bus.request("echo", "again") == "again"


async def test_a_server_that_lets_nobody_wait_is_asked_every_now_and_then() -> None:
    async with streaming("short") as (server, url), connect(url) as bus:
        async with bus.subscribe("news") as news:
            server.say({"ToSubject": "news", "Value": "at the next poll"})
            assert (await anext(news)).body == "at the next poll"
        assert not any(query.get("wait") == "1" for query in server.queries if "phase" not in query)


async def test_a_server_that_answers_polls_at_once_is_not_asked_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_LULL", 2 * BOUND)
    async with streaming("at once") as (server, url), connect(url) as bus:
        for number in range(50):
            assert await bus.request("echo", number) == number
        assert server.polls <= 2, "one that does not wait, and one that should have"


# -- our bus as a client of a server that puts all that waits into one payload, as Errai's servlets do (notes 2, S1) ------


COUNT = 16_275
"""Messages in the longest payload that was met: 1.6 MB."""


async def test_a_poll_that_brings_more_than_sixteen_thousand_messages_is_read_and_the_link_stays() -> None:
    async with errai() as (server, url), connect(url) as bus, bus.subscribe("news", queue=100) as news:
        burst = [{"ToSubject": "news", "Value": f"{n:06} {'x' * 60}"} for n in range(COUNT)]
        server.waiting.extend(burst)
        server.changed.set()
        assert len(json.dumps(burst)) > Limits().message
        assert [(await anext(news)).body for _ in range(COUNT)] == [one["Value"] for one in burst]
        assert bus.stats().reconnects == 0
