"""What the bus keeps for somebody, in bytes: one account for whoever can make it keep something, and one total over all.

Whatever waits (requests, items, publications, messages of strangers) is held here and released where it goes; nothing else
counts bytes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .message import Message
    from .runtime import Runtime

__all__ = ["OVERHEAD", "Account", "cost"]

OVERHEAD = 200
"""Bytes that a waiting message costs besides its body and headers."""


def cost(message: Message) -> int:
    """What a message that waits costs."""
    headers = message.headers
    size = OVERHEAD + (len(message.raw) if message.raw is not None else 0)
    return size + sum(map(len, headers.values())) if headers else size


class Account:
    """Bytes that are kept for one owner, within its own limit, within `Limits.total_bytes` and, where it is part of another
    account, within that one."""

    __slots__ = ("_part_of", "_runtime", "held", "limit")

    def __init__(self, runtime: Runtime, limit: float = math.inf, part_of: Account | None = None) -> None:
        self._runtime = runtime
        self._part_of = part_of
        self.limit: float = limit
        self.held: int = 0

    def has_room(self, size: int) -> bool:
        """Whether so much more fits. An owner that keeps nothing yet may always keep one thing, as far as the total allows."""
        if self.held and self.held + size > self.limit:
            return False
        if self._part_of is not None:
            return self._part_of.has_room(size)
        return self._runtime.buffered + size <= self._runtime.limits.total_bytes

    def hold(self, size: int) -> bool:
        """Keep so much more. False, and nothing is kept, if it does not fit."""
        if self._part_of is None:  # the usual case, in one piece: this is done for every message that waits
            runtime, held = self._runtime, self.held + size
            if (self.held and held > self.limit) or runtime.buffered + size > runtime.limits.total_bytes:
                return False
            self.held = held
            runtime.buffered += size
            return True
        if not self.has_room(size):
            return False
        self.charge(size)
        return True

    def charge(self, size: int) -> None:
        """Keep so much more, whether it fits or not."""
        self.held += size
        if self._part_of is not None:
            self._part_of.charge(size)
        else:
            self._runtime.buffered += size

    def release(self, size: int) -> None:
        """So much is kept no more."""
        self.held -= size
        if self._part_of is None:
            self._runtime.buffered -= size
        else:
            self._part_of.release(size)
