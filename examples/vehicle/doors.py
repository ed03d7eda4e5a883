"""The doors of a vehicle, and a console that sends requests and subscribes: uProtocol with the messages of its own document.

`body.access` on the vehicle computer takes ``UpdateDoor`` and publishes each change of a door. The console locks and opens
doors, watches all of them with one pattern, and gets two refusals: from the application (a google.rpc.Status), and from the
bus, because its permission level is too low. In real life these are two processes; `//VCU.VIN` stands for one vehicle.
"""

import anyio
from messages import Door, UpdateDoorRequest

from polybus import Bus, Code, Forbidden, Message, NotFound, RequestError, connect
from polybus.protocols import UProtocol

ENTITY = "//VCU.VIN.veh.up.gm.com/body.access/1"
CONSOLE = "//VCU.VIN.veh.up.gm.com/console/1"
# Moving a door is more urgent than its publication, which waits when the line is slow.
PRIORITIES = {"UpdateDoor": "CS5", f"{ENTITY}/>": "CS1"}


class Doors:
    """The service on the vehicle."""

    def __init__(self) -> None:
        self.doors = {name: Door(instance=name, is_locked=True) for name in ("front_left", "front_right", "rear")}
        self.bus = Bus(authorize=self.may)
        self.bus.handle("UpdateDoor")(self.update)

    def may(self, peer, verb: str, subject, message: Message | None = None) -> bool:
        """Moving doors needs permission level 2; everyone may watch."""
        return verb != "request" or message is None or message.attributes.get("plevel", 0) >= 2

    async def update(self, body: UpdateDoorRequest) -> Door:
        door = self.doors.get(body.instance)
        if door is None:
            raise NotFound(f"this vehicle has no door {body.instance!r}")
        if door.is_locked and body.position:
            raise RequestError(Code.FAILED_PRECONDITION, f"{body.instance} is locked", reason="LOCKED")
        door.is_locked, door.position = body.is_locked, body.position
        await self.bus.publish(f"{ENTITY}/door.{body.instance}#Door", door)
        return door


def shown(door) -> str:
    """A door as a line."""
    return f"{door.instance}: {'locked' if door.is_locked else 'unlocked'}, {door.position} % open"


async def watch(bus: Bus, changes: int, *, task_status) -> None:
    """Print the changes of doors."""
    async with bus.subscribe(f"{ENTITY}/door.*#Door") as doors:
        task_status.started()
        for _ in range(changes):
            message = await anext(doors)
            print("  seen:", shown(message.body), f"({message.attributes['priority']})")


async def operate(bus: Bus) -> None:
    """Move some doors."""
    for request in (
        UpdateDoorRequest(instance="front_left", position=50),
        UpdateDoorRequest(instance="front_left", is_locked=False),
        UpdateDoorRequest(instance="front_left", position=50),
        UpdateDoorRequest(instance="roof"),
    ):
        try:
            print("done:", shown(await bus.request("UpdateDoor", request, timeout=2)))
        except RequestError as error:
            print("told no:", error.code.name, "-", error.text)


async def main() -> None:
    vehicle = UProtocol(entity=ENTITY, format="protobuf", priorities=PRIORITIES)
    console = UProtocol(entity=CONSOLE, peer=ENTITY, format="protobuf", permission_level=2, priorities=PRIORITIES)
    guest = UProtocol(entity=CONSOLE, peer=ENTITY, format="protobuf", permission_level=0)
    async with Doors().bus.serve("uprotocol+tcp://127.0.0.1:0", protocol=vehicle) as listener:
        url = listener.url.partition("?")[0]
        async with connect(url, protocol=console) as bus, anyio.create_task_group() as group:
            await group.start(watch, bus, 2)
            await operate(bus)
        async with connect(url, protocol=guest) as bus:
            try:
                await bus.request("UpdateDoor", UpdateDoorRequest(instance="rear"))
            except Forbidden:
                print("a guest may only look")


if __name__ == "__main__":
    anyio.run(main)
