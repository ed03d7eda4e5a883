"""Bodies: ``google.protobuf.Any``, which contains protobuf messages (document, 3 Formats, Table 6), and bytes.

A handler's error is a ``google.rpc.Status`` in an ``Any`` (document, 4.4; up-l2 dispatchers).
"""

from __future__ import annotations

import binascii
from functools import lru_cache
from typing import Any, Final

import msgspec

from ...body import JSON, OCTETS, TEXT, BodyFormat, check_json
from ...errors import BusError, RemoteProtocolError
from ...message import Message
from .._protobuf import ANY, facts_of, pack, status_of, type_name, unpack
from .rules import Leniency, refuse

FORMATS: Final[tuple[BodyFormat, ...]] = (ANY, OCTETS)


def written_body(message: Message) -> tuple[bytes | None, BodyFormat]:
    """Return the body of a message in a format of this wire."""
    format = message.format
    if message.raw is not None and format in FORMATS:
        return message.encoded(FORMATS), format
    if not message.has_body:
        return None, ANY
    chosen = OCTETS if isinstance(message.body, (bytes, bytearray, memoryview)) else ANY
    return message.encoded(FORMATS, lambda value: chosen), chosen


_STATUS: Final = "google.rpc.Status"
STATUSES: Final = (_STATUS, "uprotocol.v1.UStatus")  # The document's type, and the SDKs' type with the same fields
STATUS_URLS: Final = tuple(f"{where}/{name}".encode() for where in ("type.googleapis.com", "") for name in STATUSES)


def write_status(message: Message) -> bytes:
    """Write the Status of an error or a failed end in an ``Any``."""
    return pack(_STATUS, status_of(message))


def read_status(data: bytes | None) -> tuple[int, dict[str, Any]] | None:
    """Return the code and facts of a Status in an ``Any``, or None for other data."""
    if data is None or not data[2:].startswith(STATUS_URLS):
        return None
    url, inner = unpack(data)
    return facts_of(inner) if type_name(url) in STATUSES else None


PROTOBUF: Final = "application/protobuf"
OCTET_STREAM: Final = "application/octet-stream"
_decode: Final = msgspec.json.Decoder().decode


@lru_cache(256)
def format_of(content_type: str | None) -> BodyFormat:
    """Return the body format of a content type. Both protobuf media types, before and after June 2023, mean ``Any``."""
    media = "" if content_type is None else content_type.partition(";")[0].strip().lower()
    if media in ("", PROTOBUF, "application/x-protobuf"):
        return ANY
    if media == "application/json" or media.endswith("+json"):
        return JSON
    return TEXT if media.startswith("text/") else OCTETS


def from_base64(text: Any, name: str = "data_base64") -> bytes:
    """Decode ``data_base64`` or another attribute."""
    try:
        if not isinstance(text, str):
            raise ValueError("not text")
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError as error:  # UnicodeEncodeError and binascii.Error are ValueErrors
        raise refuse(f"{name} is not base64: {error} (document, 3 Formats, Table 6)", "bad_encoding") from error


def hash_of(text: str, leniency: Leniency) -> bytes:
    """Decode the base64 ``hash`` of a JSON event or a header."""
    try:
        return from_base64(text, "hash")
    except RemoteProtocolError:
        if leniency is Leniency.LENIENT:  # up-python and up-java write any text, which may look like base64
            return text.encode()
        raise


def from_json(value: Any, format: BodyFormat, leniency: Leniency) -> bytes:
    """Return the bytes of ``data`` in a JSON event, unless they belong in ``data_base64``."""
    if format is JSON:
        return msgspec.json.encode(value)
    if format is TEXT and isinstance(value, str):
        return value.encode()
    if is_misplaced(value, format) and leniency:
        return from_base64(value, "data")
    raise refuse("data in the member data: protobuf and binary data stand in data_base64 (document, 3 Formats, Table 6)")


def is_misplaced(value: Any, format: BodyFormat) -> bool:
    """Check for base64 in ``data``, as in the document's examples. Its Table 6 requires ``data_base64``."""
    return format is ANY and isinstance(value, str)


def from_text(data: bytes, format: BodyFormat, depth: int) -> bytes:
    """Check incoming data that is declared as JSON or text."""
    try:
        if format is JSON:
            check_json(data, depth)
            _decode(data)
        elif format is TEXT:
            str(data, "utf-8")
    except (BusError, ValueError, RecursionError) as error:
        raise refuse(f"the data are no {format.content_type}: {error}") from error
    return data
