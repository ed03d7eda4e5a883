"""Members used in both formats, and the rules for subjects, ids and deadlines.

Members are errors, deadlines, headers, channel facts and, in the document's dialect, the subject in a request's body. Readers
handle ordinary cases inline and call these rules for all other cases, so that errors name the fault.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from ...body import JSON, OCTETS
from ...errors import Code, EncodeError
from ...limits import Limits
from ...message import Kind, Message
from .._shared import MAX_INT, WireRules, error_facts, fault_in_subject, milliseconds, opening_facts

WIRE_RULES: Final = WireRules("ubre")
refuse: Final = WIRE_RULES.refuse
refuse_json: Final = WIRE_RULES.refuse_json


def check_subject(value: Any, limit: int, answer_id: Any = None, empty: bool = False) -> None:
    fault = fault_in_subject(value, limit)
    if fault is None and not value and not empty:
        fault = "the subject is empty"
    if fault is not None:
        raise refuse(fault, "invalid_subject", answer_id)


def check_id(value: Any, limit: int) -> None:
    """Check an id, which must be a string of 1 to `limit` bytes or an integer of up to 53 bits."""
    if type(value) is str:
        if value and len(value.encode()) <= limit:
            return
        raise refuse(f"an id must have 1 to {limit} bytes (limit: id)", "invalid_id")
    if type(value) is int and -MAX_INT <= value <= MAX_INT:
        return
    shown = "an integer beyond 2^53" if type(value) is int else type(value).__name__
    raise refuse(f"an id must be a string or an integer within 2^53, not {shown}", "invalid_id")


def unencodable(error: UnicodeEncodeError) -> EncodeError:
    return EncodeError(f"lone surrogate at character {error.start} of {error.object[:40]!r}")


NOT_FOUND = "NotFound"  # Text of npm ubre's answer to a request without a handler

_encode = msgspec.json.Encoder().encode


class ChannelMembers(Struct, gc=False, kw_only=True):
    """Optional members next to the verb, not checked yet. In a binary frame they are a JSON object in the name."""

    headers: Any = None
    ttl: Any = None
    code: Any = UNSET
    text: Any = None
    reason: Any = None
    detail: Any = None
    mode: Any = None
    n: Any = 0
    hops: Any = 0
    spec: Any = False


NO_EXTRAS: Final = ChannelMembers()
JSON_ONLY: Final = (JSON,)
OCTETS_ONLY: Final = (OCTETS,)


class SubjectInBody(Struct, gc=False, forbid_unknown_fields=True):
    subject: str
    body: Raw = Raw()


_subject_in_body: Final = msgspec.json.Decoder(SubjectInBody).decode


# -- reading -------------------------------------------------------------------------------------------------------------


def named_in_body(body: bytes | Raw) -> SubjectInBody | None:
    """Split a body ``{"subject": text, "body": any}``. Returns `None` for any other body."""
    try:
        return _subject_in_body(body)
    except (ValueError, RecursionError):
        return None


def error(id: Any, body: Any, extras: ChannelMembers, limits: Limits) -> Message:
    headers = WIRE_RULES.read_headers(extras.headers, limits.headers)
    if extras.code is UNSET:
        code, attributes = _bare_error(body)
    else:
        code = _code(extras.code)
        attributes = error_facts(extras.text, extras.reason, extras.detail)
        if extras.text is None:
            attributes["text"] = body if isinstance(body, str) else ""
        if extras.detail is None and not isinstance(body, str):
            attributes["detail"] = body
    return Message(Kind.ERROR, "", id, None, JSON, headers, None, code, None, attributes)


def _bare_error(body: Any) -> tuple[Code, dict[str, Any]]:
    """Read an error without a code. The npm package writes an Error as ``{"name", "message", "stack"}``."""
    if isinstance(body, str):
        return Code.UNIMPLEMENTED if body == NOT_FOUND else Code.UNKNOWN, error_facts(body, None, None)
    return Code.UNKNOWN, error_facts(body.get("message") if isinstance(body, dict) else None, None, body)


def _code(value: Any) -> Code:
    return Code(value) if type(value) is int and 1 <= value <= 16 else Code.UNKNOWN


def end(id: Any, extras: ChannelMembers) -> Message:
    """Read the end of a channel. If the code is missing or 0, the end is clean."""
    if extras.code is UNSET or (type(extras.code) is int and extras.code == 0):
        return Message(Kind.END, "", id)
    facts = error_facts(extras.text, extras.reason, extras.detail)
    return Message(Kind.END, "", id, None, JSON, None, None, _code(extras.code), None, facts)


def credit(id: Any, extras: ChannelMembers) -> Message:
    amount = WIRE_RULES.read_count(extras.n, "n", least=1)
    return Message(Kind.CREDIT, "", id, None, JSON, None, None, None, None, {"credit": amount})


def opening(id: Any, subject: str, extras: ChannelMembers, limits: Limits) -> Message:
    attributes = WIRE_RULES.read_opening(extras.mode, extras.n, extras.hops, id)
    headers = WIRE_RULES.read_headers(extras.headers, limits.headers, id)
    ttl = WIRE_RULES.read_ttl(extras.ttl, "ttl", id)
    return Message(Kind.OPEN, subject, id, None, JSON, headers, ttl, None, None, attributes)


# -- writing -------------------------------------------------------------------------------------------------------------


def body_is_octets(message: Message) -> bool:
    if message.raw is not None:
        return message.format is OCTETS
    return message.has_body and isinstance(message.body, (bytes, bytearray, memoryview))


def with_subject(quoted_subject: bytes, body: bytes | None) -> bytes | None:
    """Add the subject to a JSON body. An empty one is left out unless a reader could mistake the body for a subject."""
    if quoted_subject == b'""' and (body is None or not (b'"subject"' in body or b"\\" in body)):
        return body
    if body is None:
        return b'{"subject":%b}' % quoted_subject
    return b'{"subject":%b,"body":%b}' % (quoted_subject, body)


def error_body(message: Message) -> str:
    return NOT_FOUND if message.code is Code.UNIMPLEMENTED else _text(message)


def extras_of(message: Message, limits: Limits, spec: bool = False) -> bytes:
    kind, code, members = message.kind, message.code, dict[str, Any]()
    if spec:
        members["spec"] = True
    if message.headers:
        WIRE_RULES.check_local_headers(message.headers, limits.headers)
        members["headers"] = message.headers
    if message.ttl is not None and kind in _WITH_TTL:
        members["ttl"] = milliseconds(message.ttl)
    if kind is Kind.OPEN:
        members["mode"], members["n"], members["hops"] = opening_facts(message)
    elif kind is Kind.CREDIT:
        members["n"] = message.attributes.get("credit", 0)
    elif kind is Kind.ERROR or (kind is Kind.END and code):  # None and OK are a clean end
        if kind is Kind.END or code is Code.UNIMPLEMENTED:  # otherwise the body is the text
            members["text"] = _text(message)
        members["code"] = int(Code.UNKNOWN if code is None else code)
        reason, detail = message.attributes.get("reason"), message.attributes.get("detail")
        if reason is not None:
            members["reason"] = reason
        if detail is not None:
            members["detail"] = Raw(JSON.encode(detail))
    return _encode(members) if members else b""


def _text(message: Message) -> str:
    return str(message.attributes.get("text") or "")


_WITH_TTL: Final = (Kind.REQUEST, Kind.NOTIFY, Kind.OPEN)
