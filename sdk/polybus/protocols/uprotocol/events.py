"""The struct of a usual event, and a message backed by it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Meta, Struct

from ...body import BodyFormat
from ...errors import Code
from ...message import MISSING, Kind, Message
from ...subjects import canonical
from .names import read_uri

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


_SLOTS: Final = Message.__match_args__
_NO_ATTRIBUTES: Final = ("specversion", "data_base64")


class EventMessage(Message):
    """A message that converts its attributes to a dict only when read, which few handlers do."""

    __slots__ = ("event",)

    event: UsualEvent
    # Declared in `Message`; repeated for type checkers, because they are set below.
    subject: str | int
    headers: dict[str, str] | None
    code: Code | None
    reply_to: str | None
    peer: Any
    expires: float | None
    answer_headers: dict[str, str] | None
    checked: bytes | None

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

    def __copy__(self) -> EventMessage:
        made = EventMessage(self.kind, "", None, self.raw, self.format, self.ttl, self.event)
        for name in _SLOTS:
            setattr(made, name, getattr(self, name))
        return made

    @property
    def spellings(self) -> tuple[str, ...]:
        event = self.event
        if not self.subject:
            return ()
        given = event.sink if self.kind is Kind.REQUEST or self.kind is Kind.OPEN else event.source
        address = canonical(read_uri(given or event.source).text)
        return () if address == self.subject else (address,)

    @property
    def attributes(self) -> dict[str, Any]:
        if self.extras is None:
            given = msgspec.structs.asdict(self.event)
            self.extras = {k: v for k, v in given.items() if v is not None and k not in _NO_ATTRIBUTES}
        return self.extras


USUAL_ID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[678][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
is_id: Final = re.compile(USUAL_ID).fullmatch
EVENT_FIELDS: Final = frozenset(UsualEvent.__struct_fields__) - frozenset(_NO_ATTRIBUTES)


def event_of(attributes: dict[str, Any]) -> UsualEvent:
    return UsualEvent("1.0", **{name: value for name, value in attributes.items() if name in EVENT_FIELDS})
