"""A Python service for a client that speaks J.REP as Errai's GWT client does, and a Python client of it.

A real program needs only the service. The client by hand below shows the JSON on the wire. The last client is for a Python
program that talks to an Errai application; here it talks to the service.
"""

import json

import anyio
import httpx
from attrs import frozen

from polybus import Bus, NotFound, connect
from polybus.protocols import Jrep
from polybus.protocols.jrep import JavaTypes, RemoteInterface

# -- the service ---------------------------------------------------------------------------------------------------------

types = JavaTypes()
bus = Bus()
warehouse = RemoteInterface("com.acme.client.Warehouse", types)


@types.portable("com.acme.client.Article")
@frozen
class Article:
    number: int
    name: str
    price: float


@warehouse.handle(bus)
async def find(number: int) -> Article:  # in Java: Article find(int number), or find(Integer number)
    if number != 7:
        raise NotFound(f"there is no article {number}")
    return Article(number, "paint", 12.5)


@bus.handle("Greeter")
async def greet(name: str) -> str:
    return f"Hello, {name}"


# -- a client, by hand ---------------------------------------------------------------------------------------------------


def call(number: int, reply: str) -> dict[str, object]:
    """``warehouse.find(number)`` as Errai writes it."""
    marked = {"^EncodedType": "java.lang.Integer", "^ObjectID": "-1", "^NumVal": number}
    return {
        "ToSubject": "com.acme.client.Warehouse:RPC",
        "CommandType": "find:int:",
        "MethodParms": {"^EncodedType": "java.util.ArrayList", "^ObjectID": "1", "^Value": [marked]},
        "ReplyTo": f"{reply}:RespondTo:RPC",
        "ErrorTo": f"{reply}:Errors:RPC",
    }


class GwtClient:
    """Posts to ``out.<id>.erraiBus`` and polls ``in.<id>.erraiBus``, like Errai's client compiled by GWT."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.heard: list[dict[str, object]] = []

    async def post(self, name: str, messages: list[dict[str, object]], **query: str) -> None:
        answer = await self.http.post(f"/{name}.1-2.erraiBus", params={"clientId": "1-2", **query}, json=messages)
        self.heard += answer.raise_for_status().json()

    async def say(self, message: dict[str, object], **query: str) -> None:
        await self.post("out", [message], **query)

    async def hear(self) -> dict[str, object]:
        while not self.heard:
            await self.post("in", [], wait="1")
        return self.heard.pop(0)


async def use(client: GwtClient) -> None:
    hello = {"ToSubject": "ServerBus", "CommandType": "Associate", "RemoteServices": "ClientBus,ClientBusErrors"}
    await client.say(dict(hello), phase="connection", wait="1")
    services = str((await client.hear())["RemoteServices"]).split(",")
    print("the server offers", ", ".join(sorted(set(services) - {"ServerBus", "ServerEchoService"})))

    await client.say({"ToSubject": "Greeter", "Value": "Ann", "ReplyTo": "Greeter:1:RespondTo:RPC"})
    print("Greeter:", (await client.hear())["Value"])

    await client.say(call(7, "Warehouse:2"))
    print("find(7):", json.dumps((await client.hear())["MethodReply"]))

    await client.say(call(8, "Warehouse:3"))
    print("find(8):", (await client.hear())["ErrorMessage"])

    await client.say({"ToSubject": "ServerBus", "CommandType": "Disconnect", "Reason": "done"}, phase="disconnect")


# -- a client with polybus -----------------------------------------------------------------------------------------------


async def ask(url: str) -> None:
    # A real server answers its first client after loading its marshallers: wait= outlasts that. It never answers for an
    # unknown subject: timeout= ends that.
    async with connect(url, protocol=Jrep(java=types), wait=60) as application:
        print("in Python:", await warehouse.call(application, "find", 7, returns=Article, timeout=10))


async def main() -> None:
    async with bus.serve("jrep+http://127.0.0.1:0", protocol=Jrep(java=types)) as listener:
        await ask(listener.url)
        async with httpx.AsyncClient(base_url=listener.url.removeprefix("jrep+")) as http:
            await use(GwtClient(http))


anyio.run(main)
