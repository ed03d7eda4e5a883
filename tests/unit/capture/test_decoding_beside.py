"""Decoding beside a recording: what is sealed has columns soon, nobody waits for it, and whoever is killed costs nothing."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from attrs import evolve

from polybus.capture import Capture, CaptureRecorder, decode, make_recorder, write_columns
from polybus.capture.columns import writer as columns_writer
from polybus.capture.columns.process import DecodingProcess
from polybus.capture.columns.reader import SegmentColumns
from polybus.capture.columns.stamp import columns_path
from polybus.capture.record.recorder import WriterSettings
from polybus.capture.record.writer import CaptureWriter
from polybus.capture.rows import RowHeader
from polybus.capture.store.segments import lock, segment_name
from tests.support import until

from .folders import damage, write_segment
from .rows import run

pytestmark = pytest.mark.native

END = RowHeader(0, "c-1", "peer", "ubre", "tcp", (), "{}")


@contextmanager
def _recording(folder: Path, *, seconds: float = 0.05, decode: bool = True) -> Iterator[CaptureRecorder]:
    recorder = CaptureRecorder(evolve(make_recorder(folder, decode=decode)._settings, segment_seconds=seconds))
    recorder.open()
    try:
        yield recorder
    finally:
        recorder.close()


def _decoded(folder: Path) -> set[int]:
    try:
        capture = Capture(folder)
    except ValueError:
        return set()
    return {one.number for one in capture.segments() if SegmentColumns.of(capture, one) is not None}


def _events(folder: Path) -> tuple[pa.Table, pa.Table]:
    """Of the segments that have columns: what these say, and what decoding gives."""
    capture, there = Capture(folder), _decoded(folder)
    found = [SegmentColumns.of(capture, one) for one in capture.segments() if one.number in there]
    read = [rows for one in found if one is not None for rows in one.read("events", one.groups)]
    made = [decode(one.rows).events for one in capture.batches() if one.position.segment in there]
    return pa.Table.from_batches(read).combine_chunks(), pa.Table.from_batches(made).combine_chunks()


def _segments(folder: Path, count: int = 1) -> None:
    for number in range(count):
        write_segment(folder, run(10 * number, 10), number=number)


def _begun(folder: Path) -> DecodingProcess:
    process = DecodingProcess(str(folder))
    process.ask()
    process.turn()
    return process


@pytest.mark.parametrize("frames", [1, 0])
def test_what_is_sealed_and_what_was_left_before_is_decoded_while_the_recording_goes_on(frames: int, tmp_path: Path) -> None:
    _segments(tmp_path)
    with _recording(tmp_path) as recorder:
        until(lambda: _decoded(tmp_path) == {0})
        for number in range(frames):
            recorder.take((END, number, b'{"publish":"news","body":%d}' % number, None))
        until(lambda: _decoded(tmp_path) == set(range(frames + 1)))
    read, made = _events(tmp_path)
    assert read.num_rows == 10 + frames
    assert read.equals(made)


def test_a_recording_that_ends_does_not_wait_for_what_is_decoded(tmp_path: Path) -> None:
    _segments(tmp_path)
    settings = WriterSettings(path=str(tmp_path), capture_id="c", max_bytes=1 << 30, max_age=1e9, decode=True)
    writer = CaptureWriter(settings)
    writer.open()
    writer.turn()
    assert writer._decoding is not None and (pid := writer._decoding.pid) is not None
    os.kill(pid, signal.SIGSTOP)  # it is not heard of any more
    writer.finish()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_another_decoder_removes_meanwhile_ends_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _segments(tmp_path)
    (tmp_path / "events").mkdir()
    left = tmp_path / "events" / ".segment-00000007.left.new"
    left.touch()
    really_open = os.open

    def open_late(path: Any, *args: Any) -> int:
        if path == left:
            left.unlink()
        return really_open(path, *args)

    monkeypatch.setattr(os, "open", open_late)
    assert write_columns(tmp_path).segments == 1
    assert not left.exists()


def test_one_process_decodes_at_a_time(tmp_path: Path) -> None:
    _segments(tmp_path)
    process = _begun(tmp_path)
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    process.ask()
    process.turn()
    assert process.pid == first
    os.kill(first, signal.SIGKILL)

    def another() -> bool:
        process.turn()
        return process.pid not in (None, first)

    until(another)
    until(lambda: _decoded(tmp_path) == {0})
    process.stop()
    assert process.pid is None


def test_why_it_cannot_be_decoded_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_more(*given: Any, **more: Any) -> Any:
        raise OSError(11, "no more processes")

    def ended() -> bool:
        process.turn()
        return process.pid is None

    _segments(tmp_path)
    (tmp_path / "events").write_text("no folder")
    process = _begun(tmp_path)
    monkeypatch.setattr("polybus.capture.columns.process._begin_interpreter", none_more)
    until(ended)
    process.ask()
    process.turn()
    (said,) = caplog.messages
    assert said.startswith(f"segments of {tmp_path} are not decoded: [Errno ")
    assert said.endswith("it is tried again with the next one")


RECORDER = """
import sys, time
from pathlib import Path
from tests.unit.capture.test_decoding_beside import _begun
print(_begun(Path(sys.argv[1])).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("ends", [(signal.SIGKILL,), (signal.SIGSTOP, signal.SIGKILL), (signal.SIGTERM,)])
def test_a_decoder_ends_with_its_recorder_also_while_it_waits_for_a_disk(
    tmp_path: Path, ends: tuple[signal.Signals, ...]
) -> None:
    os.mkfifo(tmp_path / segment_name(0, sealed=True))  # from which nothing comes
    command = [sys.executable, "-c", RECORDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as recorder:
        assert recorder.stdout is not None and int(recorder.stdout.readline())
        for number in ends:
            recorder.send_signal(number)
        # The decoder has the same standard error, which ends with both.
        recorder.communicate(timeout=30)


def test_a_segment_that_another_process_decodes_is_left_to_it(tmp_path: Path) -> None:
    _segments(tmp_path, 2)
    with (tmp_path / segment_name(1, sealed=True)).open("r+b") as file:
        assert lock(file.fileno())
        done = write_columns(tmp_path)
        assert (done.segments, done.busy, _decoded(tmp_path)) == (1, 1, {0})
    done = write_columns(tmp_path)
    assert (done.segments, done.busy, done.fresh, _decoded(tmp_path)) == (1, 0, 1, {0, 1})


def test_the_newest_segment_is_decoded_first_and_one_that_is_gone_is_passed_by(tmp_path: Path) -> None:
    _segments(tmp_path, 3)
    order: list[set[int]] = []

    def removing(frames: int) -> None:
        (tmp_path / segment_name(0, sealed=True)).unlink(missing_ok=True)  # as retention does meanwhile
        order.append(_decoded(tmp_path))

    done = write_columns(tmp_path, removing)
    assert order == [set(), {2}]
    assert (done.segments, _decoded(tmp_path)) == (2, {1, 2})
    assert not Path(columns_path(str(tmp_path), "events", 0)).exists()


def test_a_damaged_segment_is_not_decoded_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(write_segment(tmp_path, run(0, 10)), 0.9)
    monkeypatch.setattr(columns_writer, "decoded", lambda *given: pytest.fail("a segment that gets no columns was decoded"))
    assert write_columns(tmp_path).damaged == [0]


def test_where_files_cannot_be_claimed_everybody_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _segments(tmp_path)
    monkeypatch.setattr("polybus.capture.store.segments.lock", lambda file: None)
    assert write_columns(tmp_path).segments == 1
    shutil.rmtree(tmp_path / "events")
    path = tmp_path / segment_name(0, sealed=True)
    path.chmod(0o400)
    assert write_columns(tmp_path).segments == 1
