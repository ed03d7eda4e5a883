"""Outcomes in the tables against what the application has seen: every protocol, either end records, every kind of ending."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from polybus import Bus, DeadlineExceeded, Disconnected, NotFound, RequestCancelled, RequestError, connect
from polybus.analysis import open_tables
from polybus.capture import Capture
from polybus.protocols import Up
from polybus.testing.nats_engine import NatsEngine
from tests.unit.capture import rows as frames
from tests.unit.capture.folders import damage, write_segment

from .days import GOOD, Day, analyse

SUBJECTS = {"good": 1, "bad": 2, "never": 3}
WIRES = ("ubre", "ubre?format=binary", "csb", "jrep", "uprotocol", "uprotocol?format=json", "up", "nats")
SILENT = ("up", "nats")
"""Wires without streams, and without a word by which a request is given up."""


class Application:
    """Asks in every way that ends otherwise, and keeps a ledger of what came of it."""

    def __init__(self) -> None:
        self.server, self.client = Bus(), Bus()
        self.ledger: Counter[tuple[str, str]] = Counter()
        """By subject and outcome."""
        self.items: Counter[str] = Counter()
        self._begun = anyio.Semaphore(0)
        server = self.server

        @server.handle("good")
        async def good(number: int) -> int:
            return number

        @server.handle("bad")
        async def bad() -> None:
            raise NotFound("no")

        @server.handle("never")
        async def never() -> None:
            self._begun.release()
            await anyio.sleep_forever()

        @server.handle("count")
        async def count() -> AsyncIterator[int]:
            for number in range(3):
                yield number

        @server.handle("broken")
        async def broken() -> AsyncIterator[int]:
            yield 1
            raise NotFound("no more")

        @server.handle("endless")
        async def endless() -> AsyncIterator[int]:
            yield 1
            await anyio.sleep_forever()

    async def ask(self, subject: str, body: Any = None, *, timeout: float = 30, give_up: bool = False) -> None:
        reply = self.client.request(subject, body, timeout=timeout)
        if give_up:
            await self._begun.acquire()
            reply.cancel()
        await self._note(subject, reply.wait)

    async def stream(self, subject: str, most: int = 99) -> None:
        async def read() -> None:
            async with self.client.stream(subject) as items:
                async for _ in items:
                    self.items[subject] += 1
                    if not most:
                        self._begun.release()
                    elif self.items[subject] == most:
                        raise RequestCancelled("enough")

        await self._note(subject, read)

    async def _note(self, subject: str, ending: Any) -> None:
        outcome = "ok"
        try:
            await ending()
        except (RequestCancelled, DeadlineExceeded, Disconnected, RequestError) as error:
            known = {RequestCancelled: "cancelled", DeadlineExceeded: "timeout", Disconnected: "lost"}
            outcome = next((name for kind, name in known.items() if isinstance(error, kind)), "error")
        self.ledger[subject, outcome] += 1

    async def run(self, protocol: str, folder: Path) -> None:
        async with self.server.record(folder / "server"), self.client.record(folder / "client"):
            if protocol == "nats":
                async with NatsEngine() as engine, connect(engine.url, bus=self.server):
                    await self._use(engine.url, protocol, engine.cut)
                return
            name, question, query = protocol.partition("?")
            up = Up(entity="//house/1/1", names=SUBJECTS) if protocol == "up" else None
            async with self.server.serve(f"{name}+tcp://127.0.0.1:0{question}{query}", protocol=up) as listener:
                await self._use(listener.url, protocol)

    async def _use(self, url: str, protocol: str, cut: Any = anyio.lowlevel.checkpoint) -> None:
        up = Up(entity="//phone/2/1", peer="//house/1/1", names=SUBJECTS) if protocol == "up" else None
        async with anyio.create_task_group() as left:
            async with connect(url, bus=self.client, protocol=up):
                await self.ask("good", 1)
                await self.ask("bad")
                await self.ask("never", timeout=1)  # its last 250 ms are slack: a busy machine may deliver the request late
                await self._begun.acquire()
                await self.ask("never", give_up=True)
                if protocol not in SILENT:
                    await self.stream("count")
                    await self.stream("broken")
                    await self.stream("endless", most=1)
                    left.start_soon(self.stream, "endless", 0)
                    await self._begun.acquire()
                left.start_soon(self.ask, "never")
                await self._begun.acquire()
                await cut()


@pytest.mark.parametrize("protocol", WIRES)
async def test_either_end_tells_of_every_exchange_what_the_application_has_seen(protocol: str, tmp_path: Path) -> None:
    application = Application()
    with anyio.fail_after(20):
        await application.run(protocol, tmp_path)
    seen, items = application.ledger, application.items
    if protocol in SILENT:  # no frame tells it from one that waits until its connection ends
        seen["never", "lost"] += seen.pop(("never", "cancelled"))
    for end in ("client", "server"):
        analyse(tmp_path / end, tmp_path / f"of {end}")
        rows = open_tables(tmp_path / f"of {end}").sql("select kind, subject, outcome, items from exchanges").fetchall()
        mine = [(kind, _word(subject), outcome, n) for kind, subject, outcome, n in rows if "_polybus" not in subject]
        assert Counter((subject, outcome) for _, subject, outcome, _ in mine) == seen, end
        streams = [(subject, n) for kind, subject, _, n in mine if kind == "stream"]
        assert {subject: sum(n for other, n in streams if other == subject) for subject, _ in streams} == items, end


def _word(subject: str) -> str:
    """The subject as the application calls it."""
    word = subject.rpartition(".")[2].rpartition("/")[2]
    return next((name for name, number in SUBJECTS.items() if f"{number:X}" == word), word)


def test_a_request_is_unseen_if_its_answer_was_in_a_damaged_batch_at_the_end_of_the_recording(tmp_path: Path) -> None:
    day = Day()
    for text, direction in (('{"request":"tank.get","id":"ID"}', 0), (GOOD, 1)):
        for number in range(3):
            day.say(text.replace("ID", str(number)), direction)
    path = write_segment(tmp_path / "capture", frames.batch(*day.rows[:3]), frames.batch(*day.rows[3:]), ends=True)
    [segment] = Capture(tmp_path / "capture").segments()
    [answers] = [one for one in Capture(tmp_path / "capture").reader(segment).messages() if one.batch == 1]
    damage(path, (answers.offset + answers.size // 2) / path.stat().st_size)
    outcomes = analyse(tmp_path / "capture", tmp_path / "out", report=True).metrics["totals"]["outcomes"]
    assert {name: n for name, n in outcomes.items() if n} == {"unseen": 3}
