"""JSON text as Errai reads it: escapes in upper case only (`MAR/server/JSONStreamDecoder`, notes sections 0.3 and 1.5)."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from ....errors import EncodeError

_encode: Final = msgspec.json.Encoder().encode
_ESCAPE: Final = re.compile(rb"\\(u[0-9a-f]{4}|.)", re.DOTALL)


def quoted(text: str, ids: object = None) -> bytes:
    """A text as a JSON string (`ids` is what other writers take). May raise `EncodeError`: it has a lone surrogate."""
    try:
        data = _encode(text)
    except UnicodeEncodeError as error:
        raise EncodeError(f"lone surrogate at character {error.start}") from error
    return upper_case(data) if b"\\u" in data else data


def json_text(value: object) -> bytes:
    """The JSON of plain values: what a decoder gave, or text and numbers of our own."""
    data = _encode(value)
    return upper_case(data) if b"\\u" in data else data


def upper_case(data: bytes) -> bytes:
    """The same JSON with its ``\\uXXXX`` escapes in upper case; escaped backslashes are stepped over."""
    return _ESCAPE.sub(_upper, data)


def _upper(found: re.Match[bytes]) -> bytes:
    escape: bytes = found[1]
    return b"\\u" + escape[1:].upper() if len(escape) == 5 else found[0]


def number(value: float) -> bytes:
    """A finite float in Java's notation: ``2.5``, ``1.0E21``."""
    text = float.__repr__(value)
    if "e" not in text:
        return text.encode()
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}".encode()
