"""Long JSON arrays of messages, cut into short ones: so that reading one does not keep the event loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Raw

LONG: Final = 32 * 1024
"""Bytes of an array that is read at once, unless it has one element only."""
_MOST: Final = 256
"""Elements of one: reading and handling so many takes a few milliseconds."""
_elements: Final = msgspec.json.Decoder(list[Raw]).decode


def cut(array: bytes, long: int = LONG) -> list[bytes]:
    """Cut an array into several with the same elements, in order; a short one stays as it is.

    Raises:
        ValueError: It is no JSON array.
    """
    if len(array) <= long:
        return [array]
    return joined(map(bytes, _elements(array)), long)


def joined(elements: Iterable[bytes], long: int = LONG) -> list[bytes]:
    """Join elements to arrays, none of which is long unless it has one element only."""
    arrays, inside, size = list[bytes](), list[bytes](), 0
    for element in elements:
        if inside and (size + len(element) > long or len(inside) == _MOST):
            arrays.append(b"[%b]" % b",".join(inside))
            inside, size = [], 0
        inside.append(element)
        size += len(element) + 1
    arrays.append(b"[%b]" % b",".join(inside))
    return arrays
