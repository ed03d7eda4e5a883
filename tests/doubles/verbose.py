"""A wire that talks: a handshake of several verbs, many messages in a frame, a heartbeat, a goodbye (as J.REP)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, Self

from attrs import frozen

from polybus.body import JSON
from polybus.errors import RemoteProtocolError, Unauthorized, Unsupported
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import Capabilities, CloseWanted, Ready, Role

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

CONTROL: Final = frozenset(("hello", "welcome", "capabilities", "finish", "refused", "heartbeat", "goodbye"))
_KINDS: Final = {kind.value: kind for kind in Kind if kind is not Kind.CONTROL}
_WITH_ID: Final = frozenset(_KINDS.values()) - {Kind.PUBLISH, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.NOTIFY}
BAD: Final = "bad"

# What each verb, and any other message, does in each state. A client begins in "greeting", a server in "listening".
STATES: Final[Mapping[str, Mapping[str, str]]] = {
    "greeting": {"welcome": "syncing", "refused": "closed"},
    "listening": {"hello": "offered"},
    "offered": {"capabilities": "finishing"},
    "syncing": {"finish": "ready"},
    "finishing": {"finish": "ready"},
    "ready": {"message": "ready", "heartbeat": "ready", "goodbye": "closed"},
    "closed": dict.fromkeys((*CONTROL, "message"), "closed"),
}


def following(state: str, event: str) -> str:
    """The next state; what a state does not expect is bad."""
    return STATES[state].get(event, BAD)


@frozen(eq=False)
class VerboseCodec(JsonCodec):
    limits: Limits

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        documents = load(frame)
        if not isinstance(documents, list):
            raise RemoteProtocolError("a frame is an array of messages")
        found: list[Message | RemoteProtocolError] = []
        for document in documents:
            try:
                found.append(self._message(document))
            except RemoteProtocolError as error:
                found.append(error)
        return found

    def _message(self, document: Any) -> Message:
        verb = text_of(document, "verb")
        if verb in CONTROL:
            return Message(Kind.CONTROL, verb, attributes=document)
        kind = _KINDS.get(verb)
        if kind is None:
            raise RemoteProtocolError(f"verb {verb!r} is not known", reason="unknown_verb")
        id = text_of(document, "id") if kind in _WITH_ID else None
        if kind is Kind.ERROR or (kind is Kind.END and "code" in document):
            return failed(kind, id, document)
        raw = JSON.encode(document["body"]) if "body" in document else None
        headers, ttl = headers_of(document.get("headers")), seconds_of(document.get("ttl"))
        subject = str(document.get("subject", ""))
        facts = {name: document[name] for name in ("mode", "credit", "hops") if name in document}
        return Message(kind, subject, id, raw, JSON, headers, ttl, attributes=facts)

    def encode(self, messages: Sequence[Message]) -> bytes:
        return self.join([self.document(message) for message in messages])

    def join(self, documents: Sequence[bytes]) -> bytes:
        """One frame of what `document` gave."""
        return b"[" + b",".join(documents) + b"]"

    def document(self, message: Message) -> bytes:
        kind = message.kind
        if isinstance(message.subject, int):
            raise Unsupported(f"verbose has no numbers as subjects: {message.subject}")
        document: dict[str, Any] = {"verb": message.subject if kind is Kind.CONTROL else kind.value, **message.attributes}
        if kind in _WITH_ID:
            document["id"] = message.id
        if kind is Kind.ERROR or (kind is Kind.END and message.code):
            document.update(facts_of(message))
        elif kind is not Kind.CONTROL:
            document["subject"] = message.subject
        if message.has_body:
            document["body"] = body_of(message)
        if message.headers:
            document["headers"] = message.headers
        if message.ttl is not None:
            document["ttl"] = int(message.ttl * 1000)
        return dump(document)


class VerboseSession(ShapeSession):
    capabilities = Capabilities(patterns=True, announce="both")

    def __init__(self, codec: VerboseCodec, role: Role, options: Verbose, rng: random.Random | None) -> None:
        super().__init__(codec.limits, rng)
        self.codec = codec
        self.state = "greeting" if role == "client" else "listening"
        self._options = options
        self._prefix = token(self.rng) + "-"
        self._count = 0
        self._documents: list[bytes] = []
        self._due: float | None = None
        self._heard = 0.0

    def start(self, now: float) -> None:
        self._heard = now
        if self.state == "greeting":
            self._say("hello", password=self._options.password)

    def receive(self, frame: bytes, now: float) -> None:
        self._heard = now
        try:
            messages = self.codec.decode(frame)
        except RemoteProtocolError as error:
            self.refuse(error)
            return
        for message in messages:
            if isinstance(message, RemoteProtocolError):
                self.refuse(message)  # alone: the rest of the frame is good
            else:
                self._received(message, now)

    def _received(self, message: Message, now: float) -> None:
        event = str(message.subject) if message.kind is Kind.CONTROL else "message"
        before, after = self.state, following(self.state, event)
        if after == BAD:
            self.state = "closed"
            text = f"{event} is not expected while {before}"
            self._events.append(CloseWanted(1002, text, RemoteProtocolError(text, reason="unexpected")))
            return
        self.state = after
        if event == "message" and after == "ready":
            ours = message.kind in (Kind.RESPONSE, Kind.ERROR)
            if ours and not str(message.id).startswith(self._prefix):
                self.refuse(RemoteProtocolError("an answer to an id that is not of this side", reason="unknown_id"))
            else:
                self._events.append(message)
        elif event == "hello":
            self._greeted(message.attributes.get("password"))
        elif event == "welcome":
            self._say("capabilities", flags="batches")
        elif event == "capabilities" or (event == "finish" and before == "syncing"):
            self._say("finish")
        elif event == "refused":
            self._events.append(CloseWanted(4401, "the password is wrong", Unauthorized("the password is wrong")))
        elif event == "goodbye":
            self._events.append(CloseWanted(1001, str(message.attributes.get("reason", "goodbye"))))
        if event == "finish":
            self._due = now + self._options.heartbeat
            self._events.append(Ready())

    def _greeted(self, password: Any) -> None:
        if password == self._options.password:
            self._say("welcome")
        else:
            self.state = "closed"
            self._say("refused")
            self._events.append(CloseWanted(4401, "the password is wrong", Unauthorized("the password is wrong")))

    def _say(self, verb: str, **parts: str) -> None:
        self._documents.append(self.codec.document(Message(Kind.CONTROL, verb, attributes=dict(parts))))

    def send(self, message: Message, now: float, peer_key: Any = None) -> str | None:
        copy, key = message, None
        if message.kind in (Kind.REQUEST, Kind.OPEN):
            self._count += 1
            key = f"{self._prefix}{self._count}"
            copy = Message(message.kind, message.subject, key, message.raw, message.format, message.headers, message.ttl)
            copy.extras = message.extras
        document = self.codec.document(copy)
        if len(document) + 2 > self.limits.message:
            self.queue(document + b"[]")  # says so
        self._documents.append(document)
        return key

    def frames_to_send(self) -> list[bytes]:
        """All that waits, in as few frames as the limit allows."""
        documents, self._documents = self._documents, []
        frames: list[list[bytes]] = []
        size = 0
        for document in documents:
            if not frames or size + len(document) + 1 > self.limits.message:
                frames.append([])
                size = 2
            frames[-1].append(document)
            size += len(document) + 1
        return [self.codec.join(frame) for frame in frames]

    def next_tick(self) -> float | None:
        return self._due

    def tick(self, now: float) -> None:
        if self.state != "ready":
            self._due = None
        elif now - self._heard > 3 * self._options.heartbeat:
            self._due, self.state = None, "closed"
            self._events.append(CloseWanted(1006, "no heartbeat for too long"))
        else:
            self._due = now + self._options.heartbeat
            self._say("heartbeat")

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> None:
        if self.state == "ready":
            self.state = "closed"
            self._say("goodbye", reason=reason)

    def connection_lost(self, reason: str) -> None:
        self._documents.clear()


@frozen(kw_only=True)
class Verbose(ShapeAdapter):
    name: ClassVar[str] = "verbose"
    password: str = ""
    heartbeat: float = 10.0

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        return cls(password=options.get("password", ""), heartbeat=float(options.get("heartbeat", 10)))

    def codec(self, limits: Limits = Limits()) -> VerboseCodec:  # noqa: B008  # immutable
        return _codec(limits)

    def session(self, role: Role, limits: Limits = Limits(), rng: random.Random | None = None) -> VerboseSession:  # noqa: B008
        return VerboseSession(_codec(limits), role, self, rng)


_codec = lru_cache(VerboseCodec)
