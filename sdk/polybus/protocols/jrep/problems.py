"""Errors on the wire: ErrorMessage, AdditionalDetails and Throwable for every peer, code, reason and detail for ours.

A Throwable is data. What comes in gives a text; what goes out is a RuntimeException, which every Errai client knows, without a
stack and without anything that the bus does not tell on other protocols either.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ...body import JSON
from ...errors import Code
from ...message import Kind, Message
from .numbering import Numbering, throwable
from .text import json_text, quoted

__all__ = ["failure_of", "failure_parts"]

_EXPLAINED: Final = 1000


def failure_of(kind: Kind, subject: str, key: Any, values: dict[str, Any]) -> Message:
    """The error, or the end, that parts tell of; without a code of ours it is UNKNOWN."""
    number = values.get("PolybusCode")
    code = Code(number) if type(number) is int and 1 <= number <= 16 else Code.UNKNOWN
    text, reason = values.get("ErrorMessage"), values.get("PolybusReason")
    facts = {
        "text": text if type(text) is str else _message_of(values.get("Throwable")),
        "reason": reason if type(reason) is str else None,
        "detail": _detail(values.get("PolybusDetail")),
    }
    return Message(kind, subject, key, code=code, attributes=facts)


def _message_of(throwable: Any) -> str:
    found = throwable.get("message") if isinstance(throwable, dict) else None
    return found[:_EXPLAINED] if isinstance(found, str) else ""


def _detail(text: Any) -> Any:
    if type(text) is not str:
        return None
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None


def failure_parts(message: Message, marked: bool) -> bytes:
    """The parts of an error or of an end that failed, each with a comma before it.

    Raises:
        EncodeError: The detail has no JSON.
    """
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
