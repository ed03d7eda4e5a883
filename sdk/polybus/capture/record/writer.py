"""The writer, which redacts rows and writes segments. Frames that cannot be written are counted in gap rows."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from attrs import define

from ...plugins.tools import log_fields
from ..columns.process import DecodingProcess
from ..errors import CaptureError
from ..rows import FIELDS, Gap, RowHeader, Ttl
from ..schema import FRAMES
from ..store.compute import pc
from ..store.folders import Folder
from ..store.segments import NOTHING, SegmentWriter, encode_batch
from .redaction import Redaction

if TYPE_CHECKING:
    from .recorder import WriterSettings

logger: logging.Logger = logging.getLogger("polybus.capture")

_ROOM: Final = 32 << 10
"""Bytes reserved for the end, where frames that did not fit on a full disk are reported."""
RETRY: Final = 0.5
_OF_ENDS: Final = ("direction", "conn_id", "peer", "protocol", "transport", "tunnel", "options", "role", "flags")
_LONGEST: Final = 1e9
"""Maximum deadline in seconds, about thirty years. A longer deadline has no effect and might not fit into its column."""


@define
class WriterCounts:
    done: int = 0
    """Number of rows written or lost."""
    frames: int = 0
    """Number of frames written, including rows about connections."""
    bytes: int = 0
    refused: int = 0
    redacted: int = 0
    """Number of frames with blanked parts."""
    seq: int = 0


class Rows:
    """Collects queued rows, which have four fields each, into a batch."""

    def __init__(self, flat: list[Any]) -> None:
        each = flat[::FIELDS]
        self.ends: list[RowHeader] = list(dict.fromkeys(each))
        """Headers without duplicates."""
        places = {end: place for place, end in enumerate(self.ends)}
        self.numbers: npt.NDArray[np.int32] = np.fromiter(map(places.__getitem__, each), np.int32, len(each))
        """Index of the header of each row."""
        self.frames: pa.Array = pa.array(flat[2::FIELDS], pa.binary())
        self._times = np.array(flat[1::FIELDS], np.int64)
        self._ttls: list[Ttl] = flat[3::FIELDS]

    def batch(
        self, capture_id: str, seq: int, offset_ns: int, frames: pa.Array, flags: npt.NDArray[np.int32] | None
    ) -> pa.RecordBatch:
        """Return a batch of `FRAMES`. `offset_ns` is the wall clock minus the monotonic clock."""
        given = {name: [getattr(end, name) for end in self.ends] for name in _OF_ENDS}
        given["capture_id"] = [capture_id] * len(self.ends)
        arrays = [pa.array(values, FRAMES.field(name).type) for name, values in given.items()]
        shared = pa.RecordBatch.from_arrays(arrays, names=list(given)).take(pa.array(self.numbers))
        columns = dict(zip(given, shared.columns, strict=True)) | {
            "seq": pa.array(np.arange(seq, seq + len(frames))),
            "ts_ns": pa.array(self._times + offset_ns),
            "mono_ns": pa.array(self._times),
            "frame": frames,
            "deadlines_ns": self._deadlines(),
        }
        if flags is not None:
            columns["flags"] = pc.bit_wise_or(columns["flags"], pa.array(flags))
        return pa.RecordBatch.from_arrays([columns[name] for name in FRAMES.names], schema=FRAMES)

    def _deadlines(self) -> pa.Array:
        each = self._ttls
        counts = [0 if ttl is None else len(ttl) if isinstance(ttl, tuple) else 1 for ttl in each]
        given = [one for ttl in each if ttl is not None for one in (ttl if isinstance(ttl, tuple) else (ttl,))]
        ttls = np.array(given, np.float64)  # NaN for None
        endless = np.isnan(ttls)
        after = np.where(endless, 0.0, np.clip(ttls, 0.0, _LONGEST) * 1e9).astype(np.int64)
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.repeat(self._times, counts) + after, mask=endless))


class CaptureWriter:
    def __init__(self, settings: WriterSettings) -> None:
        self.counts: WriterCounts = WriterCounts()
        self.path: str = settings.path
        self.segment_seconds: float = settings.segment_seconds
        self._capture_id = settings.capture_id
        self._folder = Folder(Path(settings.path), settings.max_bytes, settings.max_age)
        self._segment_bytes = max(1 << 16, min(settings.segment_bytes, settings.max_bytes // 4))
        self._redaction = Redaction(settings.redact, bodies=settings.bodies, longest=settings.frame_bytes)
        self._metadata = {"capture_id": settings.capture_id, **settings.metadata}
        self._notes: list[Gap] = []  # about missing frames: rows written before the next ones
        self._decoding = DecodingProcess(settings.path) if settings.decode else None
        self._segment: SegmentWriter | None = None
        self._room: Any = None
        self._in_segment = self._said = 0  # frames, and those that its gap rows count
        self._since = 0.0
        self._lost = 0  # since the last gap row that was written
        self._lost_to, self._lost_because = "disk", ""
        self._not_before = 0.0
        self._failing = False  # already logged

    def open(self) -> None:
        """Create the folder and seal segments of killed recorders. Raises `CaptureError` if the folder cannot be written."""
        try:
            self._notes += self._folder.open()
            if self._decoding is not None and not self._folder.is_empty:
                self._decoding.ask()
            self._warm_up()
            with suppress(OSError):  # a full disk has no room for it
                self._room = TemporaryFile(dir=self.path, buffering=0)
                self._room.write(os.urandom(_ROOM))
        except OSError as error:
            raise CaptureError(f"cannot record to {self.path}: {error.strerror or error}") from error

    def _warm_up(self) -> None:
        """Use parts of Arrow before there is traffic, because their first use takes longer than many batches."""
        rows = Rows([RowHeader(0, protocol="ubre"), 0, b"{}", None])
        frames, flags, _ = self._redaction.apply(rows.ends, rows.numbers, rows.frames)
        encode_batch(rows.batch("", 0, 0, frames, flags), FRAMES, "")

    def write(self, flat: list[Any]) -> None:
        """Write rows, which have four fields each, as a batch, or count them as lost."""
        try:
            self._try(flat)
        finally:
            self.counts.done += len(flat) // FIELDS

    def _try(self, flat: list[Any]) -> None:
        if self._held_back():
            self._give_up(flat[::FIELDS])
            return
        try:
            self._say_what_is_missing(flat[1])
            self._put(flat)
        except OSError as error:
            self._failed(error)
            self._give_up(flat[::FIELDS])
        except Exception:  # a bug: loses this batch, but neither the bus nor the recording
            logger.exception(
                "the recorder of %s has failed on a batch; it goes on", self.path, extra=log_fields(path=self.path)
            )
            self._lost_to, self._lost_because = "failed", "an internal error"
            self._give_up(flat[::FIELDS])

    def turn(self) -> None:
        try:
            if not self._held_back():
                self._say_what_is_missing(time.monotonic_ns())
            if self._segment is not None and time.monotonic() - self._since >= self.segment_seconds:
                self._seal()
            if self._decoding is not None:
                self._decoding.turn()
        except OSError as error:
            self._failed(error)
        except Exception:  # a bug
            what = "the recorder of %s could not mark gaps or seal its segment; it goes on"
            logger.exception(what, self.path, extra=log_fields(path=self.path))

    def finish(self) -> None:
        """Write pending gaps and the end of the recording, and seal the segment."""
        decoding, self._decoding = self._decoding, None
        if self._room is not None:
            self._room.close()
        try:
            self._end()
            if self._notes or self._lost:  # sealing may have added some
                self._end()
        except Exception:
            logger.exception("the recorder of %s could not write its end", self.path, extra=log_fields(path=self.path))
        finally:
            if self._segment is not None:
                self._segment.close()
            if decoding is not None:
                decoding.stop()

    def _end(self) -> None:
        self._not_before = 0.0
        self.turn()
        if self.counts.seq and not self._lost and not self._notes:
            with suppress(OSError):  # then only the mark of the end is missing
                self._write(NOTHING)
        self._seal()

    def _put(self, flat: list[Any]) -> None:
        rows = Rows(flat)
        frames, flags, blanked = self._redaction.apply(rows.ends, rows.numbers, rows.frames)
        offset = time.time_ns() - time.monotonic_ns()
        segment = self._write(rows.batch(self._capture_id, self.counts.seq, offset, frames, flags))
        self.counts.redacted += blanked
        self.counts.seq += len(frames)
        gaps = [end.frames for end in rows.ends if isinstance(end, Gap)]  # each in one row
        self.counts.frames += len(frames) - len(gaps)
        self._in_segment += len(frames) - len(gaps)
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
            self._seal()  # the size limit of a file: the next one takes more
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
        more = log_fields(path=str(segment.path))
        try:
            segment.seal()
            if self._decoding is not None:
                self._decoding.ask()
            self._notes += self._folder.trim(time.time())
        except FileNotFoundError:
            logger.error("%s was removed while it was written: %d frames are lost", segment.path, self._in_segment, extra=more)
            segment.close()
            self._lost += self._in_segment + self._said
            self._lost_to, self._lost_because = "disk", "the file was removed while it was written"
            self.counts.refused += self._in_segment
            self.counts.frames -= self._in_segment
        except OSError as error:
            logger.error("%s could not be sealed: %s", segment.path, error.strerror or error, extra=more)
            segment.close()

    def _held_back(self) -> bool:
        return bool(self._not_before) and time.monotonic() < self._not_before

    def _say_what_is_missing(self, now: int) -> None:
        """Write gap rows as a separate batch, so that frames are not counted twice if writing fails."""
        notes, lost = list(self._notes), self._lost
        gaps = [*notes, Gap(self._lost_to, lost, error=self._lost_because)] if lost else notes
        if gaps:
            self._put([field for gap in gaps for field in (gap, now, None, None)])
            del self._notes[: len(notes)]  # writing them may have added others
            self._lost -= lost

    def _failed(self, error: OSError) -> None:
        if not self._failing:
            what = "cannot record to %s: %s; traffic goes on and is not recorded until there is room"
            logger.error(what, self.path, error.strerror or error, extra=log_fields(path=self.path))
        self._failing = True
        self._lost_to, self._lost_because = "disk", error.strerror or str(error)
        self._not_before = time.monotonic() + RETRY

    def _give_up(self, ends: Sequence[RowHeader]) -> None:
        for end in ends:
            if not isinstance(end, Gap):
                self._lost += 1
                self.counts.refused += 1
            else:
                self._lost += end.frames
