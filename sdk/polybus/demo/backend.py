"""The plant's back end: a server. ``python -m polybus.demo.backend URL [--tls CERTIFICATE KEY]``"""

from __future__ import annotations

import argparse
import math
import os
import secrets
import signal
import ssl
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import anyio

from .. import Bus, Channel, Context, Limits, NotFound, Peer, Unavailable, connect, run
from ..events import HandlerFailed
from ..plugins.registry import resolve_url
from .addresses import protocol_of
from .children import leave_with_parent
from .play import REFUSALS, STEP_SECONDS, TIMEOUT
from .schema import FLOOD, LEVEL, SECRET, Announcement, Flood, GetLevel, Level, PlantCounters, SensorReading, SensorStatus, Tail

OUTBOX = 256
"""Messages that the back end keeps for a peer that does not read; later ones push out the oldest."""

SABOTAGE = {
    "lies": "tanks are reported with a wrong level",
    "leaks": "errors carry the text of the exception",
    "stubborn": "the slow report cannot be cancelled",
    "open": "everybody may do everything",
    "gaps": "streams leave out an item",
    "sinks": "nothing is passed on to other clients",
}
"""Faults of the back end, to see the demo fail."""


class Backend:
    """The handlers of the plant and what they count."""

    def __init__(self, sabotage: str = "") -> None:
        self.sabotage: str = sabotage
        self.instance: str = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.started: int = 0
        self.cancelled: int = 0
        self.readings: int = 0
        self.last_reading: int = 0
        self.failures: list[str] = []
        self.sensors: Peer | None = None
        self.bus: Bus
        self.bus = bus = Bus(
            # On a busy machine it may take a while to fill the outbox of a stopped process: that is not to end its link.
            limits=Limits(outbox=OUTBOX, write_timeout=STEP_SECONDS, ping_timeout=STEP_SECONDS),
            authorize=None if sabotage == "open" else self._authorize,
            debug=sabotage == "leaks",
        )
        self._events = bus.events()
        if sabotage != "sinks":
            bus.relay("reading.>")
        bus.handle(LEVEL)(self.level)
        bus.handle("history.tail")(self.tail)
        bus.handle("batch.mix")(self.mix)
        bus.handle("batch.break")(self.break_down)
        bus.handle("report.slow")(self.slow_report)
        bus.handle("report.last")(self.last_report)
        bus.handle("admin.open_vault")(self.open_vault)
        bus.handle(FLOOD)(self.flood)
        bus.handle("plant.announce")(self.announce)
        bus.handle("plant.counters")(self.counters)
        bus.handle("sensors.sign_on")(self.sign_on)
        bus.handle("sensors.status")(self.sensor_status)
        bus.handle("sensors.calibrate")(self.calibrate)
        bus.on("reading.{sensor}")(self.reading)

    @staticmethod
    def _authorize(peer: Peer, verb: str, subject: str | int) -> bool:
        return not str(subject).startswith("admin.")

    # -- tanks and batches -----------------------------------------------------------------------------------------------

    async def level(self, query: GetLevel) -> Level:
        if query.tank > 99:
            raise NotFound(f"there is no tank {query.tank}")
        litres = query.tank * 10.5
        return Level(query.tank, -litres if self.sabotage == "lies" else litres)

    async def tail(self, query: Tail) -> AsyncIterator[SensorReading]:
        for number in range(query.count):
            if not (self.sabotage == "gaps" and number == 7):
                yield SensorReading(query.sensor, number, math.sin(number))

    async def mix(self, doses: Channel[float, float]) -> None:
        """A channel: each dose is answered with the sum so far, the end with the sum of all."""
        total = 0.0
        async for dose in doses:
            total += dose
            await doses.send(total)
        await doses.send(total)

    async def break_down(self) -> None:
        raise RuntimeError(SECRET)

    async def slow_report(self) -> str:
        """A handler that takes longer than anybody waits."""
        self.started += 1
        try:
            if self.sabotage == "stubborn":
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(TIMEOUT + 1)  # longer than anybody looks
            await anyio.sleep(60)
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        return "too late"

    async def last_report(self, ctx: Context) -> str:
        """A handler that runs while the plant closes: until a new request has been refused."""
        refused = ctx.bus.stats().refused
        self.started += 1
        while ctx.bus.ready:  # noqa: ASYNC110  # there is no event for it
            await anyio.sleep(0.01)
        with anyio.move_on_after(TIMEOUT / 2):
            while ctx.bus.stats().refused < refused + REFUSALS:  # noqa: ASYNC110  # nor for this
                await anyio.sleep(0.01)
        return "all tanks closed"

    async def open_vault(self) -> str:
        return SECRET

    # -- publications ----------------------------------------------------------------------------------------------------

    async def reading(self, sensor: str, body: SensorReading) -> None:
        self.readings += 1
        self.last_reading = body.number

    async def announce(self, text: str) -> None:
        """Publish to all, and publish the secret to those who may know it."""
        await self.bus.publish("admin.announcement", SECRET)
        await self.bus.publish("plant.announcement", Announcement(text, self.instance))

    async def flood(self, query: Flood) -> int:
        filler = "x" * query.size
        for number in range(query.count):
            await self.bus.publish("flood.water", {"number": number, "filler": filler})
        return query.count

    # -- sensors: clients that are asked back ----------------------------------------------------------------------------

    async def sign_on(self, ctx: Context) -> bool:
        self.sensors = ctx.peer
        return True

    async def calibrate(self, offset: float) -> float:
        return await self._sensors.request("calibrate", offset, timeout=TIMEOUT, returns=float)

    async def sensor_status(self) -> SensorStatus:
        return await self._sensors.request("status", timeout=TIMEOUT, returns=SensorStatus)

    @property
    def _sensors(self) -> Peer:
        if self.sensors is None:
            raise Unavailable("the sensors have not signed on yet")
        return self.sensors

    # -- itself ----------------------------------------------------------------------------------------------------------

    async def counters(self) -> PlantCounters:
        """Counters of the back end, with the ids of failures as a log would have them."""
        with anyio.move_on_after(0):  # only what has happened by now
            async for event in self._events:
                if isinstance(event, HandlerFailed):
                    self.failures.append(event.error_id)
        stats = self.bus.stats()
        counted = self.started, self.cancelled, self.readings, self.last_reading
        return PlantCounters(self.instance, *counted, stats.dropped, stats.queued, self.failures)


