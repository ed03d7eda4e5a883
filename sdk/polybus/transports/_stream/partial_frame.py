"""A frame of which a part has come in, for the framers of byte streams and of WebSockets."""

from __future__ import annotations

from typing import Final

_SMALL: Final = 4096


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
