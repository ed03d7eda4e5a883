"""The writer: takes packed rows, blanks what must not be written, writes segments. It has no thread, and may wait for the disk.

What the disk does not take is dropped and counted, and a row without a frame says so where it is missing.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ..._util.log_fields import log_fields
from ..columns.process import DecodingProcess
from ..errors import CaptureError
from ..record.packing import Packed, Packer, joined
from ..record.redaction import Redaction
from ..rows import Gap, RowHeader
from ..schema import FRAMES
from ..store.folders import Folder
from ..store.segments import NOTHING, SegmentWriter, encode_batch
from .batches import Batches, frames_of
from .stats import WriterCounts, WriterSettings

logger: logging.Logger = logging.getLogger("polybus.capture")

_ROOM: Final = 32 << 10
"""Bytes kept free for the end, which says what a full disk has not taken."""
RETRY: Final = 0.5
"""Seconds between attempts to write to a disk that is full."""


class CaptureWriter:
    """Writes rows to a folder."""

    def __init__(self, settings: WriterSettings) -> None:
        self.counts: WriterCounts = WriterCounts()
        self.path: str = settings.path
        self.segment_seconds: float = settings.segment_seconds
        self._capture_id = settings.capture_id
        self._resume = settings.resume
        self._batches = Batches(settings.capture_id)
        self._folder = Folder(Path(settings.path), settings.max_bytes, settings.max_age)
        self._segment_bytes = max(1 << 16, min(settings.segment_bytes, settings.max_bytes // 4))
        self._redaction = Redaction(settings.redact, bodies=settings.bodies, longest=settings.frame_bytes)
        self._metadata = {"capture_id": settings.capture_id, **settings.metadata}
        self._notes: list[Gap] = []  # of what is missing: rows of their own, before the next ones
        self._decoding = DecodingProcess(settings.path) if settings.decode else None
        self._segment: SegmentWriter | None = None
        self._room: Any = None
        self._in_segment = self._said = 0  # frames, and those that its gap rows are about
        self._since = 0.0
        self._lost = 0  # not written since the last gap row that was
        self._lost_to, self._lost_because = "disk", ""
        self._not_before = 0.0
        self._failing = False  # and that has been said

    def open(self) -> None:
        """Make the folder, seal what a killed recorder has left there.

        Raises:
            CaptureError: The folder cannot be made or written.
        """
        try:
            self._notes += self._folder.open()
            if self._decoding is not None and not self._folder.is_empty:
                self._decoding.ask()
            if self._resume is not None:
                self.counts.seq = max(self._resume, self._folder.next_seq(self._capture_id))
            self._warm_up()
            with suppress(OSError):  # a full disk has none
                self._room = TemporaryFile(dir=self.path, buffering=0)
                self._room.write(os.urandom(_ROOM))
        except OSError as error:
            raise CaptureError(f"cannot record to {self.path}: {error.strerror or error}") from error

    def _warm_up(self) -> None:
        """Uses parts of Arrow for the first time, which takes longer than many batches, before there is traffic."""
        packed = Packer().pack([RowHeader(0, protocol="ubre"), 0, b"{}", None])
        batches = Batches("")
        frames, flags, _ = self._redaction.apply(batches.meet(packed), np.frombuffer(packed.ends, np.int32), frames_of(packed))
        encode_batch(batches.make(packed, frames, flags, 0, 0), FRAMES, "")

    def write(self, some: Sequence[Packed]) -> None:
        """Write a batch, or lose it and remember how much was lost."""
        packed = joined(some)
        try:
            self._try(packed)
        finally:
            self.counts.done += len(packed)

    def _try(self, packed: Packed) -> None:
        ends = self._batches.meet(packed)
        if self._held_back():
            self._give_up(packed, ends)
            return
        try:
            self._say_what_is_missing(packed.times[0])
            self._put(packed, self._batches, ends)
        except OSError as error:
            self._failed(error)
            self._give_up(packed, ends)
        except Exception:  # a mistake of ours: it costs this batch, and neither the bus nor the rest of the recording
            logger.exception(
                "the recorder of %s has failed on a batch; it goes on", self.path, extra=log_fields(path=str(self.path))
            )
            self._lost_to, self._lost_because = "failed", "an internal error"
            self._give_up(packed, ends)

    def turn(self) -> None:
        """Does what is due without new rows: marks gaps, and seals segments that are old enough."""
        try:
            if not self._held_back():
                self._say_what_is_missing(time.monotonic_ns())
            if self._segment is not None and time.monotonic() - self._since >= self.segment_seconds:
                self._seal()
            if self._decoding is not None:
                self._decoding.turn()
        except OSError as error:
            self._failed(error)
        except Exception:  # a mistake of ours
            logger.exception(
                "the recorder of %s could not take or seal what it has; it goes on",
                self.path,
                extra=log_fields(path=str(self.path)),
            )

    def missing(self, gap: Gap) -> None:
        """Take note of frames that will not come."""
        self._notes.append(gap)

    def finish(self, *, over: bool = True) -> None:
        """Write what is missing, and that the recording is over, unless another writer goes on with it; seal the segment.

        What is not decoded by now is left to those who read it.
        """
        decoding, self._decoding = self._decoding, None
        if self._room is not None:
            self._room.close()
        try:
            self._end(over)
            if self._notes or self._lost:  # as sealing has shown
                self._end(over)
        except Exception:
            logger.exception("the recorder of %s could not write its end", self.path, extra=log_fields(path=str(self.path)))
        finally:
            if self._segment is not None:
                self._segment.close()
            if decoding is not None:
                decoding.stop()

    def _end(self, over: bool) -> None:
        self._not_before = 0.0
        self.turn()
        if over and self.counts.seq and not self._lost and not self._notes:
            with suppress(OSError):  # then the end of the recording is not marked, and nothing else is lost
                self._write(NOTHING)
        self._seal()

    # -- a batch ---------------------------------------------------------------------------------------------------------

    def _put(self, packed: Packed, batches: Batches, ends: Sequence[RowHeader]) -> None:
        frames, flags, blanked = self._redaction.apply(ends, np.frombuffer(packed.ends, np.int32), frames_of(packed))
        offset = time.time_ns() - time.monotonic_ns()
        segment = self._write(batches.make(packed, frames, flags, self.counts.seq, offset))
        self.counts.redacted += blanked
        self.counts.seq += len(packed)
        gaps = [end.frames for end in packed.new if isinstance(end, Gap)]  # each in one row
        self.counts.frames += len(packed) - len(gaps)
        self._in_segment += len(packed) - len(gaps)
        self._said += sum(gaps)
        self._failing = False
        self._not_before = 0.0
        if segment.size >= self._segment_bytes:
            self._seal()

    def _write(self, batch: pa.RecordBatch) -> SegmentWriter:
        segment = self._segment or self._new_segment()
        try:
            self.counts.bytes += segment.write(batch, self.counts.seq)
        except OSError as error:
            if error.errno != errno.EFBIG or not segment.rows:
                raise
            self._seal()  # the limit of one file: the next takes more
            segment = self._new_segment()
            self.counts.bytes += segment.write(batch, self.counts.seq)
        return segment

    def _new_segment(self) -> SegmentWriter:
        self._segment = self._folder.new_segment(self._metadata)
        self._in_segment = self._said = 0
        self._since = time.monotonic()
        return self._segment

    def _seal(self) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        try:
            segment.seal()
            if self._decoding is not None:
                self._decoding.ask()
            self._notes += self._folder.trim(time.time())
        except FileNotFoundError:
            logger.error(
                "%s was removed while it was written: %d frames are lost",
                segment.path,
                self._in_segment,
                extra=log_fields(path=str(segment.path)),
            )
            segment.close()
            self._lost += self._in_segment + self._said
            self._lost_to, self._lost_because = "disk", "the file was removed while it was written"
            self.counts.refused += self._in_segment
            self.counts.frames -= self._in_segment
        except OSError as error:
            logger.error(
                "%s could not be sealed: %s", segment.path, error.strerror or error, extra=log_fields(path=str(segment.path))
            )
            segment.close()

    # -- what is missing -------------------------------------------------------------------------------------------------

    def _held_back(self) -> bool:
        return bool(self._not_before) and time.monotonic() < self._not_before

    def _say_what_is_missing(self, now: int) -> None:
        """Rows without frames, in a batch of their own: of these nothing is counted again if it cannot be written."""
        notes, lost = list(self._notes), self._lost
        gaps = [*notes, Gap(self._lost_to, lost, error=self._lost_because)] if lost else notes
        if gaps:
            rows: list[Any] = [field for gap in gaps for field in (gap, now, None, None)]
            packed, batches = Packer().pack(rows), Batches(self._capture_id)
            self._put(packed, batches, batches.meet(packed))
            del self._notes[: len(notes)]  # to write them may have made others
            self._lost -= lost

    def _failed(self, error: OSError) -> None:
        if not self._failing:
            what = "cannot record to %s: %s; traffic goes on and is not recorded until there is room"
            logger.error(what, self.path, error.strerror or error, extra=log_fields(path=str(self.path)))
        self._failing = True
        self._lost_to, self._lost_because = "disk", error.strerror or str(error)
        self._not_before = time.monotonic() + RETRY

    def _give_up(self, packed: Packed, ends: Sequence[RowHeader]) -> None:
        """These are not written: remember how many, and what earlier gaps said."""
        for end in map(ends.__getitem__, packed.ends):
            if not isinstance(end, Gap):
                self._lost += 1
                self.counts.refused += 1
            elif end.what == "killed":
                self._notes.append(end)
            else:
                self._lost += end.frames
