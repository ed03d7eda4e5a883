"""A gateway: operators speak UBRE, each plant speaks CSB in a tunnel, and a bridge collects the alarms of all plants."""

import anyio

from polybus import Bus, Context, Handshake, Route, bridge, connect


def by_plant(handshake: Handshake) -> str:
    return f"plant {handshake.params['id']}"


edge = Bus()
machines = Bus(authenticate=by_plant)  # inside the tunnels
edge.handle_tunnels("plant.{id}", machines, protocol="csb")
edge.relay("alarm.>")


@machines.handle(0x00010001)
async def start(body: bytes, ctx: Context) -> str:
    return f"{ctx.identity} starts with {body.decode()}"


@machines.handle("press")
async def press(body: int, ctx: Context) -> None:
    if body > 9:
        await ctx.bus.publish("pressure.high", {"bar": body})


async def main() -> None:
    routes = [
        Route("pressure.*", "alarm.pressure.{1}", {"publish"}, reverse=True),
        Route("machine.{what}", "{what}"),
    ]
    async with edge.serve("ubre+ws://127.0.0.1:0/bus") as listener, machines, bridge(edge, machines, routes=routes):
        async with connect(listener.url) as operator, operator.subscribe("alarm.>") as alarms:
            async with connect(operator.tunnel("plant.7"), protocol="csb") as plant:
                print("in the tunnel:", await plant.request(0x00010001, b"full power"))
                await operator.request("machine.press", 12)
                alarm = await anext(alarms)
                print("over the bridge:", alarm.subject, alarm.body)


anyio.run(main)
