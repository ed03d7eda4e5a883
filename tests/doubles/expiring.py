"""A wire of events that expire: URIs as subjects, a time to live in every request, no subscriptions (as uProtocol)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final

from attrs import frozen

from polybus.body import JSON
from polybus.errors import LocalProtocolError, RemoteProtocolError, Unsupported
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

TYPES: Final = {"req.v1": Kind.REQUEST, "res.v1": Kind.RESPONSE, "pub.v1": Kind.PUBLISH, "notif.v1": Kind.NOTIFY}
_NAMES: Final = {kind: name for name, kind in TYPES.items()}
_EXTENSIONS: Final = {
    kind.value: kind for kind in (Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.CANCEL, Kind.OPEN, Kind.ITEM, Kind.CREDIT, Kind.END)
}


@frozen(eq=False)
class ExpiringCodec(JsonCodec):
    """Pure: `Message.ttl` is what the event says, `attributes["at"]` when it was made; subjects are URIs."""

    limits: Limits

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        document = load(frame)
        name = text_of(document, "type")
        kind = TYPES.get(name) or _EXTENSIONS.get(name)
        if kind is None:
            raise RemoteProtocolError(f"type {name!r} is not known", reason="unknown_verb")
        id, at, ttl = text_of(document, "id"), document.get("at"), seconds_of(document.get("ttl"))
        if type(at) not in (int, float) or (kind is Kind.REQUEST and not ttl):
            raise RemoteProtocolError("a request has a time to live, an event a time", reason="invalid_ttl", answer_id=id)
        if kind in (Kind.RESPONSE, Kind.END) and "status" in document:
            return [failed(Kind.ERROR if kind is Kind.RESPONSE else kind, id, document["status"])]
        raw = JSON.encode(document["data"]) if "data" in document else None
        facts = {part: document[part] for part in ("mode", "credit", "hops", "at", "source", "sink") if part in document}
        subject = text_of(document, "source" if kind is Kind.PUBLISH else "sink")
        return [Message(kind, subject, id, raw, JSON, headers_of(document.get("headers")), ttl, attributes=facts)]

    def encode(self, messages: Sequence[Message]) -> bytes:
        (message,) = messages
        kind, uri = message.kind, message.subject
        if isinstance(uri, int):
            raise Unsupported(f"expiring has no numbers as subjects: {uri}")
        name = _NAMES.get(Kind.RESPONSE if kind is Kind.ERROR else kind, kind.value)
        document: dict[str, Any] = {**message.attributes, "type": name, "id": message.id}
        document["source" if kind is Kind.PUBLISH else "sink"] = uri
        if kind is Kind.REQUEST and message.ttl is None:
            raise LocalProtocolError("a request of this wire needs a deadline: pass timeout=")
        if message.ttl is not None:
            document["ttl"] = max(1, int(message.ttl * 1000))
        if message.has_body:
            document["data"] = body_of(message)
        if kind is Kind.ERROR or (kind is Kind.END and message.code):
            document["status"] = facts_of(message)
        if message.headers:
            document["headers"] = message.headers
        return dump(document)


class ExpiringSession(ShapeSession):
    capabilities = Capabilities(subscribe=False)

    def __init__(self, codec: ExpiringCodec, options: Expiring, rng: random.Random | None) -> None:
        super().__init__(codec.limits, rng)
        self.codec = codec
        self._entity, self._peer, self._clock = options.entity, options.peer, options.clock
        self._prefix = token(self.rng) + "-"
        self._count = 0

    def receive(self, frame: bytes, now: float) -> None:
        try:
            for message in self.codec.decode(frame):
                assert isinstance(message, Message)
                self._received(message)
        except RemoteProtocolError as error:
            self.refuse(error)
            if error.answer_id is not None:
                self._answer_bad(error)

    def _received(self, message: Message) -> None:
        kind = message.kind
        if kind in (Kind.RESPONSE, Kind.ERROR):
            if not str(message.id).startswith(self._prefix):
                raise RemoteProtocolError("an answer to an id that is not of this side", reason="unknown_id")
        else:
            message.subject = self._subject_of(str(message.subject))
        if message.ttl is not None:
            message.ttl -= max(0.0, self._clock() - message.attributes["at"])
            if message.ttl <= 0 and kind is Kind.PUBLISH:
                return
        self._events.append(message)

    def _answer_bad(self, error: RemoteProtocolError) -> None:
        answer = Message(Kind.ERROR, "/", error.answer_id, code=None, attributes={"text": error.text, "at": self._clock()})
        self.queue(self.codec.encode([answer]))

    def send(self, message: Message, now: float, peer_key: Any = None) -> str | None:
        kind = message.kind
        copy = Message(kind, self._uri_of(message), message.id, message.raw, message.format, message.headers, message.ttl)
        copy.code, copy.decoded, key = message.code, message.decoded, None
        copy.extras = {**message.attributes, "at": self._clock()}
        if kind in (Kind.REQUEST, Kind.OPEN, Kind.PUBLISH, Kind.NOTIFY, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE):
            self._count += 1
            copy.id = f"{self._prefix}{self._count}"
            key = copy.id if kind in (Kind.REQUEST, Kind.OPEN) else None
        self.queue(self.codec.encode([copy]))
        return key

    def _uri_of(self, message: Message) -> str | int:
        subject = message.subject
        if isinstance(subject, int) or "/" in subject:
            return subject
        if message.kind is Kind.PUBLISH:
            return f"{self._entity}/{subject}#Message"
        if message.kind in (Kind.SUBSCRIBE, Kind.UNSUBSCRIBE):
            return f"{self._peer}/{subject}#Message"
        return f"{self._peer}/rpc.{subject}"

    def _subject_of(self, uri: str) -> str:
        for entity in (self._entity, self._peer):
            name = uri.removeprefix(f"{entity}/")
            if name != uri and name.startswith("rpc."):
                return name.removeprefix("rpc.")
            if name != uri and name.endswith("#Message"):
                return name.removesuffix("#Message")
        return uri


@frozen(kw_only=True)
class Expiring(ShapeAdapter):
    name: ClassVar[str] = "expiring"
    entity: str = "/polybus/1"
    peer: str = "/polybus/1"
    clock: Callable[[], float] = time.time

    def codec(self, limits: Limits = Limits()) -> ExpiringCodec:  # noqa: B008  # immutable
        return _codec(limits)

    def session(self, role: Role, limits: Limits = Limits(), rng: random.Random | None = None) -> ExpiringSession:  # noqa: B008
        return ExpiringSession(_codec(limits), self, rng)


_codec = lru_cache(ExpiringCodec)
