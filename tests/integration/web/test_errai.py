"""An application that Errai's own clients can use: long polls, streams of events, sessions, and who stays outside."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
from fastapi import FastAPI

from polybus import Bus, Context, Limits
from polybus.bindings.http.server import Application
from polybus.bindings.jrep_http import server as _errai_server
from polybus.bindings.jrep_http.server import ErraiEndpoint
from polybus.events import LinkDown
from polybus.fastapi import attach
from polybus.protocols.jrep import RemoteInterface
from tests.support import BOUND, eventually, next_event
from tests.unit.protocols.jrep.test_vectors import VECTORS

from .support import echoing, running

JSON = {"content-type": "application/json; charset=utf-8"}
CALCULATOR = RemoteInterface("com.acme.Calculator")


class Client:
    """Asks as Errai's `HttpPollingHandler` does."""

    def __init__(self, http: httpx.AsyncClient, id: str = "123-456") -> None:
        self.http = http
        self.id = id
        self.heard: list[dict[str, Any]] = []

    async def post(self, *messages: dict[str, Any], text: str | None = None, **query: str) -> httpx.Response:
        asked = {"clientId": self.id, **query}
        content = json.dumps(messages) if text is None else text
        answer = await self.http.post(f"/out.{self.id}.erraiBus", params=asked, content=content, headers=JSON)
        if answer.status_code == 200:
            assert answer.headers["content-type"] == "application/json; charset=utf-8"
            self.heard.extend(answer.json())
        return answer

    async def associate(self, services: str = "ClientBus,ClientBusErrors") -> dict[str, Any]:
        words = {"ToSubject": "ServerBus", "CommandType": "Associate", "PriorityProcessing": "1", "RemoteServices": services}
        await self.post(words, phase="connection", wait="1")
        return self.heard.pop(0)

    async def poll_nothing(self) -> None:
        """Show that this client polls, and do not wait."""
        await self.http.post(f"/in.{self.id}.erraiBus", params={"clientId": self.id}, content="[]", headers=JSON)

    async def poll(self) -> list[dict[str, Any]]:
        await self.post(wait="1")
        heard, self.heard = self.heard, []
        return heard

    async def next(self) -> dict[str, Any]:
        while not self.heard:
            await self.post(wait="1")
        return self.heard.pop(0)


def make_bus(**options: Any) -> Bus:
    # Who does not poll is waited for when the bus leaves.
    bus = echoing(**{"limits": Limits(close_timeout=0.05), **options})

    @CALCULATOR.handle(bus)
    async def add(left: int, right: int) -> int:
        return left + right

    return bus


@asynccontextmanager
async def serving(bus: Bus, **options: Any) -> AsyncIterator[Client]:
    app = FastAPI()
    attach(app, bus, "/", protocol="jrep", **options)
    with anyio.fail_after(BOUND):
        async with running(app) as server:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=BOUND) as http:
                yield Client(http)


@asynccontextmanager
async def another(client: Client, id: str) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(base_url=client.http.base_url, timeout=BOUND) as http:
        yield Client(http, id)


async def test_a_poll_ends_empty_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_errai_server, "_POLL", 0.02)
    async with serving(make_bus()) as client:
        await client.associate()
        assert await client.poll() == []


async def test_a_later_poll_takes_the_place_of_an_earlier_one_and_one_that_left_takes_nothing() -> None:
    bus, answered = make_bus(), anyio.Event()
    async with serving(bus) as client, anyio.create_task_group() as group:
        await client.associate("ClientBus,news")
        (connection,) = _connections(bus)

        async def first() -> None:
            assert (await client.post(wait="1")).json() == []
            answered.set()

        async def second(scope: anyio.CancelScope) -> None:
            with scope:
                await client.post(wait="1")

        group.start_soon(first)
        await eventually(lambda: connection._fetching)
        scope = anyio.CancelScope()
        group.start_soon(second, scope)
        await answered.wait()
        await eventually(lambda: connection._fetching)
        scope.cancel()
        await eventually(lambda: not connection._fetching)
        await bus.publish("news", "kept")
        assert (await client.next())["Value"] == "kept"


