"""The plant's sensors: a client that publishes, and that the server asks back.

``python -m polybus.demo.sensors URL [--ca FILE]``
"""

from __future__ import annotations

import argparse
import math
import ssl
from collections.abc import Callable

import anyio

from .. import Backoff, Bus, BusError
from ..events import LinkUp
from .addresses import protocol_of
from .children import leave_with_parent
from .play import TIMEOUT
from .schema import SensorReading, SensorStatus

SENSORS = ("temperature", "pressure")
BACKOFF = Backoff(initial=0.05, maximum=0.4)
PACE = 0.02


class Sensors:
    """Publishes numbered readings; answers calibrations; counts what it receives."""

    def __init__(self) -> None:
        self.floods: int = 0
        self.number: int = 0
        self.bus: Bus
        self.bus = bus = Bus()
        bus.handle("calibrate")(self.calibrate)
        bus.handle("status")(self.status)
        bus.on("flood.>")(self.flooded)

    async def calibrate(self, offset: float) -> float:
        return offset * 2

    async def status(self) -> SensorStatus:
        return SensorStatus(self.floods, self.number)

    async def flooded(self, body: object) -> None:
        self.floods += 1

    async def run(self, url: str, tls: ssl.SSLContext | None, ready: Callable[[], None]) -> None:
        """Publish until cancelled. `ready` is called when the back end knows us."""
        connection = self.bus.connect(url, tls=tls, protocol=protocol_of(url, "sensors"), backoff=BACKOFF)
        async with connection, anyio.create_task_group() as group:
            group.start_soon(self._sign_on_again)
            await self.bus.request("sensors.sign_on", timeout=TIMEOUT)
            ready()
            while True:
                self.number += 1
                for sensor in SENSORS:
                    await self.bus.publish(f"reading.{sensor}", SensorReading(sensor, self.number, math.sin(self.number)))
                await anyio.sleep(PACE)

    async def _sign_on_again(self) -> None:
        async for event in self.bus.events():
            if isinstance(event, LinkUp) and event.again:
                try:
                    await self.bus.request("sensors.sign_on", timeout=TIMEOUT)
                except BusError:
                    continue  # lost again: the next LinkUp follows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--ca")
    arguments = parser.parse_args()
    leave_with_parent()
    tls = ssl.create_default_context(cafile=arguments.ca) if arguments.ca else None
    anyio.run(Sensors().run, arguments.url, tls, lambda: print("ready", flush=True))


if __name__ == "__main__":
    main()
