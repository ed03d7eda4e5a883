"""The first stage of the pipeline, which decodes ranges of a capture to events and quarantine in Parquet files.

Larger captures are decoded by one ``python -m polybus.analysis.ingest`` process per core. The input of a process is a job with
its share of the ranges. The process answers each range with a line of JSON, and ends if these lines are no longer read.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from typing import Any, Final

import attrs
import msgspec

from polybus.capture.errors import CaptureError

from ..capture.store.compute import pc
from .clocks import Holes, Watermarks
from .ranges import SAMPLES, Range, RangeReader, ReadWindow
from .storage import BY_DATE, PartitionWriter, TableStorage


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
    for made in reader.decoded(window):
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
    done.files, done.gaps, done.gap_rows = tables.files, reader.gaps, reader.gap_rows
    done.ended = [reader.ended] if reader.ended is not None else []
    done.lost = len(reader.damage)
    done.losses = [{"segment": piece.start.segment, **attrs.asdict(stretch)} for stretch in reader.damage[:SAMPLES]]
    return done


_NAME: Final = "polybus.analysis.ingest"


class _IngestJob(msgspec.Struct):
    """The ranges that a process decodes, each with its number."""

    capture: str
    out: str
    staging: str
    window: ReadWindow
    ranges: list[tuple[int, Range]]

    def answers(self) -> Iterator[_IngestAnswer]:
        storage = TableStorage(self.out)
        for number, piece in self.ranges:
            yield _IngestAnswer(number, take(self.capture, storage, f"{self.staging}/{number:06d}", piece, self.window))


class _IngestAnswer(msgspec.Struct):
    number: int
    done: IngestResult | None = None
    failed: str = ""
    system: bool = False
    """True for an error of the system."""


def take_all(
    capture: str, out: str, staging: str, ranges: Sequence[Range], window: ReadWindow, count: int
) -> list[IngestResult]:
    """Decode ranges into the staging folder, using `count` processes. Raises `CaptureError` if a process dies."""
    numbered = list(enumerate(ranges))
    jobs = [_IngestJob(capture, out, staging, window, numbered[first::count]) for first in range(count)]
    if count < 2:
        answers = [answer for job in jobs for answer in job.answers()]
    else:
        with ExitStack() as stack:
            pool, parts = stack.enter_context(ThreadPoolExecutor(count)), list[Future[list[_IngestAnswer]]]()
            for job in jobs:
                process = subprocess.Popen([sys.executable, "-m", _NAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                stack.callback(process.kill)  # after an error or Ctrl-C, before the pool waits for its threads
                parts.append(pool.submit(_asked, process, job))
            answers = [answer for part in as_completed(parts) for answer in part.result()]
    return [answer.done for answer in sorted(answers, key=lambda answer: answer.number) if answer.done is not None]


def _asked(process: subprocess.Popen[bytes], job: _IngestJob) -> list[_IngestAnswer]:
    *lines, _ = process.communicate(msgspec.json.encode(job))[0].split(b"\n")
    answers = [msgspec.json.decode(line, type=_IngestAnswer) for line in lines]
    for answer in answers:
        if answer.done is None:
            raise (OSError if answer.system else CaptureError)(answer.failed)
    if len(answers) < len(job.ranges):
        raise CaptureError("a decoding process ended early, perhaps because of too little memory: run again")
    return answers


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    job = msgspec.json.decode(sys.stdin.buffer.read() or b"null", type=_IngestJob | None)
    try:
        for answer in job.answers() if job is not None else ():
            _say(answer)
    except BrokenPipeError:  # the parent was killed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python reports it again at exit
    except (CaptureError, OSError) as error:
        _say(_IngestAnswer(-1, failed=str(error), system=isinstance(error, OSError)))


def _say(answer: _IngestAnswer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
