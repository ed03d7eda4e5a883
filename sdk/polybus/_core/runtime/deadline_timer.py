"""Arms one timer for all deadlines of a bus, and expires what is overdue."""

from __future__ import annotations

import logging
import math
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from msgspec import Struct

if TYPE_CHECKING:
    from ..._util.event_loop import Loop

logger: logging.Logger = logging.getLogger("polybus")

_AGAIN = 0.1
"""Seconds after which `expire` is called again if it failed."""

_STALE = 64
"""Maximum number of stale entries in the heap of deadlines, beyond the number of valid entries."""

_PRECISION = 0.01
"""Seconds that a deadline may be late, so that one timer is enough for many deadlines."""


class Timed(Protocol):
    def expire(self, now: float) -> float:
        """End overdue work, and return the next deadline."""
        ...


class DeadlineTimer(Struct, eq=False):
    """Calls objects that have deadlines, such as peers and links, when their earliest deadline has passed."""

    loop: Loop
    watched: dict[Timed, float] = {}
    """Earliest deadline of each object."""
    _owners: dict[int, Timed] = {}
    _due: list[tuple[float, int]] = []
    """Heap of deadlines and owner ids. Ids do not keep the owners alive, so that some entries may be stale."""
    _armed: float = math.inf
    _alarm: Any = None

    def watch(self, owner: Timed, deadline: float) -> None:
        """Call `owner` when `deadline` has passed, or earlier if the owner has an earlier deadline."""
        watched, due = self.watched, self._due
        if deadline < watched.get(owner, math.inf):
            watched[owner] = deadline
            self._owners[id(owner)] = owner
            heappush(due, (deadline, id(owner)))
            if len(due) > 2 * len(watched) + _STALE:
                due[:] = [(when, id(one)) for one, when in watched.items()]
                heapify(due)
            self._arm(deadline)

    def forget(self, owner: Timed) -> None:
        self.watched.pop(owner, None)
        self._owners.pop(id(owner), None)

    def _arm(self, when: float) -> None:
        if when < self._armed - _PRECISION:
            self._armed = when
            if self._alarm is not None:
                self.loop.wake(self._alarm)

    async def run(self) -> None:
        while True:
            self._alarm = self.loop.waiter()
            delay = self._armed - self.loop.time()
            if delay > 0:
                with anyio.move_on_after(delay + _PRECISION / 2):
                    await self._alarm
            if self._armed <= self.loop.time():
                self.expire_overdue()

    def expire_overdue(self) -> None:
        """Call the owners of overdue deadlines, and arm the timer for the next deadline."""
        now, watched, due = self.loop.time(), self.watched, self._due
        self._armed = math.inf
        ready = []
        while due and due[0][0] <= now:
            when, place = heappop(due)
            owner = self._owners.get(place)
            if owner is not None and watched.get(owner) == when:
                watched[owner] = math.inf
                ready.append(owner)
        for owner in ready:
            if owner not in watched:
                continue  # removed by an earlier owner
            try:
                again = owner.expire(now)
            except Exception:  # a bug in polybus or a plugin must not affect other deadlines
                logger.exception("a deadline of %r could not be kept; it is tried again", owner)
                again = now + _AGAIN
            if watched.get(owner) == math.inf and again == math.inf:
                self.forget(owner)
            elif owner in watched:
                self.watch(owner, again)
        self._arm(due[0][0] if due else math.inf)
