"""Errors on the wire: ErrorMessage, AdditionalDetails and Throwable for every peer, code, reason and detail for ours.

A Throwable is data. What comes in says why something failed; what goes out is a RuntimeException, which every Errai client
knows, without a stack and without anything that the bus does not tell on other protocols either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...body import JSON
from ...errors import Code
from ...message import Kind, Message
from .messages.text import json_text, quoted
from .object_ids import Numbering, throwable
from .values.java import JavaObject, JavaTypes, Portable

_EXPLAINED: Final = 1000
_CAUSES: Final = 16
"""Depth to which causes are followed: what came in may go in circles."""


def failure_of(kind: Kind, subject: str, key: Any, values: dict[str, Any], types: JavaTypes) -> Message:
    """The error, or the end, that parts tell of. One without a code of ours is UNKNOWN, and its Throwable says what it was."""
    number = values.get("PolybusCode")
    if type(number) is int and 1 <= number <= 16:
        code, facts = Code(number), _told(values)
    else:
        code, facts = Code.UNKNOWN, _thrown(values, types)
    return Message(kind, subject, key, code=code, attributes=facts)


def _told(values: dict[str, Any]) -> dict[str, Any]:
    text, reason = values.get("ErrorMessage"), values.get("PolybusReason")
    return {
        "text": text if type(text) is str else _message_of(values.get("Throwable")) or "",
        "reason": reason if type(reason) is str else None,
        "detail": _detail(values.get("PolybusDetail")),
    }


def _thrown(values: dict[str, Any], types: JavaTypes) -> dict[str, Any]:
    """Read why a call failed: from the Throwable, for Errai's ErrorMessage is the same of all failures."""
    said, throwable, explained = values.get("ErrorMessage"), values.get("Throwable"), values.get("AdditionalDetails")
    said = said if type(said) is str else ""
    found = _described(throwable, types, _CAUSES)
    facts: dict[str, Any] = {"text": found.get("message") or said, "reason": found.pop("class", None), "detail": None}
    detail = {**found, "ErrorMessage": said, "AdditionalDetails": explained if type(explained) is str else ""}
    if found or explained:
        facts["detail"] = {name: value for name, value in detail.items() if value != ""}
    return facts


def _described(throwable: Any, types: JavaTypes, causes: int) -> dict[str, Any]:
    """Class, message, cause and the other fields of a Throwable; nothing of what is none."""
    fields, name = _fields_of(throwable, types)
    if fields is None:
        return {}
    cause = _described(fields.get("cause"), types, causes - 1) if causes else {}
    own = {field: value for field, value in fields.items() if field not in ("message", "cause", "stackTrace")}
    described: dict[str, Any] = {"message": _message_of(fields), "cause": cause or None, "fields": own}
    return {"class": name, **described} if name is not None else described


def _fields_of(throwable: Any, types: JavaTypes) -> tuple[Mapping[str, Any] | None, str | None]:
    """The fields of an object, and its Java class."""
    if isinstance(throwable, JavaObject):
        return throwable, throwable.type
    if isinstance(throwable, dict):
        return throwable, None
    known = types.of_class(type(throwable))
    if not isinstance(known, Portable):
        return None, None
    return {java: getattr(throwable, ours) for ours, java, _ in known.fields}, known.java


def _message_of(throwable: Any) -> str | None:
    found = throwable.get("message") if isinstance(throwable, Mapping) else None
    return found[:_EXPLAINED] if isinstance(found, str) else None


def _detail(text: Any) -> Any:
    if type(text) is not str:
        return None
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None


def failure_parts(message: Message, marked: bool) -> bytes:
    """Parts of a failed call or end, each with a comma before it. May raise `EncodeError`: the detail has no JSON."""
    code = Code.UNKNOWN if message.code is None else message.code
    facts = message.attributes
    text, reason, detail = str(facts.get("text") or ""), facts.get("reason"), facts.get("detail")
    written = [b',"ErrorMessage":%b' % quoted(text)]
    if message.kind is Kind.ERROR:
        explained = f"{code.name} ({reason})" if reason else code.name
        written.append(b',"AdditionalDetails":%b' % quoted(explained))
        thrown = throwable(text or code.name, Numbering()) if marked else json_text({"message": text or code.name})
        written.append(b',"Throwable":%b' % thrown)
    written.append(b',"PolybusCode":%d' % code)
    if reason is not None:
        written.append(b',"PolybusReason":%b' % quoted(str(reason)))
    if detail is not None:
        written.append(b',"PolybusDetail":%b' % quoted(JSON.encode(detail).decode()))
    return b"".join(written)
