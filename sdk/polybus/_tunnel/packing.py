"""Form and size of frames on an outer wire: bytes or documents."""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, Final

import msgspec
from attrs import frozen

from ..body import JSON, OCTETS, BodyFormat, check_json
from ..errors import BusError, EncodeError, TooLarge
from ..message import Message
from ..plugins import CodecFeatures

if TYPE_CHECKING:
    from .._core.peer.peer import Peer

_MARGIN: Final = 512
"""Bytes of the outer frame that are not the inner one, at the most, besides the name."""
_DEPTH: Final = 8
"""Levels of nesting that the outer message takes from `Limits.depth`."""
_decode: Final = msgspec.json.Decoder().decode


def _is_document(frame: bytes, depth: int) -> bool:
    """Tell whether a frame is a JSON object or array that may stand in another one as it is."""
    if frame[:1] not in (b"{", b"["):
        return False
    try:
        check_json(frame, depth)
        _decode(frame)  # not only passed over: who reads the outer message reads the numbers in it too
    except (ValueError, RecursionError, EncodeError):
        return False
    return True


@frozen
class Packing:
    """Form and size of frames on an outer wire."""

    text: bool
    """True where a frame that is a JSON document goes as such."""
    octets: bool
    """True where the wire has a place for bytes in an item; else they are a value."""
    depth: int
    plain: int
    """The largest frame that goes as it is."""
    encoded: int
    """The largest one that a text wire must write as base64."""
    outer: int
    """The largest frame of the outer connection."""

    def choose(self, frame: bytes) -> BodyFormat | None:
        """JSON, bytes, or None for a value of the wire's own.

        Raises:
            TooLarge: It does not fit.
        """
        chosen: BodyFormat | None = OCTETS if self.octets else None
        limit = self.encoded
        if self.text and _is_document(frame, self.depth):
            limit, chosen = self.plain, JSON
        if len(frame) > limit:
            raise TooLarge(
                f"a frame of {len(frame)} bytes: this tunnel takes {limit}, because the outer connection takes {self.outer}: "
                "raise Limits(message=...) of both ends of the outer connection"
            )
        return chosen


def packing_for(peer: Peer, name: str | int, *, text: bool) -> Packing:
    """Find the form and size of frames in a tunnel over the link of a peer, where the inner protocol writes text, or not."""
    link = peer.link
    limits, transport = link.runtime.limits, link.transport
    codec = link.adapter.codec(limits)
    outer = limits.message if transport is None else min(limits.message, transport.max_frame)
    formats = CodecFeatures.of(codec).item_formats or codec.formats
    binary = codec.writes == "binary"
    room = max(0, outer - _MARGIN - 2 * len(str(name).encode()))
    return Packing(
        text=text and not binary and JSON in formats,
        octets=OCTETS in formats,
        depth=max(1, limits.depth - _DEPTH),
        plain=room,
        encoded=room if binary and OCTETS in formats else room * 3 // 4,
        outer=outer,
    )


def frame_of(message: Message) -> bytes | None:
    """The frame in an item; None where there is none."""
    raw, body_format = message.raw, message.format
    if raw is not None and (body_format is OCTETS or (body_format is JSON and raw[:1] in b"{[")):
        return raw
    try:
        body = message.body
        if isinstance(body, str):
            return binascii.a2b_base64(body, strict_mode=True)
    except (ValueError, BusError):
        return None
    return body if isinstance(body, bytes) else None
