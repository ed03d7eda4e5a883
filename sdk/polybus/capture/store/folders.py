"""Recorder folders: segment numbers, leftovers of killed recorders, and retention."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from ...plugins.tools import log_fields
from ..columns.stamp import TABLES, columns_path
from ..errors import CaptureError
from ..paths import folder_path
from ..rows import FLAG_GAP_BEFORE, RETENTION, Gap, Missing
from .compute import pc
from .filesystems import AnyPath
from .segments import END_OF_STREAM, SegmentReader, SegmentWriter, locked, segment_name, segment_number

logger: logging.Logger = logging.getLogger("polybus.capture")
_ATTEMPTS: Final = 1000


class Folder:
    """A recorder's folder, with limits on size and age. Several recorders may share it."""

    def __init__(self, path: Path, max_bytes: int, max_age: float) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._next = 0

    @property
    def is_empty(self) -> bool:
        """True if the folder contained no segment when it was opened and none has been created since."""
        return not self._next

    def open(self) -> list[Gap]:
        """Create the folder, and seal segments left open by recorders that have exited. Returns the gaps in these segments."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise PermissionError(13, "the folder cannot be written")
        gaps = []
        for number, sealed, path in self._segments():
            self._next = number + 1
            if not sealed and (torn := seal_left_open(path)) is not None and torn:
                more = log_fields(path=str(path))
                logger.warning("%s was left in the middle of a batch: %d bytes are lost", path, torn, extra=more)
                gaps.append(Gap("killed", 0, segment=number, bytes=torn))
        return gaps + self.trim(time.time())

    def new_segment(self, metadata: Mapping[str, str]) -> SegmentWriter:
        for _ in range(_ATTEMPTS):
            number, self._next = self._next, self._next + 1
            try:
                return SegmentWriter(self.path, number, metadata)
            except FileExistsError:  # another recorder's
                continue
            except FileNotFoundError:  # the folder was removed; its parents must exist
                self._next = number
                self.path.mkdir(mode=0o700)
            except OSError:
                self._next = number
                raise
        raise FileExistsError(17, f"no free segment number below {self._next}")

    def trim(self, now: float) -> list[Gap]:
        """Remove the oldest sealed segments that exceed a limit, with their columns. Returns the resulting gaps."""
        segments = [(number, sealed, [*self._columns(number), path]) for number, sealed, path in self._segments()]
        sizes = {number: sum(_stat(file)[0] for file in files) for number, _, files in segments}
        total = sum(sizes.values())
        removed: list[int] = []
        frames = 0  # including frames that only a gap row counts
        for number, sealed, files in segments:
            path = files[-1]
            if not sealed or (total <= self._max_bytes and now - _stat(path)[1] <= self._max_age):
                break  # in order, so that no number is missing in between
            try:
                first, gone = _what_goes_with(path, number)
                for file in files:
                    file.unlink(missing_ok=file is not path)
            except OSError as error:
                logger.error("%s cannot be removed: %s", path, error, extra=log_fields(path=str(path)))
                break
            removed += (first, number)
            frames += gone
            total -= sizes[number]
        return [Gap(RETENTION, frames, segments=[min(removed), max(removed)])] if removed else []

    def _columns(self, number: int) -> list[Path]:
        return [Path(columns_path(str(self.path), table, number)) for table in reversed(TABLES)]

    def _segments(self) -> list[tuple[int, bool, Path]]:
        known = ((segment_number(name), self.path / name) for name in os.listdir(self.path))
        return sorted((*number, path) for number, path in known if number is not None)


def _stat(path: Path) -> tuple[int, float]:
    with suppress(OSError):
        found = path.stat()
        return found.st_size, found.st_mtime
    return 0, 0.0


def _what_goes_with(path: Path, number: int) -> tuple[int, int]:
    """Return the first segment and the number of frames that are lost with a segment, or were lost before."""
    first, frames = number, 0
    try:
        reader = SegmentReader(pa.memory_map(str(path)).read_buffer(), path.name)
        for message in reader.messages():
            rows = reader.rows(message, ["options", "flags"])
            gaps = rows.filter(pc.greater(pc.bit_wise_and(rows.column("flags"), FLAG_GAP_BEFORE), 0))
            frames += rows.num_rows - gaps.num_rows
            for gap in map(Missing.of, gaps.column("options").to_pylist()):
                if gap.what == RETENTION:
                    first, frames = min((first, *gap.segments)), frames + gap.frames
    except (CaptureError, pa.ArrowException):
        pass  # it can be removed all the same
    return first, frames


def seal_left_open(path: Path) -> int | None:
    """Seal a segment without a writer. Returns the bytes lost at its end, or `None` if it has a writer."""
    with locked(path) as (file, ours):
        if not ours:
            return None
        data = path.read_bytes()
        try:
            torn = [stretch for stretch in SegmentReader(pa.py_buffer(data), path.name).all_damage() if stretch.torn]
        except CaptureError:
            return None  # another version's
        size = torn[0].offset if torn else len(data)
        if torn or not data.endswith(END_OF_STREAM):  # an older polybus wrote the end when sealing
            os.ftruncate(file, size)
            os.lseek(file, size, os.SEEK_SET)
            os.write(file, END_OF_STREAM)
        number, _ = segment_number(path.name) or (0, False)
        path.rename(path.with_name(segment_name(number, sealed=True)))
        return len(data) - size


def new_folder(out: AnyPath) -> Path:
    """Create a local folder to write to. Raises `CaptureError` if it is not empty."""
    if "://" in (path := folder_path(out, "out")):
        raise CaptureError(f"{path}: this can only be written to a folder on this machine; copy it from there")
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise CaptureError(f"{folder} is a file: choose another path")
    if folder.exists() and any(folder.iterdir()):
        raise CaptureError(f"{folder} is not empty: choose another folder, or delete its contents")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
