"""Validity of many JSON documents, found out without making values of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from operator import length_hint
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from ....body import check_json
from ...store.compute import bytes_of, pc

_decode: Final = msgspec.json.Decoder().decode
_skim: Final = msgspec.json.Decoder(msgspec.Raw).decode
"""Takes what `_decode` takes, in a third of the time, and also numbers that no float can hold, and text that is not UTF-8."""
_SHAPE: Final = bytes.maketrans(b"123456789E", b"000000000e")
_LARGE: Final = (b"0e000", b"0e+000", b"0" * 100)
"""One of these is in the shape of every number that no float can hold."""
_IS_BLANK: Final = np.isin(np.arange(256), list(b" \t\r\n"))


def valid_json(documents: pa.Array, depth: int) -> Any:
    """True for each document that is JSON without blanks around, and not too deep (`numpy.ndarray`)."""
    if not len(documents):
        return np.ones(0, bool)
    edges, buffer = bytes_of(documents)
    data = bytes(buffer[edges[0] : edges[-1]])
    edges = edges - edges[0]
    texts = documents.to_pylist()
    valid = np.diff(edges) > 0
    letters = np.frombuffer(data, np.uint8)
    valid[valid] = ~(_IS_BLANK[letters[edges[:-1][valid]]] | _IS_BLANK[letters[edges[1:][valid] - 1]])
    valid[[*_broken(texts), *_too_deep(texts, edges, depth)]] = False
    for place in _doubtful(documents, data):
        valid[place] &= _is_valid(texts[place], depth)
    return valid


def _broken(texts: Sequence[bytes]) -> Iterator[int]:
    """The places of those that a skimming parser does not take."""
    rest = iter(texts)
    while True:
        try:
            deque(map(_skim, rest), maxlen=0)
        except (ValueError, RecursionError):
            yield len(texts) - length_hint(rest) - 1
        else:
            return


def _too_deep(texts: Sequence[bytes], edges: Any, depth: int) -> Iterator[int]:
    """The places of those that the codecs refuse before they parse them, among those in which so many levels have room."""
    for place in np.flatnonzero(np.diff(edges) > 2 * depth).tolist():
        try:
            check_json(texts[place], depth)
        except ValueError:
            yield place


def _doubtful(documents: pa.Array, data: bytes) -> Sequence[int]:
    """The places of those that are not known to be valid by having been skimmed, but for how deep they are."""
    shape = data.translate(_SHAPE)
    found: list[str] = []
    if any(part in shape for part in _LARGE):
        found.append(r"[0-9][eE]\+?[0-9]{3}|[0-9]{100}")
    if not data.isascii():
        try:
            documents.cast(pa.string())
        except pa.ArrowInvalid:  # some are not UTF-8
            found.append(r"[^\x00-\x7f]")
    if not found:
        return []
    places: list[int] = pc.indices_nonzero(pc.match_substring_regex(documents, "|".join(found))).to_pylist()
    return places


def _is_valid(text: bytes, depth: int) -> bool:
    """As a codec sees it, which makes a value of it."""
    try:
        check_json(text, depth)
        _decode(text)
    except (ValueError, RecursionError):
        return False
    return True
