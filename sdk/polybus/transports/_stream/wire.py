"""The byte-connection interface that all drivers implement, and code that they share.

A **wire** is an established byte connection. A **wire user** is the object that uses the wire at the moment: first the
handshake, then the transport. There are two drivers. `asyncio_wire` uses callbacks, whereas `pump_wire` runs two tasks over any
anyio byte stream. Only the driver writes, so cancelled user code cannot truncate a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from anyio.lowlevel import RunVar
from attrs import define, field

from ..sockets import Signs

BURST: Final = 2 * 1024
"""Number of buffered bytes that are written before the end of an event-loop iteration, so that both peers work in parallel."""
BURST_PARTS: Final = 8
"""Minimum number of small frames for such an early write. Writing each frame of a few KiB separately, and waking the peer for
it, triples the CPU time.
"""

GATHERED: Final = 16 * 1024
"""`BURST` for a peer that only forwards. Waking such a peer early makes small requests a third more expensive for this process.
"""


class WireUser(Protocol):
    """Callbacks of a wire. The event loop calls them, except that `Wire.write` may call `pause_writing`."""

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> None:
        """Handle the end of input. The wire closes the connection once all output is written."""

    def wire_lost(self, error: Exception | None) -> None:
        """Handle the end of the connection. This is the last call. `error` is `None` after an orderly shutdown."""

    def pause_writing(self) -> None:
        """Stop writing because more than `HIGH_WATER` bytes are buffered."""

    def resume_writing(self) -> None:
        """Resume writing because less than `LOW_WATER` bytes are buffered."""


class Wire(Protocol):
    """An established byte connection. At first reading is paused and no user is attached."""

    @property
    def address(self) -> str:
        """The remote address, such as ``127.0.0.1:40123`` or ``[::1]:40123``."""
        ...

    def attach(self, user: WireUser) -> None:
        """Set the current user. If the connection is already lost, `wire_lost` is called in the next event-loop iteration."""

    def write(self, data: bytes) -> None:
        """Write bytes, joining all output of one event-loop iteration. Ignored after the connection has ended."""

    shut: bool
    """True after the user's last output, when `write_first` has no effect."""

    def write_first(self, data: bytes, turn: int) -> None:
        """Write bytes immediately if they are the first in event-loop iteration number `turn`, and join later output.

        If many connections write in one iteration, this is cheaper than a callback for each connection.
        """

    alone: bool
    """True during the only write of an event-loop iteration, which is sent immediately."""

    burst: int

    def backlog(self) -> int:
        """Return the number of bytes that the operating system has not accepted yet."""
        ...

    def taken(self) -> int:
        """Return the total number of bytes that the operating system has accepted."""
        ...

    def signs(self) -> Signs | None: ...

    def keep_short(self) -> None: ...

    def pause_reading(self) -> None:
        """Pause reading. The wire keeps at most one chunk that it has already read."""

    def resume_reading(self) -> None:
        """Resume reading, starting with the chunk that the wire has kept."""

    def hang_up(self) -> None:
        """Write pending output, close our half, and read until the peer closes. The user sets the time limit.

        Closing outright would lose the last messages: if a socket is closed with unread input, the kernel resets the
        connection, and a reset destroys what the peer has not read yet.
        """

    def abort(self) -> None:
        """Abort the connection immediately. `WireUser.wire_lost` is called afterwards."""

    def tls_peer(self) -> Mapping[str, Any] | None: ...


RATION: Final = 128 * 1024
"""Total bytes to read from all busy connections per event-loop iteration. Small requests of that size take about 70 ms to
handle.
"""
LEAST: Final = 2 * 1024
"""Minimum bytes to read per connection."""


@define(eq=False)
class Rations:
    """Limits how many bytes each connection may read per event-loop iteration.

    An event-loop iteration reads from every connection that has input. With two hundred fast senders, it took a second without
    this limit, and a request of another peer takes several iterations. Connections that fill their reads share one ration.
    Other connections and a single busy connection are not affected.
    """

    _call_soon: Callable[..., Any]
    _hungry: int = field(default=0, init=False)
    _read: int = field(default=0, init=False)
    _share: int = field(default=RATION, init=False)
    size: int = field(default=RATION, init=False)
    """Maximum bytes for the next read."""

    def filled(self, size: int, *, again: bool = False) -> None:
        """Record a read that filled the buffer of `size` bytes. Set `again` if the connection already had one this turn."""
        if not self._hungry:
            self._call_soon(self._next_turn)
        if not (again and self._hungry):  # with TLS, turns may end between uvloop's reads
            self._hungry += 1
        self._read += size
        self.size = max(LEAST, min(self._share, RATION - self._read))

    def enough(self, size: int) -> bool:
        """Return True if a connection that has read this much must wait for the next event-loop iteration."""
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
