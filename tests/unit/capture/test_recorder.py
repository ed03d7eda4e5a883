"""The recorder: what passes a link is on the disk, in order, and what is not is counted and marked."""

import asyncio
import errno
import json
import math
import os
import random
import shutil
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any

import anyio
import pyarrow as pa
import pytest
from attrs import evolve

from polybus import Backoff, Bus, ConnectFailed, Identity, LocalProtocolError, connect, sync
from polybus._core.link.link import Link
from polybus.capture import Capture, CaptureError, CaptureRecorder, Recording, info, make_recorder
from polybus.capture.record.recorder import BATCH_ROWS, RowBuffer
from polybus.capture.record.writer import CaptureWriter, Rows
from polybus.capture.rows import FIELDS, MOST, Gap, RowHeader
from polybus.capture.schema import DIRECTION_IN, DIRECTION_OUT, FLAG_GAP_BEFORE, FLAG_REDACTED
from polybus.capture.store.segments import SegmentWriter
from polybus.testing import pair
from tests.refusal import refused
from tests.support import eventually, until
from tests.unit.capture.recording_process import HELD_BACK

from . import rows as frames
from .folders import events_in, rows_in, write_segment

PROTOCOLS = ("ubre", "csb", "jrep", "uprotocol")
ROOT = Path(__file__).parents[3]
WAKE_ROWS, MOST_ROWS = CaptureRecorder.enough, MOST // FIELDS


def _python(script: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def _gaps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(row["options"]) for row in rows if row["flags"] & FLAG_GAP_BEFORE]


def _subject(protocol: str) -> str:
    return "//v/body/1/rpc.Get" if protocol == "uprotocol" else "user.get"


def _server(protocol: str) -> Bus:
    bus = Bus()

    @bus.handle(_subject(protocol))
    async def get(body: dict[str, Any]) -> dict[str, Any]:
        return {"got": body}

    return bus


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "polybus recorder"]


@pytest.mark.parametrize(
    ("protocol", "transport"), [*((protocol, "tcp") for protocol in PROTOCOLS), ("ubre", "ws"), ("ubre", "memory")]
)
async def test_every_frame_of_both_directions_is_recorded(protocol: str, transport: str, tmp_path: Path) -> None:
    address = f"memory://recorded-{protocol}" if transport == "memory" else f"{transport}://127.0.0.1:0"
    subject = _subject(protocol)
    async with _server(protocol).serve(f"{protocol}+{address}") as listener, connect(listener.url, record=tmp_path) as bus:
        for number in range(3):
            assert await bus.request(subject, {"n": number}, timeout=5) == {"got": {"n": number}}
    events = events_in(tmp_path)
    asked = [event for event in events if event["kind"] == "request" and event["subject"] == subject]
    answered = {event["correlation_id"]: event for event in events if event["kind"] == "response"}
    assert len(asked) == 3
    for event in asked:
        assert (event["direction"], event["protocol"], event["transport"]) == (DIRECTION_OUT, protocol, transport)
        allowed = event["deadline_ns"] - event["mono_ns"] if protocol == "csb" else event["ttl_ms"] * 1_000_000
        assert 0 < allowed <= 5_000_000_000
        answer = answered[event["correlation_id"]]
        assert answer["direction"] == DIRECTION_IN
        assert answer["mono_ns"] > event["mono_ns"]
        assert answer["seq"] > event["seq"]
        assert abs(answer["time_ns"] - time.time_ns()) < 60_000_000_000
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert (events[0]["kind"], events[-1]["kind"], events[-1]["code_name"]) == ("open", "close", "1000")
    assert {row["role"] for row in rows_in(tmp_path)} == {0}


