"""What can be done with a capture that is there: look at it, check it, mend it, make other files of it."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from attrs import define, field, frozen

from .compute import pc
from .errors import CaptureError
from .joining import decoded
from .reading import Capture, Loss, lost
from .schema import EVENTS, FLAG_GAP_BEFORE, FRAMES, QUARANTINE
from .segments import SegmentReader, SegmentWriter
from .taps import Gap

__all__ = ["Info", "Recovered", "Verdict", "compact", "export", "info", "recover", "verify"]

Progress = Callable[[int], None]
"""Told how many rows have been done, now and then."""
_ROWS_OF_FILE: Final = 4_000_000
_ROWS_OF_GROUP: Final = 131_072


@define
class Info:
    """What is in a capture.

    Attributes:
        segments: How many files; `open` of them are still written, or were left by a recorder that was killed.
        bytes: Of all of them.
        frames: Frames that went over the wire.
        marks: Rows that say that a connection has begun or ended. Decoding counts them as frames, and so does the pipeline.
        gaps: Frames that the recorders know to be missing, by reason.
        losses: Frames in damaged batches, as far as that can be told, and how many stretches are damaged.
        first_ns, last_ns: Wall clock of the first and the last frame, ns since 1970; None where there is none.
        frame_bytes: Of all frames.
        connections, captures, protocols: How many connections; which recordings; frames by protocol.
        ended: Those of the recordings that are over, as their recorders have written; one that was killed with the process that
            wrote for it has not.
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
    """Look at a capture. Reads all of it, a batch at a time.

    Raises:
        CaptureError: A segment is missing, or of an unknown version.
    """
    found = Info(capture.path)
    segments = capture.segments()
    found.segments, found.open = len(segments), sum(not segment.sealed for segment in segments)
    found.bytes = sum(segment.size for segment in segments)
    conns: set[str] = set()
    for segment in segments:
        source = capture.reader(segment).schema_metadata().get("source")
        if source is not None and source not in found.sources:
            found.sources.append(source)
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
    for name in pc.unique(rows.column("capture_id")).to_pylist():
        if name not in found.captures:
            found.captures.append(name)
    for part in pc.value_counts(frames.column("protocol")).to_pylist():
        found.protocols[part["values"]] = found.protocols.get(part["values"], 0) + part["counts"]
    for options in rows.filter(is_gap).column("options").to_pylist():
        what, count = _gap_of(options)
        found.gaps[what] = found.gaps.get(what, 0) + count
    times = pc.min_max(frames.column("ts_ns")).as_py()
    if times["min"] is not None:
        found.first_ns = times["min"] if found.first_ns is None else min(found.first_ns, times["min"])
        found.last_ns = times["max"] if found.last_ns is None else max(found.last_ns, times["max"])


def _gap_of(options: str | None) -> tuple[str, int]:
    """What a row says that is missing, and how many frames; "unknown" where it says nothing that can be read."""
    try:
        said = json.loads(options or "")
        if isinstance(said["gap"], str) and isinstance(said["frames"], int):
            return said["gap"], said["frames"]
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return "unknown", 0


@frozen
class Verdict:
    """What `verify` has found.

    Attributes:
        frames: Rows in good batches.
        batches: Good ones.
        losses: What is damaged.
        missing: Numbers of segments that are not there.
    """

    frames: int
    batches: int
    losses: tuple[Loss, ...]
    missing: tuple[int, ...]

    @property
    def good(self) -> bool:
        """Whether all is there."""
        return not self.losses and not self.missing


