"""A capture in pieces for tasks: which batches each one reads. A segment with columns is cut between groups of them."""

from __future__ import annotations

import operator
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any, Final

import attrs
import pyarrow as pa

from polybus.capture.columns.reader import SegmentColumns
from polybus.capture.errors import CaptureError
from polybus.capture.store.reader import Capture, Segment
from polybus.capture.store.segments import lock

from ..capture.store.compute import pc

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

    def _bounds(self, time: str) -> list[tuple[Any, str, Any]]:
        bounds = (
            (pc.greater_equal, time, self.start_ns),
            (pc.less, time, self.end_ns),
            (pc.equal, "conn_id", self.connection),
        )
        return [bound for bound in bounds if bound[2] is not None]

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of frames within it."""
        masks = [holds(rows.column(column), bound) for holds, column, bound in self._bounds("ts_ns")]
        return rows.filter(reduce(pc.and_, masks)) if masks else rows

    def condition(self, table: str) -> Any:
        """The same as an expression of Arrow over the columns of a table; None where everything is within it."""
        bounds = self._bounds("time_ns" if table == "events" else "ts_ns")
        return together(holds(pc.field(column), bound) for holds, column, bound in bounds)


def together(conditions: Iterable[Any]) -> Any:
    """Conditions as one, all of which hold; None where there are none."""
    some = [condition for condition in conditions if condition is not None]
    return reduce(operator.and_, some) if some else None


def reach(capture: Capture, start: ReadPosition, rows: int | None = None, *, over: bool = False) -> ReadPosition:
    """The end up to which a capture can be read now.

    A torn batch at the end of a segment that is still written is not there yet, and nothing beyond that segment is read:
    several recorders may share a folder. What is torn elsewhere is lost, and passed by.

    At most so many rows lie in between, but one batch at least; None: as far as there is something. A segment of which nobody
    knows whether it is written is passed where the recordings are `over`.

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
        last = reader.damage[-1] if reader.damage else None
        if last is not None and not last.torn and last.offset >= place.offset:
            # No batch follows what is lost at its end: only who reads up to a place behind it, and behind its end, counts it.
            place = ReadPosition(segment.number, last.batch + 1, last.offset + last.size + segment.sealed)
        if segment is not segments[-1] and is_written(capture, segment) not in (False, None if over else False):
            break
    return place


def is_written(capture: Capture, segment: Segment) -> bool | None:
    """True if a recorder has a segment open; None where that cannot be known."""
    if segment.sealed:
        return False
    if not capture.local:
        return None
    try:
        file = os.open(segment.path, os.O_RDWR)
    except OSError:
        return True  # sealed just now: the next time
    try:
        locked = lock(file)
        return None if locked is None else not locked
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
    for after, count in _steps(capture, segment, begin, end):
        afters.append(after)
        seen.append(count + seen[-1])
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


def _steps(capture: Capture, segment: Segment, begin: ReadPosition, end: int | None) -> Iterator[tuple[ReadPosition, int]]:
    """The places at which a segment may be cut, and the rows before each: behind groups of columns, else behind batches."""
    columns = SegmentColumns.of(capture, segment)
    groups = columns.within(begin.batch, end) if columns is not None else ()
    if columns is not None and groups:
        for group in groups:
            following = columns.following(group)
            offset = following.offset if following is not None else segment.size
            yield ReadPosition(segment.number, group.after, offset), group.events
        return
    for message in capture.reader(segment, begin.offset, begin.batch).messages():
        if end is not None and message.batch >= end:
            break
        yield ReadPosition(segment.number, message.batch + 1, message.offset + message.size), message.rows
