"""Events in both formats: the struct of an ordinary event, the message based on it, and the conversion of attributes to
messages.

Readers handle the simple cases. Only ``examined`` uses the table of rules and rejects events.

A body is either bytes or a ``google.protobuf.Any`` that contains a protobuf message (document, 3 Formats, Table 6). A handler's
error is sent as a ``google.rpc.Status`` in an ``Any`` (document, 4.4; up-l2 dispatchers).

uProtocol has no subscriptions, cancellation, streams or channels. Between polybus peers these are CloudEvents with additional
types. `docs/reference/uprotocol.md` describes their attributes, the attributes for headers, and the short form of items.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from ...body import JSON, OCTETS, TEXT, BodyFormat, check_json
from ...errors import BusError, Code, RemoteProtocolError
from ...headers import is_traceparent
from ...limits import Limits
from ...message import MISSING, Kind, Message
from ...subjects import canonical
from .._protobuf import ANY, check_any, code_of, facts_of, pack, status_of, type_name, unpack
from .._shared import fault_in_subject, opening_facts, remember
from .._uprotocol import LazyMessage, id_version
from . import rules
from .names import read_uri
from .rules import TOLERATED, WIRE_RULES, Facts, Leniency, refuse, violations

FORMATS: Final[tuple[BodyFormat, ...]] = (ANY, OCTETS)


def written_body(message: Message) -> tuple[bytes | None, BodyFormat]:
    format = message.format
    if message.raw is not None and format in FORMATS:
        return message.encoded(FORMATS), format
    if not message.has_body:
        return None, ANY
    chosen = OCTETS if isinstance(message.body, (bytes, bytearray, memoryview)) else ANY
    return message.encoded(FORMATS, lambda value: chosen), chosen


_STATUS: Final = "google.rpc.Status"
STATUSES: Final = (_STATUS, "uprotocol.v1.UStatus")  # The document's type, and the SDKs' type with the same fields
STATUS_URLS: Final = tuple(f"{where}/{name}".encode() for where in ("type.googleapis.com", "") for name in STATUSES)


def write_status(message: Message) -> bytes:
    return pack(_STATUS, status_of(message))


def read_status(data: bytes | None, reply_id: str | None = None) -> tuple[int, dict[str, Any]] | None:
    if data is None or not data[2:].startswith(STATUS_URLS):
        return None
    try:
        url, inner = unpack(data)
        return facts_of(inner) if type_name(url) in STATUSES else None
    except ValueError as error:
        refused = refuse(f"the google.rpc.Status does not decode: {error}", "bad_protobuf")
        refused.reply_id = reply_id
        raise refused from error


PROTOBUF: Final = "application/protobuf"
OCTET_STREAM: Final = "application/octet-stream"
_decode: Final = msgspec.json.Decoder().decode


@lru_cache(256)
def format_of(content_type: str | None) -> BodyFormat:
    """Return the body format of a content type. Both protobuf media types, from before and after June 2023, mean ``Any``."""
    media = "" if content_type is None else content_type.partition(";")[0].strip().lower()
    if media in ("", PROTOBUF, "application/x-protobuf"):
        return ANY
    if media == "application/json" or media.endswith("+json"):
        return JSON
    return TEXT if media.startswith("text/") else OCTETS


def from_base64(text: Any, name: str = "data_base64") -> bytes:
    try:
        if not isinstance(text, str):
            raise ValueError("not text")
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError as error:  # UnicodeEncodeError and binascii.Error are ValueErrors
        raise refuse(f"{name} is not base64: {error} (document, 3 Formats, Table 6)", "bad_encoding") from error


def hash_of(text: str, leniency: Leniency) -> bytes:
    try:
        return from_base64(text, "hash")
    except RemoteProtocolError:
        if leniency is Leniency.LENIENT:  # up-python and up-java write any text, which may look like base64
            return text.encode()
        raise


def from_json(value: Any, format: BodyFormat, leniency: Leniency) -> bytes:
    if format is JSON:
        return msgspec.json.encode(value)
    if format is TEXT and isinstance(value, str):
        return value.encode()
    if is_misplaced(value, format) and leniency:
        return from_base64(value, "data")
    raise refuse("protobuf and binary data belong in data_base64, not in data (document, 3 Formats, Table 6)")


def is_misplaced(value: Any, format: BodyFormat) -> bool:
    """Return True for base64 in ``data``, as in the document's examples, although its Table 6 requires ``data_base64``."""
    return format is ANY and isinstance(value, str)


def from_text(data: bytes, format: BodyFormat, depth: int) -> bytes:
    try:
        if format is JSON:
            check_json(data, depth)
            _decode(data)
        elif format is TEXT:
            str(data, "utf-8")
    except (BusError, ValueError, RecursionError) as error:
        raise refuse(f"the data is not {format.content_type}: {error}") from error
    return data


