"""The states of a link, as a table."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from ...plugins import Closed


class State(enum.Enum):
    CONNECTING = "connecting"
    """The first connection or a handshake is outstanding."""
    UP = "up"
    CLOSING = "closing"
    """Goodbye is sent; the outbox is still written if possible."""
    FAILING = "failing"
    """The connection is unusable but not gone: nothing is written."""
    DOWN = "down"
    """The connection is gone, and the link will reconnect."""
    CLOSED = "closed"


class Change(enum.Enum):
    ATTACHED = "attached"
    READY = "ready"
    """The handshake of the protocol is over."""
    CLOSE = "close"
    """This side says goodbye, or the protocol requires it."""
    CUT = "cut"
    LOST = "lost"
    """The connection is gone, and the link will reconnect."""
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
    """The current or final end of a link.

    Attributes:
        returns: True if the application did not ask for the end: a link that this bus opened reconnects.
    """

    why: Closed
    returns: bool = False


def ending_after(before: Ending | None, why: Closed, *, returns: bool = False) -> Ending:
    """Merge another end: the first gives the reason, and the link reconnects only if all allow it."""
    return Ending(why, returns) if before is None else Ending(before.why, returns and before.returns)
