"""The five payload encodings (document CSB, "Payload Encodings"), as body formats, and their strict checks on arrival."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import msgspec

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


class FormFormat:
    """``application/x-www-form-urlencoded``: a dict of texts, with lists where a key is repeated."""

    content_type = "application/x-www-form-urlencoded"

    def encode(self, value: Any) -> bytes:
        try:
            plain = msgspec.to_builtins(value)
        except (TypeError, ValueError) as error:
            raise EncodeError(f"{type(value).__name__} is no form: {error}") from error
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

    def decode(self, data: bytes) -> Any:
        try:
            return _form(data)
        except RemoteProtocolError as error:
            raise BadRequest(error.text) from error


def _field(value: Any, path: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise EncodeError(f"a field of a form is text, a number or a list of those, not {type(value).__name__}", path)


def _form(data: bytes) -> dict[str, Any]:
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


class Base64Format:
    """Bytes as base64 text (RFC 4648 section 4, with padding and nothing else in between)."""

    content_type = "application/base64"

    def encode(self, value: Any) -> bytes:
        return binascii.b2a_base64(OCTETS.encode(value), newline=False)

    def decode(self, data: bytes) -> Any:
        try:
            return _base64(data)
        except RemoteProtocolError as error:
            raise BadRequest(error.text) from error


def _base64(data: bytes) -> bytes:
    """May raise `RemoteProtocolError`: not base64."""
    try:
        return binascii.a2b_base64(data, strict_mode=True)
    except ValueError as error:
        raise refuse(f"the payload is not base64: {error}", ENCODING_ERROR) from error


FORM_FORMAT: Final = FormFormat()
BASE64_FORMAT: Final = Base64Format()
FORMATS: Final[tuple[BodyFormat, ...]] = (JSON_FORMAT, OCTETS, TEXT, FORM_FORMAT, BASE64_FORMAT)
_NUMBERS: Final[Mapping[BodyFormat, int]] = {
    OCTETS: wire.BINARY,
    TEXT: wire.STRING,
    JSON_FORMAT: wire.JSON,
    FORM_FORMAT: wire.URLENCODED,
    BASE64_FORMAT: wire.BASE64,
}
BY_NAME: Final[Mapping[str, BodyFormat]] = {
    name: next(body_format for body_format, have in _NUMBERS.items() if have == number)
    for name, number in wire.ENCODINGS.items()
}


def number_of(body_format: BodyFormat) -> int:
    """The encoding of a format of `FORMATS`."""
    return _NUMBERS[body_format]


_decode: Final = msgspec.json.Decoder().decode


class Payloads:
    """Reads payloads: bytes, their format and the value, by encoding."""

    def __init__(self, limits: Limits) -> None:
        self._depth = limits.depth
        self._short = 2 * limits.depth
        self.readers: dict[int, Callable[[bytes], tuple[bytes | None, BodyFormat, Any]]] = {
            wire.BINARY: self._binary,
            wire.STRING: self._string,
            wire.JSON: self.json,
            wire.URLENCODED: lambda data: (data, FORM_FORMAT, _form(data)),
            wire.BASE64: lambda data: (data, BASE64_FORMAT, _base64(data)),
        }

    def read(self, encoding: int, data: bytes) -> tuple[bytes | None, BodyFormat, Any]:
        """A payload: bytes or None for none, their format, and the value.

        Raises:
            RemoteProtocolError: It does not parse; the reason is ``encoding`` or ``too_large``.
        """
        reader = self.readers.get(encoding)
        if reader is None:
            raise refuse(f"no payload encoding {encoding:#x} in CSB", ENCODING_ERROR)
        return reader(data)

    @staticmethod
    def _binary(data: bytes) -> tuple[bytes | None, BodyFormat, Any]:
        return (data, OCTETS, data) if data else (None, OCTETS, None)

    @staticmethod
    def _string(data: bytes) -> tuple[bytes | None, BodyFormat, Any]:
        try:
            return data, TEXT, str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise refuse(f"the payload is not UTF-8 at byte {error.start}", ENCODING_ERROR) from error

    def json(self, data: bytes) -> tuple[bytes | None, BodyFormat, Any]:
        """JSON; no bytes at all are no payload."""
        if not data:
            return None, JSON_FORMAT, None
        try:
            if len(data) > self._short or not data.isascii():
                check_json(data, self._depth)
            return data, JSON_FORMAT, _decode(data)
        except EncodeError as error:
            raise refuse("the payload is nested too deeply (limit: depth)", ENCODING_ERROR) from error
        except (ValueError, RecursionError) as error:
            raise refuse(f"the payload is not JSON: {error}", ENCODING_ERROR) from error
