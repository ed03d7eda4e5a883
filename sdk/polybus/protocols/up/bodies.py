"""Bodies: JSON for plain values, ``google.protobuf.Any`` for protobuf messages, raw bytes, and optionally plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...body import JSON, OCTETS, TEXT, BodyFormat, check_json
from ...errors import RemoteProtocolError
from ...message import Message
from .._protobuf.any_body import ANY, check_any, is_message
from .attributes import FORMAT_NAMES, PayloadFormat
from .rules import WIRE_RULES, refuse

FORMATS: Final[tuple[BodyFormat, ...]] = (JSON, ANY, OCTETS, TEXT)
_READ: Final[Mapping[int, BodyFormat]] = {
    PayloadFormat.PROTOBUF_IN_ANY: ANY,
    PayloadFormat.JSON: JSON,
    PayloadFormat.TEXT: TEXT,
}
"""Other formats are bytes, with the format in ``message.attributes``: a bare protobuf message does not carry its type."""
_WRITTEN: Final[Mapping[int, int]] = {
    id(JSON): PayloadFormat.JSON,
    id(ANY): PayloadFormat.PROTOBUF_IN_ANY,
    id(OCTETS): PayloadFormat.RAW,
    id(TEXT): PayloadFormat.TEXT,
}
_JSON: Final = int(PayloadFormat.JSON)
_decode: Final = msgspec.json.Decoder().decode
_NUMBERS: Final = {name: number for number, name in enumerate(FORMAT_NAMES) if number not in _READ}


def format_for(value: Any, texts: bool) -> BodyFormat:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return OCTETS
    if texts and type(value) is str:
        return TEXT
    return ANY if is_message(value) else JSON


def written_body(message: Message, texts: bool) -> tuple[bytes | None, int]:
    """The payload of a message and its wire format. May raise `EncodeError`."""
    raw, format = message.raw, message.format
    if raw is not None and raw is message.checked and format is JSON:
        return raw, _JSON
    if raw is not None and format in FORMATS:
        message.encoded(FORMATS)  # decodes and checks the bytes if that was not done before
        return given_body(raw, message)
    if not message.has_body:
        return None, PayloadFormat.UNSPECIFIED
    chosen = format_for(message.body, texts)
    return message.encoded(FORMATS, lambda value: chosen), _WRITTEN[id(chosen)]


def given_body(raw: bytes, message: Message) -> tuple[bytes, int]:
    """As `written_body`, without checks, for bytes in a format of this wire."""
    if message.format is OCTETS and message.extras is not None:  # relayed bytes in an application's format
        return raw, _NUMBERS.get(message.extras.get("payload_format", ""), PayloadFormat.RAW)
    return raw, _WRITTEN[id(message.format)]


def format_of(number: int) -> BodyFormat:
    return _READ.get(number, OCTETS)


def check_payload(payload: bytes, format: BodyFormat) -> None:
    """Check an incoming payload that is not JSON. May raise `RemoteProtocolError`: not in its declared format."""
    if format is ANY and not check_any(payload):
        raise _no("google.protobuf.Any")
    if format is TEXT:
        try:
            str(payload, "utf-8")
        except UnicodeDecodeError as error:
            raise _no("UTF-8") from error


def read_json(payload: bytes, depth: int) -> Any:
    """Read an incoming JSON payload. May raise `RemoteProtocolError`: malformed, or too deep."""
    try:
        if len(payload) > 2 * depth or not payload.isascii():
            check_json(payload, depth)
        return _decode(payload)
    except (ValueError, RecursionError) as error:
        raise WIRE_RULES.refuse_json(error, kind="a payload") from error


def _no(what: str) -> RemoteProtocolError:
    return refuse(f"the payload is no {what}, as its format says", "invalid_value")
