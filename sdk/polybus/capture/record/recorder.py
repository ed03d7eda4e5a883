"""Records links: they append frames to a bounded list, and a thread writes the frames to segments.

The bus never waits for the recorder. Frames that do not fit into the list are counted, and a row marks the gap.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from attrs import evolve, field, frozen

from ...errors import LocalProtocolError, Unsupported
from ...plugins.extensions import RecorderStats
from ...plugins.tools import check_callable, check_count, check_given, log_fields, seconds
from ..columns.process import possible
from ..errors import CaptureError
from ..paths import folder_path
from ..rows import FIELDS, MOST, SMALL, Gap, RecordedFrame
from .taps import ConnectionTap

if TYPE_CHECKING:
    from ...plugins import ProtocolAdapter, Transport
    from .redaction import Redact
    from .writer import CaptureWriter

logger: logging.Logger = logging.getLogger("polybus.capture")

PATIENCE: Final = 30.0
"""Seconds that `close` waits for an idle writer. After that the writer continues until the program ends."""
_LONG: Final = 10.0
_LOOK: Final = 0.5
_GIB: Final = 1 << 30
BATCH_ROWS: Final = 4096
"""Rows per batch. Even for 1,024 rows, a quarter of the cost does not depend on the number of rows."""
FLUSH_SECONDS: Final = 0.1
"""Seconds after which a smaller batch is written."""
_MOST_LARGE: Final = 64 << 20
"""Maximum bytes of queued large frames."""
_TOGETHER: Final = 8 << 20
"""Maximum bytes of rows to process together, plus one frame, so that progress becomes visible soon."""


@frozen(kw_only=True)
class WriterSettings:
    path: str
    """The folder. It is created with mode 0700."""
    capture_id: str
    max_bytes: int
    """Maximum total bytes of sealed segments in the folder. If it is exceeded, the oldest segments are removed."""
    max_age: float
    segment_bytes: int = 64 << 20
    """Size in bytes at which a segment is sealed."""
    segment_seconds: float = 60.0
    frame_bytes: int = 4 << 20
    """Maximum bytes stored per frame. Longer frames are truncated."""
    redact: Any = "default"
    """Redaction: a function, ``"default"``, or `None` to disable redaction."""
    bodies: bool = True
    """False to omit bodies."""
    decode: bool = False
    """True to decode sealed segments in a separate process."""
    metadata: Mapping[str, str] = field(factory=dict)


class RowBuffer:
    """A bounded list. If it is full, frames are dropped and counted, and a row marks the gap."""

    def __init__(self, longest: int) -> None:
        self.rows: list[Any] = []
        """Row fields as a flat list. Links append to the list, and only `next` removes fields."""
        self.dropped: int = 0
        """Number of frames dropped because the list was full."""
        self._longest = longest  # bytes kept of a frame
        self._large = 0  # bytes of queued large frames
        self._taken = 0  # rows taken so far
        self._lock = threading.Lock()
        self._gaps: list[list[int]] = []  # [number of the row after the gap, missing frames]

    def __len__(self) -> int:
        return len(self.rows) // FIELDS

    @property
    def heavy(self) -> bool:
        return self._large > _TOGETHER

    def take(self, row: RecordedFrame, *, room: bool) -> None:
        end, time_ns, frame, ttl = row
        if frame is not None and len(frame) > self._longest:
            frame = frame[: self._longest + 1]  # one byte more, so that the writer sees the cut
        size = 0 if frame is None else len(frame)
        large = size >= SMALL
        if not room or len(self.rows) >= MOST or (large and self._large + size > _MOST_LARGE):
            self.lose(1)
            return
        if large:
            with self._lock:
                self._large += size
        self.rows += (end, time_ns, frame, ttl)

    def lose(self, frames: int) -> None:
        with self._lock:  # never held for long
            place = self._taken + len(self)
            if self._gaps and self._gaps[-1][0] == place:
                self._gaps[-1][1] += frames
            else:
                self._gaps.append([place, frames])
            self.dropped += frames

    def next(self, most: int) -> list[Any]:
        """Remove and return up to `most` rows, oldest first, including rows that mark gaps."""
        with self._lock:
            flat = self.rows[: most * FIELDS]
            if self.heavy:
                sizes = accumulate(len(frame or b"") for frame in flat[2::FIELDS])
                del flat[max(1, sum(size <= _TOGETHER for size in sizes)) * FIELDS :]
            del self.rows[: len(flat)]
            start, self._taken = self._taken, self._taken + len(flat) // FIELDS
            if self._large:
                self._large -= sum(len(frame) for frame in flat[2::FIELDS] if frame is not None and len(frame) >= SMALL)
        if self._gaps:
            self._mark(flat, start)
        return flat

    def _mark(self, flat: list[Any], start: int) -> None:
        with self._lock:
            gaps = [gap for gap in self._gaps if gap[0] <= self._taken]
            del self._gaps[: len(gaps)]
        now = flat[1] if flat else time.monotonic_ns()
        for place, count in reversed(gaps):
            index = max(0, place - start) * FIELDS
            flat[index:index] = (Gap("dropped", count), flat[index + 1 - FIELDS] if index else now, None, None)


class CaptureRecorder:
    """Writes the frames of links to a folder. Its thread competes with the event loop for the GIL at each step."""

    enough: Final = 3072
    """Rows worth waking the thread for. Rows that arrive before it runs usually still fit into the batch."""

    def __init__(self, settings: WriterSettings) -> None:
        self.path: Path = Path(settings.path)
        self.capture_id: str = settings.capture_id
        self._settings = settings
        self._waiting = RowBuffer(settings.frame_bytes)
        self.rows: list[Any] = self._waiting.rows
        """Row fields of queued rows as a flat list. Only links append to it."""
        self._given = 0  # rows passed to the writer
        self._blanking, self._blanked = False, 0
        self._writer: CaptureWriter | None = None
        self._claimed = self._stopping = False
        self._thread: threading.Thread | None = None
        self._event = threading.Event()
        self._connections = 0
        self._lock = threading.Lock()
        self._process: int | None = None  # that opened it

    def tap(self, adapter: ProtocolAdapter, transport: Transport, *, opened: bool, who: str | None = None) -> ConnectionTap:
        """Record a connection. `opened` is set if this side has dialled, and `who` is the key of the other end's identity."""
        self._connections += 1
        return ConnectionTap(self, adapter, transport, f"{self.capture_id[-8:]}-{self._connections}", opened, who)

    def wake(self) -> None:
        """Wake the thread because a batch is full."""
        self._event.set()

    def take(self, row: RecordedFrame) -> None:
        self._waiting.take(row, room=not self._stopping)
        if self._waiting.heavy or len(self._waiting) % self.enough == 0:
            self.wake()

    def stats(self) -> RecorderStats:
        waiting, dropped = len(self._waiting), self._waiting.dropped
        if self._writer is None:
            return RecorderStats(0, 0, dropped, 0, waiting)
        counts = self._writer.counts
        waiting += self._given - counts.done
        return RecorderStats(counts.frames, counts.bytes, dropped + counts.refused, counts.redacted, waiting)

    def claim(self) -> None:
        """Reserve the recorder, which can be used only once.

        Raises:
            LocalProtocolError: If the recorder has been opened before.
        """
        if self._claimed:
            raise LocalProtocolError(f"this recording to {self.path} has already been entered: create another one")
        self._claimed = True

    def open(self) -> None:
        """Create the folder, seal segments left by a killed recorder, and start writing.

        This method blocks, so do not call it in an event loop.

        Raises:
            CaptureError: If the folder cannot be created or written, or the thread cannot be started.
        """
        from .writer import CaptureWriter  # loads Arrow, in the thread that opens

        self._process = os.getpid()
        redact = self._counted if callable(self._settings.redact) else self._settings.redact
        writer = CaptureWriter(evolve(self._settings, redact=redact))
        writer.open()
        with self._lock:
            self._writer = writer
            thread = threading.Thread(target=self._write, args=(writer,), name="polybus recorder", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise CaptureError(f"cannot record to {self.path}: {error}") from error
            self._thread = thread
            stopping = self._stopping  # closed by now, by a cancelled task
        atexit.register(self.close)  # for a program that does not close it
        if stopping:
            self.close()

    def _counted(self, protocol: str, frame: bytes) -> bytes:
        self._blanking = True
        try:
            blanked: bytes = self._settings.redact(protocol, frame)
            return blanked
        finally:
            self._blanking = False
            self._blanked += 1

    def _write(self, writer: CaptureWriter) -> None:
        due = time.monotonic() + FLUSH_SECONDS
        while not self._stopping:
            self._event.wait(FLUSH_SECONDS)
            self._event.clear()
            while self._waiting.heavy or len(self._waiting) >= self.enough or time.monotonic() >= due:
                self._flush(writer)
                due = time.monotonic() + FLUSH_SECONDS
            writer.turn()
        while self._flush(writer):
            pass
        writer.finish()

    def _flush(self, writer: CaptureWriter) -> bool:
        flat = self._waiting.next(BATCH_ROWS)
        if flat:
            self._given += len(flat) // FIELDS
            writer.write(flat)
        return bool(flat)

    def close(self) -> None:
        """Write the queued rows and stop the writer. This method blocks, so do not call it in an event loop."""
        if self._process not in (None, os.getpid()):  # a forked child: rows and writer belong to the parent
            return
        with self._lock:
            self._stopping = True
            thread, writer = self._thread, self._writer
        if thread is None or writer is None:
            return
        self._event.set()
        begun = since = time.monotonic()
        seen, said, more = -1, False, log_fields(path=str(self.path))
        while thread.is_alive() and time.monotonic() - since < PATIENCE:
            thread.join(_LOOK)
            if (done := writer.counts.done + self._blanked) != seen:
                seen, since = done, time.monotonic()
            if not said and time.monotonic() - begun > _LONG:
                said = True
                logger.warning("leaving %s waits for %d frames: %s", self.path, self.stats().waiting, self._why(), extra=more)
        if thread.is_alive():  # the program waits for it once more when it ends
            what = "leaving %s no longer waits for %d unwritten frames: %s"
            logger.error(what, self.path, self.stats().waiting, self._why(), extra=more)
        else:
            atexit.unregister(self.close)

    def _why(self) -> str:
        name = getattr(self._settings.redact, "__qualname__", "...")
        return f"redact={name} is still blanking" if self._blanking else "the disk is slow"


def make_recorder(
    path: str | os.PathLike[str],
    *,
    max_bytes: int = 10 * _GIB,
    max_age: float | timedelta = timedelta(days=7),
    bodies: bool = True,
    redact: Redact | Literal["default"] | None = "default",
    decode: bool = False,
    source: str | None = None,
) -> CaptureRecorder:
    """Create a recorder, which still has to be opened.

    Raises:
        TypeError, ValueError: If an argument is invalid.
        Unsupported: If the platform has no threads.
        ImportError: If pyarrow is not installed.
    """
    folder = folder_path(path, "record")
    if "://" in folder:
        raise ValueError(f"record={folder!r} must be a folder on this machine; copy its sealed segments from there")
    check_count(max_bytes, "max_bytes", 1 << 18)
    age = seconds(max_age.total_seconds() if isinstance(max_age, timedelta) else max_age, "max_age", endless=True)
    if age == 0:
        raise ValueError(f"max_age={max_age!r} must be a timedelta or a number of seconds above 0")
    if redact != "default":
        check_callable(redact, "redact", "redact(protocol, frame), 'default' or None", 2)
    check_given(bodies, bool, "bodies", "bodies=False")
    check_given(decode, bool, "decode", "decode=True")
    if sys.platform == "emscripten":
        raise Unsupported("recording needs threads and files, which this platform lacks")
    for module in ("pyarrow", "numpy"):  # loaded by the thread that opens it
        if find_spec(module) is None:
            raise ImportError(f"captures need {module}: pip install 'polybus[capture]'", name=module)
    settings = WriterSettings(
        path=os.path.abspath(folder),
        capture_id=time.strftime("%Y%m%dT%H%M%S-", time.gmtime()) + secrets.token_hex(4),
        max_bytes=max_bytes,
        max_age=age,
        redact=redact,
        bodies=bodies,
        decode=decode and possible(),
        metadata={} if source is None else {"source": source},
    )
    return CaptureRecorder(settings)
