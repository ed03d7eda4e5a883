"""The outgoing samples of one connection: a queue and a thread for each priority, as a write to Zenoh may block for seconds.

A reader that stands still blocks the priority in which it is written to, and no other. As long as a priority goes on, the bus
is asked to pause; one that does not move drops what is too much, and counts it, so that the others go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Final

from ...plugins import Sample
from ...plugins.features import LEVELS

HIGH_BYTES: Final = 256 * 1024
HIGH_SAMPLES: Final = 256
"""Samples or bytes of one priority that may wait before the bus is asked to pause; it goes on below a half."""
MOST_BYTES: Final = 16 * 1024 * 1024
MOST_SAMPLES: Final = 4096
"""The same of one priority before what comes is dropped."""


class Lane:
    """One priority.

    Args:
        level: Its number.
        put: Writes a sample; may block. It raises nothing.
        eased: Called from the thread of the lane, when it was `full` and is no more.
    """

    __slots__ = (
        "_bytes", "_eased", "_executor", "_full", "_level", "_lock", "_put", "_running", "_samples", "_written",
        "_written_before",
    )  # fmt: skip

    def __init__(self, level: int, put: Callable[[Sample], None], eased: Callable[[], None]) -> None:
        self._level: Final = level
        self._put: Final = put
        self._eased: Final = eased
        self._executor: ThreadPoolExecutor | None = None
        self._lock: Final = Lock()
        self._samples: deque[Sample] = deque()
        self._bytes = 0
        self._running = False
        self._full = False
        self._written = 0
        self._written_before = -1

    @property
    def waiting(self) -> int:
        """Bytes that wait."""
        return self._bytes

    @property
    def full(self) -> bool:
        """True if so much waits that the bus should pause, and it is being written."""
        return self._full and not self.stalled

    @property
    def stalled(self) -> bool:
        """True if nothing was written since the last call of `look`, although something waited then."""
        return self._running and self._written == self._written_before

    def look(self) -> None:
        """See later whether it goes on."""
        self._written_before = self._written if self._running else -1

    def add(self, sample: Sample) -> bool:
        """Write a sample when its turn comes. False if there is no room for it."""
        size = sample.size
        with self._lock:
            if len(self._samples) >= MOST_SAMPLES or (self._samples and self._bytes + size > MOST_BYTES):
                return False
            self._samples.append(sample)
            self._bytes += size
            self._full = self._full or self._bytes > HIGH_BYTES or len(self._samples) > HIGH_SAMPLES
            if self._running:
                return True
            self._running = True
        if self._executor is None:  # its thread ends with the interpreter, also where nobody closes the connection
            self._executor = ThreadPoolExecutor(1, f"polybus-zenoh-{self._level}")
        self._executor.submit(self._write)
        return True

    def _write(self) -> None:
        while (sample := self._next()) is not None:
            self._put(sample)
            self._written += 1
            if self._full and 2 * self._bytes <= HIGH_BYTES and 2 * len(self._samples) <= HIGH_SAMPLES:
                self._full = False
                self._eased()

    def _next(self) -> Sample | None:
        with self._lock:
            if not self._samples:
                self._running = False
                return None
            sample = self._samples.popleft()
            self._bytes -= sample.size
            return sample

    def flush(self, done: Callable[[], None]) -> None:
        """Call a function when all is written that waits now, in the thread of the lane where there is one."""
        if self._executor is None:
            done()
        else:
            self._executor.submit(done)

    def drop(self) -> int:
        """Drop what waits, and end the thread after what it writes now. Gives how many samples that were."""
        with self._lock:
            count = len(self._samples)
            self._samples.clear()
            self._bytes = 0
        if self._executor is not None:
            self._executor.shutdown(wait=False)
        return count


class Lanes:
    """All priorities."""

    __slots__ = ("_lanes",)

    def __init__(self, put: Callable[[Sample], None], eased: Callable[[], None]) -> None:
        self._lanes: Final = tuple(Lane(level, put, eased) for level in range(LEVELS))

    def add(self, sample: Sample) -> bool:
        """Write a sample. False if there is no room for it: it is dropped."""
        return self._lanes[sample.level].add(sample)

    @property
    def waiting(self) -> int:
        """Bytes that wait."""
        return sum(lane.waiting for lane in self._lanes)

    @property
    def full(self) -> bool:
        """True if the bus should pause."""
        return any(lane.full for lane in self._lanes)

    def look(self) -> None:
        """See later whether each goes on."""
        for lane in self._lanes:
            lane.look()

    def flush(self, done: Callable[[], None]) -> None:
        """Call a function when all is written that waits now, in any thread."""
        left, lock = [len(self._lanes)], Lock()

        def one() -> None:
            with lock:
                left[0] -= 1
                last = not left[0]
            if last:
                done()

        for lane in self._lanes:
            lane.flush(one)

    def drop(self) -> int:
        """Drop what waits; gives how many samples that were."""
        return sum(lane.drop() for lane in self._lanes)
