"""A codec: messages of the bus from serialised UMessages, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from attrs import field, frozen

from ...body import OCTETS, BodyFormat
from ...errors import Code, LocalProtocolError, RemoteProtocolError, Unsupported
from ...limits import Limits
from ...message import Kind, Message
from .._levels import LEVELS
from .._protobuf.any_body import type_name, unpack
from .._protobuf.status import code_of, facts_of, status_of
from .attributes import Attributes, MessageType, PayloadFormat, priority_name, uuid_bytes, uuid_text
from .bodies import FORMATS, format_for, read_format, written_body
from .checks import NAME, WIRE_RULES, refuse, shown
from .messages import ReturnAddress, UpMessage, return_address
from .rules import PROFILE, first_violation
from .uuris import UUri, parse_uuri
from .wire import read_attributes, split_message, write_attributes, write_message

TYPES: Final = {
    Kind.PUBLISH: MessageType.PUBLISH,
    Kind.NOTIFY: MessageType.NOTIFICATION,
    Kind.REQUEST: MessageType.REQUEST,
    Kind.RESPONSE: MessageType.RESPONSE,
    Kind.ERROR: MessageType.RESPONSE,
}
_KINDS: Final = {
    int(MessageType.PUBLISH): Kind.PUBLISH,
    int(MessageType.NOTIFICATION): Kind.NOTIFY,
    int(MessageType.REQUEST): Kind.REQUEST,
    int(MessageType.RESPONSE): Kind.RESPONSE,
}
_STATUSES: Final = ("uprotocol.v1.UStatus", "google.rpc.Status")
_USUAL_LEVEL: Final = {Kind.PUBLISH: 1, Kind.NOTIFY: 1}
_REQUEST_LEVEL: Final = 4
_RESPONSE: Final = MessageType.RESPONSE
MAX_TTL: Final = 2**32 - 1


def _no_level(subject: str | int) -> str | None:
    return None


@frozen(eq=False, kw_only=True)
class UpCodec:
    """Frames to messages and back. Of what is read, `Message.attributes` has all attributes, and the subject is an address.

    Attributes:
        limits: Sizes.
        texts: Whether text goes as such, and not as JSON.
        level_of: The priority of a subject, where one was set for it.
    """

    limits: Limits = field(factory=Limits)
    texts: bool = False
    level_of: Callable[[str | int], str | None] = _no_level
    formats: tuple[BodyFormat, ...] = FORMATS
    reads: frozenset[Literal["text", "binary"]] = frozenset({"binary"})
    writes: Literal["text", "binary"] = "binary"

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        """Bytes go as they are, messages of protocol buffers in an ``Any``, the rest as JSON."""
        return format_for(value, self.texts)

    def urgency(self, message: Message) -> int:
        """Urgency of a message, where some must wait: 0 (CS0) to 6 (CS6)."""
        if isinstance(message.id, ReturnAddress):  # an answer, as urgent as its question
            return LEVELS[priority_name(message.id.asked.priority)]
        name = message.attributes.get("priority") or self.level_of(message.subject)
        return LEVELS.get(str(name), _USUAL_LEVEL.get(message.kind, _REQUEST_LEVEL))

    # -- reading ---------------------------------------------------------------------------------------------------------

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        """The one message of a frame."""
        return [self.read(frame)]

    def read(self, frame: bytes) -> UpMessage:
        """The one message of a frame. May raise `RemoteProtocolError`: it is none, or a bad one."""
        if len(frame) > self.limits.message:
            raise WIRE_RULES.refuse_size(len(frame), self.limits.message)
        try:
            return self._read(frame)
        except RemoteProtocolError as error:
            error.frame = shown(frame)
            raise
        except ValueError as error:
            refused = refuse(f"not a UMessage: {error}")
            refused.frame = shown(frame)
            raise refused from error

    def _read(self, frame: bytes) -> UpMessage:
        attributes, payload = split_message(frame)
        given = read_attributes(attributes or b"")
        self._check(given)
        kind, answer_id, format = _KINDS[given.type], None, FORMATS[0]
        if kind is Kind.REQUEST:
            answer_id = return_address(given)
        if payload is None:
            if given.payload_format:
                raise refuse("a format, and no payload (rule payload_format)", "invalid_attribute", answer_id)
        elif kind is Kind.RESPONSE and given.commstatus:
            format = OCTETS
        else:
            format = read_format(payload, given.payload_format, self.limits.depth, answer_id)
        if kind is Kind.REQUEST:
            return UpMessage(kind, str(given.sink), answer_id, payload, format, given)
        if kind is not Kind.RESPONSE:
            return UpMessage(kind, str(given.source), None, payload, format, given)
        reqid = uuid_text(given.reqid)
        return _failure(reqid, payload, given) if given.commstatus else UpMessage(kind, "", reqid, payload, format, given)

    def _check(self, given: Attributes) -> None:
        broken = first_violation(given)
        if broken is None:
            return
        error = refuse(f"{broken.text} (rule {broken.name}, profile {PROFILE})", "invalid_attribute")
        if broken.name.startswith("request.") and given.sink is not None and broken.name not in _UNANSWERABLE:
            error.answer_id = return_address(given)
        elif given.type == _RESPONSE and broken.name != "response.reqid" and len(given.reqid) == 16:
            error.reply_id = uuid_text(given.reqid)
        raise error

    # -- writing ---------------------------------------------------------------------------------------------------------

    def encode(self, messages: Sequence[Message]) -> bytes:
        """The frame of one message. Ids, source and sink stand in `Message.attributes`, as `decode` gives them."""
        if len(messages) != 1:
            raise Unsupported(f"a frame of up is one message, not {len(messages)}")
        (message,) = messages
        type = TYPES.get(message.kind)
        if type is None:
            raise no_form(message.kind)
        said = message.attributes
        try:
            given = Attributes(
                uuid_bytes(str(said.get("id", message.id))),
                type,
                _uri(said.get("source")),
                _uri(said.get("sink")),
                LEVELS[said["priority"]] + 1 if "priority" in said else 0,
                said.get("ttl", None if message.ttl is None else milliseconds(message.ttl)),
                said.get("permission_level"),
                reqid=uuid_bytes(str(said.get("reqid", message.id))) if type is _RESPONSE else b"",
                token=said.get("token"),
                traceparent=said.get("traceparent"),
            )
        except (ValueError, KeyError) as error:
            raise LocalProtocolError(f"no attributes of a UMessage: {error}", protocol=NAME) from error
        return self.frame(given, message)

    def frame(self, given: Attributes, message: Message) -> bytes:
        """The frame of attributes and a body.

        Raises:
            EncodeError: The body does not fit.
            LocalProtocolError: A rule is broken.
        """
        if message.kind is Kind.ERROR:
            given.commstatus = int(message.code or Code.UNKNOWN)
            payload: bytes | None = status_of(message)
            given.payload_format = PayloadFormat.PROTOBUF
        else:
            payload, format = written_body(message, self.texts)
            given.payload_format = int(format)
        broken = first_violation(given)
        if broken is not None:
            raise LocalProtocolError(f"{broken.text} (rule {broken.name}, profile {PROFILE})", protocol=NAME)
        return write_message(write_attributes(given), payload)


_UNANSWERABLE: Final = frozenset({"request.source", "request.sink"})


def no_form(kind: Kind) -> Unsupported:
    """The error for a message that has no place on this wire."""
    return Unsupported(f"a UMessage has no form for a {kind.value} message")


def milliseconds(ttl: float) -> int:
    """Seconds as a ttl that lives."""
    return min(max(1, int(ttl * 1000 + 0.5)), MAX_TTL)


def _uri(text: Any) -> UUri | None:
    return None if text is None else parse_uuri(str(text))


def _failure(reqid: str, payload: bytes | None, given: Attributes) -> UpMessage:
    """The error of an answer that says so; its payload is looked at where it is a UStatus, bare or in an ``Any``."""
    message = UpMessage(Kind.ERROR, "", reqid, None, OCTETS, given)
    facts: dict[str, Any] = {"text": "", "reason": None, "detail": None}
    if payload is not None:
        try:
            found = _status(payload, given.payload_format)
            facts = facts if found is None else facts_of(found)[1]
        except ValueError:
            pass  # the number in the attributes says enough
    message.code, unknown = code_of(given.commstatus or 0)
    if unknown and not facts["text"]:
        facts["text"] = unknown
    message.facts = facts
    return message


def _status(payload: bytes, format: int) -> bytes | None:
    if format == PayloadFormat.PROTOBUF:
        return payload
    if format == PayloadFormat.PROTOBUF_IN_ANY:
        url, inner = unpack(payload)
        return inner if type_name(url) in _STATUSES else None
    return None
