"""The incoming samples of one connection: from Zenoh's threads to the event loop in batches, by a bounded queue a priority."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Final

from attrs import define, field

from ...plugins import Sample
from ...plugins.fabrics import LEVELS

MOST_SAMPLES: Final = 16_384
MOST_BYTES: Final = 16 * 1024 * 1024
"""Samples and bytes of one priority that may wait; one sender has half of that, so that a loud one leaves room for others."""
BATCH: Final = 64
BATCH_BYTES: Final = 64 * 1024
"""Samples and bytes that are handed on in one turn of the event loop."""


@define(eq=False)
class _Queue:
    """One priority."""

    samples: deque[tuple[str, Sample]] = field(factory=deque)
    """Each with its sender."""
    bytes: int = 0
    sent: dict[str, tuple[int, int]] = field(factory=dict)
    """Samples and bytes that wait, by sender."""

    def add(self, sender: str, sample: Sample) -> bool:
        """Let a sample wait. False if there is no room."""
        size = sample.size
        count, held = self.sent.get(sender, (0, 0))
        if self.samples and (
            len(self.samples) >= MOST_SAMPLES
            or self.bytes + size > MOST_BYTES
            or 2 * count >= MOST_SAMPLES
            or (count and 2 * (held + size) > MOST_BYTES)
        ):
            return False
        self.samples.append((sender, sample))
        self.bytes += size
        self.sent[sender] = count + 1, held + size
        return True

    def take(self) -> Sample:
        """Take the oldest."""
        sender, sample = self.samples.popleft()
        size = sample.size
        self.bytes -= size
        count, held = self.sent[sender]
        if count > 1:
            self.sent[sender] = count - 1, held - size
        else:
            del self.sent[sender]
        return sample


class Inbox:
    """Samples on their way to the event loop.

    Args:
        wake: Called from any thread, when the first of several has come: `take` is to be called in the loop.
    """

    __slots__ = ("_lock", "_lost", "_queues", "_wake", "_woken")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake: Final = wake
        self._lock: Final = Lock()
        self._queues: Final = tuple(_Queue() for _ in range(LEVELS))
        self._lost = 0
        self._woken = False

    def add(self, sender: str, sample: Sample) -> None:
        """Take in a sample, from any thread.

        Args:
            sender: The name of whoever has sent it.
            sample: The sample.
        """
        with self._lock:
            if not self._queues[sample.level].add(sender, sample):
                self._lost += 1
            if self._woken:
                return
            self._woken = True
        self._wake()

    def take(self) -> tuple[list[Sample], bool]:
        """Take the next batch, the most urgent first.

        Returns:
            The batch, and whether there is more: then `take` is to be called again, and nobody is woken for it.
        """
        batch: list[Sample] = []
        size = 0
        with self._lock:
            for queue in reversed(self._queues):
                while queue.samples and len(batch) < BATCH and size < BATCH_BYTES:
                    batch.append(queue.take())
                    size += batch[-1].size
            self._woken = more = any(queue.samples for queue in self._queues)
        return batch, more

    def lost(self) -> int:
        """Count of the samples that were dropped since the last call."""
        with self._lock:
            lost, self._lost = self._lost, 0
        return lost

    @property
    def waiting(self) -> int:
        """Bytes that wait."""
        return sum(queue.bytes for queue in self._queues)

    def clear(self) -> None:
        """Drop all."""
        with self._lock:
            for queue in self._queues:
                queue.samples.clear()
                queue.sent.clear()
                queue.bytes = 0