async def test_a_server_records_all_its_links_and_only_while_it_is_asked_to(tmp_path: Path) -> None:
    bus = _server("ubre")
    async with pair(bus) as one, pair(bus) as two:
        await one.request("user.get", {"n": 0})
        async with bus.record(tmp_path) as recording:
            await one.request("user.get", {"n": 1})
            await two.request("user.get", {"n": 2})
            async with pair(bus) as three:
                await three.request("user.get", {"n": 3})
        assert recording.stats().frames == len(rows_in(tmp_path))
        assert recording.stats().waiting == 0
        await one.request("user.get", {"n": 4})
        for link in bus._services.running.links:  # nothing of it stays in the way of messages
            assert "capture" not in type(link.session).__module__
            assert "capture" not in type(link.transport).__module__
    rows = rows_in(tmp_path)
    bodies = sorted(json.loads(event["data"])["n"] for event in events_in(tmp_path, "request"))
    assert bodies == [1, 2, 3]
    assert len({row["conn_id"] for row in rows}) == 3
    assert {row["role"] for row in rows} == {1}
    assert {row["capture_id"] for row in rows} == {recording.capture_id}


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("ann", "ann"),
        ("half \ud800", "half ?"),
        ("x" * 1_000_000, "x" * 1000),
        ("https://ann:hunter2@shop.example", "https://ann:*******@shop.example"),
        (f"eyJhbGciOiJIUzI1NiJ9.{'a' * 2000}.c2ln", "*" * 1000),
    ],
    ids=["name", "half a pair", "long", "password", "token"],
)
async def test_the_key_of_an_identity_costs_no_connection_and_tells_no_secret(key: str, shown: str, tmp_path: Path) -> None:
    bus = _server("ubre")
    async with bus.record(tmp_path), pair(bus, identity=Identity(key=key)) as client:
        await client.request("user.get", {"n": 1})
    marks = [json.loads(row["options"])["link"] for row in rows_in(tmp_path) if row["frame"] is None]
    assert [mark.get("who") for mark in marks] == [shown, shown]
    assert len(events_in(tmp_path, "open")) == 1


async def test_recordings_may_overlap_and_end_in_any_order(tmp_path: Path) -> None:
    bus = _server("ubre")
    async with pair(bus) as client:
        first, second = bus.record(tmp_path / "first"), bus.record(tmp_path / "second")
        await first.__aenter__()
        await client.request("user.get", {"n": 1})
        await second.__aenter__()
        await client.request("user.get", {"n": 2})
        await first.__aexit__(None, None, None)
        await client.request("user.get", {"n": 3})
        await second.__aexit__(None, None, None)
        await client.request("user.get", {"n": 4})
    for name, numbers in (("first", [1, 2]), ("second", [2, 3])):
        assert [json.loads(event["data"])["n"] for event in events_in(tmp_path / name, "request")] == numbers


async def test_publications_that_share_their_bytes_are_recorded_too(tmp_path: Path) -> None:
    bus = Bus()
    async with bus.serve("ubre+tcp://127.0.0.1:0") as listener, bus.record(tmp_path):
        async with connect(listener.url) as one, connect(listener.url) as two:
            async with one.subscribe("news.>") as first, two.subscribe("news.>") as second:
                await bus.publish("news.today", {"n": 1})
                assert [(await anext(first)).body, (await anext(second)).body] == [{"n": 1}, {"n": 1}]
    sent = [event for event in events_in(tmp_path, "publish") if event["direction"] == DIRECTION_OUT]
    assert len(sent) == 2
    assert len({event["conn_id"] for event in sent}) == 2


async def test_a_link_that_comes_back_is_another_connection(tmp_path: Path) -> None:
    bus = _server("ubre")
    soon = Backoff(initial=0.001, maximum=0.01)
    async with bus.serve("ubre+tcp://127.0.0.1:0") as listener:
        async with connect(listener.url, record=tmp_path, backoff=soon) as client:
            await client.request("user.get", {"n": 1})
            await listener.peers[0].aclose("go away")
            await eventually(lambda: client.stats().reconnects == 1)
            await client.request("user.get", {"n": 2})
    events = events_in(tmp_path, "open", "close")
    assert [event["kind"] for event in events] == ["open", "close", "open", "close"]
    assert len({event["conn_id"] for event in events}) == 2


async def test_a_tunnel_names_itself(tmp_path: Path) -> None:
    far = _server("csb")
    server = Bus()
    async with far, server.serve("ubre+tcp://127.0.0.1:0") as listener:
        server.handle_tunnels("plant.7", far, protocol="csb")
        async with connect(listener.url) as outer, connect(outer.tunnel("plant.7"), protocol="csb", record=tmp_path) as inner:
            await inner.request("user.get", {"n": 1})
    rows = rows_in(tmp_path)
    assert {tuple(row["tunnel"]) for row in rows} == {("plant.7",)}
    assert {row["transport"] for row in rows} == {"tunnel"}


