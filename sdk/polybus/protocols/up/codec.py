"""Converts between bus messages and serialised UMessages.

Many messages differ only in their ids and payload, so everything else is checked once and cached by its bytes. Plain values
become JSON, protobuf messages become ``google.protobuf.Any``, and bytes are sent unchanged. Strings can also be sent as plain
text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

import msgspec
from attrs import Factory, field, frozen
from msgspec.structs import replace

from ...body import JSON, OCTETS, TEXT, BodyFormat, check_json
from ...errors import Code, LocalProtocolError, RemoteProtocolError, Unsupported
from ...headers import is_traceparent
from ...limits import Limits
from ...message import MISSING, Kind, Message
from ...plugins.protobuf import read_varint
from .._protobuf import ANY, check_any, code_of, facts_of, is_message, status_of, type_name, unpack
from .._shared import remember
from .._uprotocol import LEVELS, LazyMessage, urgency_of
from . import wire
from .uuris import UUri, parse_uuri
from .wire import REQUEST_PRIORITY, WIRE_RULES, Attributes, MessageType, PayloadFormat, is_wire_id, read_uuid, refuse

FORMATS: Final[tuple[BodyFormat, ...]] = (JSON, ANY, OCTETS, TEXT)
_READ: Mapping[int, BodyFormat] = {PayloadFormat.PROTOBUF_IN_ANY: ANY, PayloadFormat.JSON: JSON, PayloadFormat.TEXT: TEXT}
"""Payloads in other formats are read as bytes. For example, a bare protobuf message does not identify its type."""
_WRITTEN: Final = {id(OCTETS): int(PayloadFormat.RAW), **{id(format): int(number) for number, format in _READ.items()}}
_JSON: Final = int(PayloadFormat.JSON)
_decode: Final = msgspec.json.Decoder().decode
_NUMBERS: Final = {name: number for number, name in enumerate(wire.FORMAT_NAMES) if number not in _READ}


def format_for(value: Any, texts: bool) -> BodyFormat:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return OCTETS
    if texts and type(value) is str:
        return TEXT
    return ANY if is_message(value) else JSON


def written_body(message: Message, texts: bool) -> tuple[bytes | None, int]:
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
    """Like `written_body`, but without checks, for bytes in one of the protocol's formats."""
    if message.format is OCTETS and message.extras is not None:  # relayed bytes in an application's format
        return raw, _NUMBERS.get(message.extras.get("payload_format", ""), PayloadFormat.RAW)
    return raw, _WRITTEN[id(message.format)]


def check_payload(payload: bytes, format: BodyFormat) -> None:
    if format is ANY and not check_any(payload):
        raise _no("google.protobuf.Any", "bad_protobuf")
    if format is TEXT:
        try:
            str(payload, "utf-8")
        except UnicodeDecodeError as error:
            raise _no("UTF-8", "invalid_value") from error


def read_json(payload: bytes, depth: int) -> Any:
    try:
        if len(payload) > 2 * depth or not payload.isascii():
            check_json(payload, depth)
        return _decode(payload)
    except (ValueError, RecursionError) as error:
        raise WIRE_RULES.refuse_json(error, kind="a payload") from error


def _no(what: str, reason: str) -> RemoteProtocolError:
    return refuse(f"the payload is not {what}, although its format says so", reason)


# -- messages ----------------------------------------------------------------------------------------------------------


@frozen(eq=False)
class MessageShape:
    """All attributes of a message except its ids, shared by similar messages."""

    given: Attributes  # The attributes, without ids
    kind: Kind
    subject: str
    source: str
    sender: bytes
    authority: str
    format: BodyFormat
    ttl: float | None  # Seconds, or None
    ttl_ms: int
    headers: dict[str, str] | None  # Trace context, as the bus has it
    answer: bytes = b""  # Of a request: the answer's first and last attributes, around commstatus


