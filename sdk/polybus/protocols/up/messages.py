"""Bodies, messages backed by their wire attributes, and request ids that contain the return address.

Bodies are JSON for plain values, ``google.protobuf.Any`` for protobuf messages, raw bytes, and optionally plain text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from attrs import frozen
from msgspec.structs import replace

from ...body import JSON, OCTETS, TEXT, BodyFormat, check_json
from ...errors import Code, RemoteProtocolError
from ...headers import is_traceparent
from ...message import MISSING, Kind, Message
from .._protobuf import ANY, check_any, is_message
from .attributes import FORMAT_NAMES, WIRE_RULES, Attributes, MessageType, PayloadFormat, refuse, uuid_text
from .wire import head_of, read_uuid, varint_field

FORMATS: Final[tuple[BodyFormat, ...]] = (JSON, ANY, OCTETS, TEXT)
_READ: Final[Mapping[int, BodyFormat]] = {
    PayloadFormat.PROTOBUF_IN_ANY: ANY,
    PayloadFormat.JSON: JSON,
    PayloadFormat.TEXT: TEXT,
}
"""Other formats are bytes, with the format in ``message.attributes``: a bare protobuf message does not carry its type."""
_WRITTEN: Final[Mapping[int, int]] = {
    id(JSON): PayloadFormat.JSON,
    id(ANY): PayloadFormat.PROTOBUF_IN_ANY,
    id(OCTETS): PayloadFormat.RAW,
    id(TEXT): PayloadFormat.TEXT,
}
_JSON: Final = int(PayloadFormat.JSON)
_decode: Final = msgspec.json.Decoder().decode
_NUMBERS: Final = {name: number for number, name in enumerate(FORMAT_NAMES) if number not in _READ}


def format_for(value: Any, texts: bool) -> BodyFormat:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return OCTETS
    if texts and type(value) is str:
        return TEXT
    return ANY if is_message(value) else JSON


def written_body(message: Message, texts: bool) -> tuple[bytes | None, int]:
    """The payload of a message and its wire format. May raise `EncodeError`."""
    raw, format = message.raw, message.format
    if raw is not None and raw is message.checked and format is JSON:
        return raw, _JSON
    if raw is not None and format in FORMATS:
        message.encoded(FORMATS)  # decodes and checks the bytes if that was not done before
        return given_body(raw, message)
    if not message.has_body:
        return None, PayloadFormat.UNSPECIFIED
    chosen = format_for(message.body, texts)
    return message.encoded(FORMATS, lambda value: chosen), _WRITTEN[id(chosen)]


def given_body(raw: bytes, message: Message) -> tuple[bytes, int]:
    """As `written_body`, without checks, for bytes in a format of this wire."""
    if message.format is OCTETS and message.extras is not None:  # relayed bytes in an application's format
        return raw, _NUMBERS.get(message.extras.get("payload_format", ""), PayloadFormat.RAW)
    return raw, _WRITTEN[id(message.format)]


def format_of(number: int) -> BodyFormat:
    return _READ.get(number, OCTETS)


def check_payload(payload: bytes, format: BodyFormat) -> None:
    """Check an incoming payload that is not JSON. May raise `RemoteProtocolError`: not in its declared format."""
    if format is ANY and not check_any(payload):
        raise _no("google.protobuf.Any", "bad_protobuf")
    if format is TEXT:
        try:
            str(payload, "utf-8")
        except UnicodeDecodeError as error:
            raise _no("UTF-8", "invalid_value") from error


def read_json(payload: bytes, depth: int) -> Any:
    """Read an incoming JSON payload. May raise `RemoteProtocolError`: malformed, or too deep."""
    try:
        if len(payload) > 2 * depth or not payload.isascii():
            check_json(payload, depth)
        return _decode(payload)
    except (ValueError, RecursionError) as error:
        raise WIRE_RULES.refuse_json(error, kind="a payload") from error


def _no(what: str, reason: str) -> RemoteProtocolError:
    return refuse(f"the payload is not {what}, although its format says so", reason)


# -- messages ----------------------------------------------------------------------------------------------------------

_SLOTS: Final = Message.__match_args__
_PRIORITY_OF_ANSWERS: Final = 5


@frozen(eq=False)
class MessageShape:
    """All attributes of a message except its ids, shared by similar messages.

    Attributes:
        given: The attributes, without ids.
        kind: Kind of the message.
        subject: Address that the message is about.
        source: Address of its sender.
        sender: `source` as bytes.
        authority: Authority of the source.
        format: Format of the payload, if any.
        ttl: Seconds, or None.
        ttl_ms: Milliseconds, or 0.
        headers: Trace context, as the bus has it.
        answer: Of a request: the answer's first and last attributes, around commstatus.
    """

    given: Attributes
    kind: Kind
    subject: str
    source: str
    sender: bytes
    authority: str
    format: BodyFormat
    ttl: float | None
    ttl_ms: int
    headers: dict[str, str] | None
    answer: bytes = b""


def shape_of(given: Attributes) -> MessageShape:
    source, kind = given.source, _KINDS[given.type]
    assert source is not None
    subject, answer = str(source), b""
    if kind is Kind.REQUEST:
        subject = str(given.sink)
        priority = max(given.priority, _PRIORITY_OF_ANSWERS)
        answer = head_of(MessageType.RESPONSE, given.sink, source, priority) + varint_field(0x30, given.ttl or 0)
    elif kind is Kind.RESPONSE:
        subject = ""
        if given.commstatus:
            kind = Kind.ERROR
    trace = given.traceparent
    headers = {"traceparent": trace} if trace and is_traceparent(trace) else None  # a malformed trace context is ignored
    template = replace(given, id=b"", reqid=b"")
    format = OCTETS if kind is Kind.ERROR else format_of(given.payload_format)
    ms, text = given.ttl or 0, str(source)
    ttl = ms / 1000 if ms else None
    return MessageShape(template, kind, subject, text, text.encode(), source.authority, format, ttl, ms, headers, answer)


_KINDS: Final = {
    int(MessageType.PUBLISH): Kind.PUBLISH,
    int(MessageType.NOTIFICATION): Kind.NOTIFY,
    int(MessageType.REQUEST): Kind.REQUEST,
    int(MessageType.RESPONSE): Kind.RESPONSE,
}


class UpReturnAddress(tuple[bytes, MessageShape]):
    """The id of a request in wire form, with its attributes, so that the answer finds its way back."""

    __slots__ = ()

    @property
    def id(self) -> bytes:
        return self[0]

    @property
    def shape(self) -> MessageShape:
        return self[1]

    @property
    def account(self) -> bytes:
        """The id with its sender, so that a guessed id cannot take another sender's request."""
        return self[0] + self[1].sender

    def __str__(self) -> str:
        return uuid_text(read_uuid(self[0]))

    __repr__ = __str__


