"""A Python service for a client that speaks J.REP as Errai's GWT client does.

The service is all that a real program needs. The client below it is there to show what travels: it writes each JSON by hand.
"""

import json

import anyio
from attrs import frozen
from websockets.asyncio.client import connect

from polybus import Bus, NotFound
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
async def find(number: int) -> Article:  # in Java: Article find(Integer number)
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
        "CommandType": "find:java.lang.Integer:",
        "MethodParms": {"^EncodedType": "java.util.ArrayList", "^ObjectID": "1", "^Value": [marked]},
        "ReplyTo": f"{reply}:RespondTo:RPC",
        "ErrorTo": f"{reply}:Errors:RPC",
    }


async def gwt_client(url: str) -> None:
    async with connect(url, subprotocols=["jrep"]) as socket:

        async def say(*messages: dict[str, object]) -> None:
            await socket.send(json.dumps(list(messages)))

        async def hear() -> dict[str, object]:
            (message,) = json.loads(await socket.recv())
            return dict(message)

        await say({"ToSubject": "ServerBus", "CommandType": "Associate", "RemoteServices": "ClientBus,ClientBusErrors"})
        finish = await hear()
        services = str(finish["RemoteServices"]).split(",")
        print("the server offers", ", ".join(sorted(set(services) - {"ServerBus", "ServerEchoService"})))

        await say({"ToSubject": "Greeter", "Value": "Ann", "ReplyTo": "Greeter:1:RespondTo:RPC"})
        print("Greeter:", (await hear())["Value"])

        await say(call(7, "Warehouse:2"))
        print("find(7):", json.dumps((await hear())["MethodReply"]))

        await say(call(8, "Warehouse:3"))
        print("find(8):", (await hear())["ErrorMessage"])


async def main() -> None:
    async with bus.serve("jrep+ws://127.0.0.1:0/bus", protocol=Jrep(java=types)) as listener:
        await gwt_client(listener.url.partition("?")[0].removeprefix("jrep+"))


anyio.run(main)
