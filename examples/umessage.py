"""A vehicle and a phone that speak today's uProtocol: addresses are numbers, and both sides have names for them."""

import anyio

from polybus import Bus, Code, Context, RequestError, connect
from polybus.protocols import Up
from polybus.protocols.up import names_in

# A file for both programs. Topics from 8000 on, methods below; the seat is a separate service.
NAMES = names_in("""
"door.opened" = 0x80CD
UpdateDoor = 0xB
lights = [0xC, 0x80CE]
SetHeat = "//seat.vehicle7/1A/1/7"
""")
VEHICLE, PHONE = "//vehicle7/10AB/3", "//phone/CD/4"

vehicle = Bus()
phone = Bus()


@vehicle.handle("UpdateDoor")
async def update(body: dict[str, int], ctx: Context) -> str:
    if body["door"] > 4:
        raise RequestError(Code.NOT_FOUND, f"there is no door {body['door']}")
    await vehicle.publish("door.opened", body)
    assert ctx.peer is not None
    await ctx.peer.notify("lights", {"on": True})  # only to the phone, without an answer
    return "done"


@phone.handle("lights")
async def lights(body: dict[str, bool]) -> None:
    print("the lights of the vehicle:", body)


async def main() -> None:
    served = vehicle.serve("up+tcp://127.0.0.1:0", protocol=Up(entity=VEHICLE, names=NAMES, ttl=5))
    asking = Up(entity=PHONE, peer=VEHICLE, names=NAMES, priorities={"UpdateDoor": "CS5"}, token="the phone's")
    async with served as listener, connect(listener.url, bus=phone, protocol=asking):
        async with phone.subscribe("door.*") as doors:
            print(await phone.request("UpdateDoor", {"door": 2}, timeout=2))
            message = await anext(doors)
            print(message.subject, message.body, "from", message.attributes["source"])
            try:
                await phone.request("UpdateDoor", {"door": 7}, timeout=2)
            except RequestError as error:
                print("no:", error)


anyio.run(main)
