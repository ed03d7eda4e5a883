"""The places of a handler: how many of its calls run at once, and which of the others comes next."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from attrs import define, field

from ..._util.priority_queue import PriorityQueue


class PlacedCall(Protocol):
    """A call of a handler that takes only so many at once."""

    @property
    def party(self) -> tuple[object, object]:
        """Owner of the call: a network address, and one of its links."""
        ...

    def proceed(self) -> None:
        """Begin, or wait for a place of its peer: the handler has one now."""


@define(eq=False)
class Places:
    """The places of one handler of one bus. A call takes one when it is about to begin, never while it waits for anything else.

    Places that become free go round among those who ask, so that one of them who asks for much waits for himself.
    """

    most: int
    _taken: set[PlacedCall] = field(factory=set, init=False)
    _waiting: OrderedDict[object, PriorityQueue[PlacedCall]] = field(factory=OrderedDict, init=False)

    @property
    def full(self) -> bool:
        """True if no place is free."""
        return len(self._taken) >= self.most

    def take(self, call: PlacedCall) -> bool:
        """Take a place, if there is one."""
        if len(self._taken) >= self.most:
            return False
        self._taken.add(call)
        return True

    def wait(self, call: PlacedCall, level: int = 0, *, first: bool = False) -> None:
        """Let a call wait for a place; `first` is for one whose turn it was already."""
        party = call.party[1]
        queue = self._waiting.get(party)
        if queue is None:
            queue = self._waiting[party] = PriorityQueue()
        if first:
            queue.appendleft(call, level)
        else:
            queue.append(call, level)

    def waits(self, call: PlacedCall) -> bool:
        """Check whether a call waits here."""
        queue = self._waiting.get(call.party[1])
        return queue is not None and call in queue

    def drop(self, call: PlacedCall) -> bool:
        """Take out a call that waits here. False where it does not."""
        party = call.party[1]
        queue = self._waiting.get(party)
        if queue is None or not queue.remove(call):
            return False
        if not queue:
            del self._waiting[party]
        return True

    def leave(self, call: PlacedCall) -> None:
        """Give a place back, if the call has one, and let the next begin."""
        if call not in self._taken:
            return
        self._taken.discard(call)
        # One that has no place of its peer yet takes none here, so another has its turn.
        while self._waiting and len(self._taken) < self.most:
            party, queue = next(iter(self._waiting.items()))
            following = queue.popleft()
            if queue:
                self._waiting.move_to_end(party)
            else:
                del self._waiting[party]
            following.proceed()
