"""The states of a link, and the transitions between them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from ...plugins import Closed


class State(enum.Enum):
    CONNECTING = "connecting"
    """There is no connection yet, or its handshake isn't complete."""
    UP = "up"
    CLOSING = "closing"
    """The connection is being closed. If possible, the outbox is written first."""
    FAILING = "failing"
    """The connection is unusable but has not ended yet."""
    DOWN = "down"
    """The connection is lost, and the link is going to reconnect."""
    CLOSED = "closed"


class Change(enum.Enum):
    ATTACHED = "attached"
    READY = "ready"
    """The handshake of the protocol is complete."""
    CLOSE = "close"
    """This side or the session closes the connection."""
    CUT = "cut"
    LOST = "lost"
    """The connection is lost, and the link is going to reconnect."""
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


class Ending(Struct, frozen=True):
    """The end of a connection or a link.

    Attributes:
        returns: True if the link may reconnect, because the application didn't close it.
    """

    why: Closed
    returns: bool = False


def ending_after(before: Ending | None, why: Closed, *, returns: bool = False) -> Ending:
    """Combine two endings. The reason comes from the first, and the link reconnects only if both allow it."""
    return Ending(why, returns) if before is None else Ending(before.why, returns and before.returns)
