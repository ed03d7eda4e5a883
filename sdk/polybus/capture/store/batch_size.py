"""The size of a batch when it is unpacked, read from its head: a few kilobytes may say that they are gigabytes."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Final

import pyarrow as pa

_UNCOMPRESSED: Final = -1
"""In front of a buffer that would not have become smaller."""


def unpacked_size(message: pa.Message, schema: pa.Schema, names: Collection[str]) -> int:
    """Bytes of some columns of a record batch when they are unpacked.

    Each compressed buffer begins with its real length (Arrow columnar format, "IPC buffer compression"), and Arrow reserves
    that much.

    Args:
        message: As `pyarrow.ipc.read_message` gives it, which has verified its flatbuffer.
        schema: Of the stream.
        names: The columns.
    """
    batch = _Table.root(memoryview(message.metadata)).table(2)
    buffers, compressed = batch.pairs(2), batch.has(3)
    body = memoryview(message.body) if message.body is not None else memoryview(b"")
    size = 0
    for field in schema:
        for _ in range(_buffers(field.type)):
            offset, length = next(buffers, (0, 0))
            if field.name in names and length:
                size += _real(body, offset, length) if compressed else length
    return size


def _real(body: memoryview, offset: int, length: int) -> int:
    if length < 8 or not 0 <= offset <= len(body) - 8:
        return length
    (real,) = struct.unpack_from("<q", body, offset)
    return length - 8 if real == _UNCOMPRESSED else max(real, 0)


def _buffers(kind: pa.DataType) -> int:
    """Number of the buffers of a column: validity, offsets where its values differ in length, and values."""
    if pa.types.is_null(kind):
        return 0
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return 2 + _buffers(kind.value_type)
    if pa.types.is_struct(kind):
        return 1 + sum(_buffers(field.type) for field in kind)
    varies = (
        pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    )
    return 3 if varies else 2


class _Table:
    """A table of a flatbuffer: its fields are found by way of another table, of their places."""

    def __init__(self, data: memoryview, start: int) -> None:
        self._data, self._start = data, start
        self._fields = start - struct.unpack_from("<i", data, start)[0]

    @staticmethod
    def root(data: memoryview) -> _Table:
        return _Table(data, struct.unpack_from("<I", data)[0])

    def _place(self, field: int) -> int:
        (size,) = struct.unpack_from("<H", self._data, self._fields)
        entry = 4 + 2 * field
        return int(struct.unpack_from("<H", self._data, self._fields + entry)[0]) if entry < size else 0

    def has(self, field: int) -> bool:
        return bool(self._place(field))

    def _followed(self, field: int) -> int:
        place = self._start + self._place(field)
        return place + int(struct.unpack_from("<I", self._data, place)[0])

    def table(self, field: int) -> _Table:
        return _Table(self._data, self._followed(field))

    def pairs(self, field: int) -> Iterator[tuple[int, int]]:
        """A vector of structs of two numbers of 64 bits."""
        if not self.has(field):
            return
        place = self._followed(field)
        (count,) = struct.unpack_from("<I", self._data, place)
        for number in range(count):
            yield struct.unpack_from("<qq", self._data, place + 4 + 16 * number)
