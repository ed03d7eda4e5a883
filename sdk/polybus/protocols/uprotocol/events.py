"""The struct of a usual event, a message backed by it, and messages between polybus peers that uProtocol lacks.

Those are subscriptions, cancelling, streams and channels; and headers. Each is a CloudEvent with its own type, sent only to a
peer known to be polybus. ``reqid`` is the id of the request or channel, ``subject`` (an attribute of CloudEvents) the pattern
of a subscription; an ``open`` has the sink of a request.

Attribute names have only letters and digits, so one attribute holds all headers. ``traceparent`` and ``tracestate`` are
attributes of their own, as in the distributed tracing extension of CloudEvents.

Items of bytes and JSON documents, as tunnels send them, have only the attributes that CloudEvents requires. ``id`` is the id of
the open, a slash and a unique number; ``reqid``, content type and schema are absent. In JSON events a document is in ``data``,
bytes are in ``data_base64``; in the protobuf format both are ``binary_data``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Meta, Struct

from ...body import JSON, OCTETS, BodyFormat
from ...headers import is_traceparent
from ...limits import Limits
from ...message import MISSING, Kind, Message
from ...subjects import canonical
from .._protobuf import code_of
from .._shared import fault_in_subject, opening_facts
from .._uprotocol import LazyMessage
from .bodies import read_status, write_status
from .names import read_uri
from .rules import HEADERS, WIRE_RULES, is_text, refuse

Attributes: TypeAlias = tuple[tuple[str, Any], ...]
Extra: TypeAlias = Mapping[str, Any] | None


class Head(Protocol):
    def __call__(self, type: str, source: str, sink: str | None, priority: str | None, more: Attributes = ..., /) -> bytes: ...


Integer: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class UsualEvent(Struct, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """The usual attributes of an event, all plain values, with the types and ranges that a decoder can check."""

    specversion: Literal["1.0"]
    id: str
    source: str
    type: Literal["pub.v1", "notif.v1", "not.v1", "up-not.v1", "req.v1", "res.v1"]
    sink: str | None = None
    priority: Literal["CS0", "CS1", "CS2", "CS3", "CS4", "CS5", "CS6"] | None = None
    ttl: Milliseconds | None = None
    reqid: str | None = None
    datacontenttype: Literal["application/protobuf", "application/x-protobuf", "application/octet-stream"] | None = None
    dataschema: str | None = None
    token: str | None = None
    plevel: Integer | None = None
    data_base64: bytes | None = None


_NO_ATTRIBUTES: Final = ("specversion", "data_base64")


class EventMessage(LazyMessage):
    __slots__ = ("event",)

    event: UsualEvent

    def __init__(
        self,
        kind: Kind,
        subject: str,
        id: str | None,
        raw: bytes | None,
        format: BodyFormat,
        ttl: float | None,
        event: UsualEvent,
    ) -> None:
        # Set one by one: an argument for each field would cost a quarter more, a fifth of reading the whole event.
        self.kind = kind
        self.subject = subject
        self.id = id
        self.raw = self.checked = raw
        self.format = format
        self.ttl = ttl
        self.event = event
        self.headers = self.code = self.reply_to = self.extras = self.peer = None
        self._shared = self.expires = self.answer_headers = None
        self.decoded = MISSING

    @property
    def spellings(self) -> tuple[str, ...]:
        event = self.event
        if not self.subject:
            return ()
        given = event.sink if self.kind is Kind.REQUEST or self.kind is Kind.OPEN else event.source
        address = canonical(read_uri(given or event.source).text)
        return () if address == self.subject else (address,)

    def _facts(self) -> dict[str, Any]:
        given = msgspec.structs.asdict(self.event)
        return {k: v for k, v in given.items() if v is not None and k not in _NO_ATTRIBUTES}


USUAL_ID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[678][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
is_id: Final = re.compile(USUAL_ID).fullmatch
EVENT_FIELDS: Final = frozenset(UsualEvent.__struct_fields__) - frozenset(_NO_ATTRIBUTES)


def event_of(attributes: dict[str, Any]) -> UsualEvent:
    return UsualEvent("1.0", **{name: value for name, value in attributes.items() if name in EVENT_FIELDS})


NAMES: Final = {
    kind: f"polybus.{kind.value}.v1"
    for kind in (Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.CANCEL, Kind.OPEN, Kind.ITEM, Kind.CREDIT, Kind.END)
}
KINDS: Final = {name: kind for kind, name in NAMES.items()}


def read_extension(kind: Kind, attributes: dict[str, Any], raw: bytes | None, format: BodyFormat, limits: Limits) -> Message:
    if kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
        subject = attributes.get("subject")
        if not subject or fault_in_subject(subject, limits.subject) is not None:
            raise refuse("subject is a pattern of 1 byte to Limits.subject, without control characters", "invalid_subject")
        return Message(kind, subject)
    if kind is Kind.OPEN:
        return _read_open(attributes, raw, format)
    reqid = attributes.get("reqid")
    if reqid is None:
        raise refuse(f"reqid is missing in this {NAMES[kind]}", "missing_attribute")
    if kind is Kind.CREDIT:
        credit = WIRE_RULES.read_count(attributes.get("credit"), "credit", least=1)
        return Message(kind, "", reqid, attributes={"credit": credit})
    if kind is Kind.END:
        return _read_end(reqid, raw)
    return Message(kind, "", reqid, raw, format)


def _read_open(attributes: dict[str, Any], raw: bytes | None, format: BodyFormat) -> Message:
    if "sink" not in attributes:
        raise refuse("an open has a sink")
    facts = WIRE_RULES.read_opening(attributes.get("mode"), attributes.get("credit"), attributes.get("hops"))
    return Message(Kind.OPEN, attributes["sink"], attributes["id"], raw, format, attributes=facts)


def _read_end(reqid: str, raw: bytes | None) -> Message:
    try:
        status = read_status(raw)
    except ValueError as error:
        raise refuse(f"the google.rpc.Status does not decode: {error}", "bad_protobuf") from error
    if status is None or status[0] == 0:
        return Message(Kind.END, "", reqid)
    code, _ = code_of(status[0])
    return Message(Kind.END, "", reqid, code=code, attributes=status[1])


def extension_attributes(message: Message) -> tuple[dict[str, Any], bytes | None]:
    """Attributes except id, source and sink, and data that are not a body. May raise `EncodeError` for an error's detail."""
    kind, given = message.kind, message.attributes
    attributes: dict[str, Any] = {"type": NAMES[kind]}
    if kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
        attributes["subject"] = message.subject
        return attributes, None
    if kind is Kind.OPEN:
        attributes["mode"], attributes["credit"], attributes["hops"] = opening_facts(message)
        return attributes, None
    attributes["reqid"] = message.id
    if kind is Kind.CREDIT:
        attributes["credit"] = given.get("credit", 0)
    if kind is Kind.END and message.code:
        return attributes, write_status(message)
    return attributes, None


