"""The fields of an event that come from its message, protocol by protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from ...errors import BusError, Code
from ...message import Kind, Message
from ...protocols.csb.wire import FIRST_RESERVED
from ...protocols.up.attributes import priority_name, uuid_text
from ...protocols.up.messages import UpMessage
from .nats_events import NatsFacts, StoredFacts, read_nats

EventMapper: TypeAlias = Callable[[Message, Mapping[int, str]], list[Any]]
"""A function that makes the fields of an event of a message, with the names of CSB's actions."""

_KINDS: Final[Mapping[str, str]] = {
    **{kind.value: kind.value for kind in Kind},
    Kind.ERROR.value: "response",
    Kind.OPEN.value: "stream",
    Kind.CREDIT.value: "control",
}
_NAMES: Final[Mapping[int, str]] = {int(code): code.name for code in Code}
_WORDS: Final = {"connected": "open", "closed": "close", "close": "close"}
_TRACE: Final = "traceparent"
_COMMANDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("Associate", "ConnectToQueue"), "open"),
    **dict.fromkeys(("Disconnect", "SessionExpired"), "close"),
    "Heartbeat": "heartbeat",
}


class EventFields(NamedTuple):
    """The columns of an event that depend on its message; the rest is the frame's. The names are those of `schema.EVENTS`."""

    kind: str
    subject: str | None = None
    id: str | None = None
    source: str | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    data: bytes | None = None
    correlation_id: str | None = None
    code: int | None = None
    code_name: str | None = None
    ttl_ms: int | None = None
    priority: str | None = None
    reply_to: str | None = None
    client: str = ""
    stored: StoredFacts | None = None
    traceparent: str | None = None


FIELDS: Final = tuple(EventFields.__annotations__)
_SUBJECT, _ID, _SOURCE, _SCHEMA, _CORRELATION, _TTL, _PRIORITY, _REPLY_TO, _CLIENT = map(
    FIELDS.index, ("subject", "id", "source", "dataschema", "correlation_id", "ttl_ms", "priority", "reply_to", "client")
)
_OF_NATS: Final = tuple(map(FIELDS.index, NatsFacts.__annotations__))


def _plain(message: Message, names: Mapping[int, str]) -> list[Any]:
    """The fields as far as every protocol has them."""
    kind = _KINDS[message.kind.value]
    data, content = message.raw, message.format.content_type
    code: int | None = None
    if message.code is not None:
        code = int(message.code)
    elif kind == "response":
        code = 0
    if data is None:
        data, content = _made_body(message)
    subject, id, ttl = message.subject, message.id, message.ttl
    text = f"0x{subject:08X}" if type(subject) is int else str(subject) or (None if kind != "request" else "")
    media, name = content if data is not None else None, None if code is None else _NAMES[code]
    key, ttl_ms = None if id is None else str(id), None if ttl is None else round(ttl * 1000)
    trace = message.headers.get(_TRACE) if message.headers else None
    return [kind, text, None, None, media, None, data, key, code, name, ttl_ms, None, message.reply_to, "", None, trace]


def _made_body(message: Message) -> tuple[bytes | None, str]:
    """A body for a message without one: of a failure its text, of control its attributes."""
    attributes, kept = message.attributes, {}
    if message.code is not None:
        kept = {name: attributes[name] for name in ("text", "reason", "detail") if attributes.get(name) not in (None, "")}
    elif message.kind is Kind.CONTROL:
        kept = {name: value for name, value in attributes.items() if name != "encoding"}
    try:
        value = kept or (message.body if message.has_body else None)
        return (None, "") if value is None else (msgspec.json.encode(value, enc_hook=str), "application/json")
    except (TypeError, ValueError, RecursionError, BusError):
        return None, ""  # a value that JSON has no form for


def _csb(message: Message, names: Mapping[int, str]) -> list[Any]:
    row = _plain(message, names)
    row[_CORRELATION] = None
    if message.peer is not None:
        row[_CLIENT] = str(message.peer)
    if type(message.id) is int:
        id = message.id if message.id >= 0 else ~message.id
        action = id >> 16
        row[_CORRELATION] = f"{id & 0xFFFF:04x}{action:08x}"
        # From there on they are actions of the bus itself, whose subject stands in the payload.
        if row[_SUBJECT] is None and action < FIRST_RESERVED:
            row[_SUBJECT] = names.get(action) or f"0x{action:08X}"
    elif row[0] == "control":
        row[0] = _WORDS.get(str(message.subject), "control")
    return row


_REPLY: Final = ":RespondTo:RPC"


def _jrep(message: Message, names: Mapping[int, str]) -> list[Any]:
    row = _plain(message, names)
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


def _uprotocol(message: Message, names: Mapping[int, str]) -> list[Any]:
    row = _plain(message, names)
    event = getattr(message, "event", None)
    if event is not None:
        if row[0] == "response":
            row[_SUBJECT] = event.source
        elif row[0] == "request":
            row[_REPLY_TO] = event.source
        row[_ID], row[_SOURCE], row[_SCHEMA], row[_PRIORITY] = event.id, event.source, event.dataschema, event.priority
    return row


def _up(message: Message, names: Mapping[int, str]) -> list[Any]:
    row = _plain(message, names)
    if isinstance(message, UpMessage):
        given = message.given
        source, row[_ID], row[_PRIORITY] = str(given.source), uuid_text(given.id), priority_name(given.priority)
        row[_SOURCE] = source
        if row[0] == "response":
            row[_SUBJECT], row[_TTL] = source, None
        elif row[0] == "request":
            row[_REPLY_TO] = source
    return row


def _nats(message: Message, names: Mapping[int, str]) -> list[Any]:
    row = _plain(message, names)
    facts = read_nats(message)
    if facts is not None:
        for place, value in zip(_OF_NATS, facts, strict=True):
            row[place] = value
    return row


_MAPPERS: Final[Mapping[str, EventMapper]] = {"csb": _csb, "jrep": _jrep, "nats": _nats, "up": _up, "uprotocol": _uprotocol}


def mapper_for(protocol: str) -> EventMapper:
    """The mapper of a protocol; for UBRE and plugins, of the fields that every protocol has."""
    return _MAPPERS.get(protocol, _plain)
