"""Rows that wait to be written: links append to them on the event loop, one thread at a time takes them away."""

from __future__ import annotations

import logging
import threading
import time
from itertools import accumulate
from typing import Any, Final

from ..rows import FIELDS, MOST, SMALL, Gap, RecordedFrame
from .packing import Packed, Packer

logger: logging.Logger = logging.getLogger("polybus.capture")

_MOST_LARGE: Final = 64 << 20
"""Bytes of larger frames that may wait."""
_TOGETHER: Final = 8 << 20
"""Bytes of rows that are taken away together, but for one frame: what is done with them shall soon be seen to be done."""


class RowBuffer:
    """A list with bounds: what there is no room for is dropped and counted, and a row says so where it is missing."""

    def __init__(self, longest: int) -> None:
        self.rows: list[Any] = []
        """The fields of rows, one after the other. Only links append, only who has called `next` removes."""
        self.dropped: int = 0
        """Number of frames that there was no room for."""
        self.packer: Packer = Packer()
        """Packs what is taken away. A writer that has not seen what came before needs a new one."""
        self._longest = longest  # bytes that are kept of a frame
        self._large = 0  # bytes of large frames taken in, and given out: each is counted by one side only
        self._large_done = 0
        self._taken = 0  # rows given out
        self._lock = threading.Lock()
        self._gaps: list[list[int]] = []  # [number of the row before which frames are missing, how many]

    def __len__(self) -> int:
        return len(self.rows) // FIELDS

    def take(self, row: RecordedFrame, *, room: bool) -> None:
        """Take a row if there is room for it, else count it."""
        end, time_ns, frame, ttl = row
        if frame is not None and len(frame) > self._longest:
            frame = frame[: self._longest + 1]  # one more, so that the writer sees that it was longer
        size = 0 if frame is None else len(frame)
        large = size >= SMALL
        if not room or len(self.rows) >= MOST or (large and self.large + size > _MOST_LARGE):
            self.lose(1)
            return
        if large:
            self._large += size
        self.rows += (end, time_ns, frame, ttl)

    @property
    def large(self) -> int:
        """Bytes of large frames that wait."""
        return self._large - self._large_done

    @property
    def empty(self) -> bool:
        """True if no row waits, and no missing frame is yet to be marked."""
        return not self.rows and not self._gaps

    def lose(self, frames: int) -> None:
        """So many are missing at the end of what waits."""
        with self._lock:  # never held for long
            place = self._taken + len(self)
            if self._gaps and self._gaps[-1][0] == place:
                self._gaps[-1][1] += frames
            else:
                self._gaps.append([place, frames])
            self.dropped += frames

    def pack(self, most: int) -> Packed | None:
        """The rows of `next`, packed; None where there were none, or where they cannot be packed: then they are lost."""
        flat = self.next(most)
        try:
            return self.packer.pack(flat) if flat else None
        except Exception:  # a mistake of ours: it costs these rows, and not the bus
            logger.exception("recorded frames could not be packed, and are lost; the recording goes on")
            self.lose(len(flat) // FIELDS)
            return None

    def next(self, most: int) -> list[Any]:
        """Take away up to so many rows, the longest waiting first, with rows that say where frames are missing."""
        with self._lock:
            flat = self.rows[: most * FIELDS]
            if self.large > _TOGETHER:
                sizes = accumulate(len(frame or b"") for frame in flat[2::FIELDS])
                del flat[max(1, sum(size <= _TOGETHER for size in sizes)) * FIELDS :]
            del self.rows[: len(flat)]
            start, self._taken = self._taken, self._taken + len(flat) // FIELDS
        if self._large != self._large_done:
            self._large_done += sum(len(frame) for frame in flat[2::FIELDS] if frame is not None and len(frame) >= SMALL)
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
