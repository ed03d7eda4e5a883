"""Messages that one connection of uProtocol writes: ids, addresses, times, and who was asked."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ...errors import Code, LocalProtocolError, TooLarge, Unsupported
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import SessionEvent
from .bodies import ANY
from .cloudevents.envelope import LEVELS, ReturnAddress
from .cloudevents.forms import error_body, written_body
from .codec import UProtocolCodec
from .ids import IdFactory
from .names import Names, subject_text
from .rules.checks import MAX_INTEGER
from .rules.extensions import BY_KIND, extension_attributes
from .rules.headers import write_headers
from .uris import RESPONSE

if TYPE_CHECKING:
    from .adapter import UProtocol

__all__ = ["Outgoing"]

_REQUEST, _RESPONSE, _ERROR, _PUBLISH, _NOTIFY = Kind.REQUEST, Kind.RESPONSE, Kind.ERROR, Kind.PUBLISH, Kind.NOTIFY
_OPEN: Final = Kind.OPEN


class Outgoing:
    """The half of a session that sends."""

    def __init__(self, codec: UProtocolCodec, adapter: UProtocol, limits: Limits, rng: random.Random) -> None:
        self.codec: Final = codec
        self._write = codec.writer.write
        self._head = codec.writer.head
        self._options = adapter
        self._clock: Callable[[], int] = adapter.clock
        self._max_frame = limits.message
        self._names = Names(adapter.entity, adapter.peer, limits.subject)
        self._ids = IdFactory(adapter.clock, rng)
        self._answers = f"{adapter.entity}/{RESPONSE}"
        self._ttl = None if adapter.ttl is None else int(adapter.ttl * 1000)
        self._plain = not callable(adapter.token) and adapter.sign is None
        # What all requests have.
        constant = {"plevel": adapter.permission_level, "token": None if callable(adapter.token) else adapter.token}
        self._constant = tuple((name, value) for name, value in constant.items() if value is not None)
        # By subject: the head of a request and its sink.
        self._methods: dict[str | int, tuple[bytes, str]] = {}
        self._topics: dict[tuple[Kind, str | int, str | None], bytes] = {}
        self._subjects = self._names.subjects
        self._asked: dict[str, str] = {}
        self._items = 0
        self._events: list[Message | SessionEvent] = []
        self._frames: list[bytes] = []

    def send(self, message: Message, now: float, peer_key: Any = None) -> str | None:
        """Queue a message. For a request or an open: the id of its event, under which the answers will come.

        Raises:
            EncodeError: The body does not fit the wire.
            Unsupported: The wire has no form for this kind of message.
            LocalProtocolError: The subject or a header does not fit the wire, or a request has no deadline.
            ReservedSubject: A request for ``response``.
            TooLarge: The frame would exceed `Limits.message`.
        """
        kind = message.kind
        key = None
        if kind is _REQUEST:
            head, sink = self._methods.get(message.subject) or self._method(message.subject)
            ttl = message.ttl
            milliseconds = int(ttl * 1000 + 0.5) if ttl is not None and 0.001 < ttl < 2e6 else self._milliseconds(message)
            raw, format = message.raw, message.format
            if raw is None or format is not ANY:
                raw, format = written_body(message)
            key = self._ids.next()
            extra = None if self._plain and message.headers is None else self._extra(message, raw)
            frame = self._write(head, key, milliseconds, None, extra, raw, format)
            if len(frame) > self._max_frame:
                raise self._too_large(frame)
            self._asked[key] = sink
            self._frames.append(frame)
            return key
        elif kind is _RESPONSE or kind is _ERROR:
            frame = self._response(message)
        elif kind is _PUBLISH:
            frame = self._publication(message)
        else:
            key, frame = self._other(kind, message)
        if len(frame) > self._max_frame:
            raise self._too_large(frame)
        self._frames.append(frame)
        return key

    def _too_large(self, frame: bytes) -> TooLarge:
        return TooLarge(f"an event of {len(frame)} bytes is larger than {self._max_frame} (limit: message)")

    def _method(self, subject: str | int) -> tuple[bytes, str]:
        """The head of requests for a subject."""
        sink = self._names.method(subject)
        level = self.codec.level_of(subject) or "CS4"
        head = self._head("req.v1", self._answers, sink, max(level, "CS4"), self._constant)
        if len(self._methods) >= 1024:
            self._methods.clear()
        found = self._methods[subject] = head, sink
        return found

    def _topic(self, kind: Kind, subject: str | int, relayed: str | None) -> bytes:
        """The head of publications or notifications of a subject; what is relayed keeps its priority."""
        source = self._names.topic(subject)
        name, sink = "pub.v1", None
        if kind is _NOTIFY:
            name, sink = self._options.notification, self._names.peer or self._names.entity
        if len(self._topics) >= 1024:
            self._topics.clear()
        head = self._head(name, source, sink, relayed or self.codec.level_of(subject) or "CS1")
        if kind is _PUBLISH or self._names.peer is not None:
            self._topics[kind, subject, relayed] = head
        return head

    @staticmethod
    def _milliseconds(message: Message) -> int:
        if message.ttl is None:
            raise LocalProtocolError("a request of uProtocol must have an end: pass timeout=", protocol="uprotocol")
        return min(max(1, int(message.ttl * 1000 + 0.5)), MAX_INTEGER)

    def _publication(self, message: Message) -> bytes:
        """The same event for all peers: it was made once, so it has one id."""
        shared, key = message.shared, (self.codec, self._names.entity)
        frame = shared.get(key)
        if frame is None:
            frame = shared[key] = self._event(_PUBLISH, message)
        return frame

    def _event(self, kind: Kind, message: Message) -> bytes:
        relayed = message.extras.get("priority") if message.extras else None
        relayed = relayed if relayed in LEVELS else None
        head = self._topics.get((kind, message.subject, relayed)) or self._topic(kind, message.subject, relayed)
        ttl = self._ttl if message.ttl is None else self._milliseconds(message)
        raw, format = written_body(message)
        extra = None if self._options.sign is None and message.headers is None else self._extra(message, raw)
        return self._write(head, self._ids.next(), ttl, None, extra, raw, format)

    def _response(self, message: Message) -> bytes:
        """Source and sink change places; priority and ttl are those of the request."""
        asked = message.id
        if not isinstance(asked, ReturnAddress):
            raise LocalProtocolError("an answer has the id that its request came with", protocol="uprotocol")
        event = asked.event
        ttl = event.ttl
        head = self._head("res.v1", event.sink or "", event.source, event.priority)
        extra: dict[str, Any] = {}
        if message.kind is _ERROR:
            raw, format = error_body(message), ANY
            if message.attributes.get("undelivered"):
                extra["commstatus"] = int(message.code or Code.UNKNOWN)
        else:
            raw, format = written_body(message)  # type: ignore[assignment]
        if self._options.sign is not None or message.headers is not None:
            extra.update(self._extra(message, raw) or {})
        return self._write(head, self._ids.next(), ttl or None, asked, extra or None, raw, format)

    def _other(self, kind: Kind, message: Message) -> tuple[str | None, bytes]:
        """A notification, or what only a bus of ours understands."""
        if kind is _NOTIFY:
            return None, self._event(_NOTIFY, message)
        if kind not in BY_KIND:
            raise Unsupported(f"uProtocol has no form for a {kind.value} message")
        if kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
            subject_text(message.subject)
        if kind is Kind.ITEM and self.codec.takes_item(message) and self._options.sign is None:
            self._items += 1
            return None, self.codec.item(self._names.entity, f"{message.id}/{self._items:x}", message)
        given, data = extension_attributes(message)
        raw, format = (data, ANY) if data is not None else written_body(message)
        id, reqid = self._ids.next(), given.pop("reqid", None)
        sink = self._names.method(message.subject) if kind is _OPEN else None
        if message.headers is not None or self._options.sign is not None:
            given.update(self._extra(message, raw) or {})
        head = self._head(given.pop("type"), self._answers, sink, None)
        ttl = None if message.ttl is None else self._milliseconds(message)
        return id if kind is _OPEN else None, self._write(head, id, ttl, reqid, given or None, raw, format)

    def _extra(self, message: Message, raw: bytes | None) -> dict[str, Any] | None:
        """Attributes that only some messages have."""
        options, extra = self._options, dict[str, Any]()
        if message.kind is _REQUEST and callable(options.token):
            token = options.token()
            if token is not None:
                extra["token"] = _given("token", token, str)
        if options.sign is not None and raw is not None:
            extra["hash"] = _given("sign", options.sign(raw), bytes)
        if message.headers:
            extra.update(write_headers(message.headers, self.codec.headers_limit))
        return extra or None

    def forget(self, key: Any, now: float) -> None:
        """Forget a request: its answer is not wanted any more."""
        self._asked.pop(key, None)

    def frames_to_send(self) -> list[bytes]:
        """Frames queued since the last call, in order."""
        frames, self._frames = self._frames, []
        return frames


def _given(option: str, value: Any, kind: type) -> Any:
    """Result of a function of the application.

    Raises:
        LocalProtocolError: It is something else.
    """
    if not isinstance(value, kind):
        text = f"{option}() gave {type(value).__name__}: {kind.__name__} is needed"  # not the value: a token is never shown
        raise LocalProtocolError(text, protocol="uprotocol")
    return value
