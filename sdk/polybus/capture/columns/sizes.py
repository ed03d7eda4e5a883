"""Checks the unpacked size of Parquet files before memory is allocated, because a small file may unpack to gigabytes.

A file states the sizes of its columns at its end, and again before each page. Even if the two agree, a page may store a single
value that every row uses. Sources: parquet.thrift, `PageHeader`; the compact protocol of Thrift.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..errors import CaptureError
from ..store.compute import pc
from ..store.segments import MOST_BYTES

MOST_OF_GROUP: Final = 2 * MOST_BYTES
"""Maximum unpacked bytes of a row group: 64 MiB of frames, one more batch, and their decoded columns."""
_ROWS: Final = 131_072
_DICTIONARY_PAGE: Final = 2


def check_file(files: pafs.FileSystem, path: str) -> None:
    """Raise `CaptureError` if a file is corrupt or too large when unpacked. Of remote files, only metadata is read."""
    try:
        metadata = pq.read_metadata(path, filesystem=files)
        for group in range(metadata.num_row_groups):
            if many := check_groups(files, path, metadata, [group]):
                with pq.ParquetFile(path, filesystem=files, read_dictionary=many) as file:
                    for rows in file.iter_batches(_ROWS, row_groups=[group], columns=many, use_threads=False):
                        check_size(sum(map(unpacked_size, rows.columns)), 1, path)
    except pa.ArrowException as error:
        raise CaptureError(f"{path} is corrupt: {error}") from error


def check_groups(
    files: pafs.FileSystem, path: str, metadata: pq.FileMetaData, groups: Sequence[int], names: Collection[str] | None = None
) -> list[str]:
    """Check the sizes of row groups. Returns the columns that may store a large value once and use it in every row."""
    pages = memoryview(pa.memory_map(path).read_buffer()).cast("B") if isinstance(files, pafs.LocalFileSystem) else None
    size, many = 0, dict[str, None]()
    for chunk in _chunks(metadata, groups, names):
        size += chunk.total_uncompressed_size
        check_size(size, len(groups), path)
        if pages is None:
            continue
        try:
            found = list(_pages(pages, chunk))
        except (IndexError, RecursionError, ValueError):
            raise CaptureError(f"{path} is corrupt: a page of {chunk.path_in_schema} cannot be read") from None
        if sum(page for _, page in found) > chunk.total_uncompressed_size:
            raise CaptureError(f"{path} is corrupt: pages of {chunk.path_in_schema} unpack to more than the file states")
        longest = max((page for kind, page in found if kind == _DICTIONARY_PAGE), default=0)
        if chunk.physical_type == "BYTE_ARRAY" and longest * chunk.num_values > MOST_OF_GROUP:
            many[chunk.path_in_schema] = None
    return list(many)


def check_size(size: int, groups: int, path: str) -> None:
    if size > MOST_OF_GROUP * groups:
        raise CaptureError(
            f"{path}: {groups} groups of rows unpack to {size >> 20} MiB or more, the limit is {MOST_OF_GROUP >> 20} MiB each, "
            "more than any recording needs: remove the decoded or analysed files, and create them again"
        )


def unpacked_size(column: pa.Array) -> int:
    if isinstance(column, pa.ListArray):
        return 4 * len(column) + unpacked_size(column.flatten())
    if isinstance(column, pa.DictionaryArray):
        return 4 * len(column) + (pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0)
    return int(column.nbytes)


def _chunks(metadata: pq.FileMetaData, groups: Sequence[int], names: Collection[str] | None) -> Iterator[Any]:
    for group in map(metadata.row_group, groups):
        for chunk in map(group.column, range(group.num_columns)):
            if names is None or chunk.path_in_schema.partition(".")[0] in names:
                yield chunk


def _pages(data: memoryview, chunk: Any) -> Iterator[tuple[int, int]]:
    at = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    end = at + chunk.total_compressed_size
    while at < end:
        head = dict[int, int]()
        at = _struct(data, at, head)
        kind, size, packed = head.get(1, -1), head.get(2, -1), head.get(3, -1)
        if min(kind, size, packed) < 0:
            raise ValueError("no page header")
        yield kind, size
        at += packed


def _struct(data: memoryview, at: int, numbers: dict[int, int] | None = None) -> int:
    """Read the numbers in a Thrift struct by field, and return the struct's end position."""
    field = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            field, at = _number(data, at)
        kind = head & 15
        if kind in (4, 5, 6) and numbers is not None:
            numbers[field], at = _number(data, at)
        else:
            at = _behind(data, at, kind)
    return at + 1


def _behind(data: memoryview, at: int, kind: int) -> int:
    """Return the end position of a Thrift value. Raises `ValueError` for a type that does not occur in page headers."""
    if kind in (1, 2):  # true and false
        return at
    if kind == 3:
        return at + 1
    if kind in (4, 5, 6):
        return _number(data, at)[1]
    if kind == 8:
        length, at = _varint(data, at)
        return at + length
    if kind == 12:
        return _struct(data, at)
    raise ValueError(f"kind {kind}")


def _number(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("no 64-bit number")