Extra: TypeAlias = Mapping[str, Any] | None

Integer: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class UsualEvent(Struct, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """The usual attributes of an event. All are plain values, with types and ranges that a decoder can check."""

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
    # Declared in `Message`; repeated for type checkers, because they are set one by one.
    kind: Kind
    subject: str | int
    id: Any
    format: BodyFormat
    ttl: float | None
    headers: dict[str, str] | None
    code: Code | None
    reply_to: str | None
    peer: Any
    expires: float | None
    answer_headers: dict[str, str] | None
    checked: bytes | None
    extras: dict[str, Any] | None

    def __init__(
        self, kind: Kind, subject: str, id: Any, raw: bytes | None, format: BodyFormat, ttl: float | None, event: UsualEvent
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

NAMES: Final = {
    kind: f"polybus.{kind.value}.v1"
    for kind in (Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.CANCEL, Kind.OPEN, Kind.ITEM, Kind.CREDIT, Kind.END)
}
KINDS: Final = {name: kind for kind, name in NAMES.items()}


def read_extension(kind: Kind, attributes: dict[str, Any], raw: bytes | None, format: BodyFormat, limits: Limits) -> Message:
    if kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
        subject = attributes.get("subject")
        if not subject or fault_in_subject(subject, limits.subject) is not None:
            raise refuse("subject must be a pattern of 1 byte to Limits.subject, without control characters", "invalid_subject")
        return Message(kind, subject)
    if kind is Kind.OPEN:
        if "sink" not in attributes:
            raise refuse("an open must have a sink")
        facts = WIRE_RULES.read_opening(attributes.get("mode"), attributes.get("credit"), attributes.get("hops"))
        return Message(kind, attributes["sink"], attributes["id"], raw, format, attributes=facts)
    reqid = attributes.get("reqid")
    if reqid is None:
        raise refuse(f"reqid is missing in this {NAMES[kind]}", "missing_field")
    if kind is Kind.CREDIT:
        credit = WIRE_RULES.read_count(attributes.get("credit"), "credit", least=1)
        return Message(kind, "", reqid, attributes={"credit": credit})
    if kind is not Kind.END:
        return Message(kind, "", reqid, raw, format)
    status = read_status(raw)
    if status is None or status[0] == 0:
        return Message(kind, "", reqid)
    return Message(kind, "", reqid, code=code_of(status[0])[0], attributes=status[1])


def extension_attributes(message: Message) -> tuple[dict[str, Any], bytes | None]:
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
_decode_headers: Final = msgspec.json.Decoder(dict[str, str]).decode
_encode: Final = msgspec.json.Encoder().encode


def read_headers(attributes: dict[str, Any], limit: int) -> dict[str, str] | None:
    headers: dict[str, str] = {}
    text = attributes.pop(rules.HEADERS, None)
    if text is not None:
        try:
            headers = _decode_headers(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise refuse(f"{rules.HEADERS}: {error}", "invalid_headers") from error
    for name in _TRACING:
        value = attributes.get(name)
        if isinstance(value, str) and (name != TRACEPARENT or is_traceparent(value)):
            headers[name] = value
    return WIRE_RULES.read_headers(headers or None, limit)


def write_headers(headers: dict[str, str], limit: int) -> dict[str, str]:
    WIRE_RULES.check_local_headers(headers, limit)
    attributes: dict[str, str] = {}
    if is_traceparent(headers.get(TRACEPARENT, "")):
        attributes = {name: headers[name] for name in _TRACING if name in headers and rules.is_text(headers[name])}
    rest = {name: value for name, value in headers.items() if name not in attributes}
    if rest:
        attributes[rules.HEADERS] = _encode(rest).decode()
    return attributes


ITEM: Final = "polybus.item.v1"
item_id: Final = re.compile(f"({USUAL_ID})/[0-9a-f]{{1,16}}").fullmatch
"""Matches an item's id. The first group is the id of the open event."""


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
    event = UsualEvent("1.0", id, source, ITEM)  # type: ignore[arg-type]  # an extension of polybus
    message = EventMessage(Kind.ITEM, "", found[1], raw, format, None, event)
    message.checked = None  # not parsed: a number may exceed every reader's range
    return message


def read_json_item(frame: bytes) -> EventMessage | None:
    """Read an item from a checked JSON event. Returns `None` if the event does not use the short form."""
    try:
        item = _item(frame)
    except (ValueError, RecursionError):
        return None
    data = bytes(item.data)
    if item.data_base64 is not None:
        return None if data else _made_item(item.id, item.source, item.data_base64, OCTETS)
    return _made_item(item.id, item.source, data, JSON) if data[:1] in (b"{", b"[") else None


def read_proto_item(attributes: dict[str, object], raw: bytes | None) -> EventMessage | None:
    """Read an item from a protobuf event. Returns `None` if the event does not use the short form."""
    if raw is None or attributes.keys() != {"id", "source", "type"}:
        return None
    return _made_item(str(attributes["id"]), str(attributes["source"]), raw, OCTETS)


BATCH: Final = 4096  # Maximum number of events in a batch; 1 MiB holds some thousands

_ADDRESSES: Final = 1024
_KINDS: Final = {"publish": Kind.PUBLISH, "notification": Kind.NOTIFY, "request": Kind.REQUEST, "response": Kind.RESPONSE}
_REQUEST, _RESPONSE = Kind.REQUEST, Kind.RESPONSE
_ADDRESS_RULES: Final = tuple(rule for rule in rules.RULES if rule.attribute in ("source", "sink"))
known_schema: Final = lru_cache(256)(rules.is_uri_reference)
_UPRIORITY: Final = "UPRIORITY_"
OLD_LEVEL: Final = "permission_level"
MISPLACED_DATA: Final = "data.member"  # Name in `TOLERATED` for base64 in the member ``data``
BARE_DATA: Final = "data.any"  # Name in `TOLERATED` for protobuf data without ``Any``


class ReturnAddress(str):
    """A request's id and its event. The answer uses the event's addresses, priority and ttl."""

    __slots__ = ("event",)

    event: UsualEvent


def return_address(event: UsualEvent) -> ReturnAddress:
    address = ReturnAddress(event.id)
    address.event = event
    return address


def shown(frame: bytes) -> bytes:
    """Return the beginning of a frame for display, or nothing if it may contain a token."""
    return b"" if b"token" in frame or b"\\u00" in frame else frame[:200]


class Envelope:
    """Reads attributes strictly or leniently.

    Only entities in `local` may omit the authority. If `local` is `None`, all entities may.
    """

    def __init__(self, limits: Limits, leniency: Leniency, local: frozenset[str] | None) -> None:
        self._limits = limits
        self.leniency: Final = leniency
        self._local = local
        self.addresses: dict[tuple[str, str, str | None], Kind] = {}
        """Maps consistent combinations of type, source and sink to kinds. The size is limited."""

    def usual(self, event: UsualEvent) -> Kind | None:
        """Return the kind of an event with consistent attributes, or `None` if the event needs a full check."""
        kind = self.addresses.get((event.type, event.source, event.sink)) or self.look(event.type, event.source, event.sink)
        if kind is _REQUEST and not (event.ttl and event.priority is not None and event.priority >= "CS4"):
            return None
        return kind

    def look(self, type: str, source: str, sink: str | None) -> Kind | None:
        """Return and cache the kind for a consistent combination of type, source and sink. Otherwise return `None`."""
        kind = rules.TYPES.get(type)
        if kind is None:
            return None  # also for polybus extensions, which are rare and checked in full
        kind = "notification" if kind == "publish" and sink is not None else kind
        attributes = {"source": source} if sink is None else {"source": source, "sink": sink}
        facts = self._facts(attributes, kind)
        if any(violations(facts, _ADDRESS_RULES)):  # tolerated violations also need the full check, which marks them
            return None
        return remember(self.addresses, (type, source, sink), _KINDS[kind], _ADDRESSES)

    def _facts(self, attributes: dict[str, Any], kind: str) -> Facts:
        return Facts(attributes, kind, local=self._local, subject_limit=self._limits.subject, id_limit=self._limits.id)

    # -- everything else -------------------------------------------------------------------------------------------------

    def examined(self, attributes: dict[str, Any], raw: bytes | None, format: BodyFormat) -> EventMessage:
        given = attributes.pop(TOLERATED, None)
        if given is not None and not isinstance(given, list):
            attributes[TOLERATED] = given  # the value of another program, refused later because of its name
            given = None
        tolerated = [*(given or ()), *normalise(attributes, self.leniency)]
        name = attributes.get("type")
        extension = KINDS.get(name) if isinstance(name, str) else None
        kind = "extension" if extension is not None else rules.TYPES.get(name, "") if isinstance(name, str) else ""
        if kind == "publish" and "sink" in attributes:
            kind = "notification"
        facts = self._facts(attributes, kind)
        facts.has_data, facts.is_any = raw is not None, format is ANY
        for rule, text in violations(facts):
            if rule.counts(self.leniency):
                raise self.told(refuse(text, rule.reason), attributes)
            tolerated.append(rule.name)
        schema = attributes.get("dataschema")
        bare = raw is not None and format is ANY and not (is_packed(raw) if self.leniency and schema else check_any(raw))
        if raw is not None and bare:
            # The schema of the document's examples gives the data's type.
            if not (self.leniency is Leniency.LENIENT or (self.leniency and schema)):
                text = "the data is not a google.protobuf.Any (document, 3 Formats, Table 6)"
                raise self.told(refuse(text, "bad_protobuf"), attributes)
            tolerated.append(BARE_DATA)
            # A bare Status, as in the document's examples, where the schema names the type.
            name = schema.removeprefix("/") if isinstance(schema, str) else ""
            raw, format = (pack(name, raw), ANY) if name in STATUSES else (raw, OCTETS)
        made = self._message(attributes, kind, extension, raw, format)
        if tolerated:
            made.attributes[TOLERATED] = tolerated
        return made

    def _message(
        self, attributes: dict[str, Any], kind: str, extension: Kind | None, raw: bytes | None, format: BodyFormat
    ) -> EventMessage:
        ttl = attributes.get("ttl")
        seconds = ttl / 1000 if ttl else None
        if extension is not None:
            message = read_extension(extension, attributes, raw, format, self._limits)
            message.ttl = seconds
        elif kind == "request":
            message = Message(_REQUEST, attributes["sink"], attributes["id"], raw, format, None, seconds)
        elif kind == "response":
            message = _response(attributes, raw, format)
        else:
            message = Message(_KINDS[kind], attributes["source"], None, raw, format, None, seconds)
        del attributes["specversion"]
        event = UsualEvent("1.0", **{name: value for name, value in attributes.items() if name in EVENT_FIELDS})
        made = EventMessage(message.kind, str(message.subject), message.id, message.raw, message.format, message.ttl, event)
        made.code = message.code
        made.extras = {**attributes, **(message.extras or {})}
        made.headers = read_headers(made.attributes, self._limits.headers)
        return made

    def told(self, error: RemoteProtocolError, attributes: dict[str, Any]) -> RemoteProtocolError:
        error.answer_id = self._return_address(attributes)
        reqid = attributes.get("reqid")
        error.reply_id = reqid if attributes.get("type") == "res.v1" and isinstance(reqid, str) else None
        return error

    def _return_address(self, attributes: dict[str, Any]) -> ReturnAddress | None:
        found = [attributes.get(name) for name in ("id", "source", "sink")]
        if attributes.get("type") != "req.v1" or not all(isinstance(part, str) for part in found):
            return None
        id, source, sink = map(str, found)
        version = id_version(id)
        if version is None or (version not in (6, 7, 8) and self.leniency is Leniency.STRICT):
            return None
        answer = self._facts({"source": sink, "sink": source}, "response")
        if any(rule.counts(self.leniency) for rule, _ in violations(answer, _ADDRESS_RULES)):
            return None  # the answer would break rules, too
        return return_address(UsualEvent("1.0", id, source, "req.v1", sink, "CS4", 0))


def normalise(attributes: dict[str, Any], leniency: Leniency) -> list[str]:
    tolerated = []
    for name in [name for name, value in attributes.items() if value is None]:
        del attributes[name]  # null means absent (CloudEvents 1.0.2, JSON format, 3.1)
    ttl = attributes.get("ttl")
    if isinstance(ttl, str) and ttl.isascii() and ttl.isdigit() and len(ttl) < 11:
        attributes["ttl"] = int(ttl)  # from HTTP binary mode
    priority = attributes.get("priority")
    if isinstance(priority, str) and priority.startswith(_UPRIORITY):
        attributes["priority"] = priority.removeprefix(_UPRIORITY)  # written by up-python 1.5
    if leniency and OLD_LEVEL in attributes:
        attributes.setdefault("plevel", attributes.pop(OLD_LEVEL))
        tolerated.append("plevel.name")
    if leniency is Leniency.LENIENT and isinstance(hashed := attributes.get("hash"), str):
        attributes["hash"] = hashed.encode()  # protobuf: SDKs of that time wrote text in place of bytes
        tolerated.append("hash.type")
    return tolerated


def is_packed(data: bytes) -> bool:
    """Return True for an ``Any`` that has a type. Another message's bytes may decode as an ``Any`` without a type."""
    return check_any(data) and (not data or b"/" in data[2 : 2 + data[1]])


def _response(attributes: dict[str, Any], raw: bytes | None, format: BodyFormat) -> Message:
    """Read an answer, which is a result, a failed delivery (commstatus) or an application error (google.rpc.Status)."""
    reqid, commstatus = attributes["reqid"], attributes.get("commstatus")
    status = read_status(raw, reqid) if format is ANY else None
    if not commstatus and (status is None or status[0] == 0):
        return Message(_RESPONSE, "", reqid, raw, format)
    number, facts = status if status is not None else (0, {"text": "", "reason": None, "detail": None})
    code, unknown = code_of(commstatus or number)
    if unknown:
        facts["text"] = f"{unknown} {facts['text']}".strip()
    elif commstatus and not facts["text"]:
        facts["text"] = f"the message was not delivered: {code.name}"
    return Message(Kind.ERROR, "", reqid, code=code if code is not Code.OK else Code.UNKNOWN, attributes=facts)
