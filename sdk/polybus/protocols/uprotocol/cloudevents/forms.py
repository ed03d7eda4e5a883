"""Interfaces of a format of events, and the bodies that go into events of either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from ....body import OCTETS, BodyFormat
from ....message import Message
from ..bodies import ANY
from ..events import EventMessage, Extra, Head
from ..status import write_status

__all__ = ["FORMATS", "EventFormatReader", "EventFormatWriter", "error_body", "written_body"]

FORMATS: Final[tuple[BodyFormat, ...]] = (ANY, OCTETS)


class EventFormatWriter(Protocol):
    """Writer of one format."""

    @property
    def head(self) -> Head: ...

    def write(
        self, head: bytes, id: str, ttl: int | None, reqid: str | None, extra: Extra, raw: bytes | None, format: BodyFormat
    ) -> bytes: ...

    def item(self, head: bytes, id: str, raw: bytes, format: BodyFormat) -> bytes: ...

    def batch(self, frames: Sequence[bytes]) -> bytes: ...


class EventFormatReader(Protocol):
    """Reader of one format."""

    def read(self, frame: bytes) -> EventMessage: ...

    def split(self, frame: bytes) -> list[bytes]: ...

    def parts(self, frame: bytes) -> tuple[dict[str, Any], bytes | None, BodyFormat]: ...


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
