"""The bytes of many frames, as arrays of numpy."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from ...store.compute import bytes_of

_ROOM: Final = np.zeros(64, np.uint8)


class FrameBytes:
    """Frames one after the other; at least one, and none is null."""

    def __init__(self, frames: pa.Array) -> None:
        edges, data = bytes_of(frames)
        edges = edges.astype(np.int64)
        self.data: Any = np.concatenate((np.frombuffer(data, np.uint8)[edges[0] : edges[-1]], _ROOM))
        """All bytes (uint8), with some zeros behind them: what is looked for there is not found."""
        self.begins: Any = edges[:-1] - edges[0]
        """Index in `data` at which each frame begins."""
        self.ends: Any = edges[1:] - edges[0]
        """Index in `data` at which it ends."""

    def number(self, starts: Any, size: int) -> Any:
        """The number, so many bytes long with the most significant one first, at each place."""
        found = np.zeros(len(starts), np.int64)
        for byte in range(size):
            found = found << 8 | self.data[starts + byte]
        return found

    def parts(self, begins: Any, ends: Any) -> pa.Array:
        """The bytes between some places, each pair of which lies behind the one before."""
        count = len(begins)
        offsets = np.empty(2 * count + 1, np.int32)
        offsets[0:-1:2], offsets[1::2], offsets[-1] = begins, ends, len(self.data)
        pieces = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(self.data)])
        return pieces.take(pa.array(np.arange(0, 2 * count, 2)))


def distinct(numbers: Any) -> tuple[Any, Any]:
    """The numbers that there are, as they come, and which of them each is. Unlike `numpy.unique` nothing is sorted."""
    found = pa.array(numbers).dictionary_encode()
    return found.dictionary.to_numpy(), found.indices.to_numpy()