def _connections(bus: Bus) -> list[Any]:
    return [link.transport for link in bus._services.running.links]


async def test_messages_come_as_events_too() -> None:
    bus = make_bus()
    async with serving(bus) as client:
        await client.associate("ClientBus,news")
        query = {"sse": "1", "clientId": client.id, "z": "9"}
        async with client.http.stream("GET", f"/in.{client.id}.erraiBus", params=query) as events:
            assert events.headers["content-type"].startswith("text/event-stream")
            assert events.headers["x-accel-buffering"] == "no"  # nothing waits at a proxy for what comes next
            assert "no-transform" in events.headers["cache-control"]
            lines = events.aiter_lines()
            assert await anext(lines) == "retry: 500"
            for number in range(3):
                await bus.publish("news", f"{number}")
            seen: list[str] = []
            async for line in lines:
                if line.startswith("data: "):
                    seen.extend(message["Value"] for message in json.loads(line[6:]))
                if len(seen) == 3:
                    break
            assert seen == ["0", "1", "2"]
            await client.post({"ToSubject": "ServerEchoService", "ReplyTo": "SSEAgent"})
            assert client.heard == [], "nothing comes on another way, where it could overtake"
            async for line in lines:
                if "SSEAgent" in line:
                    break


async def test_a_stream_whose_place_another_request_takes_ends_and_does_not_take_it_back() -> None:
    bus = make_bus()
    async with serving(bus) as client:
        await client.associate("ClientBus,news")
        query = {"sse": "1", "clientId": client.id}
        async with (
            client.http.stream("GET", f"/in.{client.id}.erraiBus", params=query) as first,
            client.http.stream("GET", f"/in.{client.id}.erraiBus", params=query) as second,
        ):
            assert [line async for line in first.aiter_lines() if line] == ["retry: 500", "data: []"]
            await bus.publish("news", "1")
            lines = second.aiter_lines()
            assert [await anext(lines) for _ in range(3)] == ["retry: 500", "", 'data: [{"ToSubject":"news","Value":"1"}]']
            assert await anext(lines) == ""
            async with anyio.create_task_group() as group:
                group.start_soon(client.poll)
                assert [line async for line in lines if line] == ["data: []"]
                await bus.publish("news", "2")


async def test_a_session_is_nobody_else_s() -> None:
    bus = make_bus()
    async with serving(bus) as client, another(client, client.id) as thief, another(client, "other") as other:
        await client.associate("ClientBus,news")
        await other.associate("ClientBus,news")
        assert len(bus.peers) == 2
        assert client.http.cookies != other.http.cookies
        for forged in (thief, other):
            forged.id = client.id
            await forged.post()
            assert forged.heard == [{"ToSubject": "ClientBus", "CommandType": "SessionExpired"}]
            forged.heard.clear()
        await bus.publish("news", "for those who are in")
        assert (await client.next())["Value"] == "for those who are in"


async def test_a_client_that_leaves_or_falls_silent_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = make_bus()
    async with serving(bus) as client, another(client, "silent") as silent, another(client, "7-7") as other:
        for one in (client, silent, other):
            await one.associate()
        events = bus.events()
        await client.post({"ToSubject": "ServerBus", "CommandType": "Disconnect", "Reason": "bye"}, phase="disconnect")
        await next_event(events, LinkDown)
        await other.post(phase="disconnect")  # it says so only in the query
        await next_event(events, LinkDown)
        assert len(bus.peers) == 1
        monkeypatch.setattr(_errai_server, "_SILENCE", 0.0)
        await next_event(events, LinkDown)
        assert bus.peers == []
        await client.post()
        assert client.heard.pop()["CommandType"] == "SessionExpired"


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"params": {}}, 400, "clientId"),
        ({"params": {"clientId": "x" * 200}}, 400, "clientId"),
        ({"headers": {"content-type": "text/plain"}}, 415, "application/json"),
        ({"headers": {**JSON, "origin": "https://elsewhere.example"}}, 403, "origins"),
        ({"headers": {**JSON, "host": "elsewhere.example"}}, 421, "hosts"),
        ({"content": b"[" + b" " * 1_100_000 + b"]"}, 413, "1048576"),
    ],
)
async def test_a_request_that_may_not_be_is_refused(change: dict[str, Any], status: int, text: str) -> None:
    async with serving(make_bus()) as client:
        asked = {"params": {"clientId": "1"}, "headers": JSON, "content": b"[]", **change}
        answer = await client.http.post("/in.1.erraiBus", **asked)
        assert (answer.status_code, text in answer.text) == (status, True)