async def _behind(bus: Bus, url: str) -> None:
    """As `polybus.run`, but the clients come from a broker."""
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async with connect(url, bus=bus, wait=TIMEOUT):
            print(f"serving {url}", flush=True)
            await anext(aiter(signals))
            await bus.drain(TIMEOUT)


def _serve_application(bus: Bus, url: str) -> None:
    """In a FastAPI application, with uvicorn, until SIGTERM: ``ubre+ws://127.0.0.1:0/bus``."""
    from fastapi import FastAPI

    from .. import fastapi

    adapter, _, address = resolve_url(url)
    place = urlsplit(address)
    app = FastAPI()
    fastapi.attach(app, bus, place.path, adapter)
    fastapi.run(app, host=place.hostname or "127.0.0.1", port=place.port or 0, drain=TIMEOUT, log_level="warning")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--tls", nargs=2, metavar=("CERTIFICATE", "KEY"))
    parser.add_argument("--sabotage", default="", choices=["", *SABOTAGE])
    parser.add_argument("--behind", action="store_true", help="URL is a broker's: connect to it")
    parser.add_argument("--fastapi", action="store_true", help="serve it in an application, with uvicorn")
    arguments = parser.parse_args()
    tls = None
    if arguments.tls:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(*arguments.tls)
    leave_with_parent()
    bus = Backend(arguments.sabotage).bus
    if arguments.behind:
        anyio.run(_behind, bus, arguments.url)
    elif arguments.fastapi:
        _serve_application(bus, arguments.url)
    else:
        run(bus, arguments.url, drain=TIMEOUT, tls=tls, protocol=protocol_of(arguments.url, "plant"))


if __name__ == "__main__":
    main()
