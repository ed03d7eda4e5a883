"""The pulling of a durable handler, without I/O: how many publications are asked for, and what becomes of it (ADR-37 of NATS).

A worker asks for as many as it has free places. What it has asked for may come, may not come in time (408), and may be
forgotten with a server: then the heartbeats end that the engine sends while it waits. An answer that says anything else than
that time is over means that the consumer is looked for again.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Final

from attrs import define, field

EXPIRES: Final = 30.0
"""Seconds for which publications are asked for."""
HEARTBEAT: Final = 2.0
"""Seconds between signs of life while nothing comes.

What was asked for of a server that is killed is forgotten, and only their end tells that: so long a worker stands still."""
SILENCE: Final = 2 * HEARTBEAT + 1.0
"""Seconds without a sign after which what was asked for is forgotten."""
_PAUSE: Final = 1.0
"""Seconds until a consumer is looked for again."""


class PullState(enum.Enum):
    """States of pulling."""

    OFF = "off"
    """There is no link, or no more is to come."""
    LOST = "lost"
    """The consumer is to be looked for, or made."""
    FULL = "full"
    """Nothing is asked for: all places are taken."""
    ASKING = "asking"


class PullEvent(enum.Enum):
    """Events that move it on."""

    UP = "up"
    """The link is there."""
    DOWN = "down"
    FOUND = "found"
    """The consumer is there."""
    ASKED = "asked"
    SERVED = "served"
    """All that was asked for has come, or does not come any more."""
    REFUSED = "refused"
    """The engine says that something is wrong."""
    STOP = "stop"


_OFF, _LOST, _FULL, _ASKING = PullState.OFF, PullState.LOST, PullState.FULL, PullState.ASKING
_ALWAYS: Final = {PullEvent.DOWN: _OFF, PullEvent.STOP: _OFF, PullEvent.UP: _LOST}

TRANSITIONS: Final[Mapping[PullState, Mapping[PullEvent, PullState]]] = {
    # What is still on its way when pulling has ended changes nothing.
    _OFF: {**dict.fromkeys(PullEvent, _OFF), PullEvent.UP: _LOST},
    _LOST: {**dict.fromkeys(PullEvent, _LOST), **_ALWAYS, PullEvent.FOUND: _FULL},
    _FULL: {**dict.fromkeys(PullEvent, _FULL), **_ALWAYS, PullEvent.ASKED: _ASKING, PullEvent.REFUSED: _LOST},
    _ASKING: {**dict.fromkeys(PullEvent, _ASKING), **_ALWAYS, PullEvent.SERVED: _FULL, PullEvent.REFUSED: _LOST},
}


@define(eq=False)
class Pull:
    """The pulling of one handler in one process.

    Attributes:
        places: Publications that it takes at once.
    """

    places: int
    state: PullState = field(default=PullState.OFF, init=False)
    asked: int = field(default=0, init=False)
    """Publications that were asked for and have not come."""
    _began: float = field(default=0.0, init=False)
    """The time at which was asked when nothing was asked for."""
    _came: bool = field(default=False, init=False)
    """True where something has come since."""
    _heard: float = field(default=0.0, init=False)
    _look_at: float = field(default=0.0, init=False)
    """The time at which a lost consumer is looked for."""

    def _move(self, event: PullEvent) -> None:
        self.state = TRANSITIONS[self.state][event]
        if self.state is not PullState.ASKING:
            self.asked = 0

    def up(self, now: float) -> None:
        """Begin, or begin anew on another connection."""
        self._move(PullEvent.UP)
        self._look_at = now

    def down(self) -> None:
        """Wait for the link."""
        self._move(PullEvent.DOWN)

    def stop(self) -> None:
        """Ask for nothing more."""
        self._move(PullEvent.STOP)

    def found(self) -> None:
        """Take note that the consumer is there."""
        self._move(PullEvent.FOUND)

    def refused(self, now: float) -> None:
        """Take note that the engine refuses: look for the consumer again, in a moment."""
        self._move(PullEvent.REFUSED)
        self._look_at = now + _PAUSE

    def looks(self, now: float) -> bool:
        """Tell whether the consumer is to be looked for now."""
        return self.state is PullState.LOST and now >= self._look_at

    def ask(self, taken: int, now: float) -> int:
        """Give how many publications to ask for now, where `taken` places are taken."""
        if self.state not in (PullState.FULL, PullState.ASKING):
            return 0
        more = self.places - taken - self.asked
        if more <= 0 or (self.asked and more < self.places // 2):  # few questions for many, or the engine has too many
            return 0
        if not self.asked:
            self._began, self._came = now, False
        self._move(PullEvent.ASKED)
        self.asked += more
        self._heard = now
        return more

    def came(self, now: float) -> None:
        """Take note of a publication."""
        self._heard = now
        self._came = True
        self._served(1)

    def expired(self, left: int | None, now: float) -> None:
        """Take note that so many of what was asked for do not come any more, or where that is not said, all.

        Where nothing has come, and that is said long before its time, it is a refusal: there is no use in asking again at once.
        """
        if not self._came and now - self._began < EXPIRES / 2:
            self.refused(now)
            return
        self._heard = now
        self._served(self.asked if left is None else left)

    def _served(self, count: int) -> None:
        self.asked = max(self.asked - count, 0)
        if not self.asked:
            self._move(PullEvent.SERVED)

    def beat(self, now: float) -> None:
        """Take note of a sign of life."""
        self._heard = now

    def tick(self, now: float) -> None:
        """Give up what was asked for where no sign has come for long."""
        if self.state is PullState.ASKING and now - self._heard >= SILENCE:
            self._move(PullEvent.REFUSED)
            self._look_at = now

    @property
    def due(self) -> float:
        """The time of the next `tick`, or at which the consumer is looked for; infinite for never."""
        if self.state is PullState.ASKING:
            return self._heard + SILENCE
        return self._look_at if self.state is PullState.LOST else math.inf
