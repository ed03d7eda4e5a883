"""Interface between recorders and links, buses or brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from pathlib import Path

    from .protocols import ProtocolAdapter
    from .transports import Closed, Receiver, Transport


class RecorderStats(Struct, frozen=True, weakref=True):
    """Figures of a recorder."""

    frames: int
    """Frames written, including rows for the start and end of connections."""
    bytes: int
    """Bytes written."""
    dropped: int
    """Frames lost because the writer was too slow, or the disk failed."""
    redacted: int
    """Frames with redacted parts."""
    waiting: int
    """Frames not yet written."""


class Recorder(Protocol):
    """Records the frames of connections. `open` and `close` may block: do not call them in event loops."""

    @property
    def path(self) -> Path:
        """The folder."""
        ...

    @property
    def capture_id(self) -> str:
        """Name of the capture."""
        ...

    def claim(self) -> None:
        """Reserve it for one use.

        Raises:
            LocalProtocolError: It was used before.
        """

    def open(self) -> None:
        """Start writing."""

    def close(self) -> None:
        """Write the rest and stop."""

    def stats(self) -> RecorderStats:
        """Figures so far."""
        ...

    def tap(self, adapter: ProtocolAdapter, transport: Transport, *, opened: bool) -> Tap:
        """Start recording a connection of a protocol; `opened` is true if this side opened it."""
        ...


class Tap(Protocol):
    """A recorded connection."""

    @property
    def recorder(self) -> Recorder:
        """Its recorder."""
        ...

    def around(self, session: Any, transport: Any) -> tuple[Any, Any]:
        """Wrap a session and a transport so that each frame is recorded."""
        ...

    def listening_in(self, transport: Any) -> tuple[Any, Callable[[Receiver], Receiver]]:
        """Wrap a transport, without a session; returns also a function that wraps its receiver."""
        ...

    def over(self, why: Closed) -> None:
        """Record the end of the connection."""
