"""Outcomes in the tables against what the application has seen: every protocol, either end records, every kind of ending."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from polybus import Bus, DeadlineExceeded, Disconnected, NotFound, RequestCancelled, RequestError, connect
from polybus.analysis import open_tables
from polybus.analysis.engine import exchanges
from polybus.analysis.ranges import ReadWindow
from polybus.capture import Capture, decoding, recover, write_columns
from polybus.protocols import Up
from polybus.testing.nats_engine import NatsEngine
from tests.unit.capture import rows as frames
from tests.unit.capture.folders import damage, damage_batches, open_segment, write_segment

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
        done = analyse(tmp_path / end, tmp_path / f"of {end}", report=end == "server")
        rows = open_tables(tmp_path / f"of {end}").sql("select kind, subject, outcome, items from exchanges").fetchall()
        mine = [(kind, _word(subject), outcome, n) for kind, subject, outcome, n in rows if "_polybus" not in subject]
        assert Counter((subject, outcome) for _, subject, outcome, _ in mine) == seen, end
        streams = [(subject, n) for kind, subject, _, n in mine if kind == "stream"]
        assert {subject: sum(n for other, n in streams if other == subject) for subject, _ in streams} == items, end
    totals, said = done.metrics["totals"], [one["text"] for one in done.metrics["verdict"]]
    assert (totals["streams"], totals["internal"]) == (len(streams), len(rows) - len(mine))
    assert ("2 of 4 streams (50 %) did not end well: endless (1), broken (1)." in said) is bool(streams)


def _word(subject: str) -> str:
    word = subject.rpartition(".")[2].rpartition("/")[2]
    return next((name for name, number in SUBJECTS.items() if f"{number:X}" == word), word)


@pytest.mark.parametrize("behind", ["end", "frames"])
@pytest.mark.parametrize("read", range(4))
def test_a_request_is_unseen_if_its_answer_was_in_a_damaged_batch_wherever_a_run_stopped(
    read: int, behind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run reads so many batches: the requests, the damaged answers, and what shows that these are missing."""
    monkeypatch.setattr(decoding, "ROWS_AT_ONCE", 1)
    capture, day = tmp_path / "capture", Day()
    for text, direction in (('{"request":"tank.get","id":"ID"}', 0), (GOOD, 1)):
        for number in range(3):
            day.say(text.replace("ID", str(number)), direction)
    day.say('{"publish":"news"}', 0)
    writer = open_segment(capture)
    for batch in range(4):
        if batch == 2:
            [segment] = Capture(capture).segments()
            *_, answers = Capture(capture).reader(segment).messages()
            damage(writer.path, (answers.offset + answers.size // 2) / writer.path.stat().st_size)
        if batch == read:
            analyse(capture, tmp_path / "out")
        rows = day.rows[3 * batch : 3 * batch + 3]
        if rows and (batch < 2 or behind == "frames"):
            writer.write(frames.batch(*rows), 3 * batch)
    writer.end(7 if behind == "frames" else 6)
    writer.seal()
    outcomes = analyse(capture, tmp_path / "out", report=True).metrics["totals"]["outcomes"]
    assert {name: n for name, n in outcomes.items() if n} == {"unseen": 3}
    found = [row["outcome"] for rows in exchanges(Capture(capture), ReadWindow(), 30.0) for row in rows.to_pylist()]
    assert found == ["unseen"] * 3


def test_a_request_is_unseen_if_only_the_columns_of_the_next_segment_show_that_frames_are_missing(tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    asked = [frames.row(number, frame=b'{"request":"tank.get","id":"%d"}' % number) for number in range(3)]
    path = write_segment(capture, frames.batch(*asked), frames.batch(frames.row(3)))
    damage(path, 0.9)
    writer = open_segment(capture, number=1)
    writer.end(4)
    writer.seal()
    assert write_columns(capture).damaged == [0]
    outcomes = analyse(capture, tmp_path / "out", report=True).metrics["totals"]["outcomes"]
    assert {name: n for name, n in outcomes.items() if n} == {"unseen": 3}


@pytest.mark.parametrize(("lost", "outcome"), [(1, "open-at-end"), (2, "unseen")])
def test_outcomes_in_a_recovered_copy_are_those_of_the_damaged_capture(lost: int, outcome: str, tmp_path: Path) -> None:
    """A hole before the last requests does not concern them; one behind them does."""
    capture, copy = tmp_path / "capture", tmp_path / "copy"
    rows = [frames.row(0), frames.row(1), frames.row(2)]
    rows[3 - lost] = frames.row(3 - lost, frame=b'{"request":"tank.get","id":"1"}')
    write_segment(capture, *map(frames.batch, rows), ends=True)
    damage_batches(capture, lost)
    recover(capture, copy)
    for path in (capture, copy):
        analyse(path, tmp_path / f"out of {path.name}")
        found = open_tables(tmp_path / f"out of {path.name}").sql("select outcome from exchanges").fetchall()
        assert found == [(outcome,)]


ASKED = 3
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("protocol", ["ubre", "csb", "uprotocol"])
async def test_greetings_of_buses_are_no_requests_of_users_whose_traces_are_known(protocol: str, tmp_path: Path) -> None:
    subject = "//v/body/1/rpc.Get" if protocol == "uprotocol" else "user.get"
    server = Bus()

    @server.handle(subject)
    async def get(body: Any) -> Any:
        return body

    async with server.serve(f"{protocol}+tcp://127.0.0.1:0") as listener:
        async with connect(listener.url, record=tmp_path / "capture") as client:
            async with client.subscribe(subject.replace("rpc.Get", "door#News")):  # which needs to know whom it is told to
                for number in range(ASKED):
                    answer = await client.request(subject, {"number": number}, headers={"traceparent": TRACE})
                    assert answer == {"number": number}
    done = analyse(tmp_path / "capture", tmp_path / "out", report=True)
    rows = open_tables(tmp_path / "out").sql("select subject from exchanges").fetchall()
    traced = open_tables(tmp_path / "out").sql("select distinct subject, traceparent from events where kind = 'request'")
    assert (subject if protocol != "csb" else "user.get", TRACE) in traced.fetchall()
    internal = [name for (name,) in rows if "_polybus." in name]
    totals = done.metrics["totals"]
    assert (totals["exchanges"], totals["internal"]) == (ASKED, len(internal)) == (ASKED, len(rows) - ASKED)
    assert internal
    told = {name: value for name, value in done.metrics.items() if name not in ("capture", "kinds", "sessions", "peers")}
    assert "_polybus." not in json.dumps(told)
    page = Path(done.report).read_text()  # noqa: ASYNC240  # a test waits for its file
    assert f"The handshakes of buses ({len(internal)})" in page
