"""Batches of a capture from somebody else: what they unpack to is known before memory is reserved for it."""

import random
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from polybus.capture import Capture, CaptureError
from polybus.capture.schema import FRAMES
from polybus.capture.store import segments
from polybus.capture.store.segments import encode_batch, unpacked_size

from .folders import write_segment
from .rows import batch, row, run


@pytest.mark.parametrize(
    "frames",
    [[b"\0" * 1_000_000] * 5, [random.Random(7).randbytes(100_000)] * 3, [None, b"", b"x"], []],
    ids=["small on the disk", "as large as it is", "little", "nothing"],
)
def test_the_size_of_a_batch_is_known_before_it_is_unpacked(frames: list[Any]) -> None:
    rows = batch(*(row(seq, frame=frame) for seq, frame in enumerate(frames)))
    stream = pa.BufferReader(encode_batch(rows, FRAMES, ""))
    pa.ipc.read_message(stream)
    message = pa.ipc.read_message(stream)
    for names in (FRAMES.names, ["frame"], ["seq", "tunnel", "deadlines_ns"]):
        real = sum(buffer.size for name in names for buffer in rows.column(name).buffers() if buffer is not None)
        assert abs(unpacked_size(message, FRAMES, names) - real) <= 2000  # of the padding


def test_a_batch_that_unpacks_to_more_than_the_limit_is_refused_and_small_columns_of_it_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segment(tmp_path, run(0, 3), batch(*(row(seq, frame=b"\0" * 1_000_000) for seq in range(3, 13))))
    monkeypatch.setattr(segments, "MOST_BYTES", 5_000_000)
    read = Capture(tmp_path).batches()
    assert next(read).rows.num_rows == 3
    with pytest.raises(CaptureError, match="batch 1 of .* bytes unpacks to 9 MiB, the limit is 4 MiB"):
        next(read)
    assert sum(one.rows.num_rows for one in Capture(tmp_path).batches(columns=["seq", "options"])) == 13
    monkeypatch.setattr(segments, "MOST_BYTES", 11_000_000)
    assert sum(one.rows.num_rows for one in Capture(tmp_path).batches()) == 13


def test_frames_of_the_largest_size_that_is_recorded_are_read(tmp_path: Path) -> None:
    write_segment(tmp_path, *(batch(*(row(4 * part + seq, frame=b"\7" * (4 << 20)) for seq in range(4))) for part in range(2)))
    assert [one.rows.num_rows for one in Capture(tmp_path).batches()] == [4, 4]


@pytest.mark.parametrize("damage", ["offsets", "text", "rows"])
def test_a_batch_that_does_not_hold_what_it_says_is_refused(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = run(0, 3)
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    if damage == "offsets":
        far = pa.array([0, 2**30, 5, 6], pa.int32()).buffers()[1]
        columns["frame"] = pa.Array.from_buffers(pa.binary(), 3, [None, far, pa.py_buffer(b"abcdef")])
    elif damage == "text":
        columns["peer"] = pa.Array.from_buffers(pa.string(), 3, columns["options"].buffers()[:2] + [pa.py_buffer(b"\xff" * 99)])
    else:
        monkeypatch.setattr(segments, "marked", lambda batch, seq, _: f"crc32=-------- batch={batch} seq={seq} rows={10**15}")
    write_segment(tmp_path, pa.RecordBatch.from_arrays(list(columns.values()), schema=FRAMES))
    with pytest.raises(CaptureError, match="batch 0"):
        list(Capture(tmp_path).batches())


def test_a_schema_whose_metadata_is_no_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as strange:
        strange.setattr(segments, "FRAMES", FRAMES.with_metadata({**FRAMES.metadata, b"\xff": b"\xff"}))
        write_segment(tmp_path, run(0, 3), ends=True)
    assert [one.rows.num_rows for one in Capture(tmp_path).batches()] == [3]


def test_a_schema_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "marked", lambda batch, seq, rows: f"crc32=-------- batch=-1 seq={seq} rows={rows}")
    write_segment(tmp_path, run(0, 3), ends=True)
    with pytest.raises(CaptureError, match="its schema cannot be read"):
        list(Capture(tmp_path).batches())


def _nested(levels: int) -> bytes:
    """A message with a wrong checksum, in whose frame there is another one, and so on."""
    inner, head = b"", len(FRAMES.serialize())
    for _ in range(levels):
        sink = pa.BufferOutputStream()
        mark = {segments.MARK: "crc32=00000000 batch=1 seq=3 rows=1"}
        pa.ipc.new_stream(sink, FRAMES).write_batch(batch(row(3, frame=inner)), custom_metadata=mark)
        inner = sink.getvalue().slice(head).to_pybytes()
    return inner


_PREFIX = b"\xff\xff\xff\xff" + struct.pack("<i", 1 << 15)
_LIKE_MESSAGES = {
    "beginnings": _PREFIX * 20_000,
    "beginnings before one mark": (_PREFIX * 4000 + b"crc32=00000000 batch=1 seq=3 rows=1") * 5,
    "marks": b"crc32=00000000 batch=1 seq=3 rows=1" * 5000,
    "marks without end": b"crc32=00000000 batch=" + b"1" * 200_000,
    "ones": b"\xff" * 200_000,
    "messages in messages": _nested(150),
}


@pytest.mark.parametrize("hostile", _LIKE_MESSAGES.values(), ids=_LIKE_MESSAGES)
def test_a_search_for_the_next_batch_takes_a_time_that_grows_with_the_size_alone(
    hostile: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile += bytes(1 << 16)
    seen: list[int] = []
    pattern, crc32, read_message = segments._MARKED, zlib.crc32, pa.ipc.read_message

    class Counting:
        def search(self, data: memoryview, begin: int = 0) -> Any:
            found = pattern.search(data, begin)
            seen.append((found.end() if found else len(data)) - begin)
            return found

    def checked(data: Any, start: int = 0) -> int:
        seen.append(len(data))
        return crc32(data, start)

    def read(source: Any) -> Any:
        seen.append(1000)  # what it reads of a header, about
        return read_message(source)

    good = write_segment(tmp_path, run(0, 3), ends=True).read_bytes()
    monkeypatch.setattr(segments, "_MARKED", Counting())
    monkeypatch.setattr(zlib, "crc32", checked)
    monkeypatch.setattr(pa.ipc, "read_message", read)
    found = list(segments.messages(pa.py_buffer(good[:-8] + hostile + good)))
    assert [one.batch for one in found[:3] if one.good] == [-1, 0, 1]
    assert sum(seen) < 20 * (len(hostile) + 2 * len(good))
