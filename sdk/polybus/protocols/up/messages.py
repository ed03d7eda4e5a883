"""A message of the bus that stands on attributes, and the id of a request, which knows where its answer goes."""

from __future__ import annotations

from typing import Any, Final

from attrs import fields

from ...body import BodyFormat
from ...errors import Code
from ...message import MISSING, Kind, Message
from .attributes import Attributes, uuid_text

_SLOTS: Final = tuple(attribute.name for attribute in fields(Message))


class ReturnAddress(str):
    """The id of a request as text, with its attributes: an answer takes source and sink the other way round."""

    __slots__ = ("asked",)

    asked: Attributes


def return_address(asked: Attributes) -> ReturnAddress:
    """Address to which the answer to a request goes."""
    address = ReturnAddress(uuid_text(asked.id))
    address.asked = asked
    return address


class UpMessage(Message):
    """A message whose attributes become texts when they are read: few handlers do."""

    __slots__ = ("facts", "given")

    given: Attributes
    facts: dict[str, Any] | None
    """Of an error: ``text``, ``reason``, ``detail``."""
    # Declared in `Message`; again here for type checkers, because they are set below.
    subject: str | int
    ttl: float | None
    headers: dict[str, str] | None
    code: Code | None
    reply_to: str | None
    peer: Any
    expires: float | None
    answer_headers: dict[str, str] | None

    def __init__(
        self, kind: Kind, subject: str, id: str | None, raw: bytes | None, format: BodyFormat, given: Attributes
    ) -> None:
        # By hand: with an argument for each field it would cost a quarter more.
        self.kind = kind
        self.subject = subject
        self.id = id
        self.raw = raw
        self.format = format
        self.given = given
        self.ttl = given.ttl / 1000 if given.ttl else None
        self.headers = None if given.traceparent is None else {"traceparent": given.traceparent}
        self.facts = self.code = self.reply_to = self.extras = self.peer = None
        self._shared = self.expires = self.answer_headers = None
        self.decoded = MISSING

    def __copy__(self) -> UpMessage:
        made = UpMessage(self.kind, "", None, self.raw, self.format, self.given)
        made.facts = self.facts
        for name in _SLOTS:
            setattr(made, name, getattr(self, name))
        return made

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the message, and what an error says."""
        if self.extras is None:
            self.extras = self.given.as_texts() | (self.facts or {})
        return self.extras
