"""Places of the columns of a capture, a file for each table and segment, and their stamp.

It says of which segment they are, what has made them, and which batches each group of rows holds. Columns that another version
of a decoder has made are not read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.fs as pafs
from attrs import asdict, frozen

from ...plugins.registry import find_reader
from ..schema import EVENTS, FLAG_GAP_BEFORE, QUARANTINE
from ..store.compute import pc

TABLES: Final = MappingProxyType({"quarantine": QUARANTINE, "events": EVENTS})
"""Their columns, in the order in which the files of a segment appear; where the last one is there, all are."""
FORMAT: Final = 5
KEY: Final = b"polybus.decoded"
"""In the metadata of the files."""
_ENDS: Final = 4096
"""Bytes: the first ones hold the name of the recording, the last ones the checksum of the last batch."""
_OURS: Final[Mapping[str, int]] = MappingProxyType({"csb": 4, "jrep": 4, "nats": 5, "ubre": 4, "up": 5, "uprotocol": 4})
"""Another number when other events are made of the same frames: `test_columns.py` knows what they make of some."""


def columns_path(folder: str, table: str, segment: int) -> str:
    """The file of a table of a segment."""
    return f"{folder}/{table}/segment-{segment:08d}.parquet"


@frozen
class SegmentIdentity:
    """Enough of a segment to tell it from any other."""

    size: int
    crc32: int

    @classmethod
    def of(cls, filesystem: pafs.FileSystem, path: str) -> Self:
        """Of a file, of which little is read. May raise `OSError`."""
        with filesystem.open_input_file(path) as file:
            size: int = file.size()
            count = min(size, _ENDS)
            return cls(size, zlib.crc32(file.read_at(count, size - count), zlib.crc32(file.read_at(count, 0))))


@frozen
class BatchGroup:
    """Some batches of a segment, one after the other, and what a count of them needs beside their rows."""

    first: int
    """Number of the first one."""
    after: int
    """Number of the one behind the last."""
    offset: int
    """Byte of the segment at which the first one begins."""
    events: int
    """Rows: a row group, where there are some."""
    quarantined: int
    """The same in the quarantine."""
    frames: int
    empty: int
    refused: int
    gaps: int
    """Rows that say that frames are missing."""
    gap_rows: Sequence[Mapping[str, Any]] = ()
    """The first of them."""
    ended: str | None = None
    """The recording that is over with the last batch."""
    rows: Sequence[Any] = ()
    """The recording of its rows, the number of the first, and that behind the last; empty where it has none."""


@frozen
class ColumnStamp:
    """The stamp of the columns of a segment."""

    segment: SegmentIdentity
    decoders: Mapping[str, str | None]
    """Versions by protocol."""
    token: str
    """The same in the files of all tables that were written together."""
    groups: Sequence[BatchGroup]
    format: int = FORMAT

    def is_fresh(self, segment: SegmentIdentity) -> bool:
        """True where they are of this very segment, and what decodes it now would make the same."""
        return self.segment == segment and _is_current(self.decoders)

    def to_json(self) -> bytes:
        """As it stands in a file."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self | None:
        """From a file; None where it is of another format, or none at all."""
        try:
            given = json.loads(text)
            if given["format"] != FORMAT:
                return None
            groups = [BatchGroup(**group) for group in given["groups"]]
            return cls(SegmentIdentity(**given["segment"]), given["decoders"], given["token"], groups)
        except (ValueError, KeyError, TypeError):
            return None

    def row_groups(self) -> Iterator[tuple[BatchGroup, int | None, int | None]]:
        """The groups, with the number of the row group in the events and in the quarantine; None where there are no rows."""
        events = quarantined = 0
        for group in self.groups:
            yield group, events if group.events else None, quarantined if group.quarantined else None
            events += bool(group.events)
            quarantined += bool(group.quarantined)


def rows_of(batches: Sequence[pa.RecordBatch]) -> Sequence[Any]:
    """`BatchGroup.rows` of some batches."""
    if not batches:
        return ()
    first, last = batches[0], batches[-1]
    return first["capture_id"][0].as_py(), first["seq"][0].as_py(), (last["seq"][-1].as_py() or 0) + 1


def gaps_in(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that say that frames are missing."""
    marked = pc.not_equal(pc.bit_wise_and(rows.column("flags"), FLAG_GAP_BEFORE), 0)
    return rows.filter(pc.and_(marked, pc.is_null(rows.column("frame"))))


def gap_rows(rows: pa.RecordBatch, most: int) -> tuple[int, list[dict[str, Any]]]:
    """The number of rows that say that frames are missing, and the first ones of them."""
    gaps = gaps_in(rows)
    noted = gaps.select(["capture_id", "seq", "ts_ns", "conn_id", "options"]).slice(0, max(0, most))
    return gaps.num_rows, noted.rename_columns({"options": "detail"}).to_pylist()


def decoder_version(protocol: str) -> str | None:
    """The version of what decodes a protocol here; None where nothing does. Of a plugin it is that of its distribution."""
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
    """True where these decoders of protocols are as good as those that there are: the same, or of what nothing here decodes."""
    for protocol, version in versions.items():
        here = decoder_version(protocol)
        if here is not None and here != version:
            return False
    return True
