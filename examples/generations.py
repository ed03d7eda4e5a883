"""A gateway between the generations of uProtocol: a vehicle whose messages are CloudEvents, a phone that speaks UMessage.

Requests, answers, errors and publications cross the bridge with the time that they have left; how urgent they are both sides
read from one table.
"""

import anyio

from polybus import Bus, Code, Message, RequestError, Route, bridge, connect
from polybus.protocols import Up, UProtocol

NAMES = {"UpdateDoor": 0xB, "door.opened": 0x80CD}  # the new generation has numbers, the old one has names
VEHICLE, GATEWAY, PHONE = "//vehicle7/body.access/1", "//gateway/10AB/3", "//phone/CD/4"
ROUTES = (
    Route("UpdateDoor", "UpdateDoor"),
    Route("door.opened", "door.opened", {"publish"}, reverse=True),
)
PRIORITIES = {"UpdateDoor": "CS5", "door.opened": "CS3"}

vehicle = Bus()


@vehicle.handle("UpdateDoor")
async def update(body: dict[str, int], message: Message) -> str:
    print("the vehicle is asked as", message.attributes["priority"], "by", message.attributes["source"])
    if body["door"] > 4:
        raise RequestError(Code.NOT_FOUND, f"there is no door {body['door']}", reason="no_door")
    await vehicle.publish("door.opened", body)
    return "done"


async def main() -> None:
    phones, vehicles, phone = Bus(), Bus(), Bus()
    old = UProtocol(format="protobuf", entity=VEHICLE, priorities=PRIORITIES)
    asking = UProtocol(format="protobuf", entity="//gateway/bridge/1", peer=VEHICLE, priorities=PRIORITIES)
    new = Up(entity=GATEWAY, names=NAMES, priorities=PRIORITIES)
    async with (
        vehicle.serve("uprotocol+tcp://127.0.0.1:0", protocol=old) as inner,
        phones.serve("up+tcp://127.0.0.1:0", protocol=new) as outer,
        connect(inner.url.partition("?")[0], bus=vehicles, protocol=asking),
        bridge(phones, vehicles, routes=ROUTES),
        connect(outer.url, bus=phone, protocol=Up(entity=PHONE, peer=GATEWAY, names=NAMES)),
        phone.subscribe("door.*") as doors,
    ):
        print(await phone.request("UpdateDoor", {"door": 2}, timeout=5))
        message = await anext(doors)
        print(message.subject, message.body, message.attributes["priority"], message.attributes["source"])
        try:
            await phone.request("UpdateDoor", {"door": 7}, timeout=5)
        except RequestError as error:
            print("no:", error.code.name, error.reason, error.text)


anyio.run(main)
