"""The first stage: a task reads a range of a capture, decodes it and writes events and quarantine as Parquet.

A capture of some size is decoded by processes on all cores, since one Python decodes on one. Such a process is
``python -m polybus.analysis.ingest``: it reads a line of JSON for each range, first one for all of them, and answers each with
a line. It ends with its input, so also when whoever has started it is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from threading import Event, Lock
from typing import IO, Any, Final

import attrs
import msgspec
import pyarrow as pa

from polybus.capture.columns.stamp import BatchGroup, gap_rows
from polybus.capture.errors import CaptureError

from ..capture.store.compute import pc
from .clocks import Holes, Watermarks
from .ranges import Range, RangeReader, ReadPosition, ReadWindow
from .storage import BY_DATE, PartitionWriter, TableStorage

SAMPLES: Final = 100
"""Gap rows and losses that are reported one by one; all are counted."""


@attrs.define
class RunCounts:
    """Numbers of a run, or of all runs.

    ``frames`` is `rowed` (frames with at least one good row) + `quarantined` + `empty`; that is checked in every run.
    """

    frames: int = 0
    rowed: int = 0
    quarantined: int = 0
    empty: int = 0
    events: int = 0
    refused: int = 0
    """Messages that could not be read, of frames that hold others that could."""
    exchanges: int = 0
    orphans: int = 0
    gaps: int = 0
    """Gap rows: where the recorder dropped something."""
    lost: int = 0
    """Stretches of segments that could not be read any more."""

    def __add__(self, other: RunCounts) -> RunCounts:
        mine, theirs = attrs.asdict(self), attrs.asdict(other)
        return RunCounts(**{name: mine[name] + theirs[name] for name in mine})


@attrs.define
class IngestResult(RunCounts):
    """Result of a task."""

    ends: dict[str, int] = attrs.Factory(dict)
    seen: dict[str, int] = attrs.Factory(dict)
    holes: Holes = attrs.Factory(Holes)
    gap_rows: list[dict[str, Any]] = attrs.Factory(list)
    losses: list[dict[str, Any]] = attrs.Factory(list)
    ended: list[str] = attrs.Factory(list)
    """Recordings that say that they are over."""
    files: list[list[Any]] = attrs.Factory(list)
    """Table, path in the staging folder and number of rows, of each."""


def take(capture: str, storage: TableStorage, staging: str, piece: Range, window: ReadWindow) -> IngestResult:
    """Decode a range into files.

    Raises:
        CaptureError: The segment is gone.
        OSError: A file cannot be written.
    """
    done = IngestResult()
    tables = PartitionWriter(storage, staging)
    reader, watermarks = RangeReader(capture, piece, done.holes), Watermarks(done.ends, done.seen)
    moments = attrs.evolve(window, connection=None)  # the connection of missing frames is not known

    def seen(rows: pa.RecordBatch) -> None:
        _note_gaps(done, *gap_rows(moments.of(rows), SAMPLES))

    def told(group: BatchGroup) -> None:
        _note_gaps(done, group.gaps, group.gap_rows)

    for made in reader.decoded(window, seen, told):
        events, quarantine = made.events, made.quarantine
        done.frames += made.frames
        done.quarantined += quarantine.num_rows
        done.empty += made.empty
        done.refused += made.refused
        done.events += events.num_rows
        # A frame's first message is number 0.
        done.rowed += pc.sum(pc.equal(events.column("sub"), 0)).as_py() or 0
        watermarks.note(events)
        done.holes.note(events)
        tables.add("events", events, BY_DATE)
        tables.add("quarantine", quarantine, BY_DATE)
    tables.close()
    done.files = tables.files
    done.ended = [reader.ended] if reader.ended is not None else []
    done.lost = len(reader.damage)
    done.losses = [{"segment": piece.start.segment, **attrs.asdict(stretch)} for stretch in reader.damage[:SAMPLES]]
    return done


def _note_gaps(done: IngestResult, count: int, samples: Sequence[Mapping[str, Any]]) -> None:
    done.gaps += count
    done.gap_rows += map(dict, samples[: SAMPLES - len(done.gap_rows)])


def take_all(
    capture: str, out: str, staging: str, ranges: Sequence[Range], window: ReadWindow, count: int
) -> list[IngestResult]:
    """Decode ranges of a capture into files of the staging folder, by so many processes; by this one where it is one.

    Raises:
        CaptureError: A segment is gone; a process has ended.
        OSError: A file cannot be written.
    """
    if count < 2:
        storage = TableStorage(out)
        return [take(capture, storage, _place(staging, number), piece, window) for number, piece in enumerate(ranges)]
    waiting = iter(range(len(ranges)))
    over, lock = Event(), Lock()
    job = {"capture": capture, "out": out, "staging": staging, "window": attrs.asdict(window)}

    def following() -> int | None:
        with lock:
            return None if over.is_set() else next(waiting, None)

    def work() -> dict[int, IngestResult]:
        done = dict[int, IngestResult]()
        with _process() as (ask, answers):
            _send(ask, job)
            while (number := following()) is not None:
                _send(ask, {"number": number, **attrs.asdict(ranges[number])})
                done[number] = _result(answers.readline())
        return done

    with ThreadPoolExecutor(count) as pool:
        parts = [pool.submit(work) for _ in range(count)]
        try:
            wait(parts, return_when=FIRST_EXCEPTION)
        finally:
            over.set()  # where one has failed, or the user has interrupted it, the others stop after the range that they have
        found = dict(pair for part in parts for pair in part.result().items())
    return [found[number] for number in range(len(ranges))]


@contextmanager
def _process() -> Iterator[tuple[IO[str], IO[str]]]:
    command = [sys.executable, "-m", "polybus.analysis.ingest"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield process.stdin, process.stdout
        except BaseException:
            process.kill()
            raise
        finally:
            with suppress(BrokenPipeError):  # with what it has not read any more
                process.stdin.close()


def _send(ask: IO[str], line: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):  # it has ended: there is no answer either
        print(json.dumps(line), file=ask, flush=True)


def _result(line: str) -> IngestResult:
    if not line:
        raise CaptureError("a process that decodes has ended before its work was done, perhaps for want of memory: run again")
    given = json.loads(line)
    if "failed" in given:
        raise (OSError if given["system"] else CaptureError)(given["failed"])
    return msgspec.convert(given, IngestResult)


def _place(staging: str, number: int) -> str:
    return f"{staging}/{number:06d}"


def main() -> None:
    """Work off the ranges that come in."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever has started it ends it
    job = json.loads(sys.stdin.readline() or "null")
    if job is None:
        return
    storage, window = TableStorage(job["out"]), ReadWindow(**job["window"])
    for line in sys.stdin:
        given = json.loads(line)
        piece = Range(ReadPosition(**given["start"]), given["stop"])
        try:
            answer = msgspec.to_builtins(take(job["capture"], storage, _place(job["staging"], given["number"]), piece, window))
        except (CaptureError, OSError) as error:
            answer = {"failed": str(error), "system": isinstance(error, OSError)}
        try:
            print(json.dumps(answer), flush=True)
        except BrokenPipeError:  # whoever has started it was killed
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python tells of it once more at its end
            return


if __name__ == "__main__":
    main()
