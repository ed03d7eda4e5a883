"""A page, a gateway and a vehicle with a protocol each: a door is opened over a bridge, diagnostics go through a tunnel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from attrs import define

from .. import Bus, Disconnected, NotFound, RequestError, Unavailable, connect
from ..events import LinkDown
from .children import Child
from .console import BACKOFF
from .play import TIMEOUT, CheckFailed, DemoRow, RowRun, Workshop, check
from .vehicle import VOLTAGE, Move, VehicleDoor

PAIRS = (("ubre", "uprotocol"), ("jrep", "csb"), ("csb", "ubre"))
"""Protocols of the page and of the vehicle."""
READINGS = 64


@define
class Page:
    """An operator's page: a client of the gateway, which speaks the protocol of the page."""

    bus: Bus
    vehicle: Child

    async def door(self) -> str:
        """A door of the vehicle is opened, and all who look are told, once."""
        async with self.bus.subscribe("vehicle.door.moved", returns=VehicleDoor) as moves:
            for position in (40, 100):
                door = await self.bus.request("vehicle.door.move", Move("rear", position), timeout=TIMEOUT, returns=VehicleDoor)
                check(door == VehicleDoor("rear", position), f"the vehicle answered {door}")
            told = []
            with anyio.move_on_after(TIMEOUT):
                told = [(await anext(moves)).body.position for _ in range(2)]
        check(told == [40, 100], f"the page was told of {told}")
        return "the rear door went to 40 and 100 %; both were told, once"

    async def refusal(self) -> str:
        """A refusal of the vehicle arrives with its code and text."""
        try:
            await self.bus.request("vehicle.door.move", Move("roof", 1), timeout=TIMEOUT)
        except NotFound as error:
            check(error.text == "this vehicle has no roof door", f"the text is {error.text!r}")
            return f"{error.code.name}: {error.text}"
        raise CheckFailed("a door that is not there was opened")

    async def tunnel(self) -> str:
        """A third protocol, from the page through the bridge into the vehicle."""
        async with connect(self.bus.tunnel("diagnostics"), protocol="csb", backoff=BACKOFF) as inner:
            replies = [inner.request(VOLTAGE, b"%d" % number, timeout=TIMEOUT) for number in range(READINGS)]
            values = [int(await reply) for reply in replies]
        check(values == [12_000 + number for number in range(READINGS)], f"the batteries have {values[:3]}...")
        return f"CSB in the tunnel: {READINGS} numbered requests, each with its own answer"

    async def inner_end(self) -> str:
        """The vehicle ends the tunnel: its user learns why, and no other connection notices."""
        async with connect(self.bus.tunnel("diagnostics"), protocol="csb", backoff=BACKOFF) as inner:
            events, reason = inner.events(), ""
            await inner.notify("leave")
            with anyio.fail_after(TIMEOUT):
                async for event in events:
                    if isinstance(event, LinkDown):
                        reason = event.reason
                        break
            check(reason == "the diagnostics are over", f"the reason is {reason!r}")
        check(self.bus.stats().reconnects == 0, "the page lost its own connection")
        await self.door()
        return f"ended with {reason!r}; the page's own link goes on"

    async def killed(self) -> str:
        """The vehicle is killed: the page is told so at once, and all comes back with it."""
        await self.vehicle.kill()
        kinds: set[str] = set()
        try:
            await self.bus.request("vehicle.door.move", Move("rear", 1), timeout=0.5)
        except (RequestError, Disconnected, TimeoutError) as error:
            kinds.add(type(error).__name__)
        check(kinds, "a killed vehicle has answered")
        await self.vehicle.start()
        with anyio.fail_after(TIMEOUT):
            while True:
                try:
                    await self.bus.request("vehicle.door.move", Move("rear", 0), timeout=TIMEOUT)
                    break
                except Unavailable:
                    await anyio.sleep(0.02)
        await self.door()
        await self.tunnel()
        return f"while it was away: {', '.join(kinds)}; then doors and tunnels work again"


STEPS = {
    "door over a bridge": Page.door,
    "refusal": Page.refusal,
    "tunnel": Page.tunnel,
    "end of a tunnel": Page.inner_end,
    "vehicle killed": Page.killed,
}


def _play(page: str, vehicle: str) -> Callable[[RowRun, Workshop], Awaitable[None]]:
    async def run(row: RowRun, workshop: Workshop) -> None:
        log = workshop.folder / f"{page}-{vehicle}.log"
        # A number that stays: the vehicle comes back to it.
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        await listener.aclose()
        url = f"{vehicle}+tcp://127.0.0.1:{port}"
        async with (
            Child("vehicle", url, log=log) as car,
            Child("gateway", f"{page}+ws://127.0.0.1:0/bus", url, log=log) as gate,
        ):
            await car.start()
            said = await gate.start()
            async with connect(said.split()[1], backoff=BACKOFF) as bus:
                for name, step in STEPS.items():
                    await row.step(name, partial(step, Page(bus, car)))
                row.sent, row.received = bus.stats().sent, bus.stats().received

    return run


def nested_rows() -> list[DemoRow]:
    """Bridges and tunnels, for some pairs of protocols."""
    return [DemoRow("bridge", f"{page}-{vehicle}", "ws", tuple(STEPS), _play(page, vehicle)) for page, vehicle in PAIRS]