def verify(capture: Capture, progress: Progress | None = None) -> Verdict:
    """Check every byte of a capture, and that the rows of every batch can be read.

    Raises:
        CaptureError: A segment is of an unknown version.
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
    there = set(numbers)
    missing = tuple(number for number in range(numbers[0], numbers[-1]) if number not in there)
    return Verdict(frames, batches, tuple(losses), missing)


@frozen
class Recovered:
    """What `recover` has saved, and what not.

    Attributes:
        frames, batches: What is in the new capture.
        lost_frames: How many are known to be missing; where nobody can tell how many, none are counted.
        lost_stretches: How many stretches of bytes were skipped.
        lost_bytes: What they hold.
        missing: Numbers of segments that are not there.
    """

    frames: int
    batches: int
    lost_frames: int
    lost_stretches: int
    lost_bytes: int
    missing: tuple[int, ...]


def recover(path: str | os.PathLike[str], out: str | os.PathLike[str], progress: Progress | None = None) -> Recovered:
    """Make a whole capture of a damaged one: its good batches, with a row that says so where others are missing.

    Args:
        path: The damaged one; it is not changed.
        out: A folder for the new one, empty or not there yet.
        progress: Told the number of rows.

    Raises:
        CaptureError: `out` is not empty; `path` is no capture.
        OSError: The new one cannot be written.
    """
    capture = Capture(path)
    folder = _empty(out)
    batches = frames = lost_frames = lost_bytes = stretches = number = seq = 0
    missing: list[int] = []
    before: int | None = None
    for segment in capture.segments(complete=False):
        if before is not None:
            missing += range(before + 1, segment.number)
        before = segment.number
        reader = capture.reader(segment)
        writer: SegmentWriter | None = None
        for _, rows in reader.batches():
            writer = writer or _follower(folder, number, capture, reader)
            writer.write(rows, rows.column("seq")[0].as_py())
            seq = rows.column("seq")[-1].as_py() + 1
            frames += rows.num_rows
            batches += 1
            if progress is not None:
                progress(frames)
        for stretch in reader.damage:
            stretches += 1
            lost_bytes += stretch.size
            lost_frames += stretch.frames or 0
            writer = writer or _follower(folder, number, capture, reader)
            writer.write(_gap_row(stretch.frames or 0, segment.number, stretch.size), 0)
        if reader.ended:
            writer = writer or _follower(folder, number, capture, reader)
            writer.end(seq)
        if writer is not None:
            writer.seal()
            number += 1
    return Recovered(frames, batches, lost_frames, stretches, lost_bytes, tuple(missing))


def _follower(folder: Path, number: int, capture: Capture, reader: SegmentReader) -> SegmentWriter:
    return SegmentWriter(folder, number, {"recovered": capture.path, **reader.metadata})


def _gap_row(frames: int, segment: int, size: int) -> pa.RecordBatch:
    gap = Gap("damaged", frames, segment=segment, bytes=size)
    values: dict[str, Any] = dict.fromkeys(FRAMES.names)
    values |= {"capture_id": "", "seq": -1, "ts_ns": 0, "mono_ns": 0, "options": gap.options, "flags": gap.flags, "tunnel": []}
    return pa.RecordBatch.from_pylist([values], schema=FRAMES)


def compact(capture: Capture, out: str | os.PathLike[str], progress: Progress | None = None) -> list[Path]:
    """Write the frames as Parquet, in few large files. Gives their paths.

    Raises:
        CaptureError: `out` is not empty; a segment is missing.
        OSError: They cannot be written.
    """
    return _write_parquet(_empty(out), "frames", FRAMES, (batch.rows for batch in capture.batches()), progress)


def _write_parquet(
    folder: Path, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], progress: Progress | None
) -> list[Path]:
    paths: list[Path] = []
    writer: pq.ParquetWriter | None = None
    done = in_file = 0
    waiting: list[pa.RecordBatch] = []

    def flush() -> None:
        if writer is not None and waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema))
            waiting.clear()

    try:
        for batch in batches:
            if writer is None:
                paths.append(folder / f"{name}-{len(paths):05d}.parquet")
                writer = pq.ParquetWriter(paths[-1], schema, compression="zstd")
            waiting.append(batch)
            done += batch.num_rows
            in_file += batch.num_rows
            if sum(part.num_rows for part in waiting) >= _ROWS_OF_GROUP:
                flush()
            if in_file >= _ROWS_OF_FILE:
                flush()
                writer.close()
                writer, in_file = None, 0
            if progress is not None:
                progress(done)
        flush()
    finally:
        if writer is not None:
            writer.close()
    return paths


def export(
    capture: Capture,
    out: str | os.PathLike[str],
    *,
    format: Literal["parquet", "jsonl"] = "parquet",
    table: Literal["frames", "events", "quarantine"] = "events",
    progress: Progress | None = None,
) -> list[Path]:
    """Write a table of a capture for other programs. Gives the paths of the files.

    Args:
        capture: What is exported.
        out: A folder, empty or not there yet.
        format: ``parquet``, or ``jsonl``: an object a line, bytes as text where they are UTF-8, else as base64 under
            ``<name>_base64``.
        table: ``frames`` as they were recorded, ``events`` (what they say) or ``quarantine`` (those that say nothing).
        progress: Told the number of rows.

    Raises:
        CaptureError: `out` is not empty; a segment is missing.
        ValueError: An unknown format or table.
        OSError: They cannot be written.
    """
    schemas = {"frames": FRAMES, "events": EVENTS, "quarantine": QUARANTINE}
    if table not in schemas:
        raise ValueError(f"table={table!r}: one of {', '.join(schemas)}")
    if format not in ("parquet", "jsonl"):
        raise ValueError(f"format={format!r}: parquet or jsonl")
    folder = _empty(out)
    batches = _rows_of(capture, table)
    if format == "parquet":
        return _write_parquet(folder, table, schemas[table], batches, progress)
    path, done = folder / f"{table}.jsonl", 0
    with path.open("w", encoding="utf-8") as file:
        for batch in batches:
            for row in batch.to_pylist():
                file.write(json.dumps(_plain(row), ensure_ascii=False, separators=(",", ":")))
                file.write("\n")
            done += batch.num_rows
            if progress is not None:
                progress(done)
    return [path]


def _rows_of(capture: Capture, table: str) -> Iterator[pa.RecordBatch]:
    frames = (batch.rows for batch in capture.batches())
    return frames if table == "frames" else (getattr(made, table) for made in decoded(frames))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row with values that JSON has."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, bytes):
            try:
                found[name] = value.decode("utf-8")
            except UnicodeDecodeError:
                found[f"{name}_base64"] = base64.b64encode(value).decode()
        elif isinstance(value, datetime):
            found[name] = value.isoformat()
        else:
            found[name] = value
    return found


def _empty(out: str | os.PathLike[str]) -> Path:
    """
    Raises:
        CaptureError: Something is there already.
    """
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CaptureError(f"{folder} is not empty: choose another folder, or remove what is in it")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
