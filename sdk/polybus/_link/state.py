"""The states of a link."""

from __future__ import annotations

import enum

__all__ = ["State"]


class State(enum.Enum):
    """Where a link stands."""

    CONNECTING = "connecting"
    UP = "up"
    DOWN = "down"
    CLOSED = "closed"
