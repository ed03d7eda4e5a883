"""A message of the bus that stands on its attributes, and the id of a request, which knows where its answer goes."""

from __future__ import annotations

from typing import Any, Final

from attrs import frozen
from msgspec.structs import replace

from ...body import OCTETS, BodyFormat
from ...errors import Code
from ...headers import is_traceparent
from ...message import MISSING, Kind, Message
from .attributes import Attributes, MessageType, uuid_text
from .bodies import format_of
from .wire import head_of, read_uuid, varint_field

_SLOTS: Final = Message.__match_args__
_PRIORITY_OF_ANSWERS: Final = 5


@frozen(eq=False)
class MessageShape:
    """All of a message's attributes but its ids: many messages have the same, so it is made once for them.

    Attributes:
        given: The attributes, without ids.
        kind: Of the message.
        subject: The address that it is about.
        source: The address that it comes from.
        sender: The same as bytes.
        authority: Of the source.
        format: Of the payload, where there is one.
        ttl: Seconds, or None.
        ttl_ms: The same in milliseconds, or 0.
        headers: The context of a trace, as the bus has it.
        answer: Of a request: the first and the last fields of its answer's attributes, around commstatus.
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
    """The shape of attributes that keep the rules."""
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
    headers = (
        {"traceparent": trace} if trace and is_traceparent(trace) else None
    )  # anything else says nothing, and costs nothing
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
    """The id of a request, as it stands on the wire, with its attributes: an answer goes back to where it came from."""

    __slots__ = ()

    @property
    def id(self) -> bytes:
        """The message UUID."""
        return self[0]

    @property
    def shape(self) -> MessageShape:
        """All else of the request."""
        return self[1]

    @property
    def account(self) -> bytes:
        """The id with whose it is: whoever guesses the id of another's request takes nothing from that one."""
        return self[0] + self[1].sender

    def __str__(self) -> str:
        return uuid_text(read_uuid(self[0]))

    __repr__ = __str__


class UpMessage(Message):
    """A message whose attributes become texts when they are read: few handlers do."""

    __slots__ = ("also", "facts", "reqid", "shape", "uuid")

    shape: MessageShape
    uuid: bytes
    """The id, as it stands on the wire."""
    also: tuple[str, ...]
    """Other spellings of its subject: see `spellings`."""
    reqid: bytes
    """The same of the request that it answers, or nothing."""
    facts: dict[str, Any] | None
    """Of an error: ``text``, ``reason``, ``detail``."""
    # Declared in `Message`; again here for type checkers, because they are set below.
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
        # By hand: with an argument for each field it would cost a quarter more.
        self.kind = kind = shape.kind
        self.subject = shape.subject
        self.raw = raw
        self.format = shape.format
        self.shape = shape
        self.uuid = uuid
        self.reqid = reqid
        self.ttl = shape.ttl
        self.headers = None if shape.headers is None else {**shape.headers}  # the shape is that of many messages
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
        """The addresses that its subject stands for; see `Message.spellings`."""
        return self.also

    @property
    def given(self) -> Attributes:
        """All attributes."""
        reqid = read_uuid(self.reqid) if self.reqid else b""
        return replace(self.shape.given, id=read_uuid(self.uuid), reqid=reqid)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the message as people read them, and what an error says."""
        if self.extras is None:
            self.extras = self.given.as_texts() | (self.facts or {})
        return self.extras


_REQUEST, _RESPONSE, _ERROR = Kind.REQUEST, Kind.RESPONSE, Kind.ERROR
