"""A gateway between the generations of uProtocol: a vehicle that sends CloudEvents, a phone that speaks UMessage.

Each side sends requests, publications and notifications. Names become numbers and back; ids, priorities, times to live and
errors are preserved as far as both generations have them.
"""

import anyio

from polybus import Bus, Code, Context, Message, RequestError, Route, bridge, connect
from polybus.protocols import Up, UProtocol

# The old generation has names, the new one numbers: topics from 8000 on, methods below.
NAMES = {"UpdateDoor": 0xB, "Confirm": 0xC, "door.opened": 0x80CD, "lights": 0x80CE}
VEHICLE, PHONE = "//vehicle7/body.access/1", "//phone/CD/4"
ROUTES = (
    Route("UpdateDoor", "UpdateDoor"),  # from the phone to the vehicle
    Route("Confirm", "Confirm", reverse=True),  # and from the vehicle to the phone: a request, a notification, a publication
    Route("lights", "lights", reverse=True),
    Route("door.opened", "door.opened", {"publish"}, reverse=True),
)

vehicle, phone = Bus(), Bus()


@vehicle.handle("UpdateDoor")
async def update(body: dict[str, int], message: Message, ctx: Context) -> str:
    print("the vehicle is asked as", message.attributes["priority"], "by", message.attributes["source"])
    if body["door"] > 4:
        raise RequestError(Code.NOT_FOUND, f"there is no door {body['door']}", reason="no_door")
    assert ctx.peer is not None  # the gateway
    await ctx.peer.notify("lights", {"on": True})
    print("the phone says", await ctx.peer.request("Confirm", body, timeout=2))
    await vehicle.publish("door.opened", body)
    return "done"


@phone.handle("Confirm")
async def confirm(body: dict[str, int], message: Message) -> bool:
    print("the phone is asked as", message.attributes["priority"], "by", message.attributes["source"])
    return body["door"] == 2


@phone.handle("lights")
async def lights(body: dict[str, bool]) -> None:
    print("the lights of the vehicle:", body)


async def main() -> None:
    priorities = {"UpdateDoor": "CS5", "Confirm": "CS6", "door.opened": "CS3"}
    old = UProtocol(format="protobuf", entity=VEHICLE, priorities=priorities)
    new = Up(entity=PHONE, peer="//gateway/10AB/3", names=NAMES, priorities=priorities)
    # The gateway passes on the priorities of the messages.
    inwards = UProtocol(format="protobuf", entity="//gateway/bridge/1", peer=VEHICLE)
    outwards = Up(entity="//gateway/10AB/3", peer=PHONE, names=NAMES)
    phones, vehicles = Bus(), Bus()
    async with (
        vehicle.serve("uprotocol+tcp://127.0.0.1:0", protocol=old) as inner,
        phone.serve("up+tcp://127.0.0.1:0", protocol=new) as outer,
        bridge(phones, vehicles, routes=ROUTES),
        connect(inner.url.partition("?")[0], bus=vehicles, protocol=inwards),
        connect(outer.url, bus=phones, protocol=outwards),
        phone.subscribe("door.*") as doors,
    ):
        (gateway,) = phone.peers
        print(await gateway.request("UpdateDoor", {"door": 2}, timeout=5))
        message = await anext(doors)
        print(message.subject, message.body, message.attributes["priority"], message.attributes["source"])
        try:
            await gateway.request("UpdateDoor", {"door": 7}, timeout=5)
        except RequestError as error:
            print("no:", error.code.name, error.reason, error.text)


anyio.run(main)
