"""One connection without I/O or a handshake; manages ids, times, names, and pending requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec.structs import replace

from ...errors import Code, LocalProtocolError, RemoteProtocolError, Unsupported
from ...headers import is_traceparent
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities, Frames, SessionOutput, Undelivered
from ...plugins.protobuf import field, varint
from .._protobuf import status_of
from .._shared import remember, too_large
from .._uprotocol import LEVELS, REMEMBERED, EntitySession, relayed_priority
from .codec import MAX_TTL, TYPES, MessageShape, UpCodec, UpMessage, UpReturnAddress, milliseconds, no_form, written_body
from .names import UpNames
from .samples import MAX_ATTRIBUTES, check_attributes
from .wire import NAME, MessageType, PayloadFormat, WireIds, head_of, refuse, uuid_bytes, wire_ms, write_message, write_uuid

if TYPE_CHECKING:
    from .adapter import Up
    from .samples import Filters

SETTLED: Final = 4096  # On a fabric: answered requests that are remembered, at least; at most twice as many


class Accounts:
    """Counts unanswered requests, at most `most` for each authority. Remembers at least `remembered` answered requests."""

    __slots__ = ("_counts", "_most", "_older", "_remembered", "_settled", "_under_way")

    def __init__(self, most: int, remembered: int = 0) -> None:
        self._most: Final = most
        self._remembered: Final = remembered
        self._under_way: dict[bytes, str] = {}
        self._settled: set[bytes] = set()
        self._older: set[bytes] = set()
        self._counts: dict[str, int] = {}

    def is_known(self, request: bytes) -> bool:
        """Return True if a request, given by its `UpReturnAddress.account`, is active or was answered recently."""
        return request in self._under_way or request in self._settled or request in self._older

    def admit(self, request: bytes, authority: str) -> bool:
        count = self._counts.get(authority, 0)
        if count >= self._most:
            return False
        self._under_way[request] = authority
        self._counts[authority] = count + 1
        return True

    def settle(self, request: bytes) -> None:
        authority = self._under_way.pop(request, None)
        if authority is None:
            return
        left = self._counts[authority] - 1
        if left:
            self._counts[authority] = left
        else:
            del self._counts[authority]
        if self._remembered:
            self._settled.add(request)
            if len(self._settled) >= self._remembered:
                self._older, self._settled = self._settled, set()

    def clear(self) -> None:
        for each in (self._under_way, self._counts, self._settled, self._older):
            each.clear()


_TRACE: Final = "traceparent"
CAPABILITIES: Final = Capabilities(
    subscribe=False,
    headers=False,
    bare_headers=False,
    own_headers=frozenset({_TRACE}),
    answer_headers=False,
    destinations=True,
    extensions=False,
)
ON_FABRIC: Final = replace(CAPABILITIES, filters=True, many_senders=True, announce="both")
_REQUEST, _RESPONSE, _ERROR = Kind.REQUEST, Kind.RESPONSE, Kind.ERROR
# Tags of attributes; those of ids include the length.
_ID, _TTL, _COMMSTATUS, _REQID, _TOKEN, _TRACEPARENT = b"\x0a\x12", b"\x30", b"\x40", b"\x4a\x12", b"\x52", b"\x5a"
_FORMATS: Final = (b"", *(b"\x60" + varint(number) for number in range(1, 9)))


class UpSession(EntitySession):
    """Session for one end of a connection, or of a fabric if `filters` is set. Both ends behave alike.

    The key of a request is its message id in wire form. `Message.id` of an incoming request is its `UpReturnAddress`.
    """

    codes: ClassVar[Mapping[str | None, Code]] = {"clock_skew": Code.DEADLINE_EXCEEDED}
    return_address: ClassVar[type] = UpReturnAddress
    refuse: ClassVar[Callable[..., RemoteProtocolError]] = staticmethod(refuse)

    def __init__(self, codec: UpCodec, adapter: Up, limits: Limits, rng: random.Random, filters: Filters | None = None) -> None:
        super().__init__(codec, adapter, limits)
        self.capabilities: Final[Capabilities] = CAPABILITIES if filters is None else ON_FABRIC
        self._texts = codec.texts
        self._names = UpNames(adapter.names, adapter.own, adapter.other) if filters is None else filters.names
        self._filters = filters
        other = f": another program is also {adapter.entity}, or this one sent the request before its link went down"
        self._whose = "" if filters is None else other
        self._ids = WireIds(adapter.clock, rng)
        self._accounts = Accounts(adapter.per_authority, 0 if filters is None else SETTLED)
        # Constant attributes of requests, in wire order.
        level, token = adapter.permission_level, adapter.token
        self._constant = b"" if level is None else b"\x38" + varint(level)
        self._constant += b"" if token is None or callable(token) else field(_TOKEN, token.encode())

    def start(self, now: float) -> SessionOutput:
        if self._filters is not None:
            self._filters.declare()
        return super().start(now)

    # -- incoming --------------------------------------------------------------------------------------------------------

    def _is_taken(self, message: UpMessage, now: float) -> bool:
        kind, shape, names = message.kind, message.shape, self._names
        if self._filters is not None:
            if kind is not Kind.PUBLISH and not self._filters.is_ours(shape.given.sink):
                raise refuse(f"addressed to {shape.given.sink}, which is not this entity", "wrong_sink")
        elif names.peer is None and kind is not _RESPONSE and kind is not _ERROR:
            self._learn(shape.source)
        if kind is _RESPONSE or kind is _ERROR:
            return self._check_answer(message, shape)
        text = shape.subject
        message.subject, message.also = names.spellings[text]
        if kind is _REQUEST:
            request = message.uuid + shape.sender  # as in `UpReturnAddress.account`
            if self._accounts.is_known(request):
                raise refuse(f"the id {message.id} was used before: each request needs an id of its own", "duplicate_id")
            self._in_time(message, wire_ms(message.uuid), shape.ttl_ms)
            return self._accounts.admit(request, shape.authority) or self._too_many(message, shape.authority)
        if shape.ttl is not None:
            if not self._in_time(message, wire_ms(message.uuid), shape.ttl_ms):
                return False
            message.expires = now + (message.ttl or 0.0)
        return True

    def _too_many(self, message: UpMessage, authority: str) -> bool:
        most = self._options.per_authority
        text = f"{most} requests of {authority or 'this host'!r} are active (per_authority): try again later"
        self._answer(message.id, Code.RESOURCE_EXHAUSTED, text, "too_many")
        self._output.append(Undelivered(message, Code.RESOURCE_EXHAUSTED, "too_many", text))
        return False

    def _check_answer(self, message: UpMessage, shape: MessageShape) -> bool:
        key, source = message.reqid, shape.source
        sink = self._asked.get(key)
        if sink is None:
            if not key.endswith(self._ids.suffix):
                raise refuse(f"an answer to an id that this side did not create{self._whose}", "unknown_id")
            return True  # late: the bus counts it
        if source != sink:
            raise refuse(f"an answer from {source} to a request for {sink}", "wrong_peer")
        if shape.ttl is not None and not self._answer_in_time(message, source, wire_ms(message.uuid), shape.ttl_ms):
            return False
        del self._asked[key]
        return True

    # -- outgoing --------------------------------------------------------------------------------------------------------

    def send(self, message: Message, now: float, peer_key: Any = None) -> tuple[bytes | None, Frames]:
        kind = message.kind
        if kind is _REQUEST:
            key, frame, sink = self._request(message)
            self._check_size(frame)
            self._asked[key] = sink
            return key, frame
        if kind is _RESPONSE or kind is _ERROR:
            frame = self._response(message)
            self._accounts.settle(message.id.account)
        elif kind is Kind.PUBLISH:
            frame = self._publication(message)
        elif kind is Kind.NOTIFY:
            frame = self._event(kind, message)
        elif self._filters is not None and (kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE):
            (self._filters.add if kind is Kind.SUBSCRIBE else self._filters.remove)(message.subject)
            return None, ()
        else:
            raise no_form(kind)
        self._check_size(frame)
        return None, frame

    def _check_size(self, frame: bytes) -> None:
        size = len(frame)
        if size > self._max_frame:
            raise too_large(size, self._max_frame, "a message")
        if size > MAX_ATTRIBUTES and self._filters is not None:
            check_attributes(frame)

    def _request(self, message: Message) -> tuple[bytes, bytes, str]:
        ttl, subject = message.ttl, message.subject
        if ttl is None:
            raise LocalProtocolError("requests over up need a deadline: pass timeout=", protocol=NAME)
        extras = message.extras
        head, sink = (None if extras else self._methods.get(subject)) or self._method(subject, extras)
        raw, format = written_body(message, self._texts)
        key = self._ids.next()
        more = self._constant
        if callable(self._options.token):
            more += _new_token(self._options.token)
        if message.headers:
            more += _trace(message.headers)
        attributes = b"".join((_ID, key, head, _TTL, varint(milliseconds(ttl)), more, _FORMATS[format]))
        return key, write_message(attributes, raw), sink

    def _method(self, subject: str | int, extras: Mapping[str, Any] | None) -> tuple[bytes, str]:
        sink, relayed = self._names.method(subject), relayed_priority(extras) if extras else None
        level = LEVELS[max(relayed or self.codec.level_of(subject) or "CS4", "CS4")]
        found = head_of(MessageType.REQUEST, self._names.entity, sink, level + 1), str(sink)
        if not extras:
            remember(self._methods, subject, found, REMEMBERED)
        return found

    def _event(self, kind: Kind, message: Message) -> bytes:
        relayed = to = kept = None
        passed = 0
        if message.extras:
            relayed, (kept, passed) = relayed_priority(message.extras), self._kept_id(message.extras, 7)
            to = message.extras.get("to") if kind is Kind.NOTIFY else None
        head = self._topics.get((kind, message.subject, relayed, to)) or self._topic(kind, message.subject, relayed, to)
        ttl = self._ttl if message.ttl is None else milliseconds(message.ttl)
        raw, format = written_body(message, self._texts)
        lives = b"" if ttl is None else _TTL + varint(min(ttl + passed, MAX_TTL))
        trace = _trace(message.headers) if message.headers else b""
        id = self._ids.next() if kept is None else write_uuid(uuid_bytes(kept))
        return write_message(b"".join((_ID, id, head, lives, trace, _FORMATS[format])), raw)

    def _topic(self, kind: Kind, subject: str | int, relayed: str | None, to: str | None) -> bytes:
        source = self._names.topic(subject)
        sink = self._names.destination(to) if kind is Kind.NOTIFY else None
        level = LEVELS[relayed or self.codec.level_of(subject) or "CS1"]
        return remember(self._topics, (kind, subject, relayed, to), head_of(TYPES[kind], source, sink, level + 1), REMEMBERED)

    def _response(self, message: Message) -> bytes:
        address = message.id
        if not isinstance(address, UpReturnAddress):
            raise LocalProtocolError("an answer needs the id of its request", protocol=NAME)
        status = b""
        if message.kind is _ERROR:
            raw: bytes | None = status_of(message)
            format = int(PayloadFormat.PROTOBUF)
            status = _COMMSTATUS + varint(int(message.code or Code.UNKNOWN))
        else:
            raw, format = written_body(message, self._texts)
        asked, shape = address
        return write_message(b"".join((_ID, self._ids.next(), shape.answer, status, _REQID, asked, _FORMATS[format])), raw)

    def connection_lost(self, reason: str) -> None:
        super().connection_lost(reason)
        self._accounts.clear()


def _new_token(make: Callable[[], Any]) -> bytes:
    found = make()
    if found is None:
        return b""
    if type(found) is not str:  # never show the value of a token
        raise LocalProtocolError(f"token() returned {type(found).__name__}: it must return a str or None", protocol=NAME)
    return field(_TOKEN, found.encode())


def _trace(headers: Mapping[str, str]) -> bytes:
    """Write the trace context. Other headers cannot be sent."""
    others = [name for name in headers if name.lower() != _TRACE]
    if others:
        raise Unsupported(f"up: a UMessage carries only the header {_TRACE}, not {others[0]!r}")
    trace = next(iter(headers.values()))
    # Drop a malformed trace context, not the message.
    return field(_TRACEPARENT, trace.encode()) if is_traceparent(trace) else b""
