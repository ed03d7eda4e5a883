"""What runs in the frame, in Pyodide: a bus at one end of a port. frame.html calls `main` with the port as it came."""

from statistics import fmean, median
from typing import Any

from polybus import Bus, connect
from polybus.transports.postmessage import PortTransport

bus = Bus()
readings: list[float] = []


@bus.on("reading")
def take(value: float) -> None:
    readings.append(value)
    bus.publish_nowait("mean", round(fmean(readings), 2))


@bus.handle("median")
def middle() -> float:
    return median(readings)


async def main(port: Any) -> None:
    # Nobody greets on a port of the page's own making, so it is `bare`.
    async with connect(PortTransport(port, bare=True), protocol="ubre", bus=bus):
        await bus.publish("greeting", f"Hello, {await bus.request('title', returns=str)}")
        await bus.wait_closed()
