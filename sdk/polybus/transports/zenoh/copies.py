"""Copies of one sample: Zenoh calls each subscriber that lets it through, one behind another, in one thread.

Which ones that are is settled before the first is called. So copies are told by what was called last in their thread, whatever
filters come and go meanwhile.
"""

from __future__ import annotations

from threading import get_ident
from typing import Final

from attrs import define, field

from ...plugins import Sample

MOST_THREADS: Final = 64
"""Threads of Zenoh whose last sample is known; it has a few."""


@define(eq=False)
class _Latest:
    """The last sample of a thread: its key, its attachment, and the filters that it came by."""

    key: str
    attachment: bytes | None
    came_by: set[str] = field(factory=set)


class Copies:
    """Tells the first copy of each sample from the others."""

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: dict[int, _Latest] = {}

    @property
    def threads(self) -> int:
        """Threads whose last sample is known."""
        return len(self._latest)

    def is_first(self, expression: str, sample: Sample) -> bool:
        """True of the first copy. To be called in the thread in which Zenoh calls.

        Args:
            expression: The filter that it comes by. By each of them a sample comes once: so one that is sent again is not lost.
            sample: The sample, which is known by its key and its attachment.
        """
        thread = get_ident()
        latest = self._latest.get(thread)
        if latest is None:
            if len(self._latest) >= MOST_THREADS:
                self._latest.clear()  # of threads that have ended; at worst a copy comes twice
        elif expression not in latest.came_by and sample.key == latest.key and sample.attachment == latest.attachment:
            latest.came_by.add(expression)
            return False
        self._latest[thread] = _Latest(sample.key, sample.attachment, {expression})
        return True