def shape_of(given: Attributes) -> MessageShape:
    source, kind = given.source, _KINDS[given.type]
    assert source is not None
    subject, answer = str(source), b""
    if kind is Kind.REQUEST:
        subject = str(given.sink)
        priority = max(given.priority, REQUEST_PRIORITY)
        answer = wire.head_of(MessageType.RESPONSE, given.sink, source, priority, given.ttl or None)
    elif kind is Kind.RESPONSE:
        subject = ""
        if given.commstatus:
            kind = Kind.ERROR
    trace = given.traceparent
    headers = {"traceparent": trace} if trace and is_traceparent(trace) else None  # a malformed trace context is ignored
    template = replace(given, id=b"", reqid=b"")
    format = OCTETS if kind is Kind.ERROR else _READ.get(given.payload_format, OCTETS)
    ms, text = given.ttl or 0, str(source)
    ttl = ms / 1000 if ms else None
    return MessageShape(template, kind, subject, text, text.encode(), source.authority, format, ttl, ms, headers, answer)


class UpReturnAddress(tuple[bytes, MessageShape]):
    """A request's id in wire form, and the attributes needed to answer the request."""

    __slots__ = ()

    @property
    def id(self) -> bytes:
        return self[0]

    @property
    def shape(self) -> MessageShape:
        return self[1]

    @property
    def account(self) -> bytes:
        """The id with its sender. A guessed id therefore does not match another sender's request."""
        return self[0] + self[1].sender

    def __str__(self) -> str:
        return wire.uuid_text(read_uuid(self[0]))

    __repr__ = __str__


class UpMessage(LazyMessage):
    __slots__ = ("also", "facts", "reqid", "shape", "uuid")

    shape: MessageShape
    uuid: bytes
    also: tuple[str, ...]
    reqid: bytes
    facts: dict[str, Any] | None
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

    @property
    def spellings(self) -> tuple[str, ...]:
        return self.also

    @property
    def given(self) -> Attributes:
        reqid = read_uuid(self.reqid) if self.reqid else b""
        return replace(self.shape.given, id=read_uuid(self.uuid), reqid=reqid)

    def _facts(self) -> dict[str, Any]:
        return self.given.as_texts() | (self.facts or {})


_REQUEST, _RESPONSE, _ERROR = Kind.REQUEST, Kind.RESPONSE, Kind.ERROR

_REMEMBERED: Final = 2048
_LONGEST: Final = 1024  # Maximum bytes of cached attributes
_ID: Final = b"\x0a\x12\x09"
_REQID: Final = b"\x4a\x12\x09"
_IS_RESPONSE: Final = bytes((0x10, MessageType.RESPONSE))
_PAYLOAD: Final = 0x12
_STATUSES: Final = ("uprotocol.v1.UStatus", "google.rpc.Status")
_UNANSWERABLE: Final = frozenset({"request.source", "request.sink"})
Parts: TypeAlias = "tuple[bytes, bytes, bytes, bytes, bytes | None]"
"""Id, attributes before the request id, request id, attributes after the request id, and payload of an ordinary frame."""


class UpReader:
    def __init__(self, limits: Limits) -> None:
        self._max_frame: Final = limits.message
        self._depth: Final = limits.depth
        # By the attribute bytes before and after the request id.
        self._known: dict[tuple[bytes, bytes], MessageShape] = {}

    def read(self, frame: bytes) -> UpMessage:
        if len(frame) > self._max_frame:
            raise WIRE_RULES.refuse_size(len(frame), self._max_frame)
        try:
            parts = _parts(frame)
            if parts is not None:
                uuid, before, reqid, behind, payload = parts
                shape = self._known.get((before, behind))
                if shape is not None:
                    return self._message(shape, payload, uuid, reqid)
            return self._examined(frame, parts)
        except RemoteProtocolError as error:
            error.frame = wire.shown(frame)
            raise
        except (ValueError, IndexError) as error:
            refused = refuse(f"not a UMessage: {error}", "bad_protobuf")
            refused.frame = wire.shown(frame)
            raise refused from error

    def _examined(self, frame: bytes, parts: Parts | None) -> UpMessage:
        attributes, payload = wire.split_message(frame)
        given = wire.read_attributes(attributes or b"")
        _check(given)
        shape, uuid, reqid = shape_of(given), wire.write_uuid(given.id), wire.write_uuid(given.reqid) if given.reqid else b""
        if parts is not None and parts[0] == uuid and parts[2] == reqid and len(parts[1]) + len(parts[3]) <= _LONGEST:
            with suppress(ValueError):
                for part in (parts[1], parts[3]):  # both are whole fields, so only the request id is between them
                    wire.read_attributes(part)
                remember(self._known, (parts[1], parts[3]), shape, _REMEMBERED)
        return self._message(shape, payload, uuid, reqid)

    def _message(self, shape: MessageShape, payload: bytes | None, uuid: bytes, reqid: bytes) -> UpMessage:
        message = UpMessage(shape, payload, uuid, reqid)
        format = shape.format
        if payload is not None:
            try:
                if format is JSON:
                    message.decoded = read_json(payload, self._depth)
                elif format is not OCTETS:
                    check_payload(payload, format)
            except RemoteProtocolError as error:
                raise _told(error, message) from error.__cause__
            message.checked = payload
        elif shape.given.payload_format and shape.kind is not _ERROR:
            raise _told(refuse("a payload format without a payload (rule payload_format)", "invalid_attribute"), message)
        return _failure(message, payload) if shape.kind is _ERROR else message


