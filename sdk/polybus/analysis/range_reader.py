"""Reads a range of a capture: whole groups of columns where its segment has them, and what is not within these is decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from polybus.capture.columns.reader import SegmentColumns
from polybus.capture.columns.stamp import BatchGroup
from polybus.capture.decoding import Decoded, decoded, frame_columns
from polybus.capture.errors import CaptureError
from polybus.capture.schema import EVENTS, FRAMES, QUARANTINE
from polybus.capture.store.reader import Capture, Segment
from polybus.capture.store.segments import Stretch

from .holes import NEEDED as HOLES_NEED
from .holes import Holes
from .ranges import Range, ReadPosition, ReadWindow, together


class RangeReader:
    """Reads a range of a capture, and finds `holes` in it.

    Raises:
        CaptureError: The segment is gone.
    """

    def __init__(self, path: str, piece: Range, holes: Holes | None = None) -> None:
        self.damage: list[Stretch] = []
        """Losses that were found, after the last batch."""
        self.holes: Holes = Holes() if holes is None else holes
        """The places where frames are missing, as far as `decoded` has read; or `table`, with the columns that tell it."""
        self.ended: str | None = None
        """After the last batch, the recording that says at the end of this range that it is over; None where none does."""
        self._capture = Capture(path)
        self._range = piece
        segments = self._capture.segments(complete=False)
        found = next((segment for segment in segments if segment.number == piece.start.segment), None)
        if found is None:
            raise CaptureError(
                f"{path}: segment {piece.start.segment} is gone: retention has removed it before it was read; "
                "read more often, or record with a larger max_bytes and max_age"
            )
        self._segment: Segment = found
        self._newest = found is segments[-1]

    def frames(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows as they were recorded, or some of their columns, batch by batch."""
        return self._batches(self._range, columns)

    def table(self, table: str, names: Sequence[str] | None, window: ReadWindow, condition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a table (events, quarantine) within a window, or some of their columns.

        Those for which a condition does not hold may be left out.
        """
        whole = EVENTS if table == "events" else QUARANTINE
        needed = {*frame_columns(names or whole.names), *window.columns}
        for part in self._parts():
            if isinstance(part, Range):
                batches = self._batches(part, [name for name in FRAMES.names if name in needed])
                if needed >= HOLES_NEED:
                    batches = (_shown(rows, self.holes.rows) for rows in batches)
                events = names if table == "events" else ("seq",)
                for made in decoded(map(window.of, batches), events):
                    rows = made.events if table == "events" else made.quarantine
                    yield rows.select(names) if names is not None else rows
            else:
                columns, groups = part
                for group in groups:
                    self.holes.group(group)
                yield from columns.read(table, groups, names, together((condition, window.condition(table))))

    def decoded(
        self, window: ReadWindow, seen: Callable[[pa.RecordBatch], None], told: Callable[[BatchGroup], None]
    ) -> Iterator[Decoded]:
        """Events and quarantine, with what is to be counted; `seen` gets the frames before, or `told` what is known of them.

        Where there is a window all frames are decoded: of what lies in it only these know how many they are.
        """
        for part in [self._range] if window.columns else self._parts():
            if isinstance(part, Range):
                batches = (_shown(rows, self.holes.rows) for rows in self._batches(part, None))
                yield from decoded(window.of(_shown(rows, seen)) for rows in batches)
                continue
            columns, groups = part
            for group in groups:
                told(group)
                self.holes.group(group)
                self.ended = group.ended
                tables = (
                    pa.Table.from_batches(columns.read(table, [group]), schema=schema).combine_chunks()
                    for table, schema in (("events", EVENTS), ("quarantine", QUARANTINE))
                )
                events, quarantine = (next(iter(one.to_batches()), _none(one.schema)) for one in tables)
                yield Decoded(events, quarantine, group.empty, group.frames, group.refused)

    def _parts(self) -> list[Range | tuple[SegmentColumns, list[BatchGroup]]]:
        """The range in the parts that are read in one way each."""
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
        within = [stretch for stretch in reader.damage if stop is None or stretch.batch < stop]
        self.damage += [stretch for stretch in within if not stretch.torn or not self._newest]


def _shown(rows: pa.RecordBatch, seen: Callable[[pa.RecordBatch], Any]) -> pa.RecordBatch:
    seen(rows)
    return rows


def _none(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)
