"""One connection, without I/O. There is no handshake: what is left are ids, times, names, and who was asked."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ...errors import Code, LocalProtocolError, RemoteProtocolError, Unsupported
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities, CloseWanted, Ready, Refused, SessionEvent, Undelivered
from .._levels import LEVELS
from .._rules import too_large
from .._uuids import IdFactory
from .accounts import Accounts
from .attributes import Attributes, MessageType, id_ms, uuid_bytes
from .checks import NAME, refuse
from .codec import UpCodec, milliseconds, no_form
from .messages import ReturnAddress, UpMessage
from .names import Names
from .uuris import UUri

if TYPE_CHECKING:
    from .adapter import Up

CAPABILITIES: Final = Capabilities(subscribe=False, headers=False, bare_headers=False, answer_headers=False, extensions=False)
_READY: Final = Ready()
_LAST_MOMENT: Final = 0.001
"""Time that is left in the very millisecond in which it is up: it has expired only after it."""
_TRACE: Final = "traceparent"
_CODES: Final = {"clock_skew": Code.DEADLINE_EXCEEDED}


class UpSession:
    """Either end of a connection: both speak alike.

    A request has as key the id of its message, as text. Of an incoming request, `Message.id` is its `ReturnAddress`.
    """

    capabilities: Capabilities = CAPABILITIES

    def __init__(self, codec: UpCodec, adapter: Up, limits: Limits, rng: random.Random) -> None:
        self.codec: Final = codec
        self._options = adapter
        self._clock: Callable[[], int] = adapter.clock
        self._max_frame = limits.message
        self._names = Names(adapter.names, adapter.own, adapter.other)
        self._ids = IdFactory(adapter.clock, rng, version=7)
        self._accounts = Accounts(adapter.per_authority)
        self._ttl = None if adapter.ttl is None else milliseconds(adapter.ttl)
        # By the id of each request of this side: the method that was asked.
        self._asked: dict[str, UUri] = {}
        self._events: list[Message | SessionEvent] = []
        self._frames: list[bytes] = []

    def start(self, now: float) -> None:
        """There is no handshake: ready at once."""
        self._events.append(_READY)

    # -- incoming --------------------------------------------------------------------------------------------------------

    def receive(self, frame: bytes, now: float) -> None:
        """One frame has come in. Never raises: a bad message becomes `Refused`, and is answered where it is a request."""
        try:
            message = self.codec.read(frame)
            if self._received(message, now):
                self._events.append(message)
        except RemoteProtocolError as error:
            self._refuse(error)

    def _received(self, message: UpMessage, now: float) -> bool:
        kind, given = message.kind, message.given
        source = given.source
        assert source is not None
        if kind is Kind.RESPONSE or kind is Kind.ERROR:
            return self._check_answer(message, source)
        if self._names.peer is None:
            self._names.learn(source)
        if kind is Kind.REQUEST:
            assert given.sink is not None
            message.subject = self._names.subject(given.sink)
            self._in_time(message)
            return self._admitted(message, source)
        message.subject = self._names.subject(source)
        if message.ttl is not None:
            if not self._in_time(message):
                return False
            message.expires = now + message.ttl
        return True

    def _admitted(self, message: UpMessage, source: UUri) -> bool:
        if self._accounts.admit(message.id, source.authority):
            return True
        most = self._options.per_authority
        text = f"{most} requests of {source.authority or 'this host'!r} are under way (per_authority): try again later"
        self._answer(message.id, Code.RESOURCE_EXHAUSTED, text, "too_many")
        self._events.append(Undelivered(message, Code.RESOURCE_EXHAUSTED, "too_many", text))
        return False

    def _check_answer(self, message: UpMessage, source: UUri) -> bool:
        """True if an answer is taken. For one that has expired the request goes on waiting, to its own deadline."""
        key = message.id
        sink = self._asked.get(key)
        if sink is None:
            if not key.endswith(self._ids.suffix):
                raise refuse("an answer to an id that is not of this side", "unknown_id")
            return True  # late: the bus counts it
        if source != sink:
            raise refuse(f"an answer from {source} to a request for {sink}", "wrong_peer")
        if message.given.ttl and not self._in_time(message):
            return False
        del self._asked[key]
        return True

    def _in_time(self, message: UpMessage) -> bool:
        """True if a message still lives: it has expired strictly after its ttl. Sets what is left of its time, but of an
        answer, for which a timer of this side runs."""
        kind, ttl, made = message.kind, message.ttl or 0.0, id_ms(message.given.id)
        age = (self._clock() // 1_000_000 - made) / 1000
        allowance, skew = self._options.allowance, self._options.max_clock_skew
        if age > ttl + allowance:
            if kind is Kind.REQUEST:
                message.ttl = 0.0  # the bus answers it, and holds what the peer does not read within bounds
            else:
                if kind is not Kind.PUBLISH and kind is not Kind.NOTIFY:
                    message.subject = self._names.subject(message.given.source)  # type: ignore[arg-type]
                text = f"made {age:.3f} s ago with a ttl of {ttl:.3f} s; where clocks differ, set allowance="
                self._events.append(Undelivered(message, Code.DEADLINE_EXCEEDED, "expired", text))
            return False
        if kind is Kind.RESPONSE or kind is Kind.ERROR:
            return True
        if -age > skew:
            text = f"made {-age:.3f} s in the future: at most {skew:g} s (max_clock_skew)"
            raise refuse(text, "clock_skew", message.id if kind is Kind.REQUEST else None)
        left = ttl - age + allowance
        message.ttl = min(left, ttl) if left > 0 else _LAST_MOMENT
        return True

    def _refuse(self, error: RemoteProtocolError) -> None:
        self._events.append(Refused(error))
        if isinstance(error.answer_id, ReturnAddress):
            self._answer(error.answer_id, _CODES.get(error.reason, Code.INVALID_ARGUMENT), error.text, error.reason)
        if error.reply_id is not None and self._asked.pop(error.reply_id, None) is None:
            error.reply_id = None
        if error.close_code is not None:
            self._events.append(CloseWanted(error.close_code, error.reason, error))

    def _answer(self, address: ReturnAddress, code: Code, text: str, reason: str) -> None:
        """Say that a request was not delivered."""
        facts = {"text": text, "reason": reason}
        self._frames.append(self._response(Message(Kind.ERROR, "", address, code=code, attributes=facts)))

    def events(self) -> list[Message | SessionEvent]:
        """Take away what has happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    # -- outgoing --------------------------------------------------------------------------------------------------------

    def send(self, message: Message, now: float, peer_key: Any = None) -> str | None:
        """Queue a message. For a request: the id of its message, under which the answer will come."""
        kind, key = message.kind, None
        if kind is Kind.REQUEST:
            key, frame, sink = self._request(message)
            self._check_size(frame)
            self._asked[key] = sink
        else:
            if kind is Kind.RESPONSE or kind is Kind.ERROR:
                frame = self._response(message)
                self._accounts.settle(message.id)
            elif kind is Kind.PUBLISH:
                frame = self._publication(message)
            elif kind is Kind.NOTIFY:
                frame = self._event(MessageType.NOTIFICATION, message, self._names.other.with_resource(0))
            else:
                raise no_form(kind)
            self._check_size(frame)
        self._frames.append(frame)
        return key

    def _check_size(self, frame: bytes) -> None:
        if len(frame) > self._max_frame:
            raise too_large(len(frame), self._max_frame, "a message")

    def _request(self, message: Message) -> tuple[str, bytes, UUri]:
        if message.ttl is None:
            raise LocalProtocolError("a request of up must have an end: pass timeout=", protocol=NAME)
        sink = self._names.method(message.subject)
        level = LEVELS[max(self.codec.level_of(message.subject) or "CS4", "CS4")]
        key, options = self._ids.next(), self._options
        given = Attributes(
            uuid_bytes(key),
            MessageType.REQUEST,
            self._names.entity,
            sink,
            level + 1,
            milliseconds(message.ttl),
            options.permission_level,
            token=self._token(),
            traceparent=_trace(message),
        )
        return key, self.codec.frame(given, message), sink

    def _token(self) -> str | None:
        token = self._options.token
        if not callable(token):
            return token
        found = token()
        if found is not None and type(found) is not str:  # not the value: a token is never shown
            raise LocalProtocolError(f"token() gave {type(found).__name__}: str is needed, or None", protocol=NAME)
        return found

    def _publication(self, message: Message) -> bytes:
        """The same message for all peers: it was made once, so it has one id."""
        shared, key = message.shared, (self.codec, self._names.entity)
        frame = shared.get(key)
        if frame is None:
            frame = shared[key] = self._event(MessageType.PUBLISH, message, None)
        return frame

    def _event(self, type: MessageType, message: Message, sink: UUri | None) -> bytes:
        relayed = message.extras.get("priority") if message.extras else None
        level = LEVELS[relayed if relayed in LEVELS else self.codec.level_of(message.subject) or "CS1"]
        ttl = self._ttl if message.ttl is None else milliseconds(message.ttl)
        given = Attributes(
            uuid_bytes(self._ids.next()),
            type,
            self._names.topic(message.subject),
            sink,
            level + 1,
            ttl,
            traceparent=_trace(message),
        )
        return self.codec.frame(given, message)

    def _response(self, message: Message) -> bytes:
        """Source and sink change places, as they came; priority and ttl are those of the request."""
        address = message.id
        if not isinstance(address, ReturnAddress):
            raise LocalProtocolError("an answer has the id that its request came with", protocol=NAME)
        asked = address.asked
        given = Attributes(
            uuid_bytes(self._ids.next()),
            MessageType.RESPONSE,
            asked.sink,
            asked.source,
            asked.priority if asked.priority >= 5 else 5,
            asked.ttl or None,
            reqid=asked.id,
        )
        return self.codec.frame(given, message)

    def forget(self, key: Any, now: float) -> None:
        """Forget a request: its answer is not wanted any more."""
        self._asked.pop(key, None)

    def frames_to_send(self) -> list[bytes]:
        """Frames queued since the last call, in order."""
        frames, self._frames = self._frames, []
        return frames

    # -- the rest --------------------------------------------------------------------------------------------------------

    def next_tick(self) -> float | None:
        """Never: what has a time is looked at when it comes and goes."""
        return None

    def tick(self, now: float) -> None:
        """Time has passed; nothing depends on it."""

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> None:
        """The protocol has no goodbye; the transport closes."""

    def connection_lost(self, reason: str) -> None:
        """Frames that were not taken yet are dropped."""
        self._frames.clear()
        self._asked.clear()
        self._accounts.clear()


def _trace(message: Message) -> str | None:
    """The context of a trace. May raise `Unsupported`: other headers, for which there is no room."""
    headers = message.headers
    if not headers:
        return None
    others = [name for name in headers if name.lower() != _TRACE]
    if others:
        raise Unsupported(f"up: the attributes of a UMessage have room for the header {_TRACE} alone, not for {others[0]!r}")
    return next(iter(headers.values()))
