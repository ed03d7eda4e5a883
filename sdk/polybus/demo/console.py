"""The operator's console: a client that goes through the steps over one wire and checks what comes of each.

Nothing here depends on the protocol: a row whose protocol carries less has the names of the steps that it can play.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

import anyio
from attrs import define

from .. import Backoff, Bus, Message, Reply, Subscription, connect
from ..errors import BusError, Code, DeadlineExceeded, Disconnected, Forbidden, NoHandler, NotFound, RemoteError, Unavailable
from .addresses import protocol_of
from .backend import OUTBOX
from .plants import Plant
from .play import REFUSALS, TIMEOUT, CheckFailed, NotHere, RowRun, Workshop, check
from .schema import FLOOD, LEVEL, SECRET, Announcement, Flood, GetLevel, Level, PlantCounters, SensorReading, SensorStatus, Tail

Failure = TypeVar("Failure", bound=BusError)
Make: TypeAlias = Callable[[str, str, str, Workshop], Plant]
"""Makes a plant: transport, template of its URL, name of the plant, things in common."""

BACKOFF = Backoff(initial=0.05, maximum=0.4)
REQUESTS = 64
ITEMS = 500
QUEUE = 20
BATCH = Flood(50, 4096)
MOST_BATCHES = 400
MUST_DROP = 100
DEADLINES = (0.2, 1.0, 5.0)
"""Seconds. A busy machine may need longer than the first to bring a question to its handler."""


@define
class Console:
    """One client, what it subscribes to, and the plant that it looks at."""

    bus: Bus
    plant: Plant

    async def counters(self) -> PlantCounters:
        """Counters of the back end."""
        return await self.bus.request("plant.counters", timeout=TIMEOUT, returns=PlantCounters)

    async def until(self, holds: Callable[[PlantCounters], bool], text: str) -> PlantCounters:
        """Ask the back end until its counters are so."""
        with anyio.move_on_after(TIMEOUT):
            while True:
                counters = await self.counters()
                if holds(counters):
                    return counters
                await anyio.sleep(0.005)
        raise CheckFailed(text)

    # -- requests --------------------------------------------------------------------------------------------------------

    async def requests(self) -> str:
        """Many requests at once; each gets the answer to its own question, as an object of the right type."""
        replies = [self.bus.request(LEVEL, GetLevel(tank), timeout=TIMEOUT) for tank in range(REQUESTS)]
        levels = [await reply for reply in reversed(replies)][::-1]
        expected = [Level(tank, tank * 10.5) for tank in range(REQUESTS)]
        wrong = next(((want, have) for want, have in zip(expected, levels, strict=True) if want != have), None)
        check(wrong is None, f"expected {wrong and wrong[0]}, got {wrong and wrong[1]}")
        error = await _raised(NotFound, self.bus.request(LEVEL, GetLevel(100), timeout=TIMEOUT))
        check(error.text == "there is no tank 100", f"the text of NotFound is {error.text!r}")
        return f"{REQUESTS} typed answers, awaited in reverse order; tank 100 is NotFound"

    async def ask_back(self) -> str:
        """The server asks one of its clients, while it answers another."""
        answer = await self.bus.request("sensors.calibrate", 1.25, timeout=TIMEOUT, returns=float)
        check(answer == 2.5, f"calibrating with 1.25 gave {answer}, not 2.5")
        return "console -> back end -> sensors and back"

    # -- publications ----------------------------------------------------------------------------------------------------

    async def publications(self) -> str:
        """The sensors publish to the back end, which passes on to subscribers: to each its patterns, in order."""
        url, tls = self.plant.url, self.plant.tls
        async with connect(url, tls=tls, protocol=protocol_of(url, "visitor"), backoff=BACKOFF) as second:
            async with (
                self.bus.subscribe("reading.*", returns=SensorReading) as all_readings,
                second.subscribe("reading.temperature", returns=SensorReading) as temperatures,
            ):
                both = await _take(all_readings, 12)
                one = await _take(temperatures, 6)
        check({message.subject for message in both} == {"reading.temperature", "reading.pressure"}, "a sensor is missing")
        check({message.subject for message in one} == {"reading.temperature"}, "more than the pattern allows")
        for sensor in ("temperature", "pressure"):
            numbers = [message.body.number for message in both if message.body.sensor == sensor]
            check(numbers == list(range(numbers[0], numbers[0] + len(numbers))), f"{sensor}: a gap in {numbers}")
        return "2 subscribers; 12 and 6 readings, none missing, none foreign"

    async def slow_consumer(self) -> str:
        """A slow subscriber loses the oldest and no more; every other one gets everything; no memory grows."""
        async with self.bus.subscribe("flood.>", queue=QUEUE, when_full="drop_oldest") as unread:
            await self.bus.request(FLOOD, Flood(200, 10), timeout=TIMEOUT)
            kept = [message.body["number"] for message in await _take(unread, QUEUE)]
        check(kept == list(range(200 - QUEUE, 200)), f"a queue of {QUEUE} kept {kept}")
        check(unread.dropped == 200 - QUEUE, f"{unread.dropped} counted as dropped")
        try:
            return f"queue of {QUEUE}: {unread.dropped} of 200 dropped; {await self._stalled_process()}"
        except NotHere as error:
            return f"queue of {QUEUE}: {unread.dropped} of 200 dropped ({error})"

    async def _stalled_process(self) -> str:
        before, had = await self.counters(), await self._sensor_status()
        self.plant.stall_sensors()
        published, most, now = 0, 0, before
        try:
            async with self.bus.subscribe("flood.>", queue=BATCH.count) as everything:
                for _ in range(MOST_BATCHES):
                    published += await self.bus.request(FLOOD, BATCH, timeout=TIMEOUT)
                    numbers = [message.body["number"] for message in await _take(everything, BATCH.count)]
                    check(numbers == list(range(BATCH.count)), "another subscriber missed something")
                    now = await self.counters()
                    most = max(most, now.queued)
                    if now.dropped - before.dropped >= MUST_DROP:
                        break
        finally:
            self.plant.wake_sensors()
        check(now.dropped - before.dropped >= MUST_DROP, f"{published * BATCH.size >> 20} MiB for a stopped process were kept")
        check(most <= OUTBOX, f"{most} messages were kept, {OUTBOX} are allowed")
        # The question to the sensors takes a place in the full outbox itself: counted afterwards.
        got = dropped = 0
        with anyio.move_on_after(TIMEOUT):
            while got + dropped != published:
                got = (await self._sensor_status()).floods - had.floods
                dropped = (await self.counters()).dropped - before.dropped
        check(got + dropped == published, f"published {published}, dropped {dropped}, but the stopped process got {got}")
        return f"process stopped: of {published} it got {got}, {dropped} were dropped and counted"

    async def _sensor_status(self) -> SensorStatus:
        return await self.bus.request("sensors.status", timeout=TIMEOUT, returns=SensorStatus)

    # -- streams and channels --------------------------------------------------------------------------------------------

    async def stream(self) -> str:
        """Many answers, in order, faster than they are read; and one that is left half way."""
        async with self.bus.stream("history.tail", Tail("pressure", ITEMS), returns=SensorReading) as readings:
            numbers = [reading.number async for reading in readings]
        check(numbers == list(range(ITEMS)), f"{len(numbers)} items of {ITEMS}, or not in order")
        async with self.bus.stream("history.tail", Tail("pressure", 1_000_000), returns=SensorReading) as readings:
            async for reading in readings:
                if reading.number == 9:
                    break
        return f"{ITEMS} readings in order; left another of 1,000,000 after 10"

    async def channel(self) -> str:
        """Both sides send as they like, and each says when it has no more."""
        async with self.bus.channel("batch.mix", sends=float, receives=float) as mixing:
            totals: list[float] = []
            for dose in (1.0, 2.5, 4.0):
                await mixing.send(dose)
                totals.append(await anext(mixing))
            await mixing.send_eof()
            rest = [total async for total in mixing]
        check(totals == [1.0, 3.5, 7.5], f"the sums were {totals}")
        check(rest == [7.5], f"after the end came {rest}")
        return "3 doses, 3 sums, and the last word after our end"

    # -- when it does not work -------------------------------------------------------------------------------------------

    async def failing_handler(self) -> str:
        """The asker gets an error id that the back end knows, and nothing else of the exception."""
        error = await _raised(RemoteError, self.bus.request("batch.break", timeout=TIMEOUT))
        check(error.code is Code.INTERNAL, f"the code is {error.code.name}")
        shown = f"{error!s} {error!r} {error.detail!r} {error.reason!r}"
        check(SECRET not in shown and "RuntimeError" not in shown, f"the answer leaks: {error}")
        known = (await self.counters()).failures
        check(known and known[-1] in error.text, f"{error.text!r} does not name the failure {known[-1:]}")
        return f"INTERNAL with id {known[-1]}, known to the back end; nothing leaked"

    async def no_handler(self) -> str:
        """A request without a handler fails at once."""
        error = await _raised(NoHandler, self.bus.request("tank.paint", timeout=60))
        return f"answered at once: {error.code.name}"

    async def deadline(self) -> str:
        """The asker stops waiting in time, and the handler stops too."""
        before = await self.counters()
        seconds = await self._overdue(before)
        after = before.started + 1, before.cancelled + 1
        await self.until(lambda now: (now.started, now.cancelled) == after, "the handler was not cancelled")
        return f"gave up after {seconds:g} s; the handler was cancelled"

    async def _overdue(self, before: PlantCounters) -> float:
        """Let a request run into its deadline while its handler runs. Gives the seconds that it had."""
        for seconds in DEADLINES:
            error = await _raised(DeadlineExceeded, self.bus.request("report.slow", timeout=seconds))
            check(error.elapsed < seconds + TIMEOUT, f"it took {error.elapsed:.2f} s in place of {seconds:g} s")
            if (await self.counters()).started > before.started:
                return seconds
        raise CheckFailed(f"the handler did not even start within {DEADLINES[-1]:g} s")

    async def forbidden(self) -> str:
        """`authorize` decides about each request, and about each publication even of a wildcard."""
        error = await _raised(Forbidden, self.bus.request("admin.open_vault", timeout=TIMEOUT))
        check(SECRET not in str(error), "the refusal tells the secret")
        async with self.bus.subscribe(">") as everything:
            await self.bus.request("plant.announce", "shift ends", timeout=TIMEOUT)
            async for message in everything:
                check(not str(message.subject).startswith("admin."), f"{message.subject} was delivered")
                if message.subject == "plant.announcement":
                    break
        return "the request was refused; of '>' only what is allowed came"

    async def reconnect(self) -> str:
        """The server is killed and started again: what was asked fails at once, subscriptions come back by themselves."""
        before = await self.counters()
        reconnects = self.bus.stats().reconnects
        async with (
            self.bus.subscribe("plant.announcement", returns=Announcement) as announcements,
            self.bus.subscribe("reading.*", returns=SensorReading, queue=QUEUE, when_full="drop_oldest") as readings,
        ):
            pending: Reply[object] = self.bus.request("report.slow", timeout=60)
            await self.until(lambda now: now.started == before.started + 1, "the handler did not start")
            how = await self.plant.kill()
            error = await _raised(Disconnected, pending)
            check(error.sent, "the lost request is called unsent")
            await self.plant.restart()
            after = await self._counters_again()
            check(after.instance != before.instance, "the old back end still answers")
            # More than one is no fault: the socket of a dying process may take a connection for a moment.
            check(self.bus.stats().reconnects > reconnects, "no reconnect was counted")
            for text in ("first", "second"):
                await self.bus.request("plant.announce", text, timeout=TIMEOUT)
            heard = [message.body for message in await _take(announcements, 2)]
            wanted = [Announcement(text, after.instance) for text in ("first", "second")]
            check(heard == wanted, f"after the restart came {heard}")
            first = await self.until(lambda now: now.readings > 0, "the sensors did not come back")
            while (await _take(readings, 1))[0].body.number < first.last_reading:
                pass
        return f"{how}; pending request: Disconnected; subscriptions are back, publications flow, none twice"

    async def _counters_again(self) -> PlantCounters:
        """Waits in the outbox until the link is back. Behind a broker the first connection may find no server there yet."""
        with anyio.fail_after(TIMEOUT):
            while True:
                try:
                    return await self.counters()
                except (Disconnected, Unavailable):
                    await anyio.sleep(0.02)

    async def drain(self) -> str:
        """The back end leaves in order: it finishes what it has begun and takes nothing new."""
        before = await self.counters()
        last = self.bus.request("report.last", timeout=TIMEOUT)
        await self.until(lambda now: now.started == before.started + 1, "the handler did not start")
        self.plant.drain()
        refused = 0
        while refused < REFUSALS and not last.done():
            try:
                await self.bus.request(LEVEL, GetLevel(1), timeout=TIMEOUT)
            except Unavailable:
                refused += 1
            except Disconnected:
                break  # the plant has closed meanwhile
            await anyio.sleep(0.005)
        answer = await last
        check(refused > 0, "new requests were still taken")
        check(answer == "all tanks closed", f"the running handler answered {answer!r}")
        return f"new request: Unavailable; the running one was answered; {await self.plant.left()}"


STEPS: Mapping[str, Callable[[Console], Awaitable[str]]] = {
    "requests": Console.requests,
    "publications": Console.publications,
    "stream": Console.stream,
    "channel": Console.channel,
    "ask back": Console.ask_back,
    "failing handler": Console.failing_handler,
    "no handler": Console.no_handler,
    "deadline": Console.deadline,
    "forbidden": Console.forbidden,
    "slow consumer": Console.slow_consumer,
    "reconnect": Console.reconnect,
    "drain": Console.drain,
}
"""In the order in which they are played; the last two end the back end."""


def play_row(transport: str, template: str, make: Make) -> Callable[[RowRun, Workshop], Awaitable[None]]:
    """Plays a row: `template` makes the URL of an address, ``ubre+{address}?format=binary``; `make` the plant."""

    async def run(row: RowRun, workshop: Workshop) -> None:
        async with make(transport, template, row.row.name.replace(" ", "-"), workshop) as plant:
            protocol = protocol_of(plant.url, "console")
            async with connect(plant.url, tls=plant.tls, protocol=protocol, backoff=BACKOFF, record=workshop.record) as bus:
                console = Console(bus, plant)
                for name in row.row.steps:
                    await row.step(name, partial(STEPS[name], console))
                row.sent, row.received = bus.stats().sent, bus.stats().received

    return run


async def _raised(kind: type[Failure], reply: Awaitable[Any]) -> Failure:
    """The exception that a request has to end in."""
    try:
        answer = await reply
    except kind as error:
        return error
    except BusError as error:
        raise CheckFailed(f"expected {kind.__name__}, got {type(error).__name__}: {error}") from error
    raise CheckFailed(f"expected {kind.__name__}, got the answer {answer!r:.80}")


async def _take(subscription: Subscription, count: int) -> list[Message]:
    """The next publications."""
    taken: list[Message] = []
    with anyio.move_on_after(TIMEOUT):
        async for message in subscription:
            taken.append(message)
            if len(taken) == count:
                return taken
    raise CheckFailed(f"{len(taken)} of {count} publications of {subscription.pattern!r} came in {TIMEOUT:g} s")
