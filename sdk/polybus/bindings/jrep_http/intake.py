"""Payloads that have come over HTTP, read in pieces: Errai's ends put all that waits into one, however much that is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import anyio
import anyio.lowlevel

from ..._util.json_arrays import cut
from ...plugins import Host


class Intake:
    """Payloads that are still to be read, in order. A short payload is read at once, unless a long one is before it.

    Args:
        give: Takes a payload, or a piece of a long one.
    """

    def __init__(self, host: Host, give: Callable[[bytes], None]) -> None:
        self._host = host
        self._give = give
        self._unread: deque[bytes] = deque()
        self._bytes = 0
        self._reading = False
        self._full = False
        self._changed = anyio.Event()

    @property
    def size(self) -> int:
        return self._bytes

    def take(self, payload: bytes) -> None:
        """Read a payload, or let it wait for its turn. Beyond `Limits.payload` nothing waits: it is read at once."""
        pieces = _pieces(payload)
        if not self._unread and len(pieces) == 1:
            self._give(payload)
            return
        self._unread.extend(pieces)
        self._bytes += sum(map(len, pieces))
        while self._bytes > self._host.limits.payload and not self._full:
            self._read_one()
        if not self._reading:
            self._reading = True
            self._host.spawn(self._read)

    def pause(self) -> None:
        """Stop reading: it makes too much that waits to be written."""
        self._full = True
        self._change()

    def resume(self) -> None:
        self._full = False
        self._change()

    def drop(self) -> None:
        self._unread.clear()
        self._bytes = 0
        self._full = False
        self._change()

    async def settled(self) -> None:
        """Wait until all has been read, or until reading on waits for the client to fetch what it has made."""
        while self._unread and not self._full:
            await self._changed.wait()

    async def room(self, size: int) -> bool:
        """Wait until there is room for a payload of this size beside what has not been read; False where it takes too long."""
        limits = self._host.limits
        with anyio.move_on_after(limits.frame_timeout):
            while self._unread and self._bytes + size > limits.payload:
                await self._changed.wait()
            return True
        return False

    async def _read(self) -> None:
        try:
            while self._unread:
                if self._full:
                    await self._changed.wait()
                else:
                    self._read_one()
                    await anyio.lowlevel.checkpoint()
        finally:
            self._reading = False

    def _read_one(self) -> None:
        piece = self._unread.popleft()
        self._bytes -= len(piece)
        self._give(piece)
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _pieces(payload: bytes) -> list[bytes]:
    """Cut a payload. What is no array stays whole: the session judges it, and tells the messages of a broken one apart."""
    if type(payload) is not bytes:
        return [payload]  # an `Offering` has more to it than bytes
    try:
        return cut(payload)
    except (ValueError, RecursionError):
        return [payload]
