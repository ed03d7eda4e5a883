"""Shares of reading: how much is read of a connection before others have their turn.

A turn of the event loop reads from all connections that have something to say. If each were read as far as it goes, one turn
beside two hundred that send as fast as they can took a second, and another peer's request takes some turns. So those that
fill what is read of them share one ration; the others, and one that is alone, do not notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from anyio.lowlevel import RunVar

RATION: Final = 128 * 1024
"""Bytes that one turn of the event loop reads of all that have so much to say. As small requests they keep it some 70 ms."""
LEAST: Final = 2 * 1024
"""Bytes that are read of each connection, however many there are."""


class Rations:
    """Of one event loop.

    Args:
        call_soon: Calls a function in the next turn.
    """

    __slots__ = ("_call_soon", "_hungry", "_read", "_share", "size")

    def __init__(self, call_soon: Callable[..., Any]) -> None:
        self._call_soon = call_soon
        self._hungry = 0
        self._read = 0
        self._share = RATION
        self.size: int = RATION
        """Bytes that the next read may bring."""

    def filled(self, size: int, *, again: bool = False) -> None:
        """A read has brought as much as it might.

        Args:
            size: Bytes.
            again: Of a connection that has done so in this turn already.
        """
        if not self._hungry:
            self._call_soon(self._next_turn)
        if not (again and self._hungry):  # with TLS, turns may end between what uvloop has read in one
            self._hungry += 1
        self._read += size
        self.size = max(LEAST, min(self._share, RATION - self._read))

    def enough(self, size: int) -> bool:
        """True if a connection of which so much was read in this turn waits for the next."""
        return size >= self._share or self.size <= LEAST

    def _next_turn(self) -> None:
        self.size = self._share = max(LEAST, RATION // self._hungry)
        self._hungry = self._read = 0


# Per event loop, not per process: loops in several threads read at the same time.
_here: RunVar[Rations] = RunVar("polybus rations")


def rations_here(call_soon: Callable[..., Any]) -> Rations:
    """Shares of the running event loop."""
    rations = _here.get(None)
    if rations is None:
        _here.set(rations := Rations(call_soon))
    return rations