async def test_who_is_not_let_in_is_told_so() -> None:
    seen: list[Any] = []

    def authenticate(handshake: Any) -> Any:
        seen.append(handshake)
        return "ann" if handshake.headers.get("authorization") == "Bearer good" else None

    async with serving(make_bus(authenticate=authenticate)) as client:
        words = {"ToSubject": "ServerBus", "CommandType": "Associate", "RemoteServices": "ClientBus"}
        assert (await client.post(words, phase="connection")).status_code == 401
        client.http.headers["authorization"] = "Bearer good"
        assert (await client.associate())["CommandType"] == "FinishAssociation"
    assert (seen[-1].transport, seen[-1].protocol, seen[-1].query["clientId"]) == ("http", "jrep", client.id)


async def test_a_client_of_errai_2_has_its_id_in_a_header_and_polls_with_get() -> None:
    """The document's dialect over HTTP (notes, sections 2.1 and 2.2)."""
    bus = make_bus()
    async with serving(bus) as client:
        own = {**JSON, "RemoteQueueID": "7-8"}

        async def post(*messages: dict[str, Any]) -> list[dict[str, Any]]:
            answer = await client.http.post("/out.erraiBus", content=json.dumps(messages), headers=own)
            return list(answer.json())

        greeting = await post({"ToSubject": "ServerBus", "CommandType": "ConnectToQueue"})
        assert [message["CommandType"] for message in greeting] == ["RemoteSubscribe", "CapabilitiesNotice", "FinishStateSync"]
        assert greeting[1]["CapabilitiesFlags"] == "LongPollAvailable"
        subjects = {"^EncodedType": "java.util.ArrayList", "^ObjectID": "1", "^Value": ["ClientBus", "news"]}
        words = {"ToSubject": "ServerBus", "CommandType": "RemoteSubscribe", "SubjectsList": subjects}
        heard = await post(words, {"ToSubject": "ServerBus", "CommandType": "FinishStateSync"})
        heard += await post({"ToSubject": "echo", "Value": "v", "ReplyTo": "e:1:RespondTo:RPC"})
        await bus.publish("news", "by poll")
        expected = [{"ToSubject": "e:1:RespondTo:RPC", "Value": "v"}, {"ToSubject": "news", "Value": "by poll"}]
        while not all(message in heard for message in expected):
            polled = await client.http.get("/in.erraiBus", headers={"RemoteQueueID": "7-8"})
            heard += polled.json()


async def test_nothing_is_left_of_sessions_that_are_over() -> None:
    bus, endpoint = make_bus(), ErraiEndpoint("/")
    with anyio.fail_after(BOUND):
        async with bus.serve(endpoint, protocol="jrep"), running(Application("/", endpoint.routes())) as server:
            url = f"http://127.0.0.1:{server.port}"
            for number in range(10):
                async with httpx.AsyncClient(base_url=url, timeout=BOUND) as http:
                    windows = [Client(http, f"{number}-{window}") for window in range(3)]
                    for window in windows:
                        await window.associate()
                    for window in windows:
                        await window.post({"ToSubject": "ServerBus", "CommandType": "Disconnect"}, phase="disconnect")
            await eventually(lambda: not bus.peers)
    assert endpoint._sessions == {}


# -- payloads of many messages (notes of the second round, S1)


def asks(count: int) -> list[dict[str, Any]]:
    """As `HttpPollingHandler` posts what it has held back for 175 ms: all in one."""
    return [
        {"ToSubject": "echo", "Value": f"{n}", "ReplyTo": f"echo:{n}:RespondTo:RPC", "ErrorTo": f"echo:{n}:Errors:RPC"}
        for n in range(count)
    ]


