"""The five payload encodings (document CSB, "Payload Encodings"), as body formats, and their strict checks on arrival."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlencode

import msgspec
from attrs import frozen

from ...body import JSON as JSON_FORMAT
from ...body import OCTETS, TEXT, BodyFormat, check_json
from ...errors import BadRequest, EncodeError, RemoteProtocolError
from ...limits import Limits
from .._rules import WireRules
from . import wire
from .results import ENCODING_ERROR

MAX_FIELDS: Final = 1000
"""Of a form: each costs the reader far more memory than the sender."""

WIRE_RULES: Final = WireRules("csb")
refuse: Final = WIRE_RULES.refuse


@frozen(eq=False)
class PayloadFormat:
    """A body format that only this wire has. `read` may raise `RemoteProtocolError`."""

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
        raise EncodeError(f"this action carries a form: fields and their texts, not {type(value).__name__}")
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
    raise EncodeError(f"a field of a form is text, a number or a list of those, not {type(value).__name__}", path)


def _read_form(data: bytes) -> dict[str, Any]:
    """May raise `RemoteProtocolError`: too many fields, or no form."""
    if data.count(b"&") >= MAX_FIELDS:
        fields = data.count(b"&") + (not data.endswith(b"&"))
        if fields > MAX_FIELDS:
            raise refuse(f"a form of {fields} fields: the limit is {MAX_FIELDS}", "too_large")
    if not data:
        return {}
    try:
        pairs = parse_qsl(data.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError as error:  # also of what is not ASCII, and of escapes that are no UTF-8
        raise refuse(f"the payload is not urlencoded: {error}", ENCODING_ERROR) from error
    form: dict[str, Any] = {}
    for name, value in pairs:
        if name not in form:
            form[name] = value
        elif isinstance(form[name], list):
            form[name].append(value)
        else:
            form[name] = [form[name], value]
    return form


def _write_base64(value: Any) -> bytes:
    return binascii.b2a_base64(OCTETS.encode(value), newline=False)


def _read_base64(data: bytes) -> bytes:
    """May raise `RemoteProtocolError`: not base64."""
    try:
        return binascii.a2b_base64(data, strict_mode=True)
    except ValueError as error:
        raise refuse(f"the payload is not base64: {error}", ENCODING_ERROR) from error


FORM_FORMAT: Final = PayloadFormat("application/x-www-form-urlencoded", _write_form, _read_form)
"""A dict of texts, with lists where a key is repeated."""
BASE64_FORMAT: Final = PayloadFormat("application/base64", _write_base64, _read_base64)
"""Bytes as base64 text (RFC 4648 section 4, with padding and nothing else in between)."""
FORMATS: Final[tuple[BodyFormat, ...]] = (JSON_FORMAT, OCTETS, TEXT, FORM_FORMAT, BASE64_FORMAT)
BY_NAME: Final[Mapping[str, BodyFormat]] = {
    "binary": OCTETS,
    "string": TEXT,
    "json": JSON_FORMAT,
    "urlencoded": FORM_FORMAT,
    "base64": BASE64_FORMAT,
}
NUMBERS: Final[Mapping[BodyFormat, int]] = {BY_NAME[name]: number for name, number in wire.ENCODINGS.items()}
PayloadReader: TypeAlias = Callable[[bytes], tuple[bytes | None, BodyFormat, Any]]
_decode: Final = msgspec.json.Decoder().decode


def payload_readers(limits: Limits) -> dict[int, PayloadReader]:
    """Readers of payloads by encoding: they give bytes or None for none, their format, and the value.

    Each may raise `RemoteProtocolError`: it does not parse; the reason is ``encoding`` or ``too_large``.
    """
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
