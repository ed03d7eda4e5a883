"""Paths and stamps of column files. A stamp names the segment, the decoders' versions, and the batches of each row group."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Self

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
from attrs import frozen

from ...plugins.registry import find_reader
from ..schema import EVENTS, FLAG_GAP_BEFORE, QUARANTINE
from ..store.compute import pc

TABLES: Final = MappingProxyType({"quarantine": QUARANTINE, "events": EVENTS})
"""Column files by table. A segment's files are created in this order, and the last file shows that the others exist."""
FORMAT: Final = 5
KEY: Final = b"polybus.decoded"
_ENDS: Final = 4096
"""Bytes at each end of a segment that identify it: the recording's name, and the last batch's checksum."""
_OURS: Final[Mapping[str, int]] = MappingProxyType({"csb": 4, "jrep": 4, "nats": 5, "ubre": 4, "up": 5, "uprotocol": 4})
"""Versions of our decoders. Increase a number if the same frames produce different events (see `test_columns.py`)."""


def columns_path(folder: str, table: str, segment: int) -> str:
    return f"{folder}/{table}/segment-{segment:08d}.parquet"


@frozen
class SegmentIdentity:
    size: int
    crc32: int

    @classmethod
    def of(cls, filesystem: pafs.FileSystem, path: str) -> Self:
        """Read the identity from the beginning and end of a file. May raise `OSError`."""
        with filesystem.open_input_file(path) as file:
            size: int = file.size()
            count = min(size, _ENDS)
            return cls(size, zlib.crc32(file.read_at(count, size - count), zlib.crc32(file.read_at(count, 0))))


@frozen
class BatchGroup:
    """Consecutive batches of a segment, with counts that cannot be derived from their rows."""

    first: int
    after: int
    offset: int
    """Position in the segment, in bytes, where the first batch begins."""
    events: int
    """Number of event rows. If it is above 0, they form a row group."""
    quarantined: int
    """Number of quarantine rows. If it is above 0, they form a row group."""
    frames: int
    empty: int
    refused: int
    gaps: int
    """Number of rows about missing frames."""
    gap_rows: Sequence[Mapping[str, Any]] = ()
    """The first rows about missing frames."""
    ended: str | None = None
    """Name of the recording that ends with the last batch, if any."""
    rows: Sequence[Any] = ()
    """The recording, the number of its first row, and the number after its last row."""


@frozen
class ColumnStamp:
    segment: SegmentIdentity
    decoders: Mapping[str, str | None]
    token: str
    """Random token, which is the same in all files that were written together."""
    groups: Sequence[BatchGroup]
    format: int = FORMAT

    def is_fresh(self, segment: SegmentIdentity) -> bool:
        """True if the columns belong to this segment and the current decoders would produce the same columns."""
        return self.segment == segment and _is_current(self.decoders)

    @classmethod
    def from_json(cls, text: bytes) -> Self | None:
        """Parse a stamp. Returns `None` for another format or other text."""
        try:
            stamp = msgspec.json.decode(text, type=cls)
        except (ValueError, RecursionError):
            return None
        return stamp if stamp.format == FORMAT else None

    def row_groups(self, table: str, groups: Sequence[BatchGroup]) -> list[int]:
        """Return the numbers of the row groups that contain a table's rows of these groups."""
        filled = [group for group in self.groups if (group.events if table == "events" else group.quarantined)]
        wanted = set(map(id, groups))
        return [number for number, group in enumerate(filled) if id(group) in wanted]


def rows_of(batches: Sequence[pa.RecordBatch]) -> Sequence[Any]:
    if not batches:
        return ()
    first, last = batches[0], batches[-1]
    return first["capture_id"][0].as_py(), first["seq"][0].as_py(), (last["seq"][-1].as_py() or 0) + 1


def gaps_in(rows: pa.RecordBatch) -> pa.RecordBatch:
    marked = pc.not_equal(pc.bit_wise_and(rows.column("flags"), FLAG_GAP_BEFORE), 0)
    return rows.filter(pc.and_(marked, pc.is_null(rows.column("frame"))))


def gap_rows(rows: pa.RecordBatch, most: int) -> tuple[int, list[dict[str, Any]]]:
    gaps = gaps_in(rows)
    noted = gaps.select(["capture_id", "seq", "ts_ns", "conn_id", "options"]).slice(0, max(0, most))
    return gaps.num_rows, noted.rename_columns({"options": "detail"}).to_pylist()


def decoder_version(protocol: str) -> str | None:
    """Return the version of a decoder, which is a plugin's distribution version, or `None` without a decoder."""
    if protocol in _OURS:
        return str(_OURS[protocol])
    try:
        find_reader(protocol, {})
    except (ValueError, TypeError):
        return None
    from importlib import metadata

    found = [entry.dist for entry in metadata.entry_points(group="polybus.protocols", name=protocol) if entry.dist is not None]
    return f"{found[0].name} {found[0].version}" if found else ""


def _is_current(versions: Mapping[str, str | None]) -> bool:
    return all(decoder_version(protocol) in (None, version) for protocol, version in versions.items())
