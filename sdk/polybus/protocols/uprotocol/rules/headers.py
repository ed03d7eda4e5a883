"""Headers of the bus as extension attributes: names there have no more than letters and digits, so one attribute holds all.

``traceparent`` and ``tracestate`` are attributes of their own, as the distributed tracing extension of CloudEvents has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ....errors import LocalProtocolError, RemoteProtocolError

__all__ = ["HEADERS", "read_headers", "write_headers"]

HEADERS: Final = "polybusheaders"
_TRACING: Final = ("traceparent", "tracestate")
_LINE: Final = re.compile(r"[\r\n\x00]")
_decode: Final = msgspec.json.Decoder(dict[str, str]).decode
_encode: Final = msgspec.json.Encoder().encode


def _fault(headers: Mapping[str, str], limit: int) -> str | None:
    size = 0
    for name, value in headers.items():
        if not name or _LINE.search(name) or _LINE.search(value):
            return f"an empty name, or CR, LF or NUL in the header {name[:40]!r}"
        size += len(name.encode("utf-8", "replace")) + len(value.encode("utf-8", "replace"))
    return f"headers of {size} bytes are larger than {limit} (limit: headers)" if size > limit else None


def read_headers(attributes: dict[str, Any], limit: int) -> dict[str, str] | None:
    """The headers of an event, or None.

    Raises:
        RemoteProtocolError: ``invalid_headers``.
    """
    headers: dict[str, str] = {}
    text = attributes.pop(HEADERS, None)
    if text is not None:
        try:
            headers = _decode(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise RemoteProtocolError(f"{HEADERS}: {error}", reason="invalid_headers", protocol="uprotocol") from error
    for name in _TRACING:
        value = attributes.get(name)
        if isinstance(value, str):
            headers[name] = value
    fault = _fault(headers, limit) if headers else None
    if fault is not None:
        raise RemoteProtocolError(fault, reason="invalid_headers", protocol="uprotocol")
    return headers or None


def write_headers(headers: dict[str, str], limit: int) -> dict[str, str]:
    """Headers as attributes.

    Raises:
        LocalProtocolError: They do not fit the wire.
    """
    fault = _fault(headers, limit)
    if fault is not None:
        raise LocalProtocolError(fault, protocol="uprotocol")
    attributes: dict[str, str] = {name: headers[name] for name in _TRACING if name in headers}
    rest = {name: value for name, value in headers.items() if name not in attributes}
    if rest:
        attributes[HEADERS] = _encode(rest).decode()
    return attributes
