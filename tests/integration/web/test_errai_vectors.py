"""What was recorded from a real Errai, over HTTP, byte for byte: its client's payloads to our server."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx

from polybus import Bus
from polybus.protocols.jrep import RemoteInterface
from tests.support import BOUND
from tests.unit.protocols.jrep.test_vectors import VECTORS

from .test_errai import JSON, Client, another, make_bus


def recorded(id: str) -> bytes:
    return VECTORS[id].encode()


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
