"""Writing in a process of its own, seen from the process of the bus: the event loop packs rows and hands them over.

What has been handed over survives a kill of this process: the other one writes it and seals the segment when the connection
between them ends.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import astuple, evolve

from ..._util.log_fields import log_fields
from ..errors import CaptureError
from ..record.packing import Packed, Packer
from ..record.row_buffer import RowBuffer
from ..rows import FIELDS, Gap, RowHeader
from .client import Helper
from .stats import FLUSH_SECONDS, WriterCounts, WriterSettings

logger: logging.Logger = logging.getLogger("polybus.capture")

_LARGE: Final = 1 << 20
"""Bytes of large frames: to pack more would keep the event loop waiting."""
_STATES: Final = {"D": "waits for the disk", "R": "is busy with earlier ones", "T": "is stopped", "t": "is stopped"}
"""Of a process, by the letter of Linux."""
_AGAIN: Final = 1.0
"""Seconds after which another process is begun in place of one that could not be begun, or ended soon."""
_OFTEN: Final = 10.0
"""Seconds that are soon."""
_ATTEMPTS: Final = 2
"""At the end, to write what is left."""


class WriterProcess:
    """Hands what waits to a process that writes it."""

    enough: Final = 1024
    """Rows that are handed over together: what a killed process loses at most, while the other one keeps up."""

    def __init__(self, waiting: RowBuffer, settings: WriterSettings) -> None:
        self.given: int = 0
        """Rows that were handed over."""
        self.counts: WriterCounts = WriterCounts()
        self._waiting = waiting
        self._settings = settings
        self._before = WriterCounts()  # of processes that have ended
        self._seq, self._begun = 0, 0.0
        self._gaps: list[tuple[int, int]] = []  # gap rows under way: `given` with them, and how many frames they tell of
        self._due = 0.0  # when what is not enough by itself is handed over
        self._helper: Helper | None = None
        self._lock = threading.Lock()  # to hand over: the event loop does, and the thread
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """Of the process that writes; None while there is none."""
        return None if self._helper is None else self._helper.pid

    @property
    def progress(self) -> int:
        """Another number whenever something was done."""
        return self.given + self.counts.done

    def why(self) -> str:
        """The reason why it takes so long."""
        if self.pid is None:
            return "no process can be begun that writes them"
        state = "is waited for"
        with suppress(OSError):
            state = _STATES.get(Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2][:1], state)
        return f"the process that writes ({self.pid}) {state}"

    def open(self) -> None:
        """Begin. May take a while.

        Raises:
            CaptureError: The folder cannot be made or written.
            OSError: No process could be begun, or it did not answer.
        """
        self._helper = Helper(self._settings, self._reported)

    def wake(self) -> None:
        """There is enough to be handed over. On the event loop: never waits."""
        if self._waiting.large <= _LARGE and self._lock.acquire(blocking=False):
            try:
                self._hand_over()
            finally:
                self._lock.release()

    def stop(self) -> None:
        """Let `run` come to its end."""
        self._stopping = True
        self._hand_over_all()  # the answer wakes the thread

    def abandon(self) -> None:
        """`run` will not be called."""
        if self._helper is not None:
            self._helper.abandon()

    def run(self) -> None:
        """Hand over also what is little, until `stop` is called, then what is left; and see that there is a process."""
        while not self._stopping:
            self._turn()
        for attempt in range(_ATTEMPTS):
            while self._helper is not None and not self._helper.gone:
                self._turn()
            if self._left and attempt + 1 < _ATTEMPTS:
                self._begin_another()
        how = "none could be begun" if self._helper is None else self._helper.ended()
        if self._left or not self._waiting.empty:
            self._lose(how)

    def _lose(self, how: str) -> None:
        """Count what is left, and say so in a gap row, written by this process.

        Of the rest it writes nothing: something in there may be what has ended the others.
        """
        from .writer import CaptureWriter

        ends: list[RowHeader] = []
        while not self._waiting.empty:
            ends += self._waiting.next(self.enough)[::FIELDS]
        told = [frames for _, frames in self._gaps] + [end.frames for end in ends if isinstance(end, Gap)]
        lost = self.given - self.counts.done + len(ends) - len(told)
        path, fields = self._settings.path, log_fields(path=str(self._settings.path))
        logger.error("the process that writes %s has ended (%s); %d frames are not written", path, how, lost, extra=fields)
        self.counts = evolve(self.counts, done=self.given, refused=self.counts.refused + lost)
        writer = CaptureWriter(evolve(self._settings, resume=self._seq, decode=False))
        try:
            writer.open()
            writer.missing(Gap("killed", lost + sum(told)))
            writer.finish()
        except CaptureError as error:
            logger.error("that frames are missing cannot be written: %s", error, extra=fields)

    @property
    def _left(self) -> int:
        """Rows that are not written."""
        return len(self._waiting) + self.given - self.counts.done

    def _turn(self) -> None:
        try:
            if self._helper is None or self._helper.gone:
                self._begin_another()
            else:
                self._helper.attend(max(0.0, self._due - time.monotonic()))
            helper, now = self._helper, time.monotonic()
            behind = helper is not None and helper.behind
            if self._stopping or behind or now >= self._due or len(self._waiting) >= self.enough:
                self._due = now + FLUSH_SECONDS
                self._hand_over_all()
        except Exception:
            logger.exception(
                "the recorder of %s could not hand on what it has; it goes on",
                self._settings.path,
                extra=log_fields(path=str(self._settings.path)),
            )
            time.sleep(_AGAIN)  # as it may be so the next time, too

    def _hand_over_all(self) -> None:
        with self._lock:
            while self._hand_over():
                pass
            if self._stopping and self._waiting.empty and self._helper is not None:
                self._helper.send_end()

    def _hand_over(self) -> bool:
        """Hand over some of what waits, if what was handed over before is on its way."""
        helper, waiting = self._helper, self._waiting
        if helper is None or not helper.ready() or waiting.empty:
            return False
        packed = waiting.pack(self.enough)
        if packed is not None:
            self._send(helper, packed)
        return packed is not None

    def _send(self, helper: Helper, packed: Packed) -> None:
        self.given += len(packed)
        self._gaps += [(self.given, end.frames) for end in packed.new if isinstance(end, Gap)]
        helper.send(packed.shipment())

    def _reported(self, counts: list[int]) -> None:
        """Takes the figures of the process, and adds those of the processes before it."""
        self.counts = WriterCounts(*map(sum, zip(astuple(self._before), counts, strict=True)))
        if self._gaps:
            with self._lock:
                self._gaps = [gap for gap in self._gaps if gap[0] > self.counts.done]

    def _begin_another(self) -> None:
        """In place of a process that has ended without being asked to."""
        with self._lock:  # no link hands anything to it any more
            ended, self._helper = self._helper, None
        if ended is not None:
            path, how = self._settings.path, ended.ended()
            logger.error(
                "the process that writes %s has ended (%s); another one goes on", path, how, extra=log_fields(path=str(path))
            )
            self._seq, self._before = self.counts.seq, evolve(self.counts, seq=0)
            if time.monotonic() - self._begun < _OFTEN:
                time.sleep(_AGAIN)
        self._begun = time.monotonic()
        try:
            helper = Helper(evolve(self._settings, resume=self._seq), self._reported)
        except (OSError, CaptureError) as error:
            logger.error(
                "no process could be begun to write %s: %s",
                self._settings.path,
                error,
                extra=log_fields(path=str(self._settings.path)),
            )
            time.sleep(_AGAIN)
            return
        with self._lock:
            self._waiting.packer = Packer()
            self._count_lost(helper)
            self._helper = helper

    def _count_lost(self, helper: Helper) -> None:
        """Counts as lost the rows that the process before had not written, and those that gaps among them stand for."""
        gaps, self._gaps = self._gaps, []
        rows = max(0, self.given - self._before.done - (helper.seq - self._seq))
        frames = max(0, rows - len(gaps))
        self._before = evolve(self._before, done=self.given, refused=self._before.refused + frames)
        self.counts = evolve(self._before, seq=helper.seq)
        if missing := frames + sum(counts for _, counts in gaps):
            self._send(helper, self._waiting.packer.pack([Gap("killed", missing), time.monotonic_ns(), None, None]))
