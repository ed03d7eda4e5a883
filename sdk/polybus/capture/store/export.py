"""Exports a capture for other programs, as Parquet or JSON lines."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from ...plugins.tools import check_choice, check_given
from ..columns.reader import SegmentColumns
from ..decoding import decoded, joined
from ..schema import EVENTS, FRAMES, QUARANTINE
from .filesystems import AnyPath, naming
from .folders import new_folder
from .reader import Capture, Loss

Progress = Callable[[int], None]
"""A callback that is called occasionally with the number of rows."""
_SCHEMAS: Final = {"frames": FRAMES, "events": EVENTS, "quarantine": QUARANTINE}
_ROWS_OF_FILE: Final = 4_000_000
_ROWS_OF_GROUP: Final = 131_072
_BYTES_OF_GROUP: Final = 64 << 20
"""Maximum bytes waiting to be written, plus one batch. A single row may have megabytes."""


def compact(capture: Capture, out: AnyPath, progress: Progress | None = None) -> list[Path]:
    """Write the frames of a capture to a few large Parquet files, and return their paths.

    Afterwards, `Capture.losses` lists the missing parts.

    Raises:
        CaptureError: If `out` is not empty or a segment is missing.
        TypeError, ValueError: As for `export`.
        OSError: If a file cannot be written.
    """
    return export(capture, out, table="frames", progress=progress)


def _write_parquet(
    folder: Path, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], progress: Progress
) -> list[Path]:
    paths, done = list[Path](), 0
    groups = joined(batches, _ROWS_OF_GROUP, _BYTES_OF_GROUP)
    group = next(groups, None)
    while group is not None or not paths:  # a reader finds the columns even without rows
        paths.append(folder / f"{name}-{len(paths):05d}.parquet")
        begun = done
        with pq.ParquetWriter(paths[-1], schema, compression="zstd") as writer:
            while group is not None and done - begun < _ROWS_OF_FILE:
                writer.write_batch(group, row_group_size=group.num_rows)
                done += group.num_rows
                progress(done)
                group = next(groups, None)
    return paths


def export(
    capture: Capture,
    out: AnyPath,
    *,
    format: Literal["parquet", "jsonl"] = "parquet",
    table: Literal["frames", "events", "quarantine"] = "events",
    progress: Progress | None = None,
) -> list[Path]:
    """Write a table of a capture for other programs, and return the paths of the files.

    Afterwards, `Capture.losses` lists the missing parts.

    Args:
        capture: The capture to export.
        out: A folder that is new or empty.
        format: ``parquet`` or ``jsonl``. JSON lines contain one object per line, with bytes as a string if they are UTF-8, and
            otherwise as base64 under ``<name>_base64``.
        table: ``frames`` as recorded, ``events`` (decoded) or ``quarantine`` (unreadable frames).
        progress: Called occasionally with the number of rows.

    Raises:
        CaptureError: If `out` is not empty or a segment is missing.
        TypeError: If `capture` is not a `Capture`, for example a path, or `out` is not a path.
        ValueError: If the format or table is unknown, or `out` is an empty string.
        OSError: If a file cannot be written.
    """
    check_given(capture, Capture, "capture", "Capture('captures')")
    check_choice(table, _SCHEMAS, "table")
    check_choice(format, ("parquet", "jsonl"), "format")
    folder, progress = new_folder(out), progress or (lambda rows: None)
    batches = (batch.rows for batch in capture.batches()) if table == "frames" else _decoded_rows(capture, table)
    with naming(folder):
        if format == "parquet":
            return _write_parquet(folder, table, _SCHEMAS[table], batches, progress)
        return [_write_lines(folder / f"{table}.jsonl", batches, progress)]


def _write_lines(path: Path, batches: Iterator[pa.RecordBatch], progress: Progress) -> Path:
    done = 0
    with path.open("w", encoding="utf-8") as file:
        for batch in batches:
            for row in batch.to_pylist():
                print(_line(row), file=file)
            done += batch.num_rows
            progress(done)
    return path


def _decoded_rows(capture: Capture, table: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the events or the quarantine. If a segment has decoded columns, the rows are read from them."""
    losses: list[Loss] = []
    for segment in capture.segments():
        columns = SegmentColumns.of(capture, segment)
        if columns is not None:
            yield from columns.read(table, columns.groups)
            continue
        batches = capture.batches((segment.number, 0), (segment.number + 1, 0))
        yield from (getattr(made, table) for made in decoded(batch.rows for batch in batches))
        losses += capture.losses
    capture.losses = losses


def _line(row: dict[str, Any]) -> str:
    found: dict[str, Any] = {}
    for name, value in row.items():
        try:
            found[name] = value.decode("utf-8") if isinstance(value, bytes) else value
        except UnicodeDecodeError:
            found[f"{name}_base64"] = base64.b64encode(value).decode()
    return json.dumps(found, default=lambda value: value.isoformat(), ensure_ascii=False, separators=(",", ":"))
