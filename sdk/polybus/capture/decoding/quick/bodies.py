"""Bodies that are JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from ....body import check_json

JSON_TYPE: Final = "application/json"
decode: Final[Callable[[bytes], Any]] = msgspec.json.Decoder().decode
"""The value; raises `ValueError` or `RecursionError`, as what the codecs use does."""


def is_shallow(text: bytes, depth: int) -> bool:
    """True for text of no more levels, and in UTF-8 where it is not ASCII."""
    if len(text) <= 2 * depth and text.isascii():
        return True
    try:
        check_json(text, depth)
    except ValueError:
        return False
    return True


def is_json(text: bytes, depth: int) -> bool:
    """True for a document of no more levels."""
    try:
        decode(text)
    except (ValueError, RecursionError):
        return False
    return is_shallow(text, depth)
