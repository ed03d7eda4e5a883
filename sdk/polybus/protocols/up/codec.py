"""A codec: messages of the bus from serialised UMessages, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from attrs import field, frozen

from ...body import BodyFormat
from ...errors import Code, LocalProtocolError, RemoteProtocolError, Unsupported
from ...limits import Limits
from ...message import Kind, Message
from .._levels import LEVELS
from .._protobuf.status import status_of
from .._relayed import relayed_priority
from .attributes import Attributes, MessageType, PayloadFormat, priority_name, uuid_bytes, uuid_text
from .bodies import FORMATS, format_for, given_body, written_body
from .checks import NAME
from .messages import ReturnAddress, UpMessage
from .reader import UpReader
from .rules import PROFILE, first_violation
from .uuris import UUri, parse_uuri
from .wire import read_uuid, write_attributes, write_message

TYPES: Final = {
    Kind.PUBLISH: MessageType.PUBLISH,
    Kind.NOTIFY: MessageType.NOTIFICATION,
    Kind.REQUEST: MessageType.REQUEST,
    Kind.RESPONSE: MessageType.RESPONSE,
    Kind.ERROR: MessageType.RESPONSE,
}
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
        read: The message of a frame, with its ids as they stand there. Raises `RemoteProtocolError`, nothing else.
    """

    limits: Limits = field(factory=Limits)
    texts: bool = False
    level_of: Callable[[str | int], str | None] = _no_level
    formats: tuple[BodyFormat, ...] = FORMATS
    reads: frozenset[Literal["text", "binary"]] = frozenset({"binary"})
    writes: Literal["text", "binary"] = "binary"
    read: Callable[[bytes], UpMessage] = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "read", UpReader(self.limits).read)

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        """Bytes go as they are, messages of protocol buffers in an ``Any``, the rest as JSON."""
        return format_for(value, self.texts)

    def urgency(self, message: Message) -> int:
        """Urgency of a message, where some must wait: 0 (CS0) to 6 (CS6)."""
        if isinstance(message.id, ReturnAddress):  # an answer, as urgent as its question
            return LEVELS[priority_name(message.id.shape.given.priority)]
        name = relayed_priority(message.attributes) or self.level_of(message.subject)
        return LEVELS.get(str(name), _USUAL_LEVEL.get(message.kind, _REQUEST_LEVEL))

    # -- reading ---------------------------------------------------------------------------------------------------------

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        """The one message of a frame, with its ids as text."""
        message = self.read(frame)
        if message.reqid and message.kind in (Kind.RESPONSE, Kind.ERROR):
            message.id = uuid_text(read_uuid(message.reqid))
        elif message.kind is Kind.REQUEST:
            message.id = uuid_text(read_uuid(message.uuid))
        return [message]

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
        """The frame of attributes and a body. Bytes in a format of this wire go as they are, also for tools that try readers.

        Raises:
            EncodeError: The body does not fit.
            LocalProtocolError: A rule is broken.
        """
        if message.kind is Kind.ERROR:
            given.commstatus = int(message.code or Code.UNKNOWN)
            payload: bytes | None = status_of(message)
            given.payload_format = PayloadFormat.PROTOBUF
        else:
            payload, format = self._body(message)
            given.payload_format = int(format)
        broken = first_violation(given)
        if broken is not None:
            raise LocalProtocolError(f"{broken.text} (rule {broken.name}, profile {PROFILE})", protocol=NAME)
        return write_message(write_attributes(given), payload)

    def _body(self, message: Message) -> tuple[bytes | None, int]:
        if message.raw is not None and message.format in FORMATS:
            return given_body(message.raw, message)
        return written_body(message, self.texts)


def no_form(kind: Kind) -> Unsupported:
    """The error for a message that has no place on this wire."""
    return Unsupported(f"a UMessage has no form for a {kind.value} message")


def milliseconds(ttl: float) -> int:
    """Seconds as a ttl that lives."""
    return min(max(1, int(ttl * 1000 + 0.5)), MAX_TTL)


def _uri(text: Any) -> UUri | None:
    return None if text is None else parse_uuri(str(text))
