"""The first stage of the pipeline, which decodes ranges of a capture to events and quarantine in Parquet files.

Larger captures are decoded by one ``python -m polybus.analysis.ingest`` process per core. The first input line of a process is
the job. Each further line is a range, which the process answers with a line of JSON, until its input ends.
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
"""Maximum gap rows and losses that are reported individually. All of them are counted."""


@attrs.define
class RunCounts:
    """Counters of one run, or of all runs.

    ``frames`` is the sum of `rowed` (frames with a readable message), `quarantined` and `empty`. Every run checks this.
    """

    frames: int = 0
    rowed: int = 0
    quarantined: int = 0
    empty: int = 0
    events: int = 0
    refused: int = 0
    """Number of unreadable messages in frames that also contain readable messages."""
    exchanges: int = 0
    orphans: int = 0
    gaps: int = 0
    """Number of gap rows, which show that the recorder dropped frames."""
    lost: int = 0
    """Number of unreadable ranges of segments."""

    def __add__(self, other: RunCounts) -> RunCounts:
        mine, theirs = attrs.asdict(self), attrs.asdict(other)
        return RunCounts(**{name: mine[name] + theirs[name] for name in mine})


@attrs.define
class IngestResult(RunCounts):
    holes: Holes = attrs.Factory(Holes)
    seen: dict[str, int] = attrs.Factory(dict)
    gap_rows: list[dict[str, Any]] = attrs.Factory(list)
    losses: list[dict[str, Any]] = attrs.Factory(list)
    ended: list[str] = attrs.Factory(list)
    """Recordings that have an end."""
    files: list[list[Any]] = attrs.Factory(list)
    """The table, the path in the staging folder, and the number of rows of each file."""


def take(capture: str, storage: TableStorage, staging: str, piece: Range, window: ReadWindow) -> IngestResult:
    """Decode a range into files. Raises `CaptureError` if its segment has been removed."""
    done = IngestResult()
    tables = PartitionWriter(storage, staging)
    reader, watermarks = RangeReader(capture, piece, done.holes), Watermarks(done.holes.ends, done.seen)
    moments = attrs.evolve(window, connection=None)  # the connection of missing frames is unknown

    def note_gaps(count: int, samples: Sequence[Mapping[str, Any]]) -> None:
        done.gaps += count
        done.gap_rows += map(dict, samples[: SAMPLES - len(done.gap_rows)])

    def seen(rows: pa.RecordBatch) -> None:
        note_gaps(*gap_rows(moments.of(rows), SAMPLES))

    def told(group: BatchGroup) -> None:
        note_gaps(group.gaps, group.gap_rows)

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


def take_all(
    capture: str, out: str, staging: str, ranges: Sequence[Range], window: ReadWindow, count: int
) -> list[IngestResult]:
    """Decode ranges into the staging folder, using `count` processes. Raises `CaptureError` if a process dies."""
    if count < 2:
        storage = TableStorage(out)
        return [take(capture, storage, f"{staging}/{number:06d}", piece, window) for number, piece in enumerate(ranges)]
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
            over.set()  # after an error or Ctrl-C, each stops after its current range
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
            with suppress(BrokenPipeError):  # input that it no longer reads
                process.stdin.close()


def _send(ask: IO[str], line: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):  # it has ended, so there is no answer either
        print(json.dumps(line), file=ask, flush=True)


def _result(line: str) -> IngestResult:
    if not line:
        raise CaptureError("a decoding process ended early, perhaps because of too little memory: run again")
    given = json.loads(line)
    if "failed" in given:
        raise (OSError if given["system"] else CaptureError)(given["failed"])
    return msgspec.convert(given, IngestResult)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    job = json.loads(sys.stdin.readline() or "null")
    if job is None:
        return
    storage, window = TableStorage(job["out"]), ReadWindow(**job["window"])
    for line in sys.stdin:
        given = json.loads(line)
        piece = Range(ReadPosition(**given["start"]), given["stop"])
        try:
            staging = f"{job['staging']}/{given['number']:06d}"
            answer = msgspec.to_builtins(take(job["capture"], storage, staging, piece, window))
        except (CaptureError, OSError) as error:
            answer = {"failed": str(error), "system": isinstance(error, OSError)}
        try:
            print(json.dumps(answer), flush=True)
        except BrokenPipeError:  # the parent was killed
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python reports it again at exit
            return


if __name__ == "__main__":
    main()