def _parts(frame: bytes) -> Parts | None:
    try:
        at = 2
        if (size := frame[1]) > 127:
            size, at = read_varint(frame, 1)
        end, start = at + size, at + 20
        # The attributes begin with both halves of an id.
        if frame[0] != 10 or frame[at : at + 3] != _ID or frame[at + 11] != 17:
            return None
        if frame[at + 4] >> 4 != 7 or frame[start - 1] >> 6 != 2:  # version and variant
            return None
        total, payload = len(frame), None
        if end != total:
            if frame[end] != _PAYLOAD:
                return None
            data = end + 2
            if (size := frame[end + 1]) > 127:
                size, data = read_varint(frame, end + 1)
            if data + size != total:
                return None
            payload = frame[data:]
    except IndexError:
        return None
    if start > end:
        return None
    # Only an answer has a request id. Any other message with one is checked each time.
    if frame[start : start + 2] != _IS_RESPONSE:
        return frame[at + 2 : start], frame[start:end], b"", b"", payload
    place = frame.find(_REQID, start, end)
    if place < 0:
        return None  # the same remaining bytes could belong to a valid message
    reqid = frame[place + 2 : place + 20]
    return (frame[at + 2 : start], frame[start:place], reqid, frame[place + 20 : end], payload) if is_wire_id(reqid) else None


def _check(given: Attributes) -> None:
    broken = wire.first_violation(given)
    if broken is None:
        return
    error = refuse(f"{broken.text} (rule {broken.name}, profile {wire.PROFILE})", "invalid_attribute")
    if broken.name.startswith("request.") and given.sink is not None and broken.name not in _UNANSWERABLE:
        error.answer_id = UpReturnAddress((wire.write_uuid(given.id), shape_of(given)))
    elif given.type == MessageType.RESPONSE and wire.is_v7(given.reqid):
        error.reply_id = wire.write_uuid(given.reqid)
    raise error


def _told(error: RemoteProtocolError, message: UpMessage) -> RemoteProtocolError:
    if message.kind is Kind.REQUEST:
        error.answer_id = message.id
    elif message.kind is Kind.RESPONSE:
        error.reply_id = message.reqid
    return error


def _failure(message: UpMessage, payload: bytes | None) -> UpMessage:
    """Read an error answer. If the payload is a UStatus, bare or in an ``Any``, it is used for the error."""
    given = message.shape.given
    facts: dict[str, Any] = {"text": "", "reason": None, "detail": None}
    with suppress(ValueError):  # the code in the attributes is enough
        if given.payload_format == PayloadFormat.PROTOBUF_IN_ANY:
            url, payload = unpack(payload or b"")
            payload = payload if type_name(url) in _STATUSES else None
        elif given.payload_format != PayloadFormat.PROTOBUF:
            payload = None
        facts = facts if payload is None else facts_of(payload)[1]
    message.raw = None
    message.code, unknown = code_of(given.commstatus or 0)
    facts["text"] = facts["text"] or unknown
    message.facts = facts
    return message


