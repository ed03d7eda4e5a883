"""The bytes of a segment: messages of the Arrow IPC stream, each with a checksum of all its bytes.

A message is a prefix (``FF FF FF FF`` and the length of the header), the header and the body. The checksum stands in the
header, in the custom metadata, as eight hexadecimal digits; it is that of the message with eight hyphens in their place. So one
flipped bit anywhere is found without parsing anything, and any reader of Arrow can read the stream.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from attrs import frozen

_PREFIX: Final = b"\xff\xff\xff\xff"
_LENGTH: Final = struct.Struct("<i")
END_OF_STREAM: Final = _PREFIX + b"\0\0\0\0"
MARK: Final = "polybus"
"""The key of the metadata that holds a message's checksum and numbers."""
_BLANK: Final = b"--------"
_MARKED: Final = re.compile(rb"crc32=([0-9a-f]{8}) batch=(-?\d+) seq=(-?\d+) rows=(\d+)")
_UNSEALED: Final = re.compile(rb"crc32=-------- batch=")
_PIECE: Final = 5 * 1024
_LONGEST_HEADER: Final = 1 << 20


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
    view = memoryview(data).cast("B")
    while offset < len(view) and not _is_end(view, offset):
        message = _message(data, view, offset)
        if message is None:
            following = _next_good(data, view, offset)
            end = len(view) if following is None else following
            message = ArrowMessage(offset, end - offset, torn=following is None and _is_beginning(view, offset))
        yield message
        offset += message.size


def _is_end(view: memoryview, offset: int) -> bool:
    return offset + 8 == len(view) and view[offset:] == END_OF_STREAM


def _message(data: pa.Buffer, view: memoryview, offset: int) -> ArrowMessage | None:
    """The good message at an offset, or None."""
    if offset + 8 > len(view) or bytes(view[offset : offset + 4]) != _PREFIX:
        return None
    length = _LENGTH.unpack_from(view, offset + 4)[0]
    if not 0 < length <= _LONGEST_HEADER or offset + 8 + length > len(view):
        return None
    header = bytes(view[offset : offset + 8 + length])
    found = _MARKED.search(header)
    if found is None:
        return None
    reader = pa.BufferReader(data.slice(offset))
    try:
        pa.ipc.read_message(reader)
    except (pa.ArrowInvalid, OSError, EOFError):
        return None
    size = reader.tell()
    start = found.start(1)
    checksum = zlib.crc32(b"%s%s%s" % (header[:start], _BLANK, header[start + 8 :]))
    checksum = zlib.crc32(view[offset + len(header) : offset + size], checksum)
    if checksum != int(found[1], 16):
        return None
    return ArrowMessage(offset, size, data.slice(offset, size), int(found[2]), int(found[3]), int(found[4]))


def _next_good(data: pa.Buffer, view: memoryview, offset: int) -> int | None:
    """The begin of the next good message after a damaged one."""
    whole = bytes(view[offset:])
    place = 0
    while (place := whole.find(_PREFIX, place + 1)) >= 0:
        if _is_end(view, offset + place) or _message(data, view, offset + place) is not None:
            return offset + place
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
