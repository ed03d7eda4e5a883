"""Interface of a byte connection for all its drivers, and shared parts.

A **wire** is one established byte connection; a **wire user** is its current user: the handshake, then the transport. There are
two drivers: `asyncio_wire` (callbacks) and `pump_wire` (two tasks over any anyio byte stream). Only the driver writes, so that
cancelled user code cannot tear a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from anyio.lowlevel import RunVar

from ..sockets import Signs

BURST: Final = 2 * 1024
"""Bytes to write before the end of a loop turn, so that both ends work at the same time."""
BURST_PARTS: Final = 8
"""Minimum number of small frames for that: writing each frame of a few KiB, and waking the peer for it, costs three times the
processor time if the peer keeps up.
"""

GATHERED: Final = 16 * 1024
"""`BURST` for a peer that only forwards: it has little to do, and waking it for part of a burst costs this process a third of
its own work for small requests.
"""


class WireUser(Protocol):
    """Called by a wire, always from the event loop and never from within the wire's methods, except `pause_writing` from
    `Wire.write`.
    """

    def data_received(self, data: bytes) -> None:
        """Handle a chunk."""

    def eof_received(self) -> None:
        """Handle the end of input. The wire closes itself after its pending output."""

    def wire_lost(self, error: Exception | None) -> None:
        """Handle the end, in the last call. `error` is None after an orderly end."""

    def pause_writing(self) -> None:
        """More than `HIGH_WATER` bytes wait."""

    def resume_writing(self) -> None:
        """Less than `LOW_WATER` bytes wait."""


class Wire(Protocol):
    """One established byte connection. It starts paused and without a user."""

    @property
    def address(self) -> str:
        """Address of the other end: ``127.0.0.1:40123``, ``[::1]:40123``."""
        ...

    def attach(self, user: WireUser) -> None:
        """Set the current user. A loss in the past is reported in the next turn."""

    def write(self, data: bytes) -> None:
        """Write bytes; all output of one loop turn leaves together. After the end: ignored."""

    shut: bool
    """Set by the user after its last output: `write_first` then ignores calls."""

    def write_first(self, data: bytes, turn: int) -> None:
        """Write bytes that may leave at once; other output of the turn still leaves together.

        `turn` is the current loop turn's number. For many connections in one turn this costs less than a callback each.
        """

    alone: bool
    """Set by the user around the only write of a turn, which then leaves at once."""

    burst: int
    """`BURST`, or `GATHERED` if set by the user."""

    def backlog(self) -> int:
        """Bytes that the operating system has not accepted."""
        ...

    def taken(self) -> int:
        """Total bytes that the operating system has accepted."""
        ...

    def signs(self) -> Signs | None:
        """Kernel facts about the other end, if available."""

    def keep_short(self) -> None:
        """Limit the kernel's buffer to little more than the peer accepts."""

    def pause_reading(self) -> None:
        """Pause reading; at most one chunk that was already read is kept."""

    def resume_reading(self) -> None:
        """Resume reading, first with the kept chunk."""

    def hang_up(self) -> None:
        """Write pending output, close this half, and read until the peer closes. The user sets the time limit.

        Closing outright would lose the last words: a socket closed with unread input makes the kernel reset the connection, and
        a reset destroys what the peer has not read yet.
        """

    def abort(self) -> None:
        """Cut at once. `WireUser.wire_lost` follows."""

    def tls_peer(self) -> Mapping[str, Any] | None:
        """The verified certificate of the other end, if any."""


RATION: Final = 128 * 1024
"""Bytes per loop turn, read from all busy connections together. As small requests they take some 70 ms."""
LEAST: Final = 2 * 1024
"""Minimum bytes read per connection."""


class Rations:
    """Shares of reading in one event loop: bytes per connection and turn.

    A turn reads from each connection with input. Without limits, a turn with two hundred fast senders took a second, and
    another peer's request takes some turns. Connections that fill their reads therefore share one ration; others, and a single
    one, are not affected.

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
        """Maximum bytes of the next read."""

    def filled(self, size: int, *, again: bool = False) -> None:
        """Count a full read.

        Args:
            size: Bytes.
            again: True if the connection already had a full read in this turn.
        """
        if not self._hungry:
            self._call_soon(self._next_turn)
        if not (again and self._hungry):  # with TLS, turns may end between uvloop's reads
            self._hungry += 1
        self._read += size
        self.size = max(LEAST, min(self._share, RATION - self._read))

    def enough(self, size: int) -> bool:
        """True if a connection that read so much in this turn must wait for the next."""
        return size >= self._share or self.size <= LEAST

    def _next_turn(self) -> None:
        self.size = self._share = max(LEAST, RATION // self._hungry)
        self._hungry = self._read = 0


# Per event loop, not per process: loops in several threads read at the same time.
_here: RunVar[Rations] = RunVar("polybus rations")


def rations_here(call_soon: Callable[..., Any]) -> Rations:
    rations = _here.get(None)
    if rations is None:
        _here.set(rations := Rations(call_soon))
    return rations
