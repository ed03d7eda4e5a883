"""Headers of the bus as extension attributes: names there have no more than letters and digits, so one attribute holds all.

``traceparent`` and ``tracestate`` are attributes of their own, as the distributed tracing extension of CloudEvents has them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ....headers import is_traceparent
from .checks import HEADERS, WIRE_RULES, is_text, refuse

TRACEPARENT: Final = "traceparent"
_TRACING: Final = (TRACEPARENT, "tracestate")
_decode: Final = msgspec.json.Decoder(dict[str, str]).decode
_encode: Final = msgspec.json.Encoder().encode


def read_headers(attributes: dict[str, Any], limit: int) -> dict[str, str] | None:
    """The headers of an event, or None. May raise `RemoteProtocolError`: ``invalid_headers``."""
    headers: dict[str, str] = {}
    text = attributes.pop(HEADERS, None)
    if text is not None:
        try:
            headers = _decode(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise refuse(f"{HEADERS}: {error}", "invalid_headers") from error
    for name in _TRACING:
        value = attributes.get(name)
        if isinstance(value, str) and (name != TRACEPARENT or is_traceparent(value)):
            headers[name] = value
    return WIRE_RULES.read_headers(headers or None, limit)


def write_headers(headers: dict[str, str], limit: int) -> dict[str, str]:
    """Headers as attributes. May raise `LocalProtocolError`: they do not fit the wire."""
    WIRE_RULES.check_local_headers(headers, limit)
    attributes: dict[str, str] = {}
    if is_traceparent(headers.get(TRACEPARENT, "")):
        attributes = {name: headers[name] for name in _TRACING if name in headers and is_text(headers[name])}
    rest = {name: value for name, value in headers.items() if name not in attributes}
    if rest:
        attributes[HEADERS] = _encode(rest).decode()
    return attributes
