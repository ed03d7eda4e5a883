"""Recording: the interface by which links, buses and brokers use a recorder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from .protocols import ProtocolAdapter
    from .transports import Closed, Receiver, Transport


@frozen
class RecorderStats:
    """Figures of a recorder so far."""

    frames: int
    """Frames written, with the rows that mark the begin and the end of connections."""
    bytes: int
    """Bytes written."""
    dropped: int
    """Frames lost, because the writer could not keep up, or the disk took nothing."""
    redacted: int
    """Frames in which something was blanked."""
    waiting: int
    """Frames not written yet."""


class Recorder(Protocol):
    """Writes the frames of connections down. `open` and `close` may take a while: not for event loops."""

    @property
    def path(self) -> Path:
        """The folder."""
        ...

    @property
    def capture_id(self) -> str:
        """The name of all that it records."""
        ...

    def claim(self) -> None:
        """Reserve it for one use.

        Raises:
            LocalProtocolError: It has been used before.
        """

    def open(self) -> None:
        """Begin to write."""

    def close(self) -> None:
        """Write the rest, and end."""

    def stats(self) -> RecorderStats:
        """Figures so far."""
        ...

    def tap(self, adapter: ProtocolAdapter, transport: Transport, *, opened: bool) -> Tap:
        """Begin to record a connection of a protocol; `opened` by this side."""
        ...


class Tap(Protocol):
    """One connection that is recorded."""

    @property
    def recorder(self) -> Recorder:
        """The recorder that it belongs to."""
        ...

    def around(self, session: Any, transport: Any) -> tuple[Any, Any]:
        """A session and a transport that record each frame, for use in place of these."""
        ...

    def listening_in(self, transport: Any) -> tuple[Any, Callable[[Receiver], Receiver]]:
        """The same without a session: a transport, and a function that wraps its receiver."""
        ...

    def over(self, why: Closed) -> None:
        """Record the end of the connection."""
