"""Segments, which are the files of a capture: ``segment-<n>.open`` while being written, and ``segment-<n>.arrows`` once sealed.

A segment is an Arrow IPC stream with one record batch per flush, which any Arrow reader can open. Each batch is written with
one system call, so that a killed process leaves at most one incomplete batch. A batch without rows marks the end of the
recording. An end-of-stream marker follows the last batch and is overwritten by the next batch. If a sealed segment lacks the
marker, it has been truncated.

A message of the stream is a prefix (``FF FF FF FF`` and the length of the header), the header and the body. The custom metadata
in the header contains a checksum of eight hexadecimal digits, computed over the message with eight hyphens in place of the
digits. A single flipped bit is therefore detected without parsing.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from attrs import frozen

from ..errors import CaptureError
from ..schema import FRAMES, SCHEMA_VERSION

_NAME: Final = re.compile(r"segment-(\d+)\.(open|arrows)")
MOST_BYTES: Final = 256 << 20
"""Maximum unpacked bytes of a batch. A recorder buffers at most 64 MiB of large frames before it writes them."""
_VERSION: Final = "polybus.capture"
_LEVEL: Final = 1
"""Compression level for zstd. At higher levels, the time increases faster than the size decreases."""
_PREFIX: Final = b"\xff\xff\xff\xff"
_LENGTH: Final = struct.Struct("<i")
_LENGTH_AND_ROOT: Final = struct.Struct("<iI")
END_OF_STREAM: Final = _PREFIX + b"\0\0\0\0"
MARK: Final = "polybus"
"""Metadata key of a message's checksum and numbers."""
_BLANK: Final = b"--------"
_MARKED: Final = re.compile(rb"crc32=([0-9a-f]{8}) batch=(-?\d{1,18}) seq=(-?\d{1,19}) rows=(\d{1,18})(?!\d)")
_UNSEALED: Final = re.compile(rb"crc32=-------- batch=")
_PIECE: Final = 5 * 1024
_LONGEST_HEADER: Final = 1 << 20
_BEGIN: Final = re.compile(rb"\xff\xff\xff\xff(?=..[\0-\x10]\0)", re.DOTALL)
"""Matches a prefix followed by a length of up to `_LONGEST_HEADER`."""
_IN_VAIN: Final = 8
"""Maximum bytes read for false messages, as a multiple of the segment's size. Only an attacker needs more."""
_UNCOMPRESSED: Final = -1
"""Length before a buffer that is stored uncompressed, because compression would not shrink it."""


def segment_name(number: int, *, sealed: bool) -> str:
    return f"segment-{number:08d}.{'arrows' if sealed else 'open'}"


def segment_number(name: str) -> tuple[int, bool] | None:
    """Return a segment's number and whether it is sealed, from its file name. Returns `None` for other files."""
    found = _NAME.fullmatch(name)
    return (int(found[1]), found[2] == "arrows") if found else None


def lock(file: int, *, wait: bool = False) -> bool | None:
    """Lock a file until it is closed. Returns False if another process has locked it, and `None` if this is unknown."""
    try:
        import fcntl
    except ImportError:  # Windows: a segment that was left open counts as one with a writer
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[tuple[int, bool | None]]:
    """Open and lock a file. Yields its file descriptor and the result of `lock`."""
    file = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        yield file, lock(file)
    finally:
        os.close(file)