def test_the_blocking_twin_records_too(tmp_path: Path) -> None:
    with sync.Bus(_server("ubre")) as server, server.serve("ubre+tcp://127.0.0.1:0") as listener, server.record(tmp_path / "s"):
        with sync.connect(listener.url, record=tmp_path / "c") as client:
            client.request("user.get", {"n": 1})
    for name in ("s", "c"):
        assert [event["kind"] for event in events_in(tmp_path / name, "request", "response")] == ["request", "response"]


@pytest.mark.parametrize(
    ("options", "gone"),
    [({}, {b"hunter2"}), ({"redact": None}, set()), ({"bodies": False}, {b"hunter2", b"personal"})],
    ids=["usually", "where nobody wants it blanked", "without bodies"],
)
async def test_what_is_to_be_left_out_is_not_on_the_disk_and_exchanges_can_still_be_followed(
    options: dict[str, Any], gone: set[bytes], tmp_path: Path
) -> None:
    async with pair(_server("ubre")) as client, client.record(tmp_path, **options):
        await client.request("user.get", {"password": "hunter2", "text": "personal"})
    rows = rows_in(tmp_path)
    written = b"".join(row["frame"] or b"" for row in rows)
    assert {word for word in (b"hunter2", b"personal") if word not in written} == gone
    assert any(row["flags"] & FLAG_REDACTED for row in rows) == bool(gone)
    asked, answered = events_in(tmp_path, "request", "response")
    assert asked["correlation_id"] == answered["correlation_id"]


