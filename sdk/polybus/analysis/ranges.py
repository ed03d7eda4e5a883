"""Divides a capture into ranges that tasks process one at a time. A segment with columns is divided between row groups."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any, Final

import attrs
import pyarrow as pa

from polybus.capture.columns.reader import SegmentColumns
from polybus.capture.columns.stamp import BatchGroup, gap_rows
from polybus.capture.decoding import Decoded, decoded, frame_columns
from polybus.capture.errors import CaptureError
from polybus.capture.schema import EVENTS, FRAMES, QUARANTINE
from polybus.capture.store.reader import Capture, Segment
from polybus.capture.store.segments import Stretch, locked

from ..capture.store.compute import pc
from ..plugins.tools import check_count, check_given, check_type
from .clocks import LAST_NS, NEEDED, Holes

ROWS_PER_RANGE: Final = 250_000
"""Approximate rows per task, which take less than a second. 15 ms of this is the overhead of the task itself."""
SAMPLES: Final = 100
"""Maximum gap rows and losses that are reported individually. All of them are counted."""
SCAN: Final = 4 << 20
"""Size in bytes below which a segment is a single range, planned without reading the segment."""


@attrs.frozen(order=True)
class ReadPosition:
    """A position in a capture, including its byte offset, so that a reader does not have to search for it."""

    segment: int = 0
    batch: int = 0
    offset: int = attrs.field(default=0, order=False)
    """Byte offset in the file, which does not affect the order of positions."""


@attrs.frozen
class Range:
    """Batches of one segment from `start` up to, but not including, batch `stop`. `None` means the end of the file."""

    start: ReadPosition
    stop: int | None


@attrs.frozen
class ReadWindow:
    start_ns: int | None = None
    end_ns: int | None = None
    connection: str | None = None

    def check(self) -> None:
        for name, value in (("start_ns", self.start_ns), ("end_ns", self.end_ns)):
            if value is not None:
                check_count(value, name, -LAST_NS, LAST_NS)
        check_type(self.connection, str, "connection", "connection='549c53e2-1'")
        if self.start_ns is not None and self.end_ns is not None and self.start_ns >= self.end_ns:
            raise ValueError(f"start {self.start_ns} is not before end {self.end_ns} (ns since 1970): choose a later end")

    @property
    def columns(self) -> set[str]:
        given = {"ts_ns": (self.start_ns, self.end_ns), "conn_id": (self.connection,)}
        return {name for name, bounds in given.items() if any(bound is not None for bound in bounds)}

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        condition = self.condition("frames")
        return rows if condition is None else rows.filter(condition)

    def condition(self, table: str) -> Any:
        """Return the window as an Arrow expression over a table's columns, or `None` if it includes everything."""
        time = pc.field("time_ns" if table == "events" else "ts_ns")
        bounds = (
            time >= self.start_ns if self.start_ns is not None else None,
            time < self.end_ns if self.end_ns is not None else None,
            pc.field("conn_id") == self.connection if self.connection is not None else None,
        )
        return together(bounds)


def together(conditions: Iterable[Any]) -> Any:
    some = [condition for condition in conditions if condition is not None]
    return reduce(operator.and_, some) if some else None


def reach(capture: Capture, start: ReadPosition, rows: int | None = None, *, over: bool = False) -> ReadPosition:
    """Return the position after about `rows` rows and at least one batch, by default after everything readable.

    The incomplete batch of a segment that is being written is excluded, and so are later segments, because several recorders
    may share a folder. Set `over` when recording has finished, to skip segments if their writer is unknown.
    """
    place, seen = start, 0
    everything = capture.segments()
    if everything[-1].number < start.segment:
        raise CaptureError(
            f"{capture.path} ends with segment {everything[-1].number}, but was read up to {start.segment} before: it is "
            "another capture; use a new folder of results or a new checkpoint"
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
            # No batch follows this loss: only a reader whose range goes beyond it counts it. Behind the end of a segment that
            # was cut short, nothing more is missing.
            end = last.offset + last.size
            place = ReadPosition(segment.number, last.batch + 1, end + (segment.sealed and end >= segment.size))
        if segment is not segments[-1] and is_written(capture, segment) not in (False, None if over else False):
            break
    return place


def is_written(capture: Capture, segment: Segment) -> bool | None:
    """Return True if a recorder has a segment open, or `None` if this is unknown."""
    if segment.sealed:
        return False
    if not capture.local:
        return None
    try:
        with locked(segment.path) as (_, ours):
            return None if ours is None else not ours
    except OSError:
        return True  # sealed just now: left for the next time


def plan(capture: Capture, start: ReadPosition, stop: ReadPosition | None = None, rows: int = ROWS_PER_RANGE) -> list[Range]:
    """Return the ranges of a capture between two positions, in order and without gaps."""
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
    # All of one size: a small rest is not worth a task.
    for piece in range(1, pieces):
        after = afters[bisect_left(seen, piece * whole / pieces) - 1]
        if after > begin:
            yield Range(begin, after.batch)
            begin = after
    # Also where no message follows: damage there is found by its reader.
    if end is None or begin.batch < end:
        yield Range(begin, end)


def _steps(capture: Capture, segment: Segment, begin: ReadPosition, end: int | None) -> Iterator[tuple[ReadPosition, int]]:
    """Yield the positions where a segment may be divided, and the number of rows before each of them."""
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


FIRST_NS: Final = 10**17
"""A time in 1973. A smaller number is in seconds, milliseconds or microseconds, or is a date without dashes."""


def nanoseconds(text: str, name: str = "time") -> int:
    """Parse a time in ISO 8601 (UTC if it has no time zone) or in nanoseconds since 1970.

    Returns:
        Nanoseconds since 1970, limited to 64 bits (the year 2262).

    Raises:
        TypeError: If it is not a string.
        ValueError: If the text is neither.
    """
    check_given(text, str, name, f"{name}='2026-11-21T08:00:00Z'")
    if text.isdecimal():
        if 0 < int(text) < FIRST_NS:
            raise ValueError(
                f"{name}={text!r}: nanoseconds since 1970 have 19 digits; or pass a time such as 2026-11-21T08:00:00Z"
            )
        return min(int(text), LAST_NS)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name}={text!r}: pass a time such as 2026-11-21T08:00:00Z, or nanoseconds since 1970") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    whole = moment.replace(microsecond=0)
    return max(-LAST_NS, min(int(whole.timestamp()) * 1_000_000_000 + moment.microsecond * 1000, LAST_NS))


