"""Bodies: JSON for plain values, ``google.protobuf.Any`` for protobuf messages, bytes as they are, text by option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...body import JSON, OCTETS, TEXT, BodyFormat, check_json
from ...errors import RemoteProtocolError
from ...message import Message
from .._protobuf.any_body import ANY, check_any
from .._protobuf.classes import is_message
from .attributes import FORMAT_NAMES, PayloadFormat
from .checks import WIRE_RULES, refuse

FORMATS: Final[tuple[BodyFormat, ...]] = (JSON, ANY, OCTETS, TEXT)
_READ: Final[Mapping[int, BodyFormat]] = {
    PayloadFormat.PROTOBUF_IN_ANY: ANY,
    PayloadFormat.JSON: JSON,
    PayloadFormat.TEXT: TEXT,
}
"""All others are bytes, whose format stands in ``message.attributes``: a bare message of protocol buffers says not which."""
_WRITTEN: Final[Mapping[int, int]] = {
    id(JSON): PayloadFormat.JSON,
    id(ANY): PayloadFormat.PROTOBUF_IN_ANY,
    id(OCTETS): PayloadFormat.RAW,
    id(TEXT): PayloadFormat.TEXT,
}
_NUMBERS: Final = {name: number for number, name in enumerate(FORMAT_NAMES)}


def format_for(value: Any, texts: bool) -> BodyFormat:
    """The format in which a value is written; with `texts`, text goes as such."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return OCTETS
    if texts and type(value) is str:
        return TEXT
    return ANY if is_message(value) else JSON


def written_body(message: Message, texts: bool) -> tuple[bytes | None, int]:
    """The payload of a message, and its format on the wire. May raise `EncodeError`: the body does not fit."""
    format = message.format
    if message.raw is not None and format in FORMATS:
        if format is OCTETS and message.extras is not None:  # relayed: bytes in a form that only the application knows
            return message.raw, _NUMBERS.get(message.extras.get("payload_format", ""), PayloadFormat.RAW)
        return message.raw, _WRITTEN[id(format)]
    if not message.has_body:
        return None, PayloadFormat.UNSPECIFIED
    chosen = format_for(message.body, texts)
    return message.encoded(FORMATS, lambda value: chosen), _WRITTEN[id(chosen)]


def read_format(payload: bytes, number: int, depth: int, answer_id: Any) -> BodyFormat:
    """The format of a payload that came in. May raise `RemoteProtocolError`: it is not what it says."""
    format = _READ.get(number, OCTETS)
    if format is JSON:
        try:
            check_json(payload, depth)
        except Exception as error:
            raise WIRE_RULES.refuse_json(error, answer_id, "a payload") from error
    elif format is ANY and not check_any(payload):
        raise _no(answer_id, "google.protobuf.Any")
    elif format is TEXT:
        try:
            str(payload, "utf-8")
        except UnicodeDecodeError as error:
            raise _no(answer_id, "UTF-8") from error
    return format


def _no(answer_id: Any, what: str) -> RemoteProtocolError:
    return refuse(f"the payload is no {what}, as its format says", "invalid_value", answer_id)
