"""Memory for the running requests of a peer: their large bodies, and their expected answers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ...message import Kind
from ..runtime.memory_budgets import cost

if TYPE_CHECKING:
    from ..rpc.call import Call
    from .party import PeerParty

_LOOK: Final = 0.01
"""Minimum seconds between two checks of calls with an unknown answer size."""
_WAITS: Final = 4
"""Number of consecutive checks that must find a call waiting before it counts as idle. Unlike a time, this works on a busy
machine as well, because the call could run between two checks."""
_POLLS: Final = 16
"""Number of checks in total that must find a call waiting before it counts as idle, even if it ran in between, as when
polling."""


class CallMemory:
    __slots__ = ("_looked", "_peer", "answers", "bodies")

    def __init__(self, peer: PeerParty) -> None:
        self._peer = peer
        self.bodies: dict[Call, int] = {}
        """Sizes of large bodies."""
        self.answers: dict[Call, int] = {}
        """Bytes reserved for large answers."""
        self._looked = -math.inf
        """Time of the last check."""

    def charge_body(self, call: Call, *, surely: bool = False) -> bool:
        """Charge a large body that a handler keeps. Returns False if there is no room, unless `surely` is set."""
        size, bodies = cost(call.message), self._peer.link.bodies
        if surely:
            bodies.charge(size)
        elif not bodies.hold(size):
            return False
        self.bodies[call] = size
        return True

    def reserve_answer(self, call: Call) -> bool:
        """Reserve memory for a call's expected answer without charging it. Returns False if the peer has too much to read."""
        link = self._peer.link
        if call.message.kind is not Kind.REQUEST or link.inner:  # the engine reads the answers to all nodes
            return True
        runtime = link.runtime
        now, most = runtime.time(), 2 * runtime.limits.outbox_bytes
        size, until = call.handler.answers.expect(most, now)
        if not size:
            return True
        unread = link.unread
        held = unread + sum(self.answers.values())
        if held and held + size > most:
            left, may_wait = self._look(most, now, guess=call.handler.answers.weight < 0)
            if unread + left and unread + left + size > most:
                link.stalled[self._peer.inbound] = None
                if may_wait and unread + size <= most:
                    until = min(until, self._looked + _LOOK)
                self._peer.watch(until)
                return False
        self.answers[call] = size
        return True

    def _look(self, most: int, now: float, *, guess: bool) -> tuple[int, bool]:
        """Check the calls with a reservation. Return the bytes to reserve, and whether another check may find fewer.

        A call that waits doesn't need a reservation while the size of its answer is unknown. `guess` is True if the size of the
        next answer is unknown as well.
        """
        again = now >= self._looked + _LOOK
        if again:
            self._looked = now
        left, may_wait = 0, False
        for call in self.answers:
            answers = call.handler.answers
            size = self.answers[call] = answers.expect(most, now)[0]
            if again and call.scope is not None:
                call.waited += 1
                call.looks += 1
            if not guess and answers.weight >= 0:
                left += size
            elif call.waited < _WAITS and call.looks < _POLLS:
                left += size
                may_wait = True
        return left, may_wait

    def release_answer(self, call: Call) -> None:
        self.answers.pop(call, None)

    def release(self, call: Call) -> None:
        self.release_answer(call)
        if size := self.bodies.pop(call, 0):
            self._peer.link.bodies.release(size)
