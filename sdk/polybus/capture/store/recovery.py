"""Creates a complete capture from the good parts of a damaged one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from attrs import define, field, frozen

from ..rows import Gap
from ..schema import FRAMES
from .filesystems import AnyPath, naming
from .folders import new_folder
from .reader import Capture, Segment, missing_among
from .segments import SegmentWriter, Stretch


@frozen
class Recovered:
    """The result of `recover`: the rows saved in the new capture, and those that are lost."""

    frames: int
    batches: int
    lost_frames: int
    """Number of frames that are known to be missing. A stretch with an unknown number of frames counts as none."""
    lost_stretches: int
    """Number of stretches of bytes that were skipped."""
    lost_bytes: int
    """Number of bytes in these stretches."""
    missing: tuple[int, ...]
    """Numbers of missing segments."""


def recover(path: AnyPath, out: AnyPath, progress: Callable[[int], None] | None = None) -> Recovered:
    """Copy the good batches of a damaged capture to a new one. A gap row marks each place where batches are missing.

    The new capture is complete: it marks each recording as ended, even if the recorder was killed.

    Args:
        path: The damaged capture, which is not changed.
        out: A new or empty folder for the new capture.
        progress: Called with the number of rows from time to time.

    Raises:
        CaptureError: `out` is not empty, or `path` is not a capture.
        OSError: The new capture cannot be written.
    """
    capture = Capture(path)
    recovery = _Recovery(capture, new_folder(out), progress if progress is not None else lambda rows: None)
    segments = capture.segments(complete=False)
    with naming(out):
        for segment in segments:
            recovery.take(segment)
        recovery.end()
    numbers = [segment.number for segment in segments]
    return Recovered(
        recovery.frames,
        recovery.batches,
        sum(stretch.frames or 0 for stretch in recovery.lost),
        len(recovery.lost),
        sum(stretch.size for stretch in recovery.lost),
        missing_among(numbers),
    )


class _Left(NamedTuple):
    metadata: Mapping[str, str]
    seq: int
    """Number of its next frame."""


@define
class _Recovery:
    capture: Capture
    folder: Path
    progress: Callable[[int], None]
    frames: int = 0
    batches: int = 0
    lost: list[Stretch] = field(factory=list)
    written: int = 0
    left: dict[str, _Left] = field(factory=dict)

    def take(self, segment: Segment) -> None:
        reader = self.capture.reader(segment)
        writer: SegmentWriter | None = None
        name, seq = "", 0
        for _, rows in reader.batches():
            writer = writer or self._follower(reader.metadata)
            first, last = (rows.column("seq")[place].as_py() for place in (0, -1))  # None in a foreign capture
            writer.write(rows, seq if first is None else first)
            name, seq = rows.column("capture_id")[-1].as_py() or name, (seq if last is None else last) + 1
            self.frames += rows.num_rows
            self.batches += 1
            self.progress(self.frames)
        for stretch in reader.damage:
            writer = writer or self._follower(reader.metadata)
            # The gap row counts as one row; otherwise a later loss of this copy could count less than nothing.
            writer.write(_gap_row(segment, stretch), seq)
            seq += 1
        self.lost += reader.damage
        if reader.ended:
            writer = writer or self._follower(reader.metadata)
            writer.end(seq)
        if writer is not None:
            writer.seal()
        # The recording's name is in the schema, or in the rows if the schema is damaged.
        if name := reader.metadata.get("capture_id", name):
            self.left.pop(name, None)
            if not reader.ended:
                self.left[name] = _Left({**reader.metadata, "capture_id": name}, seq)

    def end(self) -> None:
        for metadata, seq in self.left.values():
            writer = self._follower(metadata)
            writer.end(seq)
            writer.seal()

    def _follower(self, metadata: Mapping[str, str]) -> SegmentWriter:
        number, self.written = self.written, self.written + 1
        return SegmentWriter(self.folder, number, {"recovered": self.capture.path, **metadata})


def _gap_row(segment: Segment, stretch: Stretch) -> pa.RecordBatch:
    gap = Gap("damaged", stretch.frames or 0, segment=segment.number, bytes=stretch.size)
    values: dict[str, Any] = dict.fromkeys(FRAMES.names)
    values |= {"capture_id": "", "seq": -1, "ts_ns": 0, "mono_ns": 0, "options": gap.options, "flags": gap.flags, "tunnel": []}
    return pa.RecordBatch.from_pylist([values], schema=FRAMES)
