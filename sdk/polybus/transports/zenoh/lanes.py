"""Outgoing samples of one connection: a queue and a thread per priority, because a write to Zenoh may block for seconds.

A stalled reader blocks only the priority of its messages. While a full priority makes progress, the bus is asked to pause; a
stalled one drops and counts the excess, so that the others go on.
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
"""Samples or bytes of one priority that may wait before the bus is asked to pause; it resumes below half."""
MOST_BYTES: Final = 16 * 1024 * 1024
MOST_SAMPLES: Final = 4096
"""Samples or bytes of one priority that may wait before new ones are dropped."""


class Lane:
    """One priority.

    Args:
        level: Its number.
        put: Writes a sample; may block, raises nothing.
        eased: Called from the lane's thread when it is no longer `full`.
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
        return self._bytes

    @property
    def full(self) -> bool:
        """True if the bus should pause, and the lane makes progress."""
        return self._full and not self.stalled

    @property
    def stalled(self) -> bool:
        """True if nothing was written since the last call of `look`, although a sample waited then."""
        return self._running and self._written == self._written_before

    def look(self) -> None:
        """Remember the progress so far, for `stalled`."""
        self._written_before = self._written if self._running else -1

    def add(self, sample: Sample) -> bool:
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
        if self._executor is None:  # its thread ends with the interpreter, even if the connection is never closed
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
        if self._executor is None:
            done()
        else:
            self._executor.submit(done)

    def drop(self) -> int:
        """Drop waiting samples, end the thread after its current write, and return the number dropped."""
        with self._lock:
            count = len(self._samples)
            self._samples.clear()
            self._bytes = 0
        if self._executor is not None:
            self._executor.shutdown(wait=False)
        return count


class Lanes:
    __slots__ = ("_lanes",)

    def __init__(self, put: Callable[[Sample], None], eased: Callable[[], None]) -> None:
        self._lanes: Final = tuple(Lane(level, put, eased) for level in range(LEVELS))

    def add(self, sample: Sample) -> bool:
        return self._lanes[sample.level].add(sample)

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for lane in self._lanes)

    @property
    def full(self) -> bool:
        return any(lane.full for lane in self._lanes)

    def look(self) -> None:
        for lane in self._lanes:
            lane.look()

    def flush(self, done: Callable[[], None]) -> None:
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
        return sum(lane.drop() for lane in self._lanes)
