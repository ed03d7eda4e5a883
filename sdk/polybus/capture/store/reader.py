"""Reads whole captures: segments, batches, and losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs
from attrs import frozen

from ..errors import CaptureError
from ..paths import folder_path
from .filesystems import AnyPath, find_filesystem
from .segments import SegmentReader, Stretch, segment_number


class Position(NamedTuple):
    """A position before a batch of a capture. Positions are ordered as the batches were written."""

    segment: int
    batch: int


BEGIN: Final = Position(0, 0)


@frozen
class Segment:
    """One file of a capture."""

    number: int
    path: str
    """Path in the capture's file system."""
    sealed: bool
    size: int
    """Size in bytes."""


@frozen
class Loss:
    """A lost range of a segment."""

    segment: int
    stretch: Stretch


class Batch(NamedTuple):
    """Rows of a capture, with their position."""

    position: Position
    rows: pa.RecordBatch
    """The rows, with the columns of `schema.FRAMES` or the selected columns."""

    @property
    def next(self) -> Position:
        return Position(self.position.segment, self.position.batch + 1)


class Capture:
    """A capture, which is a folder of segments.

    Args:
        path: A local folder, or a URI that `pyarrow.fs` supports (``hdfs://...``, ``s3://...``).
        filesystem: A `pyarrow.fs.FileSystem` that contains `path`.

    Raises:
        CaptureError: If the folder does not exist or is not a capture.
        TypeError, ValueError: If `path` is not the path of a folder.
    """

    def __init__(self, path: AnyPath, filesystem: pafs.FileSystem | None = None) -> None:
        self.path: str = folder_path(path)
        found = (filesystem, self.path) if filesystem is not None else find_filesystem(self.path)
        self.filesystem: pafs.FileSystem = found[0]
        self._folder = found[1]
        self.losses: list[Loss] = []
        """The losses found by the most recent pass over the batches."""
        self.ended: list[str] = []
        """The ended recordings found by the most recent pass over the batches."""
        self.local: bool = isinstance(self.filesystem, pafs.LocalFileSystem)
        """True for a folder on this machine."""
        if not self.segments(complete=False):
            if self.filesystem.get_file_info(pafs.FileSelector(self._folder)):
                what = "is not a capture: a capture is a folder of files segment-<number>.arrows (.open while it is written)"
            else:
                what = "is empty: the recorder has written nothing, for example because no connection was opened"
            raise CaptureError(f"{self.path} {what}")

    def segments(self, *, complete: bool = True) -> list[Segment]:
        """Return the files, in order. Retention may have removed the first ones.

        Args:
            complete: Raise an error if a segment between the first and the last is missing.

        Raises:
            CaptureError: If the folder does not exist or a segment is missing.
        """
        try:
            infos = self.filesystem.get_file_info(pafs.FileSelector(self._folder))
        except (FileNotFoundError, NotADirectoryError):
            raise CaptureError(f"{self.path} is not a capture: the folder does not exist") from None
        except OSError as error:
            raise CaptureError(f"{self.path} is not a capture: {error}") from error
        found: dict[int, Segment] = {}
        for info in infos:
            if info.type == pafs.FileType.File and (known := segment_number(info.base_name)) is not None:
                number, sealed = known
                # The segment was sealed between two listings: it is the same file.
                if sealed or number not in found:
                    found[number] = Segment(number, info.path, sealed, info.size or 0)
        segments = [found[number] for number in sorted(found)]
        if complete:
            self._check_complete(segments)
        return segments

    def _check_complete(self, segments: list[Segment]) -> None:
        for before, after in pairwise(segment.number for segment in segments):
            if after != before + 1:
                which = f"segment {before + 1} is" if after == before + 2 else f"segments {before + 1} to {after - 1} are"
                raise CaptureError(
                    f"{self.path}: {which} missing between {before} and {after}: restore them, or continue "
                    "without them: `polybus capture recover`"
                )

    def batches(
        self, start: tuple[int, int] = BEGIN, stop: tuple[int, int] | None = None, *, columns: Sequence[str] | None = None
    ) -> Iterator[Batch]:
        """Yield the intact batches between two positions, and fill `losses`.

        An incomplete batch at the end of a segment that has a writer does not count as lost, because the writer will complete
        it.

        Args:
            start: First position to include: (segment, batch).
            stop: First position to exclude, or `None` to include everything up to the end.
            columns: Columns to read, or `None` to read all columns. Other columns are not decompressed.

        Raises:
            CaptureError: If a segment is missing or has an unknown version.
            KeyError: If a column does not exist.
        """
        self.losses, self.ended = [], []
        for segment in self.segments():
            if segment.number < start[0] or (stop is not None and (segment.number, 0) >= tuple(stop)):
                continue
            reader = self.reader(segment)
            for message in reader.messages():
                position = Position(segment.number, message.batch)
                if position < tuple(start):
                    continue
                if stop is not None and position >= tuple(stop):
                    break
                if message.rows:
                    yield Batch(position, reader.rows(message, columns))
            self.losses += lost(segment, reader)
            # The last segment decides: a recording that looked ended may have continued.
            name = reader.metadata.get("capture_id")
            self.ended = [one for one in self.ended if one != name]
            if name is not None and reader.ended:
                self.ended.append(name)

    def reader(self, segment: Segment, offset: int = 0, batch: int = 0) -> SegmentReader:
        """Return a reader of one segment, starting at its beginning or where an earlier reader stopped.

        Raises:
            CaptureError: If the segment no longer exists.
        """
        data = self._bytes(segment.path, segment.sealed)
        return SegmentReader(data, segment.path, sealed=segment.sealed, offset=offset, batch=batch)

    def _bytes(self, path: str, sealed: bool) -> Any:
        try:
            if self.local and sealed:
                return pa.memory_map(path).read_buffer()
            # A segment with a writer may be truncated (a batch that did not fit the disk), and a memory map of it would crash.
            with self.filesystem.open_input_file(path) as file:
                return file.read_buffer()
        except FileNotFoundError:
            if sealed:
                raise CaptureError(f"{path} no longer exists: retention has removed it") from None
        except OSError as error:
            raise CaptureError(f"{path} cannot be read: {error}") from error
        return self._bytes(path.removesuffix("open") + "arrows", True)  # sealed since it was listed

    def __repr__(self) -> str:
        return f"<Capture {self.path}>"


def lost(segment: Segment, reader: SegmentReader) -> list[Loss]:
    """Return the losses that a reader has found, except an incomplete batch at the end of an open segment."""
    return [Loss(segment.number, stretch) for stretch in reader.damage if not stretch.torn]


def missing_among(numbers: Sequence[int]) -> tuple[int, ...]:
    """Return the segment numbers missing between the first and the last segment."""
    return tuple(sorted({*range(numbers[0], numbers[-1])}.difference(numbers)))
