"""Message ids: 65,536 of them in each direction of a connection (behind a broker: of a client), so they come round again."""

from __future__ import annotations

from typing import Any, Final

from ...errors import QueueFull
from .wire import IDS

REST: Final = 60.0
"""Seconds that the id of an abandoned request rests, if its answer does not come before."""

NUMBER_SHIFT: Final = 48
"""Position of the party's number in a serial."""

_MASK: Final = IDS - 1
_ACTION: Final = 0xFFFFFFFF


class Party:
    """The other side as one end sees it: the ids that are taken, and whether it is a polybus.

    The key of a request is the negative of a serial number, so it is never given twice and differs from all ids of the other
    side; its low 16 bits are the id on the wire. `number` tells the parties of a connection apart: it is in their keys.
    """

    __slots__ = ("_serial", "asked", "key", "notice", "number", "ours", "pending", "resting")

    def __init__(self, key: Any = None, number: int = 0) -> None:
        self.key: Any = key
        self.number: int = number
        self._serial = number << NUMBER_SHIFT
        self.pending: dict[int, int] = {}
        """Ids that are taken: ``serial << 32 | action``."""
        self.resting: dict[int, float] = {}
        """Ids of requests that were given up, and when they are free at the latest; the earliest first."""
        self.ours: bool | None = None
        """True if the peer is a polybus; None while it has not been asked."""
        self.asked: int = 0
        """The key of the session's own `_polybus.hello`."""
        self.notice: tuple[Any, float | None] | None = None
        """The id and the deadline of the request that is announced as the next."""

    def next_id(self, now: float) -> int:
        """The serial of the next request, its id in the low 16 bits. May raise `QueueFull`: all ids are taken."""
        pending = self.pending
        serial = self._serial + 1
        if serial & _MASK in pending:
            if len(pending) >= IDS:
                self.wake(now)
            if len(pending) >= IDS:
                resting = len(self.resting)
                raise QueueFull(
                    f"all {IDS} message ids of CSB are taken: {IDS - resting} requests wait for their answer and {resting} ids "
                    f"rest after a timeout or cancel (for {REST:g} s): wait for answers, or open another connection"
                )
            while serial & _MASK in pending:
                serial += 1
        self._serial = serial
        return serial

    def find(self, id: int) -> int | None:
        """The key of the request that an answer belongs to. Some peers do not echo the action; they send 0 in its place."""
        entry = self.pending.get(id & _MASK)
        if entry is None:
            return None
        action = id >> 16
        return -(entry >> 32) if action == entry & _ACTION or action == 0 else None

    def answered(self, key: int) -> None:
        """The id of this key is free."""
        number = -key & _MASK
        del self.pending[number]
        if self.resting:
            self.resting.pop(number, None)

    def action_of(self, key: int) -> int | None:
        """Action to which the request of a key went, if its id still belongs to it."""
        entry = self.pending.get(-key & _MASK)
        return entry & _ACTION if entry is not None and entry >> 32 == -key else None

    def rest(self, key: int, now: float) -> None:
        """Let an id rest whose answer is not wanted any more: until it comes, a new request must not have its id."""
        number = -key & _MASK
        if self.action_of(key) is not None and number not in self.resting:
            self.resting[number] = now + REST

    def wake(self, now: float) -> None:
        """Ids that have rested long enough are free."""
        for number, when in list(self.resting.items()):
            if when > now:
                break
            del self.resting[number]
            del self.pending[number]
