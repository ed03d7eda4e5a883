"""What was recorded from a real Errai, over HTTP, byte for byte: its client's payloads to our server, and the other way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from polybus import Bus, RequestError, connect
from polybus.protocols.jrep import RemoteInterface
from tests.support import BOUND, eventually
from tests.unit.protocols.jrep.test_vectors import VECTORS

from .support import running
from .test_errai import JSON, Client, another, make_bus

pytestmark = pytest.mark.anyio


def recorded(id: str) -> bytes:
    return VECTORS[id].encode()


# -- its client at our server --------------------------------------------------------------------------------------------


@asynccontextmanager
async def served(bus: Bus) -> AsyncIterator[Client]:
    with anyio.fail_after(BOUND):
        async with bus.serve("jrep+http://127.0.0.1:0") as listener:
            async with httpx.AsyncClient(base_url=listener.url.removeprefix("jrep+"), timeout=BOUND) as http:
                yield Client(http)


async def post(client: Client, id: str, **query: str) -> None:
    params = {"clientId": client.id, **query}
    answer = await client.http.post(f"/out.{client.id}.erraiBus", params=params, content=recorded(id), headers=JSON)
    assert answer.status_code == 200
    client.heard += answer.json()


async def associate(client: Client) -> dict[str, Any]:
    await post(client, "J42", phase="connection", wait="1")
    return client.heard.pop(0)


async def test_its_client_associates_and_is_told_what_it_looks_for() -> None:
    bus = make_bus()
    bus.handle("EchoValue")(lambda body: body)
    async with served(bus) as client:
        finish = await associate(client)
        (known,) = json.loads(recorded("J43"))
        assert known.keys() <= finish.keys()
        assert {type(finish[part]) for part in known} == {str}
        assert (finish["ToSubject"], finish["CommandType"]) == ("ClientBus", "FinishAssociation")
        assert set(known["RemoteServices"].split(",")) <= set(finish["RemoteServices"].split(","))
        assert set(known["CapabilitiesFlags"].split(",")) <= set(finish["CapabilitiesFlags"].split(","))
        await post(client, "J45")
        assert client.heard == []


async def test_its_client_subscribes_in_all_three_ways() -> None:
    bus = make_bus()
    async with served(bus) as client:
        await associate(client)
        await post(client, "J47")
        await post(client, "J49")
        for subject in ("news", "myreply", "late1", "s1", "s2", "never"):
            await bus.publish(subject, subject)
        heard = [await client.next() for _ in range(5)]
        assert [message["Value"] for message in heard] == ["news", "myreply", "late1", "s1", "s2"]


async def test_its_client_asks_and_calls_and_the_answer_is_the_one_that_was_recorded() -> None:
    bus, service = make_bus(), RemoteInterface("wiretest.Svc")

    @bus.handle("EchoValue")
    async def echo(body: str) -> str:
        return body

    @service.handle(bus)
    async def add(left: int, right: int) -> int:
        return left + right

    async with served(bus) as client:
        await associate(client)
        await post(client, "J50")
        assert await client.next() == {"ToSubject": "EchoValue:1:RespondTo:RPC", "Value": "v"}
        await post(client, "J51")
        assert [await client.next()] == json.loads(recorded("J52"))


async def test_what_its_server_does_wrong_ours_refuses() -> None:
    """J60 made a real server disconnect all its clients."""
    bus = make_bus()
    async with served(bus) as client, another(client, "victim") as victim:
        await associate(client)
        await associate(victim)
        await post(client, "J60")
        assert (await client.next())["ToSubject"] == "ClientBusErrors"
        await bus.publish("news", "still here")
        assert (await victim.next())["Value"] == "still here"
        assert bus.stats().malformed == 1


# -- its server at our client --------------------------------------------------------------------------------------------


class Recorded:
    """Answers the first payload with J43, then with what it is given, as it is."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = [recorded("J43")[1:-1]]
        self.seen: list[dict[str, Any]] = []

    async def answer(self, request: Request) -> Response:
        self.seen += await request.json()
        with anyio.move_on_after(0.05 if request.query_params.get("wait") else 0):
            while not self.waiting:  # noqa: ASYNC110
                await anyio.sleep(0.001)
        waiting, self.waiting = self.waiting, []
        return Response(b"[%b]" % b",".join(waiting), media_type="application/json")

    def say(self, id: str, **parts: str) -> None:
        document = recorded(id).removeprefix(b"[").removesuffix(b"]")
        for part, value in parts.items():  # textually, so that nothing else of it changes
            document = document.replace(json.dumps(json.loads(document)[part]).encode(), json.dumps(value).encode())
        self.waiting.append(document)

    async def asked(self, subject: str) -> dict[str, Any]:
        await eventually(lambda: any(message["ToSubject"] == subject for message in self.seen))
        return next(message for message in self.seen if message["ToSubject"] == subject)


@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[Recorded, Bus]]:
    server = Recorded()
    app = Starlette(routes=[Route("/{name}.erraiBus", server.answer, methods=["POST"])])
    with anyio.fail_after(BOUND):
        async with running(app) as uvicorn, connect(f"jrep+http://127.0.0.1:{uvicorn.port}?channel=poll") as bus:
            yield server, bus


async def test_its_server_answers_calls_and_our_call_is_what_its_client_would_say() -> None:
    service = RemoteInterface("wiretest.Svc")
    async with scripted() as (server, bus), anyio.create_task_group() as group:
        results: list[Any] = []

        async def call() -> None:
            add = service.method("add", "java.lang.Integer", "java.lang.Integer", returns=int)
            results.append(await bus.request(add, [2, 3]))
            results.append(await bus.request(service.method("fire", returns=None), []))

        group.start_soon(call)
        sent = await server.asked("wiretest.Svc:RPC")
        (known,) = json.loads(recorded("J51"))
        for part in ("CommandType", "MethodParms"):
            assert sent[part] == known[part]
        assert known.keys() <= sent.keys()
        server.seen.clear()
        server.say("J52", ToSubject=sent["ReplyTo"])
        sent = await server.asked("wiretest.Svc:RPC")
        server.say("J53", ToSubject=sent["ReplyTo"])
        await eventually(lambda: len(results) == 2)
        assert results == [5, None]


async def test_an_error_of_its_server_reaches_who_asked_and_the_throwable_is_data() -> None:
    async with scripted() as (server, bus):
        reply = bus.request("EchoValue", "v")
        sent = await server.asked("EchoValue")
        server.say("J29", ToSubject=sent["ErrorTo"])
        with pytest.raises(RequestError):
            await reply
