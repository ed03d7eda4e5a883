"""Shared half of the framings of byte streams and of WebSockets: the frame that has begun to come in, and how it ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final

from ...plugins import Closed

_SMALL: Final = 4096


class Framer(ABC):
    """Framing of one connection, without I/O: cuts what comes in into frames.

    Attributes:
        ended: What the peer's closing frame said, once it has come.
        broken: Why nothing more is taken from a peer that has broken a rule.
        empty_frames: How many frames without content have come in since it was set to zero.
        ends_with_goodbye: Whether this end closes its half of the connection behind its goodbye.
    """

    __slots__ = ("_frame", "_head", "_limit", "broken", "empty_frames", "ended")

    ends_with_goodbye: ClassVar[bool]

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # The beginning of a frame whose header is not complete, and one that has begun.
        self._head = b""
        self._frame: PartialFrame | None = None
        self.ended: Closed | None = None
        self.broken: Closed | None = None
        self.empty_frames: int = 0

    @property
    @abstractmethod
    def partial(self) -> str:
        """Arrived part of the frame that has begun, for people; empty between two frames."""

    @property
    @abstractmethod
    def arrived(self) -> int:
        """The same in bytes, its header among them; 0 between two frames."""

    @abstractmethod
    def feed(self, data: bytes) -> list[bytes]:
        """The frames that this chunk completes."""

    @abstractmethod
    def goodbye(self, code: int, reason: str) -> list[bytes]:
        """The bytes with which this end closes."""


class PartialFrame:
    """The parts of a frame that are there.

    Attributes:
        size: Bytes of the whole frame.
        missing: Bytes of it that have not come in.
        parts: What is there.
    """

    __slots__ = ("missing", "parts", "size")

    def __init__(self, size: int, data: bytes) -> None:
        self.size = self.missing = size
        self.parts: list[bytes | bytearray] = []
        if data:
            self.add(data)

    def add(self, data: bytes) -> None:
        """Keep a part. Small ones are put together, so that a frame in slices of one byte costs no object for each."""
        self.missing -= len(data)
        parts = self.parts
        if len(data) >= _SMALL:
            parts.append(data)
        elif parts and isinstance(parts[-1], bytearray):
            parts[-1] += data
        else:
            parts.append(bytearray(data))

    def fill(self, data: bytes) -> bytes | None:
        """Take what is missing from the beginning of a chunk; the frame, if that makes it whole."""
        if len(data) < self.missing:
            self.add(data)
            return None
        self.parts.append(data[: self.missing])
        return b"".join(self.parts)
