"""One uProtocol connection without I/O or a handshake; manages ids, times, addresses, and pending requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ...errors import Code, LocalProtocolError, RemoteProtocolError, Unsupported
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities
from ...plugins.hello import HELLO
from .._protobuf import ANY
from .._shared import remember, too_large
from .._uprotocol import REMEMBERED, EntitySession, IdFactory, id_time_ms, relayed_priority
from . import events
from .events import NAMES, EventMessage, ReturnAddress, return_address, written_body
from .names import MESSAGE, RESPONSE, UProtocolNames, read_uri, subject_text
from .rules import MAX_INTEGER, is_text, refuse

if TYPE_CHECKING:
    from .adapter import UProtocol, UProtocolCodec

_CAPABILITIES: Final = Capabilities(subscribe=False)
_REQUEST, _RESPONSE, _ERROR, _PUBLISH, _NOTIFY = Kind.REQUEST, Kind.RESPONSE, Kind.ERROR, Kind.PUBLISH, Kind.NOTIFY
_OPEN: Final = Kind.OPEN
_PLAIN: Final = f"#{MESSAGE}"
_HELLO: Final = f"/rpc.{HELLO}"
"""The answer to a hello does not expire. Otherwise two polybus peers with clocks a second apart could not connect."""


class UProtocolSession(EntitySession):
    """Session for one end of a connection. Both ends behave alike.

    The key of a request is the id of its event. `Message.id` of an incoming request is its `ReturnAddress`.
    """

    capabilities: Capabilities = _CAPABILITIES
    # Codes for refused requests, except those with a malformed header (up-l2 dispatchers).
    codes: ClassVar[Mapping[str | None, Code]] = {"clock_skew": Code.DEADLINE_EXCEEDED, "invalid_hash": Code.UNAUTHENTICATED}
    return_address: ClassVar[type] = ReturnAddress
    refuse: ClassVar[Callable[..., RemoteProtocolError]] = staticmethod(refuse)

    def __init__(self, codec: UProtocolCodec, adapter: UProtocol, limits: Limits, rng: random.Random) -> None:
        super().__init__(codec, adapter, limits)
        self._write = codec.writer.write
        self._head = codec.writer.head
        self._names = UProtocolNames(adapter.entity, adapter.peer, limits.subject)
        self._ids = IdFactory(adapter.clock, rng)
        self._answers = f"{adapter.entity}/{RESPONSE}"
        self._plain = not callable(adapter.token) and adapter.sign is None
        # Constant attributes of requests.
        constant = {"plevel": adapter.permission_level, "token": None if callable(adapter.token) else adapter.token}
        self._constant = tuple((name, value) for name, value in constant.items() if value is not None)
        self._subjects = self._names.subjects
        self._items = 0
        self._checks_hash = adapter.verify is not None
        self._most_bad = limits.bad_messages
        self._seen, self._seen_ms = "", 0

    # -- incoming --------------------------------------------------------------------------------------------------------

    def _unread(self, error: RemoteProtocolError, frame: bytes, now: float) -> None:
        if frame[:1] != b"[" or self.codec.writes != "text":
            self._refuse(error)
            return
        try:
            frames = self.codec.reader.split(frame)
        except RemoteProtocolError as error:
            self._refuse(error)
            return
        bad = 0
        for each in frames:
            try:
                message = self._read(each)
                if self._is_taken(message, now):
                    self._output.append(message)
            except RemoteProtocolError as error:
                self._refuse(error)
                bad += 1
                if bad > self._most_bad:
                    return  # the link closes

    def _is_taken(self, message: EventMessage, now: float) -> bool:
        kind = message.kind
        if self._checks_hash:
            self._verify(message)
        if kind is _REQUEST:
            event, names = message.event, self._names
            address = message.id = ReturnAddress(event.id)
            address.event = event
            sink = event.sink or ""
            if names.peer is None and not read_uri(event.source).short:
                self._learn(event.source)
            message.subject = self._subjects[sink]
            made = self._made(event.id)
            if made is not None:
                self._in_time(message, made, event.ttl or 0)
        elif kind is _RESPONSE or kind is _ERROR:
            return self._check_answer(message)
        elif kind is _PUBLISH or kind is _NOTIFY:
            source = str(message.subject)
            if self._names.peer is None and (kind is _NOTIFY or source.endswith(_PLAIN)) and not read_uri(source).short:
                self._learn(source)
            message.subject = self._subjects[source]
            if message.ttl is not None:
                made = self._made(message.event.id)
                if made is None:
                    message.ttl = None
                elif self._in_time(message, made, message.event.ttl or 0):
                    message.expires = now + message.ttl
                else:
                    return False
        elif kind is _OPEN:
            if message.id.endswith(self._ids.suffix):  # both ends name a channel by its opener's id
                raise refuse("a request with an id that belongs to this side", "invalid_id")
            message.subject = self._subjects[str(message.subject)]
        return True

    def _check_answer(self, message: EventMessage) -> bool:
        key, event = message.id, message.event
        sink = self._asked.get(key)
        if sink is None:
            if not key.endswith(self._ids.suffix):
                raise refuse("an answer to an id that this side did not create", "unknown_id")
            return True  # late: the bus counts it
        source = event.source
        if source != sink and read_uri(source).key != read_uri(sink).key:
            raise refuse(f"an answer from {source[:80]!r} to a request for {sink[:80]!r}", "wrong_peer")
        if event.ttl and not sink.endswith(_HELLO) and (made := self._made(event.id)) is not None:
            if not self._answer_in_time(message, source, made, event.ttl):
                return False
        del self._asked[key]
        return True

    def _made(self, id: str) -> int | None:
        """Return the milliseconds in an id, or `None` if the id contains no time and never expires."""
        if id[:15] == self._seen:  # ids of one sender and millisecond share their beginning
            return self._seen_ms
        made = int(id[:8] + id[9:13], 16) if id[14] in "78" else id_time_ms(id)
        if made is not None:
            self._seen, self._seen_ms = id[:15], made
        return made

    def _verify(self, message: EventMessage) -> None:
        verify, given = self._options.verify, message.attributes.get("hash")
        assert verify is not None
        if message.raw is None and given is None:
            return  # a hash needs data
        failure: Exception | None = None
        try:
            if isinstance(given, bytes) and verify(message.raw or b"", given):
                return
        except Exception as error:  # some applications raise on failure; a peer's data must not end the connection
            failure = error
        address = return_address(message.event) if message.kind is _REQUEST else None
        text = "the hash is missing or does not match the data (document, 1.1 hash)"
        if failure is not None:
            text += f": verify() raised {type(failure).__name__}"
        raise refuse(text, "invalid_hash", address) from failure

    # -- outgoing --------------------------------------------------------------------------------------------------------

    def send(self, message: Message, now: float, peer_key: Any = None) -> tuple[str | None, bytes]:
        kind = message.kind
        key = sink = None
        if kind is _REQUEST:
            extras = message.extras
            head, sink = (None if extras else self._methods.get(message.subject)) or self._method(message.subject, extras)
            ttl = message.ttl
            milliseconds = int(ttl * 1000 + 0.5) if ttl is not None and 0.001 < ttl < 2e6 else self._milliseconds(message.ttl)
            raw, format = message.raw, message.format
            if raw is None or raw is not message.checked or format is not ANY:
                raw, format = written_body(message)
            key = self._ids.next()
            extra = None if self._plain and message.headers is None else self._extra(message, raw)
            frame = self._write(head, key, milliseconds, None, extra, raw, format)
        elif kind is _RESPONSE or kind is _ERROR:
            frame = self._response(message)
        elif kind is _PUBLISH:
            frame = self._publication(message)
        else:
            key, frame = self._other(kind, message)
        if len(frame) > self._max_frame:
            raise too_large(len(frame), self._max_frame, "an event")
        if sink is not None:
            self._asked[key] = sink
        return key, frame

    def _method(self, subject: str | int, extras: Mapping[str, Any] | None) -> tuple[bytes, str]:
        sink, relayed = self._names.method(subject), relayed_priority(extras) if extras else None
        level = relayed or self.codec.level_of(subject) or "CS4"
        found = self._head("req.v1", self._answers, sink, max(level, "CS4"), self._constant), sink
        if not extras:
            remember(self._methods, subject, found, REMEMBERED)
        return found

    def _topic(self, kind: Kind, subject: str | int, relayed: str | None) -> bytes:
        source = self._names.topic(subject)
        name, sink = "pub.v1", None
        if kind is _NOTIFY:
            name, sink = self._options.notification, self._names.peer or self._names.entity
        head = self._head(name, source, sink, relayed or self.codec.level_of(subject) or "CS1")
        if kind is _PUBLISH or self._names.peer is not None:
            remember(self._topics, (kind, subject, relayed), head, REMEMBERED)
        return head

    @staticmethod
    def _milliseconds(ttl: float | None) -> int:
        if ttl is None:
            raise LocalProtocolError("requests over uProtocol need a deadline: pass timeout=", protocol="uprotocol")
        return min(max(1, int(ttl * 1000 + 0.5)), MAX_INTEGER)

    def _event(self, kind: Kind, message: Message) -> bytes:
        relayed = id = None
        passed = 0
        if message.extras:
            relayed, (id, passed) = relayed_priority(message.extras), self._kept_id(message.extras, 8)
        head = self._topics.get((kind, message.subject, relayed)) or self._topic(kind, message.subject, relayed)
        ttl = self._ttl if message.ttl is None else self._milliseconds(message.ttl)
        ttl = None if ttl is None else min(ttl + passed, MAX_INTEGER)
        raw, format = written_body(message)
        extra = None if self._options.sign is None and message.headers is None else self._extra(message, raw)
        return self._write(head, id or self._ids.next(), ttl, None, extra, raw, format)

    def _response(self, message: Message) -> bytes:
        asked = message.id
        if not isinstance(asked, ReturnAddress):
            raise LocalProtocolError("an answer needs the id of its request", protocol="uprotocol")
        event = asked.event
        ttl = event.ttl
        head = self._head("res.v1", event.sink or "", event.source, event.priority)
        extra: dict[str, Any] = {}
        if message.kind is _ERROR:
            raw, format = events.write_status(message), ANY
            if message.attributes.get("undelivered"):
                extra["commstatus"] = int(message.code or Code.UNKNOWN)
        else:
            raw, format = written_body(message)  # type: ignore[assignment]
        if self._options.sign is not None or message.headers is not None:
            extra.update(self._extra(message, raw) or {})
        return self._write(head, self._ids.next(), ttl or None, asked, extra or None, raw, format)

    def _other(self, kind: Kind, message: Message) -> tuple[str | None, bytes]:
        if kind is _NOTIFY:
            return None, self._event(_NOTIFY, message)
        if kind not in NAMES:
            raise Unsupported(f"uProtocol cannot carry a {kind.value} message")
        if kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
            subject_text(message.subject)
        if kind is Kind.ITEM and self.codec.takes_item(message) and self._options.sign is None:
            self._items += 1
            return None, self.codec.item(self._names.entity, f"{message.id}/{self._items:x}", message)
        given, data = events.extension_attributes(message)
        raw, format = (data, ANY) if data is not None else written_body(message)
        id, reqid = self._ids.next(), given.pop("reqid", None)
        sink = self._names.method(message.subject) if kind is _OPEN else None
        if message.headers is not None or self._options.sign is not None:
            given.update(self._extra(message, raw) or {})
        head = self._head(given.pop("type"), self._answers, sink, None)
        ttl = None if message.ttl is None else self._milliseconds(message.ttl)
        return id if kind is _OPEN else None, self._write(head, id, ttl, reqid, given or None, raw, format)

    def _extra(self, message: Message, raw: bytes | None) -> dict[str, Any] | None:
        options, extra = self._options, dict[str, Any]()
        if message.kind is _REQUEST and callable(options.token):
            token = options.token()
            if token is not None:
                extra["token"] = given = _given("token", token, str)
                if not is_text(given):
                    raise LocalProtocolError("token() returned control characters", protocol="uprotocol")
        if options.sign is not None and raw is not None:
            extra["hash"] = _given("sign", options.sign(raw), bytes)
        if message.headers:
            extra.update(events.write_headers(message.headers, self.codec.headers_limit))
        return extra or None


def _given(option: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        text = f"{option}() returned {type(value).__name__}: it must return {kind.__name__}"  # not the value: it may be a token
        raise LocalProtocolError(text, protocol="uprotocol")
    return value
