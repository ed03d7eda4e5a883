"""The recorder: links fill a bounded list, and it is written to segments, by another process where that is possible.

The bus never waits for it. What the writer cannot keep up with, and what the disk does not take, is dropped and counted, and a
row without a frame says so where it is missing.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from ...errors import LocalProtocolError
from ...plugins.recording import RecorderStats
from ..errors import CaptureError
from ..writer.process import WriterProcess, possible
from .row_buffer import RowBuffer
from .taps import ConnectionTap, RecordedFrame

if TYPE_CHECKING:
    from ...plugins import ProtocolAdapter, Transport
    from ..writer.thread import WriterThread
    from .redaction import Redact

__all__ = ["CaptureRecorder"]

logger: logging.Logger = logging.getLogger("polybus.capture")

_PATIENCE: Final = 10.0
"""Seconds that `close` waits for the disk. Then the writer goes on by itself."""


class CaptureRecorder:
    """Writes the frames of links to a folder.

    Args:
        path: The folder; it is made where there is none (mode 0700).
        max_bytes: Of all sealed segments in it: beyond that the oldest are removed.
        max_age: Seconds after which sealed segments are removed.
        segment_bytes: Of a segment, when it is sealed.
        segment_seconds: After which one is sealed.
        frame_bytes: What is kept of a frame; the rest of a longer one is cut off.
        redact: What must not be written: a function, ``"default"``, or None for nothing.
        bodies: Whether bodies are written.
        metadata: Goes into each segment.
        apart: Write in another process. Where None, if that is possible: a function that blanks cannot leave this one.
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
        redact: Redact | Literal["default"] | None = "default",
        bodies: bool = True,
        metadata: Mapping[str, str] | None = None,
        apart: bool | None = None,
    ) -> None:
        self.path: Path = Path(path)
        self.capture_id: str = time.strftime("%Y%m%dT%H%M%S-", time.gmtime()) + secrets.token_hex(4)
        self._settings: dict[str, Any] = {
            "path": os.path.abspath(path),
            "capture_id": self.capture_id,
            "max_bytes": max_bytes,
            "max_age": max_age,
            "segment_bytes": segment_bytes,
            "segment_seconds": segment_seconds,
            "frame_bytes": frame_bytes,
            "redact": redact,
            "bodies": bodies,
            "metadata": dict(metadata or {}),
        }
        self._apart: bool = apart if apart is not None else possible() and not callable(redact)
        self._waiting = RowBuffer(frame_bytes)
        self.rows: list[Any] = self._waiting.rows
        """The rows that wait to be written: their fields, one after the other. Only links append."""
        self._writer: WriterProcess | WriterThread | None = None
        self._claimed = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._connections = 0
        self._lock = threading.Lock()
        self._process: int | None = None  # that has opened it

    # -- for links: on the event loop ------------------------------------------------------------------------------------

    def tap(self, adapter: ProtocolAdapter, transport: Transport, *, opened: bool) -> ConnectionTap:
        """Record a connection.

        Args:
            adapter: Its protocol.
            transport: What carries it.
            opened: Whether this side has dialled.
        """
        self._connections += 1
        return ConnectionTap(self, adapter, transport, f"{self.capture_id[-8:]}-{self._connections}", opened=opened)

    @property
    def enough(self) -> int:
        """Rows at which `wake` is to be called."""
        return WriterProcess.enough if self._writer is None else self._writer.enough

    def wake(self) -> None:
        """There is enough for a batch."""
        if self._writer is not None:
            self._writer.wake()

    def take(self, row: RecordedFrame) -> None:
        """Take a row if there is room for it, else count it."""
        self._waiting.take(row, room=not self._stopping)
        if len(self._waiting) % self.enough == 0:
            self.wake()

    def stats(self) -> RecorderStats:
        """Figures so far."""
        waiting, writer = len(self._waiting), self._writer
        if writer is None:
            return RecorderStats(0, 0, self._waiting.dropped, 0, waiting)
        given, done = writer.given, writer.counts
        dropped = self._waiting.dropped + done.refused
        return RecorderStats(done.frames, done.bytes, dropped, done.redacted, waiting + given - done.done)

    # -- life ------------------------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Reserve it for one use.

        Raises:
            LocalProtocolError: It has been opened before.
        """
        if self._claimed:
            raise LocalProtocolError(f"this recording to {self.path} has been entered before: make another one")
        self._claimed = True

    def open(self) -> None:
        """Make the folder, seal what a killed recorder has left there, begin to write. May take a while: not for event loops.

        Raises:
            CaptureError: The folder cannot be made or written, or no thread can be begun.
        """
        self._process = os.getpid()
        writer = self._begin()
        with self._lock:
            self._writer = writer
            thread = threading.Thread(target=writer.run, name="polybus recorder", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                writer.abandon()
                raise CaptureError(f"cannot record to {self.path}: {error}") from error
            self._thread = thread
            stopping = self._stopping  # closed meanwhile, by a task that was cancelled
        atexit.register(self.close)  # of a program that ends without
        if stopping:
            self.close()

    def _begin(self) -> WriterProcess | WriterThread:
        if self._apart:
            process = WriterProcess(self._waiting, self._settings)
            try:
                process.open()
            except OSError as error:
                logger.warning("polybus: no process could be begun to write %s (%s): a thread does it", self.path, error)
            else:
                return process
        from ..writer.thread import WriterThread

        thread = WriterThread(self._waiting, self._settings)
        thread.open()
        return thread

    def close(self) -> None:
        """Write what waits, seal the segment, end the writer. Waits for it, within limits: not for event loops."""
        if self._process not in (None, os.getpid()):  # in a child that was forked: what waits and the writer are the parent's
            return
        with self._lock:
            self._stopping = True
            thread, self._thread = self._thread, None
        if thread is None or self._writer is None:
            return
        atexit.unregister(self.close)
        self._writer.stop()
        thread.join(_PATIENCE)
        if thread.is_alive():
            logger.error(
                "polybus: the disk below %s does not answer; %d frames are not written yet", self.path, self.stats().waiting
            )