TRACEPARENT: Final = "traceparent"
_TRACING: Final = (TRACEPARENT, "tracestate")
_decode: Final = msgspec.json.Decoder(dict[str, str]).decode
_encode: Final = msgspec.json.Encoder().encode


def read_headers(attributes: dict[str, Any], limit: int) -> dict[str, str] | None:
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
    WIRE_RULES.check_local_headers(headers, limit)
    attributes: dict[str, str] = {}
    if is_traceparent(headers.get(TRACEPARENT, "")):
        attributes = {name: headers[name] for name in _TRACING if name in headers and is_text(headers[name])}
    rest = {name: value for name, value in headers.items() if name not in attributes}
    if rest:
        attributes[HEADERS] = _encode(rest).decode()
    return attributes


ITEM: Final = "polybus.item.v1"
item_id: Final = re.compile(f"({USUAL_ID})/[0-9a-f]{{1,16}}").fullmatch
"""Matches an item's id; its first group is the id of the open."""


class _Item(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    specversion: Literal["1.0"]
    type: Literal["polybus.item.v1"]
    source: str
    id: str
    data: msgspec.Raw = msgspec.Raw()
    data_base64: bytes | None = None


_item: Final = msgspec.json.Decoder(_Item).decode


def _made_item(id: str, source: str, raw: bytes, format: BodyFormat) -> EventMessage | None:
    found = item_id(id)
    if found is None or not source:
        return None
    event = UsualEvent("1.0", id, source, ITEM)  # type: ignore[arg-type]  # of ours
    message = EventMessage(Kind.ITEM, "", found[1], raw, format, None, event)
    message.checked = None  # not parsed: a number may exceed every reader's range
    return message


def read_json_item(frame: bytes) -> EventMessage | None:
    """The item of a checked JSON event; None if not in the short form."""
    try:
        item = _item(frame)
    except (ValueError, RecursionError):
        return None
    data = bytes(item.data)
    if item.data_base64 is not None:
        return None if data else _made_item(item.id, item.source, item.data_base64, OCTETS)
    return _made_item(item.id, item.source, data, JSON) if data[:1] in (b"{", b"[") else None


def read_proto_item(attributes: dict[str, object], raw: bytes | None) -> EventMessage | None:
    """The item of a protobuf event; None if not in the short form."""
    if raw is None or attributes.keys() != {"id", "source", "type"}:
        return None
    return _made_item(str(attributes["id"]), str(attributes["source"]), raw, OCTETS)
