"""Our client on a stream of events, and on short polls: of servers that behave, and of ways that do not let events through."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from polybus import Backoff, Bus, Disconnected, connect
from polybus.bindings.jrep_http import client
from polybus.events import LinkDown, LinkUp
from tests.support import BOUND, eventually

from .support import running
from .test_errai_client import Errai

pytestmark = pytest.mark.anyio
SOON = Backoff(initial=0.001, maximum=0.01)


class Streaming(Errai):
    """Says everything on a stream of events, as told by `script`."""

    flags = "LongPolling,SSE"

    def __init__(self) -> None:
        super().__init__()
        self.script = "good"
        self.streams = 0
        self.polls = 0
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
            if query.get("phase") == "connection" or self.script in ("short", "held up", "none"):
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
        if self.script in ("none", "at once"):
            return Response("no events", 404)
        self.streams += 1
        return StreamingResponse(self.events(), media_type="text/event-stream")

    async def events(self) -> AsyncIterator[bytes]:
        if self.script == "held up":
            await anyio.sleep(BOUND)
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


async def goes_down(bus: Bus) -> LinkDown:
    async for event in bus.events():
        if isinstance(event, LinkDown):
            return event
    raise AssertionError("the bus ended")


async def test_answers_come_as_events() -> None:
    async with streaming() as (server, url), connect(url) as bus:
        await eventually(lambda: server.streams)
        assert await bus.request("echo", [1, {"a": 2.5}]) == [1, {"a": 2.5}]
        assert (server.streams, server.polls) == (1, 1), "one that does not wait, before the stream"


def opened(server: Streaming, count: int) -> bool:
    return server.streams == count


async def test_a_stream_that_ends_in_order_is_opened_again_and_nothing_is_lost() -> None:
    async with streaming() as (server, url), connect(url) as bus:
        for number in range(3):
            await eventually(partial(opened, server, number + 1))
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
        async for event in events:
            if isinstance(event, LinkUp):
                break
        assert await bus.request("echo", "again") == "again"


async def test_events_that_are_held_up_on_the_way_are_replaced_by_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE", 0.05)
    async with streaming("held up") as (server, url), connect(url, backoff=SOON) as bus:
        assert "held up on the way" in (await goes_down(bus)).reason
        assert await bus.request("echo", "by poll") == "by poll"
        assert server.streams == 1, "it is not tried again"


async def test_where_there_are_no_events_our_client_polls() -> None:
    async with streaming("none") as (server, url), connect(url) as bus:
        await eventually(lambda: server.polls)
        assert await bus.request("echo", 1) == 1
        assert bus.stats().reconnects == 0


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


async def test_a_stream_that_ends_at_once_is_not_opened_again_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_LULL", 2 * BOUND)
    async with streaming() as (server, url), connect(url) as bus:
        await eventually(lambda: server.streams)
        assert await bus.request("echo", 1) == 1
        server.script = "at once"  # from now on there are no streams, only answers
        server.cut.set()
        for number in range(50):
            assert await bus.request("echo", number) == number
        assert (server.streams, server.polls) == (1, 1)
