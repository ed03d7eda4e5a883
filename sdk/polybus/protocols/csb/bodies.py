"""The five payload encodings (document CSB, "Payload Encodings") as strict body formats, and the table of result codes
(document CSB, "Result code").
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, urlencode

import msgspec
from attrs import frozen

from ...body import JSON as JSON_FORMAT
from ...body import OCTETS, TEXT, BodyFormat, check_json
from ...errors import BadRequest, Code, EncodeError, RemoteProtocolError
from ...limits import Limits
from ...message import Message
from .._shared import WireRules, error_facts
from . import wire

LAST_USER: Final = 0xC8  # Results from 1 to this one are the application's
ENCODING_ERROR: Final = "bad_encoding"  # Reason for a request with a malformed payload
INTERNAL: Final = 0xD0

# Result -> (code, reason, default text). Writers use the first row of a (code, reason).
RESULTS: Final[Mapping[int, tuple[Code, str | None, str]]] = {
    0xC9: (Code.UNIMPLEMENTED, None, "NotFound: no action to handle this request"),
    0xCA: (Code.DEADLINE_EXCEEDED, None, "Timeout: action handle timeout"),
    0xCB: (Code.INVALID_ARGUMENT, ENCODING_ERROR, "EncodingError: the payload does not parse"),
    0xCC: (Code.INVALID_ARGUMENT, None, "BadRequest: the payload is incorrect"),
    0xCD: (Code.UNAUTHENTICATED, None, "Unauthorized: need to login"),
    0xCE: (Code.PERMISSION_DENIED, None, "Forbidden: forbidden to access this action"),
    0xCF: (Code.RESOURCE_EXHAUSTED, None, "TooManyRequests: too many requests"),
    0xD0: (Code.INTERNAL, None, "InternalError: the action failed"),
    0xD1: (Code.RESOURCE_EXHAUSTED, "too_large", "PayloadTooLarge: the payload is too large"),
    0xD2: (Code.UNIMPLEMENTED, "not_implemented", "NotImplemented: the action is not implemented"),
}
_BY_BOTH: Final = {(code, reason): result for result, (code, reason, _) in RESULTS.items()}
_encode: Final = msgspec.json.Encoder().encode


def result_for(code: Code, reason: Any, detail: Any) -> int:
    """Return the result byte of an error. Codes that have no result byte become InternalError."""
    if type(detail) is dict:
        own = detail.get("result")
        if type(own) is int and 1 <= own <= LAST_USER:
            return own
    try:
        return _BY_BOTH.get((code, reason)) or _BY_BOTH.get((code, None), INTERNAL)
    except TypeError:  # a reason that is not text
        return _BY_BOTH.get((code, None), INTERNAL)


def error_payload(message: Message) -> tuple[int, bytes]:
    code = Code.UNKNOWN if message.code is None or message.code is Code.OK else message.code
    said = message.attributes
    text, reason, detail = str(said.get("text") or ""), said.get("reason"), said.get("detail")
    members: dict[str, Any] = {"code": int(code)}
    if reason is not None:
        members["reason"] = str(reason)
    if text:
        members["text"] = text
    if detail is not None:
        members["detail"] = msgspec.Raw(JSON_FORMAT.encode(detail))
    return result_for(code, reason, detail), _encode(members)


def fill_error(message: Message, result: int | None, value: Any) -> None:
    """Set an error's code and attributes. A string payload, as others send, becomes the text, any other the detail."""
    attributes = message.attributes
    if isinstance(value, dict) and type(number := value.get("code")) is int and 1 <= number <= 16:
        said = error_facts(value.get("text"), value.get("reason"), value.get("detail"))
        if result is None or result_for(Code(number), said["reason"], said["detail"]) == result:
            message.code = Code(number)
            attributes.update(said)
            return
    known = RESULTS.get(INTERNAL if result is None else result)
    facts: dict[str, Any] | None = None
    if known is None:
        message.code, reason, text = Code.UNKNOWN, None, f"result {result:#04x}"
        facts = {"result": result}
    else:
        message.code, reason, text = known
    if isinstance(value, str) and value:
        text = value
    elif value is not None:
        facts = {**(facts or {}), "body": value}
    attributes.update(text=text, reason=reason, detail=facts)


MAX_FIELDS: Final = 1000  # Maximum number of fields of a form: each costs the reader far more memory than the sender

WIRE_RULES: Final = WireRules("csb")
refuse: Final = WIRE_RULES.refuse


