"""The states of a link, as a table."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from attrs import frozen

from ...plugins import Closed


class State(enum.Enum):
    """A state of a link."""

    CONNECTING = "connecting"
    """Its first connection is to come, or a handshake is under way."""
    UP = "up"
    CLOSING = "closing"
    """Goodbye has been said; what waits is still written, as far as the connection takes it."""
    FAILING = "failing"
    """The connection is of no use any more, but not gone: nothing is written."""
    DOWN = "down"
    """The connection is gone, and the link comes back."""
    CLOSED = "closed"


class Change(enum.Enum):
    """A change of a link's connection."""

    ATTACHED = "attached"
    READY = "ready"
    """The handshake of the protocol is over."""
    CLOSE = "close"
    """Goodbye is said, from this side or because the protocol wants it."""
    CUT = "cut"
    LOST = "lost"
    """The connection is gone, and another one will be made."""
    ENDED = "ended"


_UP, _CLOSING, _FAILING = State.UP, State.CLOSING, State.FAILING
_ATTACHED, _READY, _CLOSE, _CUT = Change.ATTACHED, Change.READY, Change.CLOSE, Change.CUT
_GONE: Final = {Change.LOST: State.DOWN, Change.ENDED: State.CLOSED}

TRANSITIONS: Final[Mapping[State, Mapping[Change, State]]] = {
    State.CONNECTING: {_ATTACHED: State.CONNECTING, _READY: _UP, _CLOSE: _FAILING, _CUT: _FAILING, **_GONE},
    State.UP: {_ATTACHED: State.CONNECTING, _READY: _UP, _CLOSE: _CLOSING, _CUT: _FAILING, **_GONE},
    State.CLOSING: {_ATTACHED: State.CONNECTING, _READY: _CLOSING, _CLOSE: _CLOSING, _CUT: _FAILING, **_GONE},
    State.FAILING: {_ATTACHED: State.CONNECTING, _READY: _FAILING, _CLOSE: _FAILING, _CUT: _FAILING, **_GONE},
    State.DOWN: {_ATTACHED: State.CONNECTING, _READY: State.DOWN, _CLOSE: State.DOWN, _CUT: State.DOWN, **_GONE},
    State.CLOSED: dict.fromkeys(Change, State.CLOSED),
}


@frozen
class Ending:
    """The end that a link is coming to, or has come to.

    Attributes:
        returns: True where the application has not asked for the end: a link that this bus has opened comes back.
    """

    why: Closed
    returns: bool = False


def ending_after(before: Ending | None, why: Closed, *, returns: bool = False) -> Ending:
    """The end of a link when another reason joins what has begun: the first says why, and all must let it come back."""
    return Ending(why, returns) if before is None else Ending(before.why, returns and before.returns)