_KINDS: Final = {1: Kind.PUBLISH, 2: Kind.REQUEST, 3: Kind.RESPONSE, 4: Kind.NOTIFY}  # By `MessageType`
TYPES: Final = {**{kind: MessageType(number) for number, kind in _KINDS.items()}, Kind.ERROR: MessageType.RESPONSE}
MAX_TTL: Final = 2**32 - 1


@frozen(eq=False, kw_only=True)
class UpCodec:
    """Converts between frames and messages. After reading, `attributes` has all attributes and the subject is an address."""

    limits: Limits = field(factory=Limits)
    texts: bool = False  # True to send str as plain text, not as JSON
    level_of: Callable[[str | int], str | None]  # Returns the configured priority of a subject, or None
    formats: tuple[BodyFormat, ...] = FORMATS
    reads: frozenset[Literal["text", "binary"]] = frozenset({"binary"})
    writes: Literal["text", "binary"] = "binary"
    # Reads a frame, with ids in wire form. Raises only `RemoteProtocolError`.
    read: Callable[[bytes], UpMessage] = field(init=False, default=Factory(lambda self: UpReader(self.limits).read, True))

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        """Bytes are sent unchanged, protobuf messages in an ``Any``, and anything else as JSON."""
        return format_for(value, self.texts)

    def urgency(self, message: Message) -> int:
        address = message.id
        asked = wire.priority_name(address.shape.given.priority) if isinstance(address, UpReturnAddress) else None
        return urgency_of(message, asked, self.level_of)

    # -- reading ---------------------------------------------------------------------------------------------------------

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        message = self.read(frame)
        if message.reqid and message.kind in (Kind.RESPONSE, Kind.ERROR):
            message.id = wire.uuid_text(read_uuid(message.reqid))
        elif message.kind is Kind.REQUEST:
            message.id = wire.uuid_text(read_uuid(message.uuid))
        return [message]

    # -- writing ---------------------------------------------------------------------------------------------------------

    def encode(self, messages: Sequence[Message]) -> bytes:
        if len(messages) != 1:
            raise Unsupported(f"an up frame carries one message, not {len(messages)}")
        (message,) = messages
        type = TYPES.get(message.kind)
        if type is None:
            raise no_form(message.kind)
        said = message.attributes
        ttl = None if message.ttl is None else milliseconds(message.ttl)
        given = Attributes(
            type=type,
            permission_level=said.get("permission_level"),
            token=said.get("token"),
            traceparent=said.get("traceparent"),
        )
        try:
            given.id = wire.uuid_bytes(str(said.get("id", message.id)))
            given.source, given.sink = _uri(said.get("source")), _uri(said.get("sink"))
            given.priority = LEVELS[said["priority"]] + 1 if "priority" in said else 0
            given.ttl = said.get("ttl", ttl)
            if type is MessageType.RESPONSE:
                given.reqid = wire.uuid_bytes(str(said.get("reqid", message.id)))
        except (ValueError, KeyError) as error:
            raise LocalProtocolError(f"invalid attributes of a UMessage: {error}", protocol=wire.NAME) from error
        return self.frame(given, message)

    def frame(self, given: Attributes, message: Message) -> bytes:
        """Write attributes and a body. Encoded bytes are not checked, because tools use them to test readers."""
        if message.kind is Kind.ERROR:
            given.commstatus = int(message.code or Code.UNKNOWN)
            payload: bytes | None = status_of(message)
            given.payload_format = PayloadFormat.PROTOBUF
        else:
            payload, format = self._body(message)
            given.payload_format = int(format)
        broken = wire.first_violation(given)
        if broken is not None:
            raise LocalProtocolError(f"{broken.text} (rule {broken.name}, profile {wire.PROFILE})", protocol=wire.NAME)
        return wire.write_message(wire.write_attributes(given), payload)

    def _body(self, message: Message) -> tuple[bytes | None, int]:
        if message.raw is not None and message.format in FORMATS:
            return given_body(message.raw, message)
        return written_body(message, self.texts)


def no_form(kind: Kind) -> Unsupported:
    return Unsupported(f"a UMessage cannot carry a {kind.value} message")


def milliseconds(ttl: float) -> int:
    return min(max(1, int(ttl * 1000 + 0.5)), MAX_TTL)


def _uri(text: Any) -> UUri | None:
    return None if text is None else parse_uuri(str(text))