async def test_more_requests_than_may_wait_cost_the_excess_and_not_the_session() -> None:
    bus = make_bus(limits=Limits(running=8, waiting=100, close_timeout=0.05))
    gate = anyio.Event()

    @bus.handle("slow")
    async def slow(body: Any) -> Any:
        await gate.wait()
        return body

    async with serving(bus) as client:
        await client.associate()
        await client.poll_nothing()
        await client.post(*({**one, "ToSubject": "slow"} for one in asks(2_000)))
        answers = list[dict[str, Any]]()
        while len(answers) < 2_000:
            if len(answers) == 2_000 - 108:
                gate.set()
            answers.append(await client.next())
        assert sum("Value" in answer for answer in answers) == 108
        assert all("Limits.running" in answer["ErrorMessage"] for answer in answers if "Value" not in answer)
        await client.post(*asks(1))
        assert (await client.next())["Value"] == "0"


async def test_others_are_answered_while_a_long_payload_is_read() -> None:
    bus, order = make_bus(), list[str]()

    @bus.on("news")
    async def on_news(ctx: Context) -> None:
        order.append("news")

    @bus.handle("quick")
    async def quick() -> None:
        order.append("quick")

    async with serving(bus) as client, another(client, "7-7") as other:
        await client.associate()
        await other.associate()
        await other.poll_nothing()
        async with anyio.create_task_group() as group:
            group.start_soon(partial(client.post, *({"ToSubject": "news", "Value": n} for n in range(10_000))))
            await eventually(lambda: bool(order))
            await other.post({"ToSubject": "quick", "ReplyTo": "q:1:RespondTo:RPC"})
        await eventually(lambda: order.count("news") == 10_000)
        assert order.index("quick") < 10_000


async def test_a_post_over_the_limit_is_answered_so_that_an_errai_client_goes_on() -> None:
    """After a 413 it stays interrupted (M7)."""
    async with serving(make_bus(limits=Limits(message=1000, payload=2000, close_timeout=0.05))) as client:
        await client.associate()
        await client.poll_nothing()
        answer = await client.post({"ToSubject": "echo", "Value": "x" * 200_000})
        assert answer.status_code == 200
        (told,) = answer.json()
        assert told["ToSubject"] == "ClientBusErrors"
        assert told["Throwable"]["message"] == told["ErrorMessage"]
        assert "2000 bytes (Limits.payload)" in told["ErrorMessage"]
        client.heard.clear()
        await client.post(*asks(1))
        assert (await client.next())["Value"] == "0"


async def test_a_stranger_cannot_post_more_than_one_message() -> None:
    async with serving(make_bus(limits=Limits(message=1000, close_timeout=0.05))) as client:
        assert (await client.post(*asks(100))).status_code == 413


# -- what was recorded from a real Errai, over HTTP, byte for byte: its client's payloads to our server


async def test_its_client_associates_and_is_told_what_it_looks_for() -> None:
    bus = make_bus()
    bus.handle("EchoValue")(lambda body: body)
    async with serving(bus) as client:
        await client.post(text=VECTORS["J42"], phase="connection", wait="1")
        finish = client.heard.pop(0)
        (known,) = json.loads(VECTORS["J43"])
        assert known.keys() <= finish.keys()
        assert {type(finish[part]) for part in known} == {str}
        assert (finish["ToSubject"], finish["CommandType"]) == ("ClientBus", "FinishAssociation")
        for part in ("RemoteServices", "CapabilitiesFlags"):
            assert {*known[part].split(",")} <= {*finish[part].split(",")}
        await client.post(text=VECTORS["J45"])
        assert client.heard == []


async def test_its_client_calls_and_the_answer_is_the_one_that_was_recorded() -> None:
    bus, service = make_bus(), RemoteInterface("wiretest.Svc")

    @service.handle(bus)
    async def add(left: int, right: int) -> int:
        return left + right

    async with serving(bus) as client:
        await client.post(text=VECTORS["J42"], phase="connection", wait="1")
        client.heard.clear()
        await client.post(text=VECTORS["J51"])
        assert [await client.next()] == json.loads(VECTORS["J52"])
