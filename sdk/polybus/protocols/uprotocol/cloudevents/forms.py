"""Bodies that go into events, in JSON and in protobuf alike."""

from __future__ import annotations

from typing import Final

from ....body import OCTETS, BodyFormat
from ....message import Message
from ..bodies import ANY
from ..status import write_status

FORMATS: Final[tuple[BodyFormat, ...]] = (ANY, OCTETS)


def written_body(message: Message) -> tuple[bytes | None, BodyFormat]:
    """The body of a message in a format of this wire.

    Raises:
        EncodeError: It does not fit.
    """
    format = message.format
    if message.raw is not None and format in FORMATS:
        return message.raw, format
    if not message.has_body:
        return None, ANY
    chosen = OCTETS if isinstance(message.body, (bytes, bytearray, memoryview)) else ANY
    return message.encoded(FORMATS, lambda value: chosen), chosen


def error_body(message: Message) -> bytes:
    """A ``google.rpc.Status`` in an ``Any``, of an error.

    Raises:
        EncodeError: The detail does not fit.
    """
    given = message.attributes
    return write_status(int(message.code or 2), str(given.get("text") or ""), given.get("reason"), given.get("detail"))
