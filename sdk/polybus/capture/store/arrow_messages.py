"""The bytes of a segment: messages of the Arrow IPC stream, each with a checksum of all its bytes.

A message is a prefix (``FF FF FF FF`` and the length of the header), the header and the body. The checksum stands in the
header, in the custom metadata, as eight hexadecimal digits; it is that of the message with eight hyphens in their place. So one
flipped bit anywhere is found without parsing anything, and any reader of Arrow can read the stream.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Collection, Iterator
from typing import Any, Final

import pyarrow as pa
from attrs import frozen

_PREFIX: Final = b"\xff\xff\xff\xff"
_LENGTH: Final = struct.Struct("<i")
_LENGTH_AND_ROOT: Final = struct.Struct("<iI")
"""The length of the header, and where in it its table begins."""
END_OF_STREAM: Final = _PREFIX + b"\0\0\0\0"
MARK: Final = "polybus"
"""The key of the metadata that holds a message's checksum and numbers."""
_BLANK: Final = b"--------"
_MARKED: Final = re.compile(rb"crc32=([0-9a-f]{8}) batch=(-?\d{1,18}) seq=(-?\d{1,19}) rows=(\d{1,18})(?!\d)")
_UNSEALED: Final = re.compile(rb"crc32=-------- batch=")
_PIECE: Final = 5 * 1024
_LONGEST_HEADER: Final = 1 << 20
_BEGIN: Final = re.compile(rb"\xff\xff\xff\xff(?=..[\0-\x10]\0)", re.DOTALL)
"""A prefix, before a length that is no more than that."""
_IN_VAIN: Final = 8
"""Sizes of a segment that are read at most for messages that turn out to be none. Damage costs one of them at most; bytes that
look like thousands of messages, each of them as long as the file, come from an attacker."""


def marked(batch: int, seq: int, rows: int) -> str:
    """The text that `sealed_message` looks for: number of the batch (-1: the schema), of its first frame, and how many rows."""
    return f"crc32={_BLANK.decode()} batch={batch} seq={seq} rows={rows}"


def sealed_message(message: bytes) -> bytes:
    """A message, with its checksum in place of the hyphens."""
    header = _LENGTH.unpack_from(message, 4)[0] + 8
    found = _UNSEALED.search(message, 8, header)
    assert found is not None
    start = found.start() + 6
    return b"%s%08x%s" % (message[:start], _checksum(message), message[start + 8 :])


def _checksum(data: bytes) -> int:
    """CRC32, in pieces so small that the interpreter lock is kept: it would have to be won back from a busy event loop."""
    checksum = 0
    for start in range(0, len(data), _PIECE):
        checksum = zlib.crc32(data[start : start + _PIECE], checksum)
    return checksum


@frozen
class ArrowMessage:
    """One message of a segment, or a stretch of bytes that is none."""

    offset: int
    size: int
    data: Any = None
    """The bytes (`pyarrow.Buffer`) of a good one."""
    batch: int = -1
    seq: int = 0
    rows: int = 0
    torn: bool = False
    """Of bytes that are no message: they are the beginning of one, at the end of the file."""

    @property
    def good(self) -> bool:
        """True for a message with the right checksum."""
        return self.data is not None


def messages(data: pa.Buffer, offset: int = 0) -> Iterator[ArrowMessage]:
    """The messages of a segment, from where an earlier one ended; what is damaged is one stretch, up to the next good one."""
    search = _Search(data, offset)
    while offset < len(search.view) and not search.is_end(offset):
        message = search.message(offset)
        if message is None:
            following = search.next_good(offset)
            end = len(search.view) if following is None else following
            message = ArrowMessage(offset, end - offset, torn=following is None and _is_beginning(search.view, offset))
        yield message
        offset += message.size


class _Search:
    """Finds messages in a segment, at offsets that only rise, in a time that grows with its size alone."""

    def __init__(self, data: pa.Buffer, offset: int) -> None:
        self.view = memoryview(data).cast("B")
        self._data = data
        self._mark = _MARKED.search(self.view, offset)
        """The first one after the offset that was asked about last."""
        self._in_vain = _IN_VAIN * len(self.view)

    def is_end(self, offset: int) -> bool:
        """True if nothing but the end of the stream stands there."""
        return offset + 8 == len(self.view) and self.view[offset:] == END_OF_STREAM

    def message(self, offset: int) -> ArrowMessage | None:
        """The good message at an offset, or None."""
        if offset + 12 > len(self.view) or bytes(self.view[offset : offset + 4]) != _PREFIX:
            return None
        length, root = _LENGTH_AND_ROOT.unpack_from(self.view, offset + 4)
        body = offset + 8 + length
        if not root < length <= _LONGEST_HEADER or body > len(self.view):
            return None
        if self._mark is not None and self._mark.start() < offset:
            self._mark = _MARKED.search(self.view, offset)
        mark = self._mark
        if mark is None or mark.end() > body or self._in_vain < 0:
            return None
        self._in_vain -= length
        reader = pa.BufferReader(self._data.slice(offset))
        try:
            pa.ipc.read_message(reader)
        except (pa.ArrowInvalid, OSError, EOFError):
            return None
        size = reader.tell()
        checksum = zlib.crc32(_BLANK, zlib.crc32(self.view[offset : mark.start(1)]))
        if zlib.crc32(self.view[mark.end(1) : offset + size], checksum) != int(mark[1], 16):
            self._in_vain -= size
            return None
        self._in_vain += length
        return ArrowMessage(offset, size, self._data.slice(offset, size), int(mark[2]), int(mark[3]), int(mark[4]))

    def next_good(self, offset: int) -> int | None:
        """The begin of the next good message after a damaged one."""
        while (found := _BEGIN.search(self.view, offset + 1)) is not None:
            offset = found.start()
            if self.is_end(offset) or self.message(offset) is not None:
                return offset
        return None


def _is_beginning(view: memoryview, offset: int) -> bool:
    """True if the bytes up to the end of the file may be a message that was not written to its end."""
    rest = bytes(view[offset : offset + 8])
    if len(rest) < 8:
        return _PREFIX.startswith(rest[:4]) or rest[:4] == _PREFIX
    length = _LENGTH.unpack_from(rest, 4)[0]
    if rest[:4] != _PREFIX or not 0 < length <= _LONGEST_HEADER:
        return False
    if offset + 8 + length > len(view):
        return True
    try:
        pa.ipc.read_message(pa.BufferReader(pa.py_buffer(view[offset:])))
    except OSError as error:  # ArrowInvalid, of a header that does not parse, is none
        return not isinstance(error, pa.ArrowInvalid)
    return False


# -- sizes --------------------------------------------------------------------------------------------------------------

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