class RangeReader:
    """Reads a range of a capture and finds `holes` in it. Raises `CaptureError` if the segment has been removed."""

    def __init__(self, path: str, piece: Range, holes: Holes | None = None) -> None:
        self.damage: list[Stretch] = []
        """Losses, which are complete after the last batch."""
        self.holes: Holes = Holes() if holes is None else holes
        """Holes found by `decoded`, or by `table` if its columns show them."""
        self.gaps: int = 0
        """Number of gap rows found by `decoded`."""
        self.gap_rows: list[dict[str, Any]] = []
        """The first of these rows."""
        self.ended: str | None = None
        """The recording that ends in this range, or `None`. Set after the last batch."""
        self._capture = Capture(path)
        self._range = piece
        segments = self._capture.segments(complete=False)
        found = next((segment for segment in segments if segment.number == piece.start.segment), None)
        if found is None:
            raise CaptureError(
                f"{path}: segment {piece.start.segment} is gone: retention removed it before it was read; "
                "read more often, or record with a larger max_bytes and max_age"
            )
        self._segment: Segment = found
        self._newest = found is segments[-1]

    def frames(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        return self._batches(self._range, columns)

    def table(self, table: str, names: Sequence[str] | None, window: ReadWindow, condition: Any) -> Iterator[pa.RecordBatch]:
        """Yield rows or columns of events or quarantine in a window. Rows that do not match the condition may be left out."""
        whole = EVENTS if table == "events" else QUARANTINE
        needed = {*frame_columns(names or whole.names), *window.columns}
        for part in self._parts():
            if isinstance(part, Range):
                batches = self._batches(part, [name for name in FRAMES.names if name in needed])
                if needed >= NEEDED:
                    batches = map(self._seen, batches)
                events = names if table == "events" else ("seq",)
                for made in decoded(map(window.of, batches), events):
                    rows = made.events if table == "events" else made.quarantine
                    yield rows.select(names) if names is not None else rows
            else:
                columns, groups = part
                for group in groups:
                    self.holes.group(group)
                yield from columns.read(table, groups, names, together((condition, window.condition(table))))

    def decoded(self, window: ReadWindow) -> Iterator[Decoded]:
        """Yield decoded batches, and note their holes and gap rows before."""
        moments = attrs.evolve(window, connection=None)  # the connection of missing frames is unknown
        for part in [self._range] if window.columns else self._parts():
            if isinstance(part, Range):
                yield from decoded(window.of(self._seen(rows, moments)) for rows in self._batches(part, None))
                continue
            columns, groups = part
            for group in groups:
                self._note_gaps(group.gaps, group.gap_rows)
                self.holes.group(group)
                self.ended = group.ended
                events, quarantine = (
                    pa.concat_batches([pa.RecordBatch.from_pylist([], schema=schema), *columns.read(table, [group])])
                    for table, schema in (("events", EVENTS), ("quarantine", QUARANTINE))
                )
                yield Decoded(events, quarantine, group.empty, group.frames, group.refused)

    def _seen(self, rows: pa.RecordBatch, moments: ReadWindow | None = None) -> pa.RecordBatch:
        self.holes.rows(rows)
        if moments is not None:
            self._note_gaps(*gap_rows(moments.of(rows), SAMPLES))
        return rows

    def _note_gaps(self, count: int, samples: Sequence[Mapping[str, Any]]) -> None:
        self.gaps += count
        self.gap_rows += map(dict, samples[: SAMPLES - len(self.gap_rows)])

    def _parts(self) -> list[Range | tuple[SegmentColumns, list[BatchGroup]]]:
        piece, columns = self._range, SegmentColumns.of(self._capture, self._segment)
        groups = columns.within(piece.start.batch, piece.stop) if columns is not None else []
        if columns is None or not groups:
            return [piece]
        parts: list[Range | tuple[SegmentColumns, list[BatchGroup]]] = [(columns, groups)]
        if groups[0].first > piece.start.batch:
            parts.insert(0, Range(piece.start, groups[0].first))
        following = columns.following(groups[-1])
        if following is not None and (piece.stop is None or piece.stop > following.first):
            parts.append(Range(ReadPosition(piece.start.segment, following.first, following.offset), piece.stop))
        return parts

    def _batches(self, piece: Range, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        start, stop = piece.start, piece.stop
        reader = self._capture.reader(self._segment, start.offset, start.batch)
        for message in reader.messages():
            if stop is not None and message.batch >= stop:
                break
            if message.rows:
                yield reader.rows(message, columns)
            self.ended = None if message.rows else reader.schema_metadata().get("capture_id")
            if self.ended is not None:
                self.holes.end(self.ended, message.seq)
        within = [stretch for stretch in reader.damage if stop is None or stretch.batch < stop]
        self.damage += [stretch for stretch in within if not stretch.torn or not self._newest]