@frozen(eq=False)
class CsbPayloadFormat:
    content_type: str
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]

    def encode(self, value: Any) -> bytes:
        return self.write(value)

    def decode(self, data: bytes) -> Any:
        try:
            return self.read(data)
        except RemoteProtocolError as error:
            raise BadRequest(error.text) from error


def _write_form(value: Any) -> bytes:
    plain = JSON_FORMAT.decode(JSON_FORMAT.encode(value))
    if not isinstance(plain, dict):
        raise EncodeError(f"the body for this action must be a form with names and strings, not {type(value).__name__}")
    fields = [
        (str(name), _field(one, f"$.{name}"))
        for name, item in plain.items()
        for one in (item if isinstance(item, (list, tuple)) else (item,))
    ]
    try:
        return urlencode(fields, encoding="utf-8").encode()
    except UnicodeEncodeError as error:
        raise EncodeError(f"lone surrogate at character {error.start}") from error


def _field(value: Any, path: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise EncodeError(f"a form field must be a string, a number or a list of these, not {type(value).__name__}", path)


def _read_form(data: bytes) -> dict[str, Any]:
    if data.count(b"&") >= MAX_FIELDS:
        fields = data.count(b"&") + (not data.endswith(b"&"))
        if fields > MAX_FIELDS:
            raise refuse(f"a form of {fields} fields: the limit is {MAX_FIELDS}", "too_large")
    if not data:
        return {}
    try:
        form = parse_qs(data.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError as error:  # also for non-ASCII text and escapes that are not UTF-8
        raise refuse(f"the payload is not urlencoded: {error}", ENCODING_ERROR) from error
    return {name: values if len(values) > 1 else values[0] for name, values in form.items()}


def _read_base64(data: bytes) -> bytes:
    try:
        return binascii.a2b_base64(data, strict_mode=True)
    except ValueError as error:
        raise refuse(f"the payload is not base64: {error}", ENCODING_ERROR) from error


FORM_FORMAT: Final = CsbPayloadFormat("application/x-www-form-urlencoded", _write_form, _read_form)
BASE64_FORMAT: Final = CsbPayloadFormat(
    "application/base64", lambda value: binascii.b2a_base64(OCTETS.encode(value), newline=False), _read_base64
)
"""Bytes as base64 (RFC 4648 section 4, with padding, without line breaks)."""
FORMATS: Final[tuple[BodyFormat, ...]] = (JSON_FORMAT, OCTETS, TEXT, FORM_FORMAT, BASE64_FORMAT)
_BY_NUMBER: Final[tuple[BodyFormat, ...]] = (OCTETS, TEXT, JSON_FORMAT, FORM_FORMAT, BASE64_FORMAT)
BY_NAME: Final[Mapping[str, BodyFormat]] = {name: _BY_NUMBER[number] for name, number in wire.ENCODINGS.items()}
NUMBERS: Final[Mapping[BodyFormat, int]] = {format: number for number, format in enumerate(_BY_NUMBER)}
PayloadReader: TypeAlias = Callable[[bytes], tuple[bytes | None, BodyFormat, Any]]
_decode: Final = msgspec.json.Decoder().decode


def payload_readers(limits: Limits) -> dict[int, PayloadReader]:
    """Return each encoding's reader, which returns the bytes (`None` if the payload is empty), the format and the value."""
    short = 2 * limits.depth

    def read_json(data: bytes) -> tuple[bytes | None, BodyFormat, Any]:
        if not data:
            return None, JSON_FORMAT, None
        try:
            if len(data) > short or not data.isascii():
                check_json(data, limits.depth)
            return data, JSON_FORMAT, _decode(data)
        except EncodeError as error:
            raise refuse("the payload is nested too deeply (limit: depth)", ENCODING_ERROR) from error
        except (ValueError, RecursionError) as error:
            raise refuse(f"the payload is not JSON: {error}", ENCODING_ERROR) from error

    return {
        wire.BINARY: lambda data: (data, OCTETS, data) if data else (None, OCTETS, None),
        wire.STRING: _read_text,
        wire.JSON: read_json,
        wire.URLENCODED: lambda data: (data, FORM_FORMAT, _read_form(data)),
        wire.BASE64: lambda data: (data, BASE64_FORMAT, _read_base64(data)),
    }


def _read_text(data: bytes) -> tuple[bytes | None, BodyFormat, Any]:
    try:
        return data, TEXT, str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise refuse(f"the payload is not UTF-8 at byte {error.start}", ENCODING_ERROR) from error