class UpMessage(Message):
    """A message that converts its attributes to text only when read, which few handlers do."""

    __slots__ = ("also", "facts", "reqid", "shape", "uuid")

    shape: MessageShape
    uuid: bytes
    also: tuple[str, ...]
    reqid: bytes
    facts: dict[str, Any] | None
    # Declared in `Message`; repeated for type checkers, because they are set below.
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

    def __init__(self, shape: MessageShape, raw: bytes | None, uuid: bytes, reqid: bytes) -> None:
        # Set one by one: an argument for each field would cost a quarter more.
        self.kind = kind = shape.kind
        self.subject = shape.subject
        self.raw = raw
        self.format = shape.format
        self.shape = shape
        self.uuid = uuid
        self.reqid = reqid
        self.ttl = shape.ttl
        self.headers = None if shape.headers is None else {**shape.headers}  # many messages share the shape
        if kind is _REQUEST:
            self.id = UpReturnAddress((uuid, shape))
        else:
            self.id = reqid if kind is _RESPONSE or kind is _ERROR else None
        self.facts = self.code = self.reply_to = self.extras = self.peer = None
        self._shared = self.expires = self.answer_headers = self.checked = None
        self.decoded = MISSING
        self.also = ()

    def __copy__(self) -> UpMessage:
        made = UpMessage(self.shape, self.raw, self.uuid, self.reqid)
        made.facts, made.also = self.facts, self.also
        for name in _SLOTS:
            setattr(made, name, getattr(self, name))
        return made

    @property
    def spellings(self) -> tuple[str, ...]:
        return self.also

    @property
    def given(self) -> Attributes:
        reqid = read_uuid(self.reqid) if self.reqid else b""
        return replace(self.shape.given, id=read_uuid(self.uuid), reqid=reqid)

    @property
    def attributes(self) -> dict[str, Any]:
        if self.extras is None:
            self.extras = self.given.as_texts() | (self.facts or {})
        return self.extras


_REQUEST, _RESPONSE, _ERROR = Kind.REQUEST, Kind.RESPONSE, Kind.ERROR
