"""Inspects the contents of a capture, and damage to it."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from attrs import define, field, frozen

from ..rows import Missing
from ..schema import FLAG_GAP_BEFORE
from .compute import pc
from .reader import Capture, Loss, lost, missing_among


@define
class Info:
    """The contents of a capture.

    Attributes:
        segments: Number of files. `open` is the number of files that have a writer, or that a killed recorder has left.
        bytes: Total size of all files.
        frames: Number of frames that were sent over the network.
        marks: Number of rows about the beginning or end of a connection. Decoding and the pipeline count them as frames.
        gaps: Number of missing frames that the recorders know of, by reason.
        lost_stretches, lost_frames: Number of damaged stretches, and number of frames in them as far as it is known.
        first_ns, last_ns: Wall-clock time of the first and the last frame, in nanoseconds since 1970. None if there are no
            frames.
        frame_bytes: Total size of all frames.
        connections, captures, protocols: Number of connections, names of the recordings, and number of frames by protocol.
        ended: Recordings that have an end. A killed recorder writes none.
        sources: Captures of which this one is a replay.
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
    """Inspect a capture. Reads all of it, one batch at a time.

    Raises:
        CaptureError: A segment is missing, or its version is unknown.
    """
    found = Info(capture.path)
    segments = capture.segments()
    found.segments, found.open = len(segments), sum(not segment.sealed for segment in segments)
    found.bytes = sum(segment.size for segment in segments)
    conns: set[str] = set()
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
    """Number of rows in good batches."""
    batches: int
    losses: tuple[Loss, ...]
    """The damaged parts."""
    missing: tuple[int, ...]
    """Numbers of missing segments."""

    @property
    def good(self) -> bool:
        """True if nothing is missing or damaged."""
        return not self.losses and not self.missing


def verify(capture: Capture, progress: Callable[[int], None] | None = None) -> Verdict:
    """Check every byte of a capture, and check that the rows of every batch can be read.

    Args:
        capture: The capture to check.
        progress: Called with the number of rows from time to time.

    Raises:
        CaptureError: The version of a segment is unknown.
    """
    frames = batches = 0
    losses: list[Loss] = []
    numbers = []
    for segment in capture.segments(complete=False):
        numbers.append(segment.number)
        reader = capture.reader(segment)
        for _, rows in reader.batches():
            rows.validate(full=True)
            frames += rows.num_rows
            batches += 1
            if progress is not None:
                progress(frames)
        losses += lost(segment, reader)
    return Verdict(frames, batches, tuple(losses), missing_among(numbers))