class SegmentWriter:
    """Writes a segment to a folder, with `metadata` in its schema. Raises `FileExistsError` if the segment number exists."""

    def __init__(self, folder: str | os.PathLike[str], number: int, metadata: Mapping[str, str] | None = None) -> None:
        self.number: int = number
        self.path: Path = Path(folder, segment_name(number, sealed=False))
        self.size: int = 0
        self.batches: int = 0
        self.rows: int = 0
        if Path(folder, segment_name(number, sealed=True)).exists():
            raise FileExistsError(f"{folder}: segment {number} already exists")
        given = {**(metadata or {}), MARK: marked(-1, 0, 0)}
        encoded = {name.encode(): text.encode() for name, text in given.items()}
        self._schema = schema = FRAMES.with_metadata({**FRAMES.metadata, **encoded})
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        lock(self._file)
        try:
            head = schema.serialize().to_pybytes()
            self._head = len(head)
            self._write(sealed_message(head))
        except OSError:
            self.path.unlink()
            self.close()
            raise

    def write(self, batch: pa.RecordBatch, seq: int) -> int:
        """Write a batch of `FRAMES` rows, beginning with number `seq`, and return its size in bytes."""
        stream = encode_batch(batch, self._schema, marked(self.batches, seq, batch.num_rows))
        data = sealed_message(stream.slice(self._head).to_pybytes())
        self._write(data)
        self.batches += 1
        self.rows += batch.num_rows
        return len(data)

    def end(self, seq: int) -> int:
        """Write the end of the recording, and return its size in bytes. `seq` is the number after the last frame."""
        return self.write(NOTHING, seq)

    def _write(self, data: bytes) -> None:
        try:
            self._put(data + END_OF_STREAM)
        except OSError:
            os.ftruncate(self._file, self.size + len(END_OF_STREAM))  # a full disk still has room for earlier contents
            self._put(END_OF_STREAM)
            raise
        self.size += len(data)

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        os.lseek(self._file, self.size, os.SEEK_SET)
        while view:
            view = view[os.write(self._file, view) :]

    def seal(self) -> Path:
        sealed = self.path.with_name(segment_name(self.number, sealed=True))
        self.path.rename(sealed)
        self.close()
        return sealed

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


NOTHING: Final = pa.RecordBatch.from_pylist([], schema=FRAMES)


