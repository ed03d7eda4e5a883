"""The bytes of many frames, as arrays of numpy."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ...store.compute import bytes_of

_QUOTE: Final = ord('"')
_LONGEST_NUMBER: Final = 9
ROOM: Final = 512
_ZEROS: Final = np.zeros(ROOM, np.uint8)


class FrameBytes:
    """Frames one after the other; at least one, and none is null."""

    def __init__(self, frames: pa.Array) -> None:
        edges, data = bytes_of(frames)
        edges = edges.astype(np.int64)
        there = np.frombuffer(data, np.uint8)[edges[0] : edges[-1]]
        self.data: Any = np.concatenate((_ZEROS, there, _ZEROS))
        """All bytes (uint8), with some zeros before and behind them: what is looked for there is not found."""
        self.begins: Any = edges[:-1] - edges[0] + ROOM
        """Index in `data` at which each frame begins."""
        self.ends: Any = edges[1:] - edges[0] + ROOM
        """Index in `data` at which it ends."""
        # Eight bytes from each place on: one look for as many letters.
        self._words: Any = np.ndarray((len(self.data) - 7,), "<u8", self.data, strides=(1,))

    @cached_property
    def quotes(self) -> Any:
        """The places of quotes, and then the end."""
        return self.places(_QUOTE)

    @cached_property
    def _quoted(self) -> Any:
        return self.data[self.quotes + 1]

    def behind(self, head: bytes) -> Any:
        """The places behind a text that begins with a quote."""
        found = self.quotes[np.flatnonzero(self._quoted == head[1])]
        return found[self.has(head, found)] + len(head)

    def first_in(self, rows: Any, found: Any) -> tuple[Any, Any]:
        """The first of some places in each of some frames, and whether there is one."""
        places = next_of(np.append(found, len(self.data) - ROOM), self.begins[rows])
        return places, places < self.ends[rows]

    def places(self, byte: int) -> Any:
        """The places of a byte, and then the end."""
        end = len(self.data) - ROOM
        return np.append(np.flatnonzero(self.data[:end] == byte), end)

    def has(self, text: bytes, places: Any) -> Any:
        """True for each of some places at which a text begins; they may lie a little outside of the frames."""
        found: Any = True
        for start in range(0, len(text), 8):
            part, words = text[start : start + 8], self._words[places + start]
            if len(part) < 8:
                words &= np.uint64((1 << 8 * len(part)) - 1)
            found = found & (words == np.uint64(int.from_bytes(part, "little")))
        return found

    def number(self, starts: Any, size: int) -> Any:
        """The number, so many bytes long with the most significant one first, at each place."""
        found = np.zeros(len(starts), np.int64)
        for byte in range(size):
            found = found << 8 | self.data[starts + byte]
        return found

    def whole_numbers(self, starts: Any) -> tuple[Any, Any]:
        """The count of digits at some places, and their numbers; none where that begins with 0, or has more than usual."""
        sizes = numbers = np.zeros(len(starts), np.int64)
        more = np.ones(len(starts), bool)
        for place in range(_LONGEST_NUMBER + 1):
            digits = self.data[starts + place].astype(np.int64) - ord("0")
            more = more & (digits >= (place == 0)) & (digits <= 9)
            if not more.any():
                break
            sizes, numbers = sizes + more, np.where(more, numbers * 10 + digits, numbers)
        return np.where(more, 0, sizes), numbers

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


def next_of(places: Any, at: Any) -> Any:
    """The first of some places that is not before each of others; the last one, where all are."""
    return places[np.minimum(np.searchsorted(places, at), len(places) - 1)]
