"""Interface of a byte connection, for all its drivers, and what they have in common.

A **wire** is one established byte connection; a **wire user** is what stands on it: the handshake at first, then
the transport. There are two drivers: `asyncio_wire` (callbacks) and `pump_wire` (two tasks over any anyio byte stream).
Bytes are written by the driver alone, so that no cancellation of user code can tear a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from anyio.lowlevel import RunVar

from ..sockets import Signs

BURST: Final = 2 * 1024
"""Bytes that are written before the turn of the event loop ends, so that both ends work at the same time."""
BURST_PARTS: Final = 8
"""So many frames at least, if they are not large together: to write every frame of a few KiB alone, and wake the peer for each,
costs three times the processor time where the peer keeps up."""

GATHERED: Final = 16 * 1024
"""The same where the peer only passes on what it gets: it has little to do, and to wake it for a part of a burst costs this
process a third of what it does itself for small requests."""


class WireUser(Protocol):
    """Interface that a wire calls, always from the event loop and never from inside one of the wire's own methods, except for
    `pause_writing`, which `Wire.write` may call."""

    def data_received(self, data: bytes) -> None:
        """A chunk has come in."""

    def eof_received(self) -> None:
        """The peer will send nothing more. The wire closes itself when what waits is written."""

    def wire_lost(self, error: Exception | None) -> None:
        """The last call. `error` is None after an orderly end."""

    def pause_writing(self) -> None:
        """More than `HIGH_WATER` bytes wait."""

    def resume_writing(self) -> None:
        """Less than `LOW_WATER` bytes wait."""


class Wire(Protocol):
    """One established byte connection. It begins paused and without a user."""

    @property
    def address(self) -> str:
        """Of the other end: ``127.0.0.1:40123``, ``[::1]:40123``."""
        ...

    def attach(self, user: WireUser) -> None:
        """Call this user from now on; another may follow. A loss that has already happened is told in the next turn."""

    def write(self, data: bytes) -> None:
        """Hand over bytes; those of one turn of the event loop leave together. After the end: ignored."""

    shut: bool
    """Set by the user when it has said its last words: `write_first` takes nothing more."""

    def write_first(self, data: bytes, turn: int) -> None:
        """Hand over bytes that may leave at once; what else is written in the same turn still leaves together.

        `turn` is a number of the current turn of the event loop. To many connections in one turn, this costs less than a call
        back for each.
        """

    alone: bool
    """Set by the user while it writes what is all that there is to write in this turn: it leaves at once."""

    burst: int
    """`BURST`, or set by the user to `GATHERED`."""

    def backlog(self) -> int:
        """Bytes that the operating system has not taken."""
        ...

    def taken(self) -> int:
        """Bytes that it has taken since the beginning."""
        ...

    def signs(self) -> Signs | None:
        """Facts that the operating system knows of the other end, where it tells."""

    def keep_short(self) -> None:
        """Let the operating system take little beyond what the peer has room for."""

    def pause_reading(self) -> None:
        """Read nothing more; at most one chunk that was already read is kept back."""

    def resume_reading(self) -> None:
        """Go on reading, first with what was kept back."""

    def hang_up(self) -> None:
        """Write what waits, then close our half and read until the peer closes its own. The user sets the time limit.

        Closing outright would lose the last words: a socket closed with unread input makes the kernel reset the connection,
        and a reset destroys what the peer has not read yet.
        """

    def abort(self) -> None:
        """Cut at once. `WireUser.wire_lost` follows."""

    def tls_peer(self) -> Mapping[str, Any] | None:
        """The verified certificate of the other end, where there is one."""


RATION: Final = 128 * 1024
"""Bytes that one turn of the event loop reads of all that have so much to say. As small requests they keep it some 70 ms."""
LEAST: Final = 2 * 1024
"""Bytes that are read of each connection, however many there are."""


class Rations:
    """Shares of reading in one event loop: how much is read of a connection before others have their turn.

    A turn of the event loop reads from all connections that have something to say. If each were read as far as it goes, one
    turn beside two hundred that send as fast as they can took a second, and another peer's request takes some turns. So those
    that fill what is read of them share one ration; the others, and one that is alone, do not notice.

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