def encode_batch(batch: pa.RecordBatch, schema: pa.Schema, mark: str) -> pa.Buffer:
    """Return a stream with the schema and one marked batch. In memory, Arrow does not wait for the GIL at each piece."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=_LEVEL), use_threads=False)
    writer = pa.ipc.new_stream(sink, schema, options=options)
    writer.write_batch(batch, custom_metadata={MARK: mark})
    return sink.getvalue()


@frozen
class Stretch:
    offset: int
    """Position in bytes."""
    size: int
    """Number of bytes, or 0 if the segment was truncated there, between two batches."""
    batch: int
    batches: int | None = None
    """Number of batches, or `None` if unknown."""
    frames: int | None = None
    """Number of rows, or `None` if unknown."""
    torn: bool = False
    """True for an incomplete batch at the end of an open segment. Its writer was killed or is still writing it."""


@lru_cache(maxsize=8)
def _head(schema: pa.Schema) -> bytes:
    return bytes(schema.serialize())


class SegmentReader:
    """Reads one segment.

    Args:
        data, name: The bytes of the file, and its name for errors.
        sealed: True if the segment should be complete. If it has no end-of-stream marker, it is corrupt.
        offset: Position in bytes to begin at: 0, or the `offset` of an earlier reader of the file.
        batch: Number of the batch at that position.

    Raises:
        CaptureError: Raised by the methods if the segment has an unknown version or other columns.
    """

    def __init__(
        self, data: pa.Buffer, name: str = "segment", *, sealed: bool = False, offset: int = 0, batch: int = 0
    ) -> None:
        self._data = data
        self._name = name
        self._sealed = sealed
        self.damage: list[Stretch] = []
        self.offset: int = offset
        """End position of the last intact batch."""
        self.ended: bool = False
        """True if the last intact batch ends the recording."""
        self.metadata: Mapping[str, str] = {}
        """Metadata of the schema: version, recorder and source."""
        self._schema = FRAMES
        self._batch = batch
        self._seq: int | None = None

    def messages(self) -> Iterator[ArrowMessage]:
        """Yield the batches, including the one without rows. They are checked but not decompressed."""
        lost: ArrowMessage | None = None
        for message in messages(self._data, self.offset):
            if not message.good:
                lost = message
                continue
            if message.batch < 0:
                self._take_schema(message)
                self.offset = message.offset + message.size
                continue
            if lost is not None or message.batch != self._batch:
                self._report(lost, message)
                lost = None
            self._batch = message.batch + 1
            self._seq = message.seq + message.rows
            self.offset = message.offset + message.size
            self.ended = not message.rows
            yield message
        if lost is not None:
            self.damage.append(Stretch(lost.offset, lost.size, self._batch, torn=lost.torn and not self._sealed))
        elif self._sealed and self.offset == len(self._data):
            self.damage.append(Stretch(self.offset, 0, self._batch))

    def all_damage(self) -> list[Stretch]:
        for _ in self.messages():
            pass
        return self.damage

    def schema_metadata(self) -> Mapping[str, str]:
        """Return the schema's metadata (version, recorder, source), which is empty if it is corrupt."""
        first = next(messages(self._data), None)
        if first is not None and first.good and first.batch < 0:
            self._take_schema(first)
        return self.metadata

    def rows(self, message: ArrowMessage, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return the rows of a batch, without decompressing other columns."""
        wanted = FRAMES if columns is None else pa.schema([FRAMES.field(name) for name in columns], FRAMES.metadata)
        batch = self._read(message, wanted.names)
        if batch.schema.names == wanted.names and self._schema is FRAMES:
            return batch
        have = set(batch.schema.names)
        found = [batch.column(field.name) if field.name in have else pa.nulls(message.rows, field.type) for field in wanted]
        try:
            return pa.RecordBatch.from_arrays(found, schema=wanted)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise CaptureError(f"{self._name}: its columns are not those of a capture: {error}") from error

    def _read(self, message: ArrowMessage, names: Sequence[str]) -> pa.RecordBatch:
        """Read a batch with Arrow, after a schema, because only a stream can be read in part.

        A checksum does not show who created a file, so sizes are checked before memory is allocated, and contents afterwards.
        """
        size = unpacked_size(pa.ipc.read_message(message.data), self._schema, names)
        if size > MOST_BYTES:
            raise CaptureError(
                f"{self._name}: batch {message.batch} of {message.size} bytes unpacks to {size >> 20} MiB, the limit is "
                f"{MOST_BYTES >> 20} MiB: a recorder does not write such batches, so do not trust this file"
            )
        places = [place for place, name in enumerate(self._schema.names) if name in names]
        stream = pa.py_buffer(b"".join((_head(self._schema), message.data)))
        # Threads for its few small columns cost more than they save.
        options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
        try:
            batch = pa.ipc.open_stream(stream, options=options).read_next_batch()
            batch.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise CaptureError(f"{self._name}: batch {message.batch} is not a batch of a capture: {error}") from error
        if batch.num_rows != message.rows:
            raise CaptureError(f"{self._name}: batch {message.batch} has {batch.num_rows} rows, but claims {message.rows}")
        return batch

    def _report(self, lost: ArrowMessage | None, following: ArrowMessage) -> None:
        # The row about a gap in a recovered copy has no number of its own.
        first, frames = self._batch, None if self._seq is None else max(0, following.seq - self._seq)
        if self._seq is None and self._batch == following.batch == 0:
            first, frames = -1, 0  # only the schema
        offset, size = (self.offset, 0) if lost is None else (lost.offset, lost.size)
        self.damage.append(Stretch(offset, size, first, following.batch - self._batch, frames))

    def _take_schema(self, message: ArrowMessage) -> None:
        try:
            schema = pa.ipc.read_schema(pa.ipc.read_message(message.data))
        except (pa.ArrowException, OSError) as error:
            raise CaptureError(f"{self._name}: its schema cannot be read: {error}") from error
        metadata = {_text(name): _text(value) for name, value in (schema.metadata or {}).items()}
        version = metadata.get(_VERSION, "")
        if version != SCHEMA_VERSION:
            raise CaptureError(
                f"{self._name} has version {version or 'none'} of the capture format; this polybus reads {SCHEMA_VERSION}: "
                "read it with the polybus that wrote it, or a later one"
            )
        self.metadata = {name: value for name, value in metadata.items() if name != MARK}
        if schema.names != FRAMES.names:
            self._schema = pa.schema([field.remove_metadata() for field in schema])  # it goes in front of each batch


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# -- messages -----------------------------------------------------------------------------------------------------------


def marked(batch: int, seq: int, rows: int) -> str:
    """Return the mark for `sealed_message`: the numbers of the batch (-1: schema), of its first frame, and of its rows."""
    return f"crc32={_BLANK.decode()} batch={batch} seq={seq} rows={rows}"


def sealed_message(message: bytes) -> bytes:
    header = _LENGTH.unpack_from(message, 4)[0] + 8
    found = _UNSEALED.search(message, 8, header)
    assert found is not None
    start = found.start() + 6
    return b"%s%08x%s" % (message[:start], _checksum(message), message[start + 8 :])


def _checksum(data: bytes) -> int:
    """Compute CRC32 in pieces small enough to keep the GIL. A busy event loop would return it late."""
    checksum = 0
    for start in range(0, len(data), _PIECE):
        checksum = zlib.crc32(data[start : start + _PIECE], checksum)
    return checksum


@frozen
class ArrowMessage:
    """One message of a segment, or a stretch of other bytes."""

    offset: int
    size: int
    data: Any = None
    """The bytes of an intact message as a `pyarrow.Buffer`."""
    batch: int = -1
    seq: int = 0
    rows: int = 0
    torn: bool = False
    """True for an incomplete message at the end of the file."""

    @property
    def good(self) -> bool:
        return self.data is not None


def messages(data: pa.Buffer, offset: int = 0) -> Iterator[ArrowMessage]:
    """Yield the messages of a segment. Corrupt bytes up to the next intact message are one range."""
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
    """Finds messages at ascending offsets, in time proportional to the size of the segment."""

    def __init__(self, data: pa.Buffer, offset: int) -> None:
        self.view = memoryview(data).cast("B")
        self._data = data
        self._mark = _MARKED.search(self.view, offset)
        """The first mark after the last offset."""
        self._in_vain = _IN_VAIN * len(self.view)

    def is_end(self, offset: int) -> bool:
        return offset + 8 == len(self.view) and self.view[offset:] == END_OF_STREAM

    def message(self, offset: int) -> ArrowMessage | None:
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
        while (found := _BEGIN.search(self.view, offset + 1)) is not None:
            offset = found.start()
            if self.is_end(offset) or self.message(offset) is not None:
                return offset
        return None


def _is_beginning(view: memoryview, offset: int) -> bool:
    """Return True if the bytes up to the end of the file may be an incomplete message."""
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
    except OSError as error:  # ArrowInvalid means a header that does not parse
        return not isinstance(error, pa.ArrowInvalid)
    return False


# -- sizes --------------------------------------------------------------------------------------------------------------


def unpacked_size(message: pa.Message, schema: pa.Schema, names: Collection[str]) -> int:
    """Return the unpacked size in bytes of some columns of a record batch. Its flatbuffer must have been verified.

    Each compressed buffer begins with its real length (Arrow columnar format, "IPC buffer compression"), and Arrow allocates
    that many bytes.
    """
    data = memoryview(message.metadata)
    batch = _followed(data, _field(data, _followed(data, 0), 2))
    buffers, compressed = _pairs(data, _field(data, batch, 2)), bool(_field(data, batch, 3))
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
    """Return the number of buffers of a column: validity, offsets if the length is variable, and values."""
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


def _field(data: memoryview, table: int, number: int) -> int:
    """Return the position of a field in a flatbuffer table, or 0 if the field is missing."""
    fields, entry = table - struct.unpack_from("<i", data, table)[0], 4 + 2 * number
    (size,) = struct.unpack_from("<H", data, fields)
    place = int(struct.unpack_from("<H", data, fields + entry)[0]) if entry < size else 0
    return table + place if place else 0


def _followed(data: memoryview, place: int) -> int:
    return place + int(struct.unpack_from("<I", data, place)[0])


def _pairs(data: memoryview, place: int) -> Iterator[tuple[int, int]]:
    """Yield the structs in a vector, each consisting of two 64-bit numbers."""
    if place:
        start = _followed(data, place)
        (count,) = struct.unpack_from("<I", data, start)
        for number in range(count):
            yield struct.unpack_from("<qq", data, start + 4 + 16 * number)
