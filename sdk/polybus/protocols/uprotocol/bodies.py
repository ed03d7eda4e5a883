"""Bodies: ``google.protobuf.Any``, in which uProtocol packs protobuf messages (document, 3 Formats, Table 6), and bytes."""

from __future__ import annotations

from typing import Final

from ...body import OCTETS, BodyFormat
from ...message import Message
from .._protobuf.any_body import ANY

FORMATS: Final[tuple[BodyFormat, ...]] = (ANY, OCTETS)


def written_body(message: Message) -> tuple[bytes | None, BodyFormat]:
    """The body of a message in a format of this wire. May raise `EncodeError`: it does not fit."""
    format = message.format
    if message.raw is not None and format in FORMATS:
        return message.encoded(FORMATS), format
    if not message.has_body:
        return None, ANY
    chosen = OCTETS if isinstance(message.body, (bytes, bytearray, memoryview)) else ANY
    return message.encoded(FORMATS, lambda value: chosen), chosen
