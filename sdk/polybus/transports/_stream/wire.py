"""The interface of a byte connection, which all drivers implement, and their shared parts.

A **wire** is an established byte connection, and a **wire user** its current user: the handshake, then the transport. There are
two drivers: `asyncio_wire` uses callbacks, and `pump_wire` two tasks over any anyio byte stream. Only the driver writes, so
cancelled user code cannot tear a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from anyio.lowlevel import RunVar

from ..sockets import Signs

BURST: Final = 2 * 1024
"""Bytes to write before the end of a loop turn, so that both ends work in parallel."""
BURST_PARTS: Final = 8
"""Minimum number of small frames for such a write. Writing each frame of a few KiB and waking the peer for it triples the CPU
time.
"""

GATHERED: Final = 16 * 1024
"""`BURST` for a peer that only forwards. Waking such a peer early costs this process a third of its work for small requests."""


class WireUser(Protocol):
    """Called by a wire, always from the event loop and never from within the wire's methods, except for `pause_writing`, which
    `Wire.write` may call.
    """

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> None:
        """Handle the end of input. The wire closes itself once its output is written."""

    def wire_lost(self, error: Exception | None) -> None:
        """Handle the end of the connection. This is the last call. `error` is `None` after an orderly end."""

    def pause_writing(self) -> None:
        """Stop writing, because more than `HIGH_WATER` bytes are waiting."""

    def resume_writing(self) -> None:
        """Write again, because less than `LOW_WATER` bytes are waiting."""


class Wire(Protocol):
    """An established byte connection, which starts paused and without a user."""

    @property
    def address(self) -> str:
        """Address of the other end, such as ``127.0.0.1:40123`` or ``[::1]:40123``."""
        ...

    def attach(self, user: WireUser) -> None:
        """Set the current user. If the connection is already lost, the user learns it in the next turn."""

    def write(self, data: bytes) -> None:
        """Write bytes, joining all output of one loop turn. Ignored after the end."""

    shut: bool
    """True after the user's last output, so that `write_first` is ignored."""

    def write_first(self, data: bytes, turn: int) -> None:
        """Write bytes immediately if they are the first of the turn. Other output of the turn is still joined.

        `turn` is the current loop turn's number. For many connections in one turn this is cheaper than a callback each.
        """

    alone: bool
    """True during the only write of a turn, which then leaves immediately."""

    burst: int

    def backlog(self) -> int:
        """Return the number of bytes that the operating system has not accepted."""
        ...

    def taken(self) -> int:
        """Return the total number of bytes that the operating system has accepted."""
        ...

    def signs(self) -> Signs | None: ...

    def keep_short(self) -> None: ...

    def pause_reading(self) -> None:
        """Pause reading. At most one chunk that was already read is kept."""

    def resume_reading(self) -> None:
        """Resume reading, starting with the kept chunk."""

    def hang_up(self) -> None:
        """Write pending output, close this half, and read until the peer closes. The user sets the time limit.

        Closing outright would lose the last messages: if a socket is closed with unread input, the kernel resets the
        connection, and a reset destroys what the peer has not read yet.
        """

    def abort(self) -> None:
        """Cut the connection immediately. `WireUser.wire_lost` follows."""

    def tls_peer(self) -> Mapping[str, Any] | None: ...


RATION: Final = 128 * 1024
"""Bytes to read per loop turn from all busy connections together. Handling that many as small requests takes about 70 ms."""
LEAST: Final = 2 * 1024
"""Minimum bytes to read per connection."""


class Rations:
    """Shares of the input in one event loop, in bytes per connection and turn.

    A turn reads from every connection with input. Without limits, a turn with two hundred fast senders took a second, and
    another peer's request takes several turns. Connections that fill their reads therefore share one ration. Others, and a
    single busy one, are not affected.

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
        """Count a full read of `size` bytes.

        `again` is True if the connection already had a full read in this turn.
        """
        if not self._hungry:
            self._call_soon(self._next_turn)
        if not (again and self._hungry):  # with TLS, turns may end between uvloop's reads
            self._hungry += 1
        self._read += size
        self.size = max(LEAST, min(self._share, RATION - self._read))

    def enough(self, size: int) -> bool:
        """Return True if a connection that read this much in the turn must wait for the next one."""
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
