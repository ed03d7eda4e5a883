"""What the table of events says of a message, protocol by protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from ..errors import BusError, Code
from ..message import Kind, Message

__all__ = ["Row", "reading_for"]

_KINDS: Final[Mapping[str, str]] = {
    Kind.REQUEST.value: "request",
    Kind.RESPONSE.value: "response",
    Kind.ERROR.value: "response",
    Kind.PUBLISH.value: "publish",
    Kind.SUBSCRIBE.value: "subscribe",
    Kind.UNSUBSCRIBE.value: "unsubscribe",
    Kind.NOTIFY.value: "notify",
    Kind.OPEN.value: "open",
    Kind.END.value: "close",
    Kind.CANCEL.value: "control",
    Kind.ITEM.value: "control",
    Kind.CREDIT.value: "control",
    Kind.CONTROL.value: "control",
}
_NAMES: Final[Mapping[int, str]] = {int(code): code.name for code in Code}
_WORDS: Final = {"connected": "open", "closed": "close", "close": "close"}
_COMMANDS: Final = {
    "Associate": "open",
    "ConnectToQueue": "open",
    "Disconnect": "close",
    "SessionExpired": "close",
    "Heartbeat": "heartbeat",
}
_FIRST_RESERVED: Final = 0xFFFF0000
"""Of CSB's actions: those of the bus itself, whose subject stands in the payload."""


class Row(NamedTuple):
    """The columns of an event that depend on its message; the rest is the frame's."""

    kind: str
    subject: str | None
    id: str | None
    source: str | None
    content: str | None
    schema: str | None
    data: bytes | None
    correlation: str | None
    code: int | None
    code_name: str | None
    ttl_ms: int | None
    priority: str | None
    reply_to: str | None
    client: str


def _plain(message: Message) -> Row:
    """What holds for every protocol."""
    kind = _KINDS[message.kind.value]
    data, content = message.raw, message.format.content_type
    code: int | None = None
    if message.code is not None:
        code = int(message.code)
    elif kind == "response":
        code = 0
    if data is None:
        data, content = _made(message)
    subject, id = message.subject, message.id
    return Row(
        kind,
        f"0x{subject:08X}" if type(subject) is int else str(subject) or (None if kind != "request" else ""),
        None,
        None,
        content if data is not None else None,
        None,
        data,
        None if id is None else str(id),
        code,
        None if code is None else _NAMES[code],
        None if message.ttl is None else round(message.ttl * 1000),
        None,
        message.reply_to,
        "",
    )


def _made(message: Message) -> tuple[bytes | None, str]:
    """The body of what has none: of a failure its text, of control what it says."""
    said = message._attributes
    if message.code is not None and said:
        kept = {name: said[name] for name in ("text", "reason", "detail") if said.get(name) not in (None, "")}
    elif message.kind is Kind.CONTROL and said:
        kept = {name: value for name, value in said.items() if name != "encoding"}
    else:
        kept = {}
    try:
        value = kept or (message.body if message.has_body else None)
        return (None, "") if value is None else (msgspec.json.encode(value, enc_hook=str), "application/json")
    except (TypeError, ValueError, RecursionError, BusError):
        return None, ""  # a value that JSON has no form for


def _ubre(names: Mapping[int, str]) -> Callable[[Message], Row]:
    return _plain


def _csb(names: Mapping[int, str]) -> Callable[[Message], Row]:
    def read(message: Message) -> Row:
        row = _plain(message)
        client = "" if message.peer is None else str(message.peer)
        kind, subject, correlation = row.kind, row.subject, None
        if type(message.id) is int:
            id = message.id if message.id >= 0 else ~message.id
            action = id >> 16
            correlation = f"{id & 0xFFFF:04x}{action:08x}"
            if subject is None and action < _FIRST_RESERVED:
                subject = names.get(action) or f"0x{action:08X}"
        elif kind == "control":
            kind = _WORDS.get(str(message.subject), kind)
        return row._replace(kind=kind, subject=subject, correlation=correlation, client=client)

    return read


_REPLY: Final = ":RespondTo:RPC"
_ERRORS: Final = ":Errors:RPC"


def _jrep(names: Mapping[int, str]) -> Callable[[Message], Row]:
    def read(message: Message) -> Row:
        row = _plain(message)
        said = message._attributes or {}
        if row.kind == "request":
            correlation = (message.reply_to or "").removesuffix(_REPLY)
            row = row._replace(correlation=correlation)
        elif row.kind == "response":
            row = row._replace(correlation=f"{message.subject}:{message.id}")
        elif message.kind is Kind.CONTROL:
            row = row._replace(kind=_COMMANDS.get(str(said.get("CommandType")), "control"))
        elif message.kind is Kind.CANCEL and type(message.id) is tuple:
            row = row._replace(correlation=str(message.id[0]).removesuffix(_REPLY))
        priority = said.get("PriorityProcessing")
        return row if priority is None else row._replace(priority=str(priority))

    return read


def _uprotocol(names: Mapping[int, str]) -> Callable[[Message], Row]:
    def read(message: Message) -> Row:
        row = _plain(message)
        event = getattr(message, "event", None)
        if event is None:
            return row
        subject = event.source if row.kind == "response" else row.subject
        return row._replace(
            subject=subject,
            id=event.id,
            source=event.source,
            schema=event.dataschema,
            priority=event.priority,
            reply_to=event.source if row.kind == "request" else None,
        )

    return read


_READINGS: Final = {"ubre": _ubre, "csb": _csb, "jrep": _jrep, "uprotocol": _uprotocol}


def reading_for(protocol: str, names: Mapping[int, str]) -> Callable[[Message], Row]:
    """What makes rows of the messages of a protocol; a plugin's are read as far as all are alike.

    Args:
        protocol: Its name.
        names: Of actions that have numbers.
    """
    return _READINGS.get(protocol, _ubre)(names)
