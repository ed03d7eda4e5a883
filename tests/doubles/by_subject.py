"""A wire without ids: a request names the subject on which its answer is wanted (as J.REP does with ReplyTo)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final

from attrs import frozen

from polybus.body import JSON
from polybus.errors import RemoteProtocolError, Unsupported
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import Capabilities, Role

from .common import (
    JsonCodec,
    ShapeAdapter,
    ShapeSession,
    body_of,
    dump,
    facts_of,
    failed,
    headers_of,
    load,
    seconds_of,
    text_of,
    token,
)

BUS: Final = "Bus"
"""The reserved subject of commands: who subscribes, and the extensions."""
REPLY: Final = "reply."
_COMMANDS: Final = {
    kind.value: kind for kind in (Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.CANCEL, Kind.OPEN, Kind.ITEM, Kind.CREDIT, Kind.END)
}


@frozen(eq=False)
class BySubjectCodec(JsonCodec):
    limits: Limits

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        document = load(frame)
        to = text_of(document, "to")
        headers, ttl = headers_of(document.get("headers")), seconds_of(document.get("ttl"))
        raw = JSON.encode(document["value"]) if "value" in document else None
        if to == BUS:
            return [self._command(document, raw, headers, ttl)]
        if "error" in document:
            return [failed(Kind.ERROR, to, document["error"])]
        if to.startswith(REPLY):
            return [Message(Kind.RESPONSE, "", to, raw, JSON, headers)]
        if "replyTo" in document:
            asker = text_of(document, "replyTo")
            return [Message(Kind.REQUEST, to, asker, raw, JSON, headers, ttl, reply_to=asker)]
        # Nothing tells a publication from a notification: it is both.
        return [Message(kind, to, None, raw, JSON, headers, attributes={}) for kind in (Kind.PUBLISH, Kind.NOTIFY)]

    def _command(self, document: Any, raw: bytes | None, headers: Any, ttl: float | None) -> Message:
        kind = _COMMANDS.get(text_of(document, "command"))
        if kind is None:
            raise RemoteProtocolError("this command is not known", reason="unknown_verb")
        if kind in (Kind.SUBSCRIBE, Kind.UNSUBSCRIBE):
            return Message(kind, text_of(document, "subject"))
        id = text_of(document, "channel")
        if kind is Kind.END:
            return failed(kind, id, document["error"]) if "error" in document else Message(kind, "", id)
        subject = text_of(document, "subject") if kind is Kind.OPEN else ""
        facts = {name: document.get(name) for name in ("mode", "credit", "hops")}
        return Message(kind, subject, id, raw, JSON, headers, ttl, attributes=facts)

    def encode(self, messages: Sequence[Message]) -> bytes:
        (message,) = messages
        kind, document = message.kind, dict[str, Any]()
        if kind in (Kind.RESPONSE, Kind.ERROR):
            document["to"] = message.id
        elif kind in (Kind.REQUEST, Kind.PUBLISH, Kind.NOTIFY):
            document["to"] = message.subject
        elif kind.value in _COMMANDS:
            document.update(to=BUS, command=kind.value, subject=message.subject, channel=message.id, **message.attributes)
        if not isinstance(message.subject, str) or "to" not in document:
            raise Unsupported(f"by_subject has no form for {kind.value} on {message.subject!r}")
        if kind is Kind.REQUEST:
            document["replyTo"] = message.reply_to
        if message.has_body:
            document["value"] = body_of(message)
        if kind is Kind.ERROR or (kind is Kind.END and message.code):
            document["error"] = facts_of(message)
        if message.headers:
            document["headers"] = message.headers
        if message.ttl is not None:
            document["ttl"] = int(message.ttl * 1000)
        return dump(document)


class BySubjectSession(ShapeSession):
    capabilities = Capabilities(shared_publish=True)

    def __init__(self, codec: BySubjectCodec, rng: random.Random | None) -> None:
        super().__init__(codec.limits, rng)
        self.codec = codec
        self._prefix = f"{REPLY}{token(self.rng)}."
        self._count = 0

    def receive(self, frame: bytes, now: float) -> None:
        try:
            for message in self.codec.decode(frame):
                assert isinstance(message, Message)
                if message.kind in (Kind.RESPONSE, Kind.ERROR) and not self._asked(message.id):
                    raise RemoteProtocolError("nobody here waits on this subject", reason="unknown_id")
                if message.kind is Kind.OPEN and self._asked(message.id):
                    raise RemoteProtocolError("this channel is ours", reason="invalid_id")
                self._events.append(message)
        except RemoteProtocolError as error:
            self.refuse(error)

    def _asked(self, subject: str) -> bool:
        number = subject.removeprefix(self._prefix)
        return number != subject and number.isdecimal() and 0 < int(number) <= self._count

    def send(self, message: Message, now: float, peer_key: Any = None) -> str | None:
        key = None
        if message.kind in (Kind.REQUEST, Kind.OPEN):
            self._count += 1
            key = f"{self._prefix}{self._count}"
            # The caller's message keeps its fields: it may be sent to others too.
            copy = Message(message.kind, message.subject, key, message.raw, message.format, message.headers, message.ttl)
            copy.reply_to, copy.extras = key, message.extras
            message = copy
        self.queue(self.codec.encode([message]))
        return key


@frozen(kw_only=True)
class BySubject(ShapeAdapter):
    name: ClassVar[str] = "by_subject"

    def codec(self, limits: Limits = Limits()) -> BySubjectCodec:  # noqa: B008  # immutable
        return _codec(limits)

    def session(self, role: Role, limits: Limits = Limits(), rng: random.Random | None = None) -> BySubjectSession:  # noqa: B008
        return BySubjectSession(_codec(limits), rng)


_codec = lru_cache(BySubjectCodec)
