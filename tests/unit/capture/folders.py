"""Captures as folders: written by hand, read whole, and damaged."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from polybus.capture import Capture, decode
from polybus.capture.store.segments import SegmentWriter


def open_segment(folder: Path, *batches: pa.RecordBatch, number: int = 0, recording: str = "c") -> SegmentWriter:
    """A segment that is still written and holds these batches; the folder is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = SegmentWriter(folder, number, {"capture_id": recording})
    for batch in batches:
        writer.write(batch, batch.column("seq")[0].as_py() or 0)
    return writer


def write_segment(folder: Path, *batches: pa.RecordBatch, number: int = 0, recording: str = "c", ends: bool = False) -> Path:
    """The file of such a segment that is whole; where it `ends`, it says that the recording is over."""
    writer = open_segment(folder, *batches, number=number, recording=recording)
    if ends:
        writer.end(writer.rows)
    return writer.seal()


def damage(path: Path, place: float = 0.5) -> None:
    """Turn a bit of a file: in its middle, or at another part of it."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 1
    path.write_bytes(data)


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [row for batch in Capture(folder).batches() for row in batch.rows.to_pylist()]


def events_in(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """All events of a capture, or those of some kinds; nothing of it is in quarantine."""
    found = [decode(batch.rows) for batch in Capture(folder).batches()]
    assert not [row for part in found for row in part.quarantine.to_pylist()]
    return [event for part in found for event in part.events.to_pylist() if not kinds or event["kind"] in kinds]


def damage_batches(folder: Path, *numbers: int) -> None:
    segment, *_ = Capture(folder).segments()
    messages = list(Capture(folder).reader(segment).messages())
    for number in numbers:
        middle = messages[number].offset + messages[number].size // 2
        damage(Path(segment.path), middle / Path(segment.path).stat().st_size)
