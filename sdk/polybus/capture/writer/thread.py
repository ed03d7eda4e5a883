"""Writing in a thread: where a function of the application blanks frames, or where there can be no process for it."""

from __future__ import annotations

import threading
import time
from typing import Final

from attrs import evolve

from ..record.row_buffer import RowBuffer
from .stats import BATCH_ROWS, FLUSH_SECONDS, WriterCounts, WriterSettings
from .writer import CaptureWriter


class WriterThread:
    """Takes what waits, and writes it. The thread has to win the interpreter lock from the event loop for each step."""

    enough: Final = 3072
    """Rows for which it is worth waking up: what comes until it has its turn mostly fits into the batch."""

    def __init__(self, waiting: RowBuffer, settings: WriterSettings) -> None:
        self.given: int = 0
        """Rows that were taken."""
        self._waiting = waiting
        self._redact = settings.redact
        self._blanking, self._blanked = False, 0
        self._writer = CaptureWriter(evolve(settings, redact=self._counted) if callable(self._redact) else settings)
        self._event = threading.Event()
        self._stopping = False

    def _counted(self, protocol: str, frame: bytes) -> bytes:
        self._blanking = True
        try:
            blanked: bytes = self._redact(protocol, frame)
            return blanked
        finally:
            self._blanking = False
            self._blanked += 1

    @property
    def progress(self) -> int:
        """Another number whenever something was done."""
        return self.counts.done + self._blanked

    def why(self) -> str:
        """The reason why it takes so long."""
        name = getattr(self._redact, "__qualname__", "...")
        return f"redact={name} is still blanking" if self._blanking else "the disk is slow"

    @property
    def counts(self) -> WriterCounts:
        """Figures so far."""
        return self._writer.counts

    def open(self) -> None:
        """Begin. May take a while.

        Raises:
            CaptureError: The folder cannot be made or written.
        """
        self._writer.open()

    def wake(self) -> None:
        """There is enough for a batch."""
        self._event.set()

    def abandon(self) -> None:
        """`run` will not be called."""

    def stop(self) -> None:
        """Let `run` come to its end."""
        self._stopping = True
        self._event.set()

    def run(self) -> None:
        """Write until `stop` is called, then what is left."""
        due = time.monotonic() + FLUSH_SECONDS
        while not self._stopping:
            self._event.wait(FLUSH_SECONDS)
            self._event.clear()
            while len(self._waiting) >= self.enough or time.monotonic() >= due:
                self._flush()
                due = time.monotonic() + FLUSH_SECONDS
            self._writer.turn()
        while self._flush():
            pass
        self._writer.finish()

    def _flush(self) -> bool:
        packed = self._waiting.pack(BATCH_ROWS)
        if packed is not None:
            self.given += len(packed)
            self._writer.write([packed])
        return packed is not None
