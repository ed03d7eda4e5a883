"""The recorder: links fill a bounded list, and it is written to segments, by another process where that is possible.

The bus never waits for it. What the writer cannot keep up with, and what the disk does not take, is dropped and counted, and a
row without a frame says so where it is missing.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import secrets
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from ..._util.log_fields import log_fields
from ...errors import LocalProtocolError, Unsupported
from ...plugins.recording import RecorderStats
from ..errors import CaptureError
from ..interpreter import possible
from ..rows import RecordedFrame
from ..writer.process import WriterProcess
from ..writer.stats import WriterCounts, WriterSettings
from .row_buffer import RowBuffer
from .taps import ConnectionTap

if TYPE_CHECKING:
    from ...plugins import ProtocolAdapter, Transport
    from ..writer.thread import WriterThread
    from .redaction import Redact

logger: logging.Logger = logging.getLogger("polybus.capture")

PATIENCE: Final = 30.0
"""Seconds that `close` waits for a writer that does nothing. Then it goes on by itself, while the program does."""
_LONG: Final = 10.0
"""Seconds after which it says that it waits."""
_LOOK: Final = 0.5
"""Seconds between two looks."""
_GIB: Final = 1 << 30


class CaptureRecorder:
    """Writes the frames of links to a folder: `apart`, in another process; where None, if that is possible.

    A function that blanks cannot leave this process.
    """

    def __init__(self, settings: WriterSettings, apart: bool | None = None) -> None:
        self.path: Path = Path(settings.path)
        self.capture_id: str = settings.capture_id
        self._settings = settings
        self._apart: bool = apart if apart is not None else possible() and not callable(settings.redact)
        self._waiting = RowBuffer(settings.frame_bytes)
        self.rows: list[Any] = self._waiting.rows
        """The rows that wait to be written: their fields, one after the other. Only links append."""
        self._writer: WriterProcess | WriterThread | None = None
        self._claimed = self._stopping = False
        self._thread: threading.Thread | None = None
        self._connections = 0
        self._lock = threading.Lock()
        self._process: int | None = None  # that has opened it

    # -- for links: on the event loop ------------------------------------------------------------------------------------

    def tap(self, adapter: ProtocolAdapter, transport: Transport, *, opened: bool) -> ConnectionTap:
        """Record a connection, `opened` if this side has dialled."""
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
        given, done = (0, WriterCounts()) if writer is None else (writer.given, writer.counts)
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
            try:
                process = WriterProcess(self._waiting, self._settings)
                process.open()
                return process
            except OSError as error:
                logger.warning(
                    "no process could be begun to write %s (%s): a thread does it",
                    self.path,
                    error,
                    extra=log_fields(path=str(self.path)),
                )
        from ..writer.thread import WriterThread

        thread = WriterThread(self._waiting, self._settings)
        thread.open()
        return thread

    def close(self) -> None:
        """Write what waits, seal the segment, end the writer. Waits while something is written: not for event loops."""
        if self._process not in (None, os.getpid()):  # in a child that was forked: what waits and the writer are the parent's
            return
        with self._lock:
            self._stopping = True
            thread, writer = self._thread, self._writer
        if thread is None or writer is None:
            return
        writer.stop()
        begun = since = time.monotonic()
        seen, said, more = -1, False, log_fields(path=str(self.path))
        while thread.is_alive() and time.monotonic() - since < PATIENCE:
            thread.join(_LOOK)
            if writer.progress != seen:
                seen, since = writer.progress, time.monotonic()
            if not said and time.monotonic() - begun > _LONG:
                said = True
                logger.warning("leaving %s waits for %d frames: %s", self.path, self.stats().waiting, writer.why(), extra=more)
        if thread.is_alive():  # it is waited for once more when the program ends
            what = "leaving %s does not wait any more for %d frames that are not written: %s"
            logger.error(what, self.path, self.stats().waiting, writer.why(), extra=more)
        else:
            atexit.unregister(self.close)


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
    """A recorder, not open yet.

    Raises:
        TypeError, ValueError: An argument is not what it should be.
        Unsupported: There are no threads here.
        ImportError: pyarrow is not installed.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"record={path!r:.80}: the path of a folder, not {type(path).__name__}")
    if "://" in os.fspath(path):
        raise ValueError(f"record={os.fspath(path)!r}: into a folder on this machine only; copy its sealed segments from there")
    seconds = max_age.total_seconds() if isinstance(max_age, timedelta) else float(max_age)
    if type(max_bytes) is not int or max_bytes < 1 << 18:
        raise ValueError(f"max_bytes={max_bytes!r}: a number of bytes, not below {1 << 18}")
    if not seconds > 0 or math.isnan(seconds):
        raise ValueError(f"max_age={max_age!r}: seconds or a timedelta, above 0")
    if redact is not None and redact != "default" and not callable(redact):
        raise TypeError(f"redact={redact!r:.80}: a function redact(protocol, frame), 'default', or None")
    if sys.platform == "emscripten":
        raise Unsupported("recording needs threads and files, which this platform has not")
    for module in ("pyarrow", "numpy"):  # loaded where it is written, which may be another process
        if not _installed(module):
            raise ImportError(f"captures need {module}: pip install 'polybus[capture]'", name=module)
    settings = WriterSettings(
        path=os.path.abspath(path),
        capture_id=time.strftime("%Y%m%dT%H%M%S-", time.gmtime()) + secrets.token_hex(4),
        max_bytes=max_bytes,
        max_age=seconds,
        redact=redact,
        bodies=bodies,
        decode=decode and possible(),
        metadata={} if source is None else {"source": source},
    )
    return CaptureRecorder(settings)


def _installed(module: str) -> bool:
    with suppress(ValueError):
        return find_spec(module) is not None
    return False
