"""Our bus as a client over HTTP: of a server that behaves as a real Errai does, well and badly, and of one of ours."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from polybus import Backoff, Bus, ConnectFailed, Disconnected, Forbidden, Unauthorized, Unsupported, connect
from polybus.events import LinkDown, LinkUp
from tests.support import BOUND

from .support import running

pytestmark = pytest.mark.anyio
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
            self.say(
                {"ToSubject": message["ErrorTo"], "ErrorMessage": "Error calling remote service", "AdditionalDetails": "<pre>"}
            )

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


async def test_one_server_of_errai_is_asked_alone_and_told_the_end() -> None:
    async with errai() as (one, url), errai() as (other, elsewhere), Bus() as bus:
        async with bus.connect(url) as peer, bus.connect(elsewhere):
            async with peer.subscribe("news") as news:
                other.say({"ToSubject": "news", "Value": "of the other"})
                one.say({"ToSubject": "news", "Value": "from the poll"})
                message = await anext(news)
                assert (message.body, message.peer) == ("from the poll", peer)
    told = [message["CommandType"] for message in one.seen if message.get("Subject") == "news"]
    assert told == ["RemoteSubscribe", "RemoteUnsubscribe"]
    assert all(message.get("Subject") != "news" for message in other.seen)


async def test_an_answer_without_a_type_is_read_where_it_is_an_array() -> None:
    """As Errai's asynchronous servlets give it."""
    async with errai() as (server, url):
        server.media = None
        async with connect(url) as bus:
            assert await bus.request("echo", 1) == 1


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
        with pytest.raises(error, match=text):
            async with connect(url):
                pass


async def test_a_failure_later_is_told_to_who_waits_and_nothing_is_sent_twice() -> None:
    async with errai() as (server, url), connect(url, backoff=Backoff(initial=0.001)) as bus:
        events = bus.events()
        server.spoiled = Response("<html>oops</html>", 500, media_type="text/html")
        with pytest.raises(Disconnected) as caught:
            await bus.request("echo", "once")
        assert caught.value.sent
        async for event in events:
            if isinstance(event, LinkDown):
                break
        server.spoiled = None
        assert await bus.request("echo", "again") == "again"
        assert not any(message.get("Value") == "once" for message in server.seen)


async def test_a_session_that_expired_is_begun_again_with_its_subscriptions() -> None:
    async with errai() as (server, url), connect(url, backoff=Backoff(initial=0.001)) as bus, bus.subscribe("news") as news:
        events = bus.events()
        server.say({"ToSubject": "ClientBus", "CommandType": "SessionExpired"})
        async for event in events:
            if isinstance(event, LinkUp):
                break
        server.say({"ToSubject": "news", "Value": "after"})
        assert (await anext(news)).body == "after"
        subjects = [message.get("Subject") for message in server.seen if message.get("CommandType") == "RemoteSubscribe"]
        assert subjects.count("news") == 2


async def test_nobody_there_is_told_at_once() -> None:
    with anyio.fail_after(BOUND), pytest.raises(ConnectFailed, match="127.0.0.1:1"):
        async with connect("jrep+http://127.0.0.1:1"):
            pass


async def test_what_http_cannot_do_here_says_what_to_do_instead() -> None:
    with pytest.raises(Unsupported, match="ubre has no form over HTTP"):
        async with Bus().serve("ubre+http://127.0.0.1:0"):
            pass
    with pytest.raises(ValueError, match="channel='pigeon' is not known; it is one of auto, websocket, events, poll"):
        connect("jrep+http://127.0.0.1:1?channel=pigeon")
    with pytest.raises(Unsupported, match="ubre has no form over HTTP"):
        async with connect("ubre+http://127.0.0.1:1"):
            pass
