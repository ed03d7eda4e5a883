"""A gateway from a vehicle of the old generation to a fabric of the new one, over real Zenoh."""

from __future__ import annotations

from typing import Any

import pytest

from polybus import Bus, DeadlineExceeded, Message, NotFound, Route, bridge, connect
from polybus.protocols import Up, UProtocol
from tests.support import bounded, eventually

pytestmark = pytest.mark.anyio

VEHICLE, GATEWAY, PHONE, TABLET = "//vehicle7/body.access/1", "//gateway/10AB/3", "//phone/CD/4", "//tablet/CE/4"
# On a fabric all are told apart by their addresses.
NAMES = {"UpdateDoor": f"{GATEWAY}/B", "door.opened": f"{GATEWAY}/80CD", "lights": f"{GATEWAY}/80CE", "Confirm": f"{PHONE}/C"}
ROUTES = (
    Route("UpdateDoor", "UpdateDoor", {"request"}),
    Route("Confirm", "Confirm", {"request"}, reverse=True),
    Route("lights", "lights", {"request"}, reverse=True),
    Route("door.opened", "door.opened", {"publish"}, reverse=True),
)


@bounded
async def test_a_vehicle_of_the_old_generation_joins_a_fabric() -> None:
    vehicle, phone, tablet, inside, outside = (Bus() for _ in range(5))
    seen, told = list[Message](), list[tuple[Any, str]]()

    @vehicle.handle("UpdateDoor")
    async def update(body: int, message: Message) -> Any:
        if body > 4:
            raise NotFound(f"there is no door {body}", reason="no_door")
        seen.append(message)
        (gateway,) = vehicle.peers
        await vehicle.publish("door.opened", body)
        await gateway.notify("lights", "on")
        return await gateway.request("Confirm", body)

    phone.handle("Confirm")(lambda body: body * 10)
    for bus in (phone, tablet):

        @bus.handle("lights")
        async def lights(message: Message) -> None:
            told.append((message.body, message.attributes["sink"]))

    def up(entity: str, **options: Any) -> Up:
        return Up(entity=entity, names=NAMES, priorities={"UpdateDoor": "CS6"}, **options)

    old = UProtocol(format="protobuf", entity=VEHICLE, priorities={"door.opened": "CS3"})
    async with (
        vehicle.serve("uprotocol+memory://vehicle-and-fabric", protocol=old) as inner,
        phone.serve("up+zenoh://127.0.0.1:0", protocol=up(PHONE)) as fabric,
        bridge(outside, inside, routes=ROUTES),
        connect(inner.url.partition("?")[0], bus=inside, protocol=UProtocol(format="protobuf", peer=VEHICLE)),
        connect(fabric.url.partition("?")[0], bus=outside, protocol=up(GATEWAY, peer=PHONE)),
        connect(fabric.url.partition("?")[0], bus=tablet, protocol=up(TABLET)),
        tablet.subscribe("door.opened") as doors,
    ):
        await eventually(lambda: _answered(tablet))
        seen.clear()
        told.clear()
        assert await tablet.request("UpdateDoor", 2) == 20
        assert [message.attributes["priority"] for message in seen] == ["CS6"]
        while (opened := await anext(doors)).body != 2:
            pass
        assert (opened.attributes["source"], opened.attributes["priority"]) == (f"{GATEWAY}/80CD", "CS3")
        with pytest.raises(NotFound, match="there is no door 7") as caught:
            await tablet.request("UpdateDoor", 7)
        assert caught.value.reason == "no_door"
        # What crosses goes to Up(peer=...); what the gateway itself says, to whom it names.
        await eventually(lambda: told == [("on", f"{PHONE}/0")])
        await outside.notify("lights", "off", to=TABLET)
        await outside.peers[0].notify("lights", "dim", to=f"{PHONE}/C")
        await eventually(lambda: len(told) == 3)
        assert sorted(told[1:]) == [("dim", f"{PHONE}/0"), ("off", f"{TABLET}/0")]


async def _answered(bus: Bus) -> bool:
    """Whether all hear each other: over the fabric and the gateway."""
    try:
        await bus.request("UpdateDoor", 1, timeout=2)
    except DeadlineExceeded:
        return False
    return True
