"""A capture in pieces for tasks: which batches each one reads, and how it reads them from the middle of a file."""

from __future__ import annotations

import gc
import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache, reduce
from typing import Final

import attrs
import pyarrow as pa
from pyspark import TaskContext

from polybus.capture.errors import CaptureError
from polybus.capture.store.reader import Capture, Segment
from polybus.capture.store.segments import Stretch, lock

from ...capture.store.compute import pc

LAST_NS: Final = 2**63 - 1
"""The last moment there is, in the year 2262."""
ROWS_PER_RANGE: Final = 250_000
"""About how many rows a task reads: less than a second of work, of which 15 ms are for the task itself."""
SCAN: Final = 4 << 20
"""Segments smaller than this (bytes) are a range of their own, and nothing of them is read for the plan."""


@attrs.frozen(order=True)
class ReadPosition:
    """A position in a capture, with where in its segment that is, so that a reader need not look for it."""

    segment: int = 0
    batch: int = 0
    offset: int = attrs.field(default=0, order=False)
    """Byte in the file; not a part of the order."""


@attrs.frozen
class Range:
    """Batches of one segment: from `start` up to batch `stop`, not included; to the end of the file where it is None."""

    start: ReadPosition
    stop: int | None


@attrs.frozen
class ReadWindow:
    """The part of a capture to read."""

    start_ns: int | None = None
    """Frames from here on, ns since 1970 UTC."""
    end_ns: int | None = None
    """Up to here, not included."""
    connection: str | None = None
    """Of this connection only."""

    def check(self) -> None:
        """
        Raises:
            ValueError: No frame can be within it.
        """
        if self.start_ns is not None and self.end_ns is not None and self.start_ns >= self.end_ns:
            raise ValueError(
                f"nothing lies from start {self.start_ns} to end {self.end_ns} (ns since 1970): end has to be later"
            )

    @property
    def columns(self) -> set[str]:
        """Columns that a window is told by."""
        given = {"ts_ns": (self.start_ns, self.end_ns), "conn_id": (self.connection,)}
        return {name for name, bounds in given.items() if any(bound is not None for bound in bounds)}

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows within it."""
        bounds = (
            (pc.greater_equal, "ts_ns", self.start_ns),
            (pc.less, "ts_ns", self.end_ns),
            (pc.equal, "conn_id", self.connection),
        )
        masks = [holds(rows.column(column), bound) for holds, column, bound in bounds if bound is not None]
        return rows.filter(reduce(pc.and_, masks)) if masks else rows


def reach(capture: Capture, start: ReadPosition, rows: int | None = None) -> ReadPosition:
    """The end up to which a capture can be read now.

    A torn batch at the end of a segment that is still written is not there yet, and nothing beyond that segment is read:
    several recorders may share a folder. What is torn elsewhere is lost, and passed by.

    At most so many rows lie in between, but one batch at least; None: as far as there is something.

    Raises:
        CaptureError: A segment is missing; the capture ends before `start`.
    """
    place, seen = start, 0
    everything = capture.segments()
    if everything[-1].number < start.segment:
        raise CaptureError(
            f"{capture.path} ends with segment {everything[-1].number}, and was read up to {start.segment}: it is not the same "
            "capture any more; begin anew, with another folder of results or another checkpoint"
        )
    segments = [segment for segment in everything if segment.number >= start.segment]
    for segment in segments:
        if segment.number > place.segment:
            place = ReadPosition(segment.number)
        reader = capture.reader(segment, place.offset, place.batch)
        for message in reader.messages():
            if rows is not None and seen and seen + message.rows > rows:
                return place
            place = ReadPosition(segment.number, message.batch + 1, message.offset + message.size)
            seen += message.rows
        if segment is not segments[-1] and _is_written(capture, segment):
            break
    return place


def _is_written(capture: Capture, segment: Segment) -> bool:
    """True if a recorder has a segment open. Where that cannot be known, one that is not sealed is taken for such."""
    if segment.sealed:
        return False
    if "://" in capture.path:
        return True
    try:
        file = os.open(segment.path, os.O_RDWR)
    except OSError:
        return True  # sealed just now: the next time
    try:
        return not lock(file)
    finally:
        os.close(file)


def plan(capture: Capture, start: ReadPosition, stop: ReadPosition | None = None, rows: int = ROWS_PER_RANGE) -> list[Range]:
    """The pieces of a capture between two places, in order and without gaps.

    Raises:
        CaptureError: A segment is missing.
    """
    ranges: list[Range] = []
    for segment in capture.segments():
        if segment.number < start.segment or (stop is not None and segment.number > stop.segment):
            continue
        begin = start if segment.number == start.segment else ReadPosition(segment.number)
        end = stop.batch if stop is not None and segment.number == stop.segment else None
        if end is not None and end <= begin.batch:
            continue
        ranges += _of_segment(capture, segment, begin, end, rows)
    return ranges


def _of_segment(capture: Capture, segment: Segment, begin: ReadPosition, end: int | None, rows: int) -> Iterator[Range]:
    if segment.size - begin.offset <= SCAN:
        yield Range(begin, end)
        return
    afters: list[ReadPosition] = []
    seen = [0]
    for message in capture.reader(segment, begin.offset, begin.batch).messages():
        if end is not None and message.batch >= end:
            break
        afters.append(ReadPosition(segment.number, message.batch + 1, message.offset + message.size))
        seen.append(message.rows + seen[-1])
    whole = seen[-1]
    pieces = max(1, round(whole / rows))
    # All alike: a task is not worth its while for what is left over.
    for piece in range(1, pieces):
        after = afters[bisect_left(seen, piece * whole / pieces) - 1]
        if after > begin:
            yield Range(begin, after.batch)
            begin = after
    # Also where no message follows: damage there is found by its reader.
    if end is None or begin.batch < end:
        yield Range(begin, end)


class RangeReader:
    """Reads a range of a capture."""

    def __init__(self, path: str, piece: Range, columns: Sequence[str] | None = None) -> None:
        settle()
        self.damage: list[Stretch] = []
        """Losses that were found, after the last batch."""
        self.ended: str | None = None
        """After the last batch, the recording that says at the end of this range that it is over; None where none does."""
        self._capture = Capture(path)
        self._range = piece
        self._columns = columns

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, batch by batch.

        Raises:
            CaptureError: The segment is gone.
        """
        start, stop = self._range.start, self._range.stop
        segments = self._capture.segments(complete=False)
        segment = next((segment for segment in segments if segment.number == start.segment), None)
        if segment is None:
            raise CaptureError(
                f"{self._capture.path}: segment {start.segment} is gone: retention has removed it before it was read; "
                "read more often, or record with a larger max_bytes and max_age"
            )
        newest = segment is segments[-1]
        reader = self._capture.reader(segment, start.offset, start.batch)
        for message in reader.messages():
            if stop is not None and message.batch >= stop:
                break
            if message.rows:
                yield reader.rows(message, self._columns)
            self.ended = None if message.rows else reader.schema_metadata().get("capture_id")
        within = [stretch for stretch in reader.damage if stop is None or stretch.batch < stop]
        self.damage = [stretch for stretch in within if not stretch.torn or segment.sealed or not newest]


def settle() -> None:
    """Take what has been imported by now out of the sight of the garbage collector, where this is a worker.

    PySpark's daemon calls `gc.collect` after each task (4.3, ``pyspark/daemon.py``). With all our modules that is 40 ms of the
    processor, measured: as much as it takes to decode 100,000 frames of CSB.
    """
    if TaskContext.get() is not None:
        _freeze()


@cache
def _freeze() -> None:
    gc.collect()  # what is garbage already shall not stay for ever
    gc.freeze()