async def test_only_the_owner_may_look(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "captures"
    async with pair(_server("ubre")) as client, client.record(folder):
        await client.request("user.get", {})
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


END = RowHeader(DIRECTION_OUT, "c-1", "peer", "ubre", "tcp", (), "{}")


@contextmanager
def _opened(folder: Path, *, segment_seconds: float = 60.0, **options: Any) -> Iterator[CaptureRecorder]:
    recorder = make_recorder(folder, **options)
    recorder._settings = evolve(recorder._settings, segment_seconds=segment_seconds)
    recorder.open()
    try:
        yield recorder
    finally:
        recorder.close()


def _frame(number: int) -> bytes:
    return b'{"publish":"n","body":%d}' % number


def _numbers(rows: list[dict[str, Any]]) -> list[int | str]:
    return ["gap" if row["frame"] is None else int(json.loads(row["frame"])["body"]) for row in rows]


def _take(recorder: CaptureRecorder, *numbers: int) -> None:
    for number in numbers:
        recorder.take((END, number, _frame(number), None))


def _take_and_wait(recorder: CaptureRecorder, *numbers: int) -> None:
    frames = recorder.stats().frames + len(numbers)
    _take(recorder, *numbers)
    until(lambda: recorder.stats().frames == frames)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Segments are not written until it may `go_on`; somebody waits for it when it is `busy`."""
    disk, write = SimpleNamespace(busy=threading.Event(), go_on=threading.Event()), SegmentWriter.write

    def slowly(self: SegmentWriter, batch: Any, seq: int) -> int:
        disk.busy.set()
        assert disk.go_on.wait(30)
        return write(self, batch, seq)

    monkeypatch.setattr(SegmentWriter, "write", slowly)
    return disk


def test_what_the_thread_cannot_keep_up_with_is_dropped_counted_and_marked(tmp_path: Path, slow_disk: SimpleNamespace) -> None:
    with _opened(tmp_path) as recorder:
        _take(recorder, *range(WAKE_ROWS))
        assert slow_disk.busy.wait(30)
        many = BATCH_ROWS + MOST_ROWS + 1_000
        _take(recorder, *range(WAKE_ROWS, many))
        dropped = recorder.stats().dropped
        assert dropped >= 1_000
        assert len(recorder._waiting) <= MOST_ROWS
        slow_disk.go_on.set()
        until(lambda: not recorder.stats().waiting)
        _take(recorder, many)
    rows = rows_in(tmp_path)
    assert _numbers(rows) == [*range(many - dropped), "gap", many]
    assert [(gap["gap"], gap["frames"]) for gap in _gaps(rows)] == [("dropped", dropped)]
    assert [row["seq"] for row in rows] == list(range(len(rows)))


def test_large_frames_are_bounded_by_their_bytes(tmp_path: Path, slow_disk: SimpleNamespace) -> None:
    with _opened(tmp_path) as recorder:
        for number in range(200):
            recorder.take((END, number, bytes(1 << 20), None))
        assert recorder.stats().waiting <= 2 * 64
        assert recorder.stats().dropped >= 200 - 2 * 64
        slow_disk.go_on.set()


def test_large_frames_are_written_as_fast_as_they_come_and_not_a_part_of_them_at_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polybus.capture.record.recorder.FLUSH_SECONDS", 1000.0)
    with _opened(tmp_path) as recorder:
        for _ in range(3):
            for number in range(50):
                recorder.take((END, number, bytes(1 << 20), None))
            until(lambda: recorder.stats().waiting <= 8)
        assert recorder.stats().dropped == 0


def test_a_full_disk_is_marked_once_and_recording_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = threading.Event()
    write = os.write

    def maybe(file: int, data: Any) -> int:
        if full.is_set() and len(data) > 3:
            write(file, bytes(data[:3]))  # the disk takes a little, then nothing
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    monkeypatch.setattr("polybus.capture.store.segments.os.write", maybe)
    monkeypatch.setattr("polybus.capture.record.writer.RETRY", 0.0)
    with _opened(tmp_path) as recorder:
        _take_and_wait(recorder, *range(10))
        full.set()
        for lost in (5, 10, 15):
            _take(recorder, *range(lost + 5, lost + 10))
            until(partial(_has_lost, recorder, lost))
        full.clear()
        _take(recorder, *range(25, 30))
        until(lambda: not recorder.stats().waiting)
    rows = rows_in(tmp_path)
    assert _numbers(rows) == [*range(10), "gap", *range(25, 30)]
    assert _gaps(rows) == [{"gap": "disk", "frames": 15, "error": "No space left on device"}]
    assert [row["seq"] for row in rows] == list(range(len(rows)))
    assert Capture(tmp_path).losses == []
    assert caplog.text.count("traffic goes on") == 1


class _Disk:
    """A disk with so much room; what is written over takes none."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 1 << 30
        self._folder, self._write, self._kept = folder, os.write, list[Any]()
        monkeypatch.setattr("polybus.capture.store.segments.os.write", self._maybe)
        monkeypatch.setattr("polybus.capture.record.writer.TemporaryFile", self._keep)
        monkeypatch.setattr("polybus.capture.record.writer.RETRY", 0.0)

    def _keep(self, **options: Any) -> Any:
        self._kept.append(TemporaryFile(**options))
        return self._kept[-1]

    @property
    def used(self) -> int:
        kept = sum(os.fstat(file.fileno()).st_size for file in self._kept if not file.closed)
        return kept + sum(path.stat().st_size for path in self._folder.iterdir())

    def _maybe(self, file: int, data: Any) -> int:
        grows = max(0, os.lseek(file, 0, os.SEEK_CUR) + len(data) - os.fstat(file).st_size)
        if self.used + grows > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(file, data)


@pytest.mark.parametrize("before", [10, 0], ids=["later", "from the beginning"])
@pytest.mark.parametrize("others", [True, False], ids=["and others take what is kept free", "and what is kept free is left"])
def test_a_disk_that_stays_full_to_the_end_leaves_a_gap_where_it_can(
    before: int, others: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it cannot, nothing says that the recording is over: it has not been told to its end."""
    disk = _Disk(tmp_path, monkeypatch)
    with _opened(tmp_path) as recorder:
        _take_and_wait(recorder, *range(before))
        disk.room = 0 if others else disk.used
        _take(recorder, *range(15))
        until(partial(_has_lost, recorder, 15))
    if others and not before:
        assert list(tmp_path.iterdir()) == []
        return
    rows, found = rows_in(tmp_path), info(Capture(tmp_path))
    assert _numbers(rows) == [*range(before), *([] if others else ["gap"])]
    assert found.gaps == ({} if others else {"disk": 15})
    assert (found.ended, found.lost_stretches) == ([] if others else [recorder.capture_id], 0)


@pytest.mark.parametrize(
    ("where", "lost", "said"),
    [
        ((Rows, "batch"), [{"gap": "failed", "frames": 1, "error": "an internal error"}], "failed on a batch"),
        ((CaptureWriter, "_seal"), [], "it goes on"),
    ],
    ids=["in a batch", "between batches"],
)
def test_a_mistake_of_the_recorder_costs_what_it_was_made_with_and_is_marked(
    where: tuple[type, str], lost: list[Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    well, failed = getattr(*where), threading.Event()

    def badly(self: Any, *given: Any) -> Any:
        if failed.is_set():
            return well(self, *given)
        failed.set()
        raise KeyError("a mistake")

    with _opened(tmp_path, segment_seconds=0.05) as recorder:
        monkeypatch.setattr(*where, badly)
        _take(recorder, 0)
        assert failed.wait(30)
        until(partial(_has_lost, recorder, len(lost)))
        _take(recorder, 1)
    rows = rows_in(tmp_path)
    assert sorted(_numbers(rows), key=str) == ([1, "gap"] if lost else [0, 1])
    assert _gaps(rows) == lost
    assert said in caplog.text
    assert recorder.stats().waiting == 0


def _has_lost(recorder: CaptureRecorder, frames: int) -> bool:
    return recorder.stats().dropped == frames


def test_a_capture_keeps_to_its_size_and_says_what_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.capture.record.recorder.FLUSH_SECONDS", 0.005)
    noise = [os.urandom(2000) for _ in range(50)]
    with _opened(tmp_path, max_bytes=1 << 18, redact=None) as recorder:
        for number in range(600):
            recorder.take((END, number, b"%d %s" % (number, noise[number % 50]), None))
            if number % 30 == 29:
                until(lambda: not recorder.stats().waiting)
    capture = Capture(tmp_path)
    numbers = [segment.number for segment in capture.segments()]
    assert numbers[0] > 0
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert sum(segment.size for segment in capture.segments()) < (1 << 18) + (1 << 17)
    rows = rows_in(tmp_path)
    # Rows that said so were removed too, and others say it in their place.
    gaps = _gaps(rows)
    here = len(rows) - len(gaps)
    assert {gap["gap"] for gap in gaps} == {"retention"}
    assert sum(gap["frames"] for gap in gaps) == 600 - here > here
    assert min(gap["segments"][0] for gap in gaps) == 0
    assert max(gap["segments"][1] for gap in gaps) == numbers[0] - 1
    assert recorder.stats().frames == 600


def test_what_is_too_old_is_removed(tmp_path: Path) -> None:
    for number in range(2):
        with _opened(tmp_path) as recorder:
            _take(recorder, number)
    old = time.time() - 1000
    os.utime(Capture(tmp_path).segments()[0].path, (old, old))
    with _opened(tmp_path, max_age=timedelta(seconds=500)) as recorder:
        _take(recorder, 2)
    rows = rows_in(tmp_path)
    assert _numbers(rows) == [1, "gap", 2]
    assert _gaps(rows) == [{"gap": "retention", "frames": 1, "segments": [0, 0]}]


def test_what_is_removed_may_say_anything_of_what_was_removed_before(tmp_path: Path) -> None:
    strange = frames.row(0, frame=None, flags=FLAG_GAP_BEFORE, options='{"gap":"retention","frames":5}')
    os.utime(write_segment(tmp_path, frames.batch(strange, frames.row(1)), number=7), (0, 0))
    with _opened(tmp_path, max_age=timedelta(seconds=500)) as recorder:
        _take(recorder, 2)
    assert _gaps(rows_in(tmp_path)) == [{"gap": "retention", "frames": 6, "segments": [7, 7]}]


def test_two_recorders_may_share_a_folder(tmp_path: Path) -> None:
    with _opened(tmp_path) as one, _opened(tmp_path) as two:
        _take(one, 1)
        _take(two, 2)
        until(lambda: one.stats().frames + two.stats().frames == 2)
        assert len(list(tmp_path.glob("*.open"))) == 2
    rows = rows_in(tmp_path)
    assert sorted(_numbers(rows)) == [1, 2]
    assert len({row["capture_id"] for row in rows}) == 2


KILLS = int(os.environ.get("POLYBUS_KILLS", "1"))


@contextmanager
def _child(tmp_path: Path, last: int) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], int]]]:
    """A process that records, and how many requests it has made. It is killed at the end."""
    counter = tmp_path / "counter"
    counter.write_bytes(bytes(16))
    arguments = "-m", "tests.unit.capture.recording_process", str(tmp_path / "captures"), str(counter), str(last)
    process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process, lambda: int(struct.unpack("<q", counter.read_bytes()[:8])[0])
    finally:
        process.kill()
        process.communicate()


@pytest.mark.native
@pytest.mark.parametrize("moment", range(KILLS))
@pytest.mark.parametrize("within", [True, False], ids=["within a write", "from outside"])
def test_a_killed_process_loses_at_most_one_batch(within: bool, moment: int, tmp_path: Path) -> None:
    # From outside, a kill mostly comes between two writes; so one child ends itself after some byte of some write.
    last = random.SystemRandom().randint(5_000, 400_000) if within else 0
    with _child(tmp_path, last) as (process, sent):
        if within:
            process.wait(60)
        else:
            requests = random.SystemRandom().randint(HELD_BACK // 2 + 50, HELD_BACK)  # a first batch is written by then
            until(lambda: sent() >= requests)
    folder = tmp_path / "captures"
    assert not within or sum(path.stat().st_size for path in folder.iterdir()) == last
    requests, capture = sent(), Capture(folder)
    rows = rows_in(folder)
    assert info(capture).lost_stretches == 0
    assert capture.ended == []
    assert [row["seq"] for row in rows] == list(range(len(rows)))
    assert 2 * requests - 4096 <= sum(row["frame"] is not None for row in rows) <= 2 * requests + 2
    # The next recorder seals what was left, and all is there as before.
    with _opened(folder) as recorder:
        _take(recorder, 1)
    assert all(segment.sealed for segment in Capture(folder).segments())
    after = rows_in(folder)
    assert after[: len(rows)] == rows


@pytest.mark.parametrize("idle", [True, False], ids=["its segment sealed", "its segment open"])
def test_a_recording_that_was_closed_says_that_it_is_over(idle: bool, tmp_path: Path) -> None:
    with _opened(tmp_path, segment_seconds=0.05 if idle else 60) as recorder:
        _take_and_wait(recorder, 0)
        until(lambda: [path.suffix for path in tmp_path.iterdir()] == [".arrows" if idle else ".open"])
        assert list(Capture(tmp_path).batches()) and not info(Capture(tmp_path)).ended
    with _opened(tmp_path):
        pass  # in which nothing happens
    rows = rows_in(tmp_path)
    assert _numbers(rows) == [0]
    assert info(Capture(tmp_path)).ended == [recorder.capture_id] == [rows[0]["capture_id"]]
    # To a reader of Arrow it is a batch like the others.
    with pa.ipc.open_stream(sorted(tmp_path.iterdir())[-1]) as reader:
        assert [batch.num_rows for batch in reader] == [0] if idle else [1, 0]


class _Clock:
    """Time of the recorder: a second whenever it looks, up to some moment."""

    def __init__(self) -> None:
        self.now, self.last = 0.0, math.inf

    def monotonic(self) -> float:
        self.now = min(self.now + 1, self.last)
        return self.now

    def is_there(self) -> bool:
        return self.now == self.last


def _look_at(clock: _Clock, patched: pytest.MonkeyPatch) -> None:
    patched.setattr("polybus.capture.record.recorder.time", SimpleNamespace(monotonic=clock.monotonic))
    patched.setattr("polybus.capture.record.recorder._LOOK", 0.001)


def test_leaving_waits_as_long_as_something_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = _Clock()
    clock.last = 0.0  # it goes on while something is blanked

    def slowly(protocol: str, frame: bytes) -> bytes:
        if frame != b"{}":  # which is its own, before there is anything to record
            clock.last = clock.now + 20
            until(clock.is_there)
        return frame

    with _opened(tmp_path, redact=slowly) as recorder:
        _look_at(clock, monkeypatch)
        _take(recorder, *range(8))
    assert _numbers(rows_in(tmp_path)) == [*range(8)]
    assert f"leaving {tmp_path} waits for" in caplog.text and "slowly is still blanking" in caplog.text
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_leaving_does_not_wait_for_a_writer_that_does_nothing_and_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it still writes afterwards is all there."""
    going = threading.Event()

    def never(protocol: str, frame: bytes) -> bytes:
        assert frame == b"{}" or going.wait(30)
        return frame

    with _opened(tmp_path, redact=never) as recorder:
        _take(recorder, 0)
        with monkeypatch.context() as patched:
            _look_at(_Clock(), patched)
            recorder.close()
        assert caplog.records[-1].levelname == "ERROR"
        assert "no longer waits for 1 unwritten frames: " in caplog.text and "is still blanking" in caplog.text
        going.set()
    assert _numbers(rows_in(tmp_path)) == [0]
    assert info(Capture(tmp_path)).ended == [recorder.capture_id]


def test_rows_that_are_taken_while_others_are_lost_do_not_change_what_is_said(tmp_path: Path) -> None:
    waiting = RowBuffer(1 << 20)
    taken: list[Any] = []
    stopping = threading.Event()

    def take() -> None:
        while (some := waiting.next(500)[::FIELDS]) or not stopping.is_set():
            taken.extend(some)

    thread = threading.Thread(target=take)
    row = (END, 0, b"", None)
    for _ in range(2 * MOST_ROWS):
        waiting.take(row, room=True)
    thread.start()
    for number in range(200_000):
        waiting.take(row, room=number % 3 > 0)
    stopping.set()
    thread.join()
    gaps = [end for end in taken if isinstance(end, Gap)]
    assert sum(gap.frames for gap in gaps) == waiting.dropped
    assert len(taken) - len(gaps) + waiting.dropped == 2 * MOST_ROWS + 200_000


@pytest.mark.native
def test_a_program_that_ends_without_leaving_and_its_forked_child_lose_nothing(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom polybus.capture import make_recorder\nfrom polybus.capture.rows import RowHeader\n"
        "recorder = make_recorder(sys.argv[1])\nrecorder.open()\n"
        "for number in range(900): recorder.take((RowHeader(0), number, b'x', None))\n"
        "if not os.fork(): sys.exit()\n"
        "assert not os.wait()[1]\n"
        "for number in range(4): recorder.take((RowHeader(0), number, b'x', None))\n"
    )
    done = _python(script, tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
    assert [row["seq"] for row in rows_in(tmp_path)] == list(range(904))
    capture = Capture(tmp_path)
    messages = [message for segment in capture.segments() for message in capture.reader(segment).messages()]
    assert sum(not message.rows for message in messages) == 1, "one of the two says that the recording is over"


def test_a_folder_that_was_removed_with_all_that_held_it_is_not_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with _opened(tmp_path / "held" / "captures") as recorder:
        until(lambda: (tmp_path / "held" / "captures").exists())
        shutil.rmtree(tmp_path / "held")
        _take(recorder, 1)
        until(lambda: recorder.stats().dropped == 1)
    assert "No such file or directory" in caplog.text
    assert not (tmp_path / "held").exists()


def test_a_limit_of_file_sizes_costs_nothing_but_more_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = SegmentWriter._write

    def limited(self: SegmentWriter, data: bytes) -> None:
        if self.batches:
            raise OSError(errno.EFBIG, "File too large")
        write(self, data)

    monkeypatch.setattr(SegmentWriter, "_write", limited)
    with _opened(tmp_path) as recorder:
        for number in range(3):
            _take_and_wait(recorder, number)
    rows, capture = rows_in(tmp_path), Capture(tmp_path)
    assert [(row["seq"], number) for row, number in zip(rows, _numbers(rows), strict=True)] == [(0, 0), (1, 1), (2, 2)]
    assert (len(capture.segments()), info(capture).ended, caplog.text) == (4, [recorder.capture_id], "")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        *(({name: wrong}, ValueError) for name, wrong in (("max_bytes", 10), ("max_age", 0), ("max_age", float("nan")))),
        *(({name: wrong}, TypeError) for name, wrong in (("max_bytes", "10"), ("max_age", "7"), ("max_age", None))),
        *(({name: wrong}, TypeError) for name, wrong in (("redact", "everything"), ("path", 7))),
    ],
)
def test_misuse_is_told_at_once(options: dict[str, Any], error: type[Exception], tmp_path: Path) -> None:
    path: Any = options.pop("path", tmp_path)
    with pytest.raises(error, match=f"{next(iter(options), 'record')}=.* must be"):
        Bus().record(path, **options)


async def test_a_folder_that_cannot_be_made_is_told_on_entering_and_nothing_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    bus = Bus()
    await refused(bus.record(tmp_path / "file" / "captures"), CaptureError, match="cannot record to")
    async with _server("ubre").serve("ubre+tcp://127.0.0.1:0") as listener:
        await refused(connect(listener.url, record=tmp_path / "file"), CaptureError, match="cannot record to")
        async with connect(listener.url, bus=bus):
            assert await bus.request("user.get", {"n": 1}) == {"got": {"n": 1}}
    nobody = connect("ubre+tcp://127.0.0.1:1", record=tmp_path / "captures")
    await refused(nobody, ConnectFailed, match="refused|no server")
    assert not _threads()


def test_without_pyarrow_the_error_says_what_to_install() -> None:
    script = "import sys; sys.modules['pyarrow'] = None\nfrom polybus import Bus\nBus().record('x')"
    assert "ImportError: " in (said := _python(script).stderr) and "pip install 'polybus[capture]'" in said


async def test_a_recording_is_entered_once_and_says_so(tmp_path: Path) -> None:
    async with pair(_server("ubre")) as client:
        recording = client.record(tmp_path)
        async with recording:
            with pytest.raises(LocalProtocolError, match="already been entered"):
                await recording.__aenter__()
            await client.request("user.get", {"n": 1})
        with pytest.raises(LocalProtocolError, match="already been entered"):
            await recording.__aenter__()
    assert [event["kind"] for event in events_in(tmp_path)] == ["open", "request", "response"]


async def test_a_recording_that_is_cancelled_while_it_begins_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for_each_link = Recording._for_each_link

    async def cancelled(self: Recording, change: Callable[[Link], None]) -> None:
        group.cancel_scope.cancel()  # its thread is there, and links are about to be told
        await for_each_link(self, change)

    monkeypatch.setattr(Recording, "_for_each_link", cancelled)
    async with pair(_server("ubre")) as client:
        async with anyio.create_task_group() as group:
            await client.record(tmp_path).__aenter__()
        assert group.cancel_scope.cancelled_caught
        assert client._services.recorders == []
        assert not _threads()


@pytest.mark.parametrize("entering", ["record", "connect"])
def test_a_task_that_is_cancelled_while_the_folder_is_looked_at_leaves_nothing(
    entering: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, go_on, looked = threading.Event(), threading.Event(), threading.Event()
    open_recorder = CaptureRecorder.open

    def slowly(self: CaptureRecorder) -> None:
        looking.set()
        assert go_on.wait(30)
        open_recorder(self)
        looked.set()

    monkeypatch.setattr(CaptureRecorder, "open", slowly)

    async def main() -> None:
        async with _server("ubre").serve("ubre+tcp://127.0.0.1:0") as listener:
            context: Any = Bus().record(tmp_path) if entering == "record" else connect(listener.url, record=tmp_path)
            task = asyncio.ensure_future(context.__aenter__())
            await eventually(looking.is_set)
            task.cancel()  # as asyncio does it: also the wait for a thread is given up
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()
            await eventually(looked.is_set)

    asyncio.run(main())
    assert not _threads()


def test_a_folder_that_somebody_removes_is_made_again_and_what_went_with_it_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "captures"
    with _opened(folder) as recorder:
        writer: Any = recorder._writer
        _take_and_wait(recorder, 1)
        shutil.rmtree(folder)
        writer._since -= 60.0  # that segment alone is old enough to be sealed
        until(lambda: recorder.stats().dropped == 1)
        assert recorder.stats().frames == 0
        _take_and_wait(recorder, 2)
        shutil.rmtree(folder)
    rows = rows_in(folder)
    assert _numbers(rows) == ["gap"]
    assert _gaps(rows) == [{"gap": "disk", "frames": 2, "error": "the file was removed while it was written"}]
    assert (recorder.stats().frames, recorder.stats().dropped) == (0, 2)
    assert all("was removed while it was written" in record.getMessage() for record in caplog.records)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
