"""Splits long JSON arrays of messages, so that reading one does not block the event loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Raw

LONG: Final = 32 * 1024
"""Maximum bytes of an array that is read in one turn, unless it has a single element."""
_MOST: Final = 256
"""Maximum number of elements; reading and handling them takes a few milliseconds."""
_elements: Final = msgspec.json.Decoder(list[Raw]).decode


def cut(array: bytes, long: int = LONG) -> list[bytes]:
    """Split an array into several with the same elements, in order; a short one is unchanged.

    Raises:
        ValueError: Not a JSON array.
    """
    if len(array) <= long:
        return [array]
    return joined(map(bytes, _elements(array)), long)


def joined(elements: Iterable[bytes], long: int = LONG) -> list[bytes]:
    """Join elements to arrays that are not long, except those with a single element."""
    arrays, inside, size = list[bytes](), list[bytes](), 0
    for element in elements:
        if inside and (size + len(element) > long or len(inside) == _MOST):
            arrays.append(b"[%b]" % b",".join(inside))
            inside, size = [], 0
        inside.append(element)
        size += len(element) + 1
    arrays.append(b"[%b]" % b",".join(inside))
    return arrays
