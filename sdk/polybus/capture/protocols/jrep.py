"""Recording and decoding of J.REP frames."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Raw

from ...message import Kind, Message
from .shared import FIELDS, encode, objects_in, plain_event

_CORRELATION, _PRIORITY = map(FIELDS.index, ("correlation_id", "priority"))
_BODY: Final = re.compile("PolybusHeaders|Value|ErrorMessage|AdditionalDetails|Throwable|Polybus(Frame|Detail)")
_ROUTING: Final = re.compile(r"ToSubject|ReplyTo|ErrorTo|CommandType|PriorityProcessing|Polybus(?!(Frame|Detail)$).*", re.S)
_COMMANDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("Associate", "ConnectToQueue"), "open"),
    **dict.fromkeys(("Disconnect", "SessionExpired"), "close"),
    "Heartbeat": "heartbeat",
}
_REPLY: Final = ":RespondTo:RPC"


def without_body(frame: bytes, options: Mapping[str, Any], cut: bool) -> bytes:
    if not frame.strip():
        return frame
    kept = []
    for parts in objects_in(frame, cut, _BODY):
        control = bytes(parts.get("ToSubject", Raw(b""))) in (b'"ServerBus"', b'"ClientBus"')
        kept.append({name: value for name, value in parts.items() if control or _ROUTING.fullmatch(name)})
    return encode(kept) if kept else b""


def event(message: Message) -> list[Any]:
    row = plain_event(message)
    if row[0] == "request":
        row[_CORRELATION] = (message.reply_to or "").removesuffix(_REPLY)
    elif row[0] == "response":
        row[_CORRELATION] = f"{message.subject}:{message.id}"
    elif message.kind is Kind.CONTROL:
        row[0] = _COMMANDS.get(str(message.attributes.get("CommandType")), "control")
    elif message.kind is Kind.CANCEL and type(message.id) is tuple:
        row[_CORRELATION] = str(message.id[0]).removesuffix(_REPLY)
    priority = message.attributes.get("PriorityProcessing")
    if priority is not None:
        row[_PRIORITY] = str(priority)
    return row
