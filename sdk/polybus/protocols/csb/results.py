"""The one table between our codes and CSB's result codes (document CSB, "Result code")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...body import JSON
from ...errors import Code
from ...message import Message

LAST_USER: Final = 0xC8
"""Results from 1 to this are the application's."""
ENCODING_ERROR: Final = "encoding"
"""The reason of a request whose payload does not parse."""
INTERNAL: Final = 0xD0

# Result -> (code, reason, text of a response that says nothing itself). The first row of a (code, reason) is what is written.
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
    """The result byte of an error; a code without one of its own travels under InternalError."""
    if type(detail) is dict:
        own = detail.get("result")
        if type(own) is int and 1 <= own <= LAST_USER:
            return own
    try:
        return _BY_BOTH.get((code, reason)) or _BY_BOTH.get((code, None), INTERNAL)
    except TypeError:  # a reason that is no text
        return _BY_BOTH.get((code, None), INTERNAL)


def error_payload(message: Message) -> tuple[int, bytes]:
    """Result byte and payload (JSON) of an error or a failed end. May raise `EncodeError`: the detail has no JSON form."""
    code = Code.UNKNOWN if message.code is None or message.code is Code.OK else message.code
    said = message.attributes
    text, reason, detail = str(said.get("text") or ""), said.get("reason"), said.get("detail")
    members: dict[str, Any] = {"code": int(code)}
    if reason is not None:
        members["reason"] = str(reason)
    if text:
        members["text"] = text
    if detail is not None:
        members["detail"] = msgspec.Raw(JSON.encode(detail))
    return result_for(code, reason, detail), _encode(members)


def fill_error(message: Message, result: int | None, value: Any) -> None:
    """Set code and attributes of an error from its result byte (None: it had no place for one) and its decoded payload.

    What is not the object that our own side writes is a bare peer's: its text, or else its value, is passed on.
    """
    attributes = message.attributes
    if isinstance(value, dict) and type(number := value.get("code")) is int and 1 <= number <= 16:
        text, reason, detail = value.get("text"), value.get("reason"), value.get("detail")
        reason = reason if isinstance(reason, str) else None
        if result is None or result_for(Code(number), reason, detail) == result:
            message.code = Code(number)
            attributes.update(text=text if isinstance(text, str) else "", reason=reason, detail=detail)
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
