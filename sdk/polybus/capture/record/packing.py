"""Rows packed into a few pieces of memory: what goes from the event loop to the writer, in this process or in another one."""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise, repeat
from math import nan
from operator import is_not
from typing import Any, Final, TypeAlias

from attrs import astuple, frozen

from ..rows import FIELDS, FLAG_GAP_BEFORE, Gap, RowHeader, Ttl

Numbers: TypeAlias = "array[int] | memoryview"

HEAD: Final = struct.Struct("<6I")
"""A shipment begins with the numbers of: rows, ends known before, bytes of new ends, `ttls`, `asked`, bytes of frames."""
END: Final = bytes(HEAD.size)
"""A shipment of nothing: the last one."""
_MOST_ENDS: Final = 4096
"""Ends that have numbers: then numbering begins again, or connections long gone would stay."""
_NO_FRAME: Final = -1


@frozen(eq=False)
class Packed:
    """Rows, as columns."""

    ends: Numbers
    """Int32, for each row the number of its end."""
    times: Numbers
    """Int64, the monotonic clock."""
    sizes: Numbers
    """Int32, bytes of the frame; -1 where there is none."""
    data: bytes | memoryview
    """The frames, one after the other."""
    asked: Numbers
    """Int32, for how many requests each row says how long they are waited for; empty where none does."""
    ttls: array[float] | memoryview[float]
    """Float64, seconds from the time of the row on, one after the other; NaN for a request without end."""
    known: int
    """Count of the ends that had numbers before; 0 begins again."""
    new: Sequence[RowHeader]
    """The ends that get the next numbers."""

    def __len__(self) -> int:
        return len(self.ends)

    def shipment(self) -> bytes:
        """The bytes that `unpacked` takes."""
        new = json.dumps([astuple(end) for end in self.new]).encode() if self.new else b""
        head = HEAD.pack(len(self.ends), self.known, len(new), len(self.ttls), len(self.asked), len(self.data))
        return b"".join((head, self.times, self.ttls, self.ends, self.sizes, self.asked, new, self.data))


class Packer:
    """Packs rows, and numbers their ends."""

    def __init__(self) -> None:
        self._numbers: dict[RowHeader, int] = {}

    def pack(self, flat: list[Any]) -> Packed:
        """Rows as they wait: four fields each, one after the other."""
        ends, frames, given = flat[::FIELDS], flat[2::FIELDS], flat[3::FIELDS]
        try:
            data = b"".join(frames)
            sizes = array("i", map(len, frames))
        except TypeError:  # a row without a frame
            data = b"".join(filter(None, frames))
            sizes = array("i", [_NO_FRAME if frame is None else len(frame) for frame in frames])
        asked, ttls = _asked(given) if given.count(None) < len(given) else (array("i"), array("d"))
        known, new = self._number(ends)
        numbers = array("i", map(self._numbers.__getitem__, ends))
        return Packed(numbers, array("q", flat[1::FIELDS]), sizes, data, asked, ttls, known, new)

    def _number(self, ends: list[RowHeader]) -> tuple[int, list[RowHeader]]:
        numbers = self._numbers
        new = [end for end in dict.fromkeys(ends) if end not in numbers]
        if len(numbers) + len(new) > _MOST_ENDS:
            numbers.clear()
            new = list(dict.fromkeys(ends))
        known = len(numbers)
        numbers.update(zip(new, range(known, known + len(new)), strict=True))
        return known, new


def _asked(given: list[Ttl]) -> tuple[array[int], array[float]]:
    one_each: list[Any] = [ttl for ttl in given if ttl is not None]
    try:
        return array("i", map(is_not, given, repeat(None))), array("d", one_each)
    except TypeError:  # a frame with several requests
        each = [ttl if isinstance(ttl, tuple) else () if ttl is None else (ttl,) for ttl in given]
        return array("i", map(len, each)), array("d", [nan if ttl is None else ttl for some in each for ttl in some])


def _sizes(head: tuple[int, ...]) -> tuple[int, ...]:
    """Of times, ttls, ends, sizes, `asked`, new ends and frames, in bytes."""
    rows, _, ends, ttls, asked, data = head
    return 8 * rows, 8 * ttls, 4 * rows, 4 * rows, 4 * asked, ends, data


def size_of_body(head: tuple[int, ...]) -> int:
    """The bytes that follow a head."""
    return sum(_sizes(head))


def unpacked(head: tuple[int, ...], body: memoryview) -> Packed:
    """The rows of a shipment, of what `HEAD` has unpacked and what follows it."""
    parts = (body[start:end] for start, end in pairwise(accumulate(_sizes(head), initial=0)))
    times, ttls, ends, sizes, asked, some, data = parts
    new = [_end(facts) for facts in json.loads(bytes(some))] if some else ()
    numbers = ends.cast("i"), times.cast("q"), sizes.cast("i")
    return Packed(*numbers, data, asked.cast("i"), ttls.cast("d"), head[1], new)


def _end(given: list[Any]) -> RowHeader:
    end = RowHeader(*given)
    end.tunnel = tuple(end.tunnel)
    if not end.flags & FLAG_GAP_BEFORE:
        return end
    facts = json.loads(end.options)
    return Gap(facts.pop("gap"), facts.pop("frames"), **facts)


def joined(some: Sequence[Packed]) -> Packed:
    """Several in one; none but the first begins to number again."""
    if len(some) == 1:
        return some[0]
    asked = array("i")
    if any(len(one.asked) for one in some):
        for one in some:
            asked.frombytes(bytes(one.asked) or bytes(4 * len(one)))

    def whole(kind: str, name: str) -> Any:
        return array(kind, b"".join(getattr(one, name) for one in some))

    numbers = whole("i", "ends"), whole("q", "times"), whole("i", "sizes")
    new = [end for one in some for end in one.new]
    return Packed(*numbers, b"".join(one.data for one in some), asked, whole("d", "ttls"), some[0].known, new)
