"""Inspects captures, checks them for corruption, and recovers the good parts of a corrupt capture as a complete new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from attrs import define, field, frozen

from ...plugins.tools import check_given
from ..rows import Gap, Missing
from ..schema import FLAG_GAP_BEFORE, FRAMES
from .compute import pc
from .filesystems import AnyPath, naming
from .folders import new_folder
from .reader import Capture, Loss, Segment, lost, missing_among
from .segments import SegmentWriter, Stretch


@define
class Info:
    """The contents of a capture.

    Attributes:
        segments: Number of files. `open` is the number of files that have a writer or were left by a killed recorder.
        bytes: Total size of all files.
        frames: Number of frames that were sent over the network.
        marks: Number of rows about the beginning or end of a connection, which decoding and the pipeline count as frames.
        gaps: Number of missing frames known to the recorders, by reason.
        lost_stretches, lost_frames: Number of corrupt ranges, and number of frames in them if known.
        first_ns, last_ns: Wall-clock time of the first and the last frame, in nanoseconds since 1970, or `None` if there are no
            frames.
        frame_bytes: Total size of all frames.
        connections, captures, protocols: Number of connections, names of the recordings, and number of frames by protocol.
        ended: Recordings that have an end. A killed recorder does not write an end.
        sources: Captures that this capture is a replay of.
    """

    path: str
    segments: int = 0
    open: int = 0
    bytes: int = 0
    frames: int = 0
    marks: int = 0
    frame_bytes: int = 0
    gaps: dict[str, int] = field(factory=dict)
    lost_stretches: int = 0
    lost_frames: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    connections: int = 0
    captures: list[str] = field(factory=list)
    ended: list[str] = field(factory=list)
    protocols: dict[str, int] = field(factory=dict)
    sources: list[str] = field(factory=list)


def info(capture: Capture) -> Info:
    """Inspect a capture. The whole capture is read, one batch at a time.

    Raises:
        CaptureError: If a segment is missing or has an unknown version.
        TypeError: If `capture` is not a `Capture`, for example a path.
    """
    check_given(capture, Capture, "capture", "Capture('captures')")
    segments, conns = capture.segments(), set[str]()
    found = Info(capture.path, len(segments), sum(not segment.sealed for segment in segments))
    found.bytes = sum(segment.size for segment in segments)
    sources = [capture.reader(segment).schema_metadata().get("source") for segment in segments]
    found.sources = [source for source in dict.fromkeys(sources) if source is not None]
    for batch in capture.batches():
        _count(found, batch.rows, conns)
    found.ended = capture.ended
    found.connections = len(conns)
    found.lost_stretches = len(capture.losses)
    found.lost_frames = sum(loss.stretch.frames or 0 for loss in capture.losses)
    return found


def _count(found: Info, rows: pa.RecordBatch, conns: set[str]) -> None:
    real = pc.is_valid(rows.column("frame"))
    frames = rows.filter(real)
    is_gap = pc.greater(pc.bit_wise_and(rows.column("flags"), FLAG_GAP_BEFORE), 0)
    found.marks += pc.sum(pc.and_not(pc.invert(real), is_gap)).as_py() or 0
    found.frames += frames.num_rows
    found.frame_bytes += pc.sum(pc.binary_length(frames.column("frame"))).as_py() or 0
    conns.update(pc.unique(frames.column("conn_id")).to_pylist())
    # A gap row of `recover` belongs to no recording.
    names = filter(None, pc.unique(rows.column("capture_id")).to_pylist())
    found.captures = list(dict.fromkeys([*found.captures, *names]))
    for part in pc.value_counts(frames.column("protocol")).to_pylist():
        found.protocols[part["values"]] = found.protocols.get(part["values"], 0) + part["counts"]
    for missing in map(Missing.of, rows.filter(is_gap).column("options").to_pylist()):
        found.gaps[missing.what] = found.gaps.get(missing.what, 0) + missing.frames
    times = pc.min_max(frames.column("ts_ns")).as_py()
    if times["min"] is not None:
        found.first_ns = times["min"] if found.first_ns is None else min(found.first_ns, times["min"])
        found.last_ns = times["max"] if found.last_ns is None else max(found.last_ns, times["max"])


@frozen
class Verdict:
    frames: int
    """Number of rows in intact batches."""
    batches: int
    losses: tuple[Loss, ...]
    """The corrupt parts."""
    missing: tuple[int, ...]
    """Numbers of missing segments."""

    @property
    def good(self) -> bool:
        """True if nothing is missing or corrupt."""
        return not self.losses and not self.missing


def verify(capture: Capture, progress: Callable[[int], None] | None = None) -> Verdict:
    """Check every byte of a capture, and check that the rows of every batch are readable.

    Args:
        capture: The capture to check.
        progress: Called occasionally with the number of rows.

    Raises:
        CaptureError: If a segment has an unknown version.
        TypeError: If `capture` is not a `Capture`, for example a path.
    """
    check_given(capture, Capture, "capture", "Capture('captures')")
    frames = batches = 0
    losses: list[Loss] = []
    for segment in (segments := capture.segments(complete=False)):
        reader = capture.reader(segment)
        for message in reader.messages():
            if not message.rows:
                continue
            frames += reader.rows(message).num_rows  # which checks their contents
            batches += 1
            if progress is not None:
                progress(frames)
        losses += lost(segment, reader)
    return Verdict(frames, batches, tuple(losses), missing_among([segment.number for segment in segments]))


@frozen
class Recovered:
    """Result of `recover`.

    Attributes:
        frames, batches: Rows and batches saved in the new capture.
        lost_frames: Number of frames known to be missing. A range with an unknown number of frames counts as 0.
        lost_stretches, lost_bytes: Number of skipped ranges, and of the bytes in them.
        missing: Numbers of missing segments.
    """

    frames: int
    batches: int
    lost_frames: int
    lost_stretches: int
    lost_bytes: int
    missing: tuple[int, ...]


def recover(path: AnyPath, out: AnyPath, progress: Callable[[int], None] | None = None) -> Recovered:
    """Copy the intact batches of a corrupt capture to a new capture. A gap row marks each place where batches are missing.

    The new capture is complete. It marks each recording as ended, even if the recorder was killed.

    Args:
        path: The corrupt capture, which is not changed.
        out: A new or empty folder for the new capture.
        progress: Called occasionally with the number of rows.

    Raises:
        CaptureError: If `out` is not empty, or `path` is not a capture.
        TypeError, ValueError: If an argument is not the path of a folder.
        OSError: If the new capture cannot be written.
    """
    capture = Capture(path)
    recovery = _Recovery(capture, new_folder(out), progress or (lambda rows: None))
    segments = capture.segments(complete=False)
    with naming(out):
        for segment in segments:
            recovery.take(segment)
        recovery.end()
    lost, missing = recovery.lost, missing_among([segment.number for segment in segments])
    frames, size = sum(stretch.frames or 0 for stretch in lost), sum(stretch.size for stretch in lost)
    return Recovered(recovery.frames, recovery.batches, frames, len(lost), size, missing)


@define
class _Recovery:
    capture: Capture
    folder: Path
    progress: Callable[[int], None]
    frames: int = 0
    batches: int = 0
    lost: list[Stretch] = field(factory=list)
    written: int = 0
    left: dict[str, tuple[Mapping[str, str], int]] = field(factory=dict)
    """Metadata and next frame number of recordings that have no end."""

    def take(self, segment: Segment) -> None:
        reader = self.capture.reader(segment)
        writer: SegmentWriter | None = None
        name, seq = "", 0
        for message in reader.messages():
            seq = message.seq + message.rows
            if not message.rows:
                continue
            rows = reader.rows(message)
            writer = writer or self._follower(reader.metadata)
            writer.write(rows, message.seq)
            name = rows.column("capture_id")[-1].as_py() or name
            self.frames += rows.num_rows
            self.batches += 1
            self.progress(self.frames)
        for stretch in reader.damage:
            writer = writer or self._follower(reader.metadata)
            writer.write(_gap_row(segment, stretch), seq)
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
                self.left[name] = {**reader.metadata, "capture_id": name}, seq

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
