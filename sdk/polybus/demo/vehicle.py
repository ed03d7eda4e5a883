"""A vehicle behind a gateway: a process. ``python -m polybus.demo.vehicle URL``

Its doors are served under names; its diagnostics speak CSB, inside the tunnel ``diagnostics``.
"""

from __future__ import annotations

import sys

import anyio
from attrs import evolve, frozen

from .. import Bus, NotFound
from .children import leave_with_parent

VOLTAGE = 0x00010001
"""The action of the diagnostics that tells the voltage of a battery."""


@frozen
class Move:
    """Asks for a door to be opened so far, in percent."""

    door: str
    position: int


@frozen
class VehicleDoor:
    door: str
    position: int


class Vehicle:
    """The doors, and the diagnostics inside."""

    def __init__(self) -> None:
        self._doors = {name: VehicleDoor(name, 0) for name in ("front left", "front right", "rear")}
        self.diagnostics: Bus = Bus()
        self.diagnostics.handle(VOLTAGE)(self._voltage)
        self.diagnostics.handle("leave")(self._leave)
        self.bus: Bus = Bus()
        self.bus.handle("door.move")(self._move)
        self.bus.handle_tunnels("diagnostics", self.diagnostics, protocol="csb")

    async def _move(self, body: Move) -> VehicleDoor:
        door = self._doors.get(body.door)
        if door is None:
            raise NotFound(f"this vehicle has no {body.door} door")
        door = self._doors[body.door] = evolve(door, position=body.position)
        await self.bus.publish("door.moved", door)
        return door

    async def _voltage(self, body: bytes) -> bytes:
        return b"%d" % (12_000 + int(body))

    async def _leave(self) -> None:
        for peer in self.diagnostics.peers:
            await peer.aclose("the diagnostics are over")


async def _run(url: str) -> None:
    vehicle = Vehicle()
    async with vehicle.bus.serve(url) as listener:
        print("serving", listener.url, flush=True)
        await vehicle.bus.wait_closed()


if __name__ == "__main__":
    leave_with_parent()
    anyio.run(_run, sys.argv[1])
