"""A server relays publications of one client to other subscribers; it subscribes, too."""

import anyio
from attrs import frozen

from polybus import Bus, connect

bus = Bus()
bus.relay("reading.>")


@frozen
class Reading:
    value: float


@bus.on("reading.{sensor}")
async def watch(sensor: str, body: Reading) -> None:
    if body.value > 90:
        print(f"server: {sensor} is at {body.value}")


async def main() -> None:
    async with (
        bus.serve("ubre+tcp://127.0.0.1:0") as server,
        connect(server.url) as console,
        connect(server.url) as sensors,
        console.subscribe("reading.temperature", returns=Reading, queue=100, when_full="drop_oldest") as readings,
    ):
        for value in (20.5, 21.0, 95.5):
            await sensors.publish("reading.temperature", Reading(value))
            await sensors.publish("reading.pressure", Reading(1.0))
        seen = []
        async for message in readings:
            seen.append(message.body.value)
            if len(seen) == 3:
                break
    print("console:", seen)


anyio.run(main)
