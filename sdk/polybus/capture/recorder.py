"""The recorder: a bounded list that links fill, and a thread that writes it to segments.

The bus never waits for it. What the thread cannot keep up with, and what the disk does not take, is dropped and counted, and a
row without a frame says so where it is missing.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from attrs import frozen

from ..errors import LocalProtocolError
from .errors import CaptureError
from .folders import Folder
from .redaction import Redaction
from .rows import Batches, Columns
from .schema import FRAMES
from .segments import SegmentWriter, encode_batch
from .taps import FIELDS, MOST, SMALL, WAKE, End, Gap, Row, Tap

if TYPE_CHECKING:
    from ..plugins import ProtocolAdapter, Transport

__all__ = ["Recorder", "RecorderStats"]

logger: logging.Logger = logging.getLogger("polybus.capture")

BATCH_ROWS: Final = 4096
"""At most in one batch. Half of what one costs is the same however many there are: the thread finds the caches cold."""
FLUSH_SECONDS: Final = 0.1
_MOST_LARGE: Final = 64 << 20
"""Bytes of larger frames that may wait."""
_PATIENCE: Final = 10.0
"""Seconds that `close` waits for the disk."""
_RETRY: Final = 0.5
"""Seconds between attempts to write to a disk that is full."""


@frozen
class RecorderStats:
    """What a recorder has done so far."""

    frames: int
    """Frames written, with the rows that say what became of connections."""
    bytes: int
    """Bytes written."""
    dropped: int
    """Frames lost, because the thread could not keep up or the disk took nothing."""
    redacted: int
    """Frames in which something was blanked."""
    waiting: int
    """Frames not written yet."""


class Recorder:
    """Writes the frames of links to a folder.

    Args:
        path: The folder; it is made where there is none (mode 0700).
        max_bytes: Of all sealed segments in it: beyond that the oldest are removed.
        max_age: Seconds after which sealed segments are removed.
        segment_bytes: Of a segment, when it is sealed.
        segment_seconds: After which one is sealed.
        frame_bytes: What is kept of a frame; the rest of a longer one is cut off.
        redaction: What must not be written.
        metadata: Goes into each segment.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int,
        max_age: float,
        segment_bytes: int = 64 << 20,
        segment_seconds: float = 60.0,
        frame_bytes: int = 4 << 20,
        redaction: Redaction | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.path: Path = Path(path)
        self.capture_id: str = time.strftime("%Y%m%dT%H%M%S-", time.gmtime()) + secrets.token_hex(4)
        self.rows: list[Any] = []
        """What waits for the thread: the fields of rows, one after the other. Only links append, only the thread removes."""
        self._batches = Batches(self.capture_id)
        self._folder = Folder(self.path, max_bytes, max_age)
        self._segment_bytes = max(1 << 16, min(segment_bytes, max_bytes // 4))
        self._segment_seconds = segment_seconds
        self._frame_bytes = frame_bytes
        self._redaction = redaction
        self._metadata = {"capture_id": self.capture_id, **(metadata or {})}
        self._event = threading.Event()
        self._claimed = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._connections = 0
        self._large = 0  # bytes of large frames taken in, and given out: each is counted by one side only
        self._large_done = 0
        self._taken = 0
        self._lock = threading.Lock()
        self._gaps: list[list[int]] = []  # [number of the row before which frames are missing, how many]
        self._notes: list[Gap] = []  # of what else is missing: they go first into the next batch
        self._segment: SegmentWriter | None = None
        self._since = 0.0
        self._seq = 0
        self._lost = 0  # not written since the last gap row that was
        self._lost_to = "disk"
        self._lost_because = ""
        self._not_before = 0.0
        self._dropped = 0
        self._refused = 0
        self._written = 0
        self._bytes = 0
        self._redacted = 0

    # -- for links: on the event loop ------------------------------------------------------------------------------------

    def tap(self, adapter: ProtocolAdapter, transport: Transport, *, opened: bool) -> Tap:
        """Record a connection.

        Args:
            adapter: Its protocol.
            transport: What carries it.
            opened: Whether this side has dialled.
        """
        self._connections += 1
        return Tap(self, adapter, transport, f"{self.capture_id[-8:]}-{self._connections}", opened=opened)

    def wake(self) -> None:
        """There is enough for a batch."""
        self._event.set()

    def take(self, row: Row) -> None:
        """Take a row if there is room for it, else count it."""
        rows = self.rows
        frame = row[2]
        size = 0 if frame is None else len(frame)
        large = size >= SMALL
        if len(rows) >= MOST or (large and self._large - self._large_done + size > _MOST_LARGE) or self._stopping:
            self._drop(self._taken + len(rows) // FIELDS)
            return
        if large:
            self._large += size
        rows += row
        if len(rows) >= WAKE:
            self._event.set()

    def _drop(self, place: int) -> None:
        with self._lock:  # rare, and never held for long
            if self._gaps and self._gaps[-1][0] == place:
                self._gaps[-1][1] += 1
            else:
                self._gaps.append([place, 1])
        self._dropped += 1

    def stats(self) -> RecorderStats:
        """What has been done so far."""
        return RecorderStats(
            self._written, self._bytes, self._dropped + self._refused, self._redacted, len(self.rows) // FIELDS
        )

    # -- life ------------------------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Say that it will be opened, by whom nobody else does.

        Raises:
            LocalProtocolError: It has been opened before.
        """
        if self._claimed:
            raise LocalProtocolError(f"this recording to {self.path} has been entered before: make another one")
        self._claimed = True

    def open(self) -> None:
        """Make the folder, seal what a killed recorder has left there, start the thread. May take a while: not for event loops.

        Raises:
            CaptureError: The folder cannot be made or written.
        """
        try:
            self._notes += self._folder.open()
            self._warm_up()
        except OSError as error:
            raise CaptureError(f"cannot record to {self.path}: {error.strerror or error}") from error
        with self._lock:
            if self._stopping:  # closed meanwhile, by a task that was cancelled
                return
            self._thread = threading.Thread(target=self._run, name="polybus recorder", daemon=True)
            self._thread.start()

    def _warm_up(self) -> None:
        """What Arrow loads when it is first used takes longer than many batches: have it over before there is traffic."""
        rows = Columns.of([End(0, protocol="ubre"), 0, b"{}", None])
        frames, flags = self._presentable(rows)
        encode_batch(self._batches.make(rows, frames, flags, 0, 0), FRAMES, "")

    def close(self) -> None:
        """Write what waits, seal the segment, end the thread. Waits for it, within limits: not for event loops."""
        with self._lock:
            self._stopping = True
            thread, self._thread = self._thread, None
        if thread is None:
            return
        self._event.set()
        thread.join(_PATIENCE)
        if thread.is_alive():
            logger.error(
                "polybus: the disk below %s does not answer; %d frames are not written", self.path, len(self.rows) // FIELDS
            )

    def _run(self) -> None:
        """The thread."""
        flushed = time.monotonic()
        while not self._stopping:
            self._event.wait(FLUSH_SECONDS)
            self._event.clear()
            try:
                while len(self.rows) >= WAKE:
                    self._flush()
                    flushed = time.monotonic()
                now = time.monotonic()
                if now - flushed >= FLUSH_SECONDS:
                    self._flush()
                    flushed = now
                self._rotate(now)
            except Exception:
                logger.exception("polybus: the recorder of %s could not take or seal what it has; it goes on", self.path)
        self._finish()

    def _finish(self) -> None:
        self._not_before = 0.0
        try:
            for _ in range(2):  # to seal may show that something is lost
                while (self.rows or self._gaps or self._lost or self._notes) and not self._not_before:
                    self._flush()  # until all is written, or the disk takes nothing
                self._seal()
        except Exception:
            logger.exception("polybus: the recorder of %s could not write its end", self.path)
        finally:
            if self._segment is not None:
                self._segment.close()

    # -- writing: in the thread ------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write a batch of what waits."""
        flat = self.rows[: BATCH_ROWS * FIELDS]
        del self.rows[: len(flat)]
        rows = Columns.of(flat)
        self._taken += len(rows)
        if self._large != self._large_done:
            self._large_done += sum(len(frame) for frame in rows.frames if frame is not None and len(frame) >= SMALL)
        self._add_gaps(rows)
        if not rows:
            return
        if self._not_before and time.monotonic() < self._not_before:
            self._give_up(rows)
            return
        try:
            frames, flags = self._presentable(rows)
            offset = time.time_ns() - time.monotonic_ns()
            segment = self._write(self._batches.make(rows, frames, flags, self._seq, offset))
        except OSError as error:
            self._failed(rows, error)
            return
        except Exception:  # a mistake of ours: it costs this batch, and neither the bus nor the rest of the recording
            logger.exception("polybus: the recorder of %s has failed on a batch; it goes on", self.path)
            self._lost_to, self._lost_because = "failed", "an internal error"
            self._give_up(rows)
            return
        self._seq += len(rows)
        self._written += len(rows)
        self._not_before = 0.0
        if segment.size >= self._segment_bytes:
            self._seal()

    def _write(self, batch: pa.RecordBatch) -> SegmentWriter:
        segment = self._segment or self._new_segment()
        try:
            self._bytes += segment.write(batch, self._seq)
        except OSError as error:
            if error.errno != errno.EFBIG or not segment.rows:
                raise
            self._seal()  # the limit of one file: the next takes more
            segment = self._new_segment()
            self._bytes += segment.write(batch, self._seq)
        return segment

    def _add_gaps(self, rows: Columns) -> None:
        """Add the rows that say where frames are missing."""
        start = self._taken - len(rows)
        now = rows.times[0] if rows else time.monotonic_ns()
        if self._gaps:
            with self._lock:
                gaps = [gap for gap in self._gaps if gap[0] <= self._taken]
                del self._gaps[: len(gaps)]
            for place, count in reversed(gaps):
                index = max(0, place - start)
                rows.insert(index, (Gap("dropped", count), rows.times[index - 1] if index else now, None, None))
        if self._lost:
            self._notes.append(Gap(self._lost_to, self._lost, error=self._lost_because))
            self._lost = 0
        notes, self._notes = self._notes, []
        for note in reversed(notes):
            rows.insert(0, (note, now, None, None))

    def _presentable(self, rows: Columns) -> tuple[pa.Array, list[int] | None]:
        if self._redaction is None:
            return pa.array(rows.frames, pa.binary()), None
        frames, flags, blanked = self._redaction.apply(rows.ends, rows.frames, self._frame_bytes)
        self._redacted += blanked
        return frames, flags

    def _new_segment(self) -> SegmentWriter:
        self._segment = self._folder.new_segment(self._metadata)
        self._since = time.monotonic()
        return self._segment

    def _failed(self, rows: Columns, error: OSError) -> None:
        if not self._not_before:
            logger.error(
                "polybus: cannot record to %s: %s; traffic goes on and is not recorded until there is room",
                self.path,
                error.strerror or error,
            )
        self._lost_to, self._lost_because = "disk", error.strerror or str(error)
        self._not_before = time.monotonic() + _RETRY
        self._give_up(rows)

    def _give_up(self, rows: Columns) -> None:
        """These are not written: remember how many, and what earlier gaps said."""
        for end in rows.ends:
            if not isinstance(end, Gap):
                self._lost += 1
                self._refused += 1
            elif end.what != "retention" and end.what != "killed":
                self._lost += end.frames
            else:
                self._notes.append(end)

    def _rotate(self, now: float) -> None:
        if self._segment is not None and now - self._since >= self._segment_seconds:
            self._seal()

    def _seal(self) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        try:
            segment.seal()
            self._notes += self._folder.trim(time.time())
        except FileNotFoundError:
            logger.error("polybus: %s was removed while it was written: %d frames are lost", segment.path, segment.rows)
            segment.close()
            self._lost += segment.rows
            self._lost_to, self._lost_because = "disk", "the file was removed while it was written"
            self._refused += segment.rows
            self._written -= segment.rows
        except OSError as error:
            logger.error("polybus: %s could not be sealed: %s", segment.path, error.strerror or error)
            segment.close()
