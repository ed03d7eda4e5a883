"""One uProtocol connection, without I/O. There is no handshake: what is left are ids, times, addresses, and who was asked."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from ..._util.hello import HELLO
from ...errors import Code, RemoteProtocolError
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities, CloseWanted, Ready, Refused, SessionEvent, Undelivered
from .cloudevents.envelope import ReturnAddress, return_address
from .codec import UProtocolCodec
from .events import EventMessage
from .ids import id_time_ms
from .names import MESSAGE
from .outgoing import Outgoing
from .rules.checks import refuse
from .uris import read_uri

if TYPE_CHECKING:
    from .adapter import UProtocol

__all__ = ["UProtocolSession"]

_CAPABILITIES: Final = Capabilities(subscribe=False)
_READY: Final = Ready()
_REQUEST, _RESPONSE, _ERROR, _PUBLISH, _NOTIFY = Kind.REQUEST, Kind.RESPONSE, Kind.ERROR, Kind.PUBLISH, Kind.NOTIFY
_OPEN: Final = Kind.OPEN
_LAST_MOMENT: Final = 0.001
"""Time that is left in the very millisecond in which it is up: it has expired only after it."""
_PLAIN: Final = f"#{MESSAGE}"
_HELLO: Final = f"/rpc.{HELLO}"
"""Its answer is measured by no clock: those of two buses of ours that differ by its one second would keep them apart."""
# What a refused request is told, where it is not that its header is malformed (up-l2 dispatchers).
_CODES: Final = {"clock_skew": Code.DEADLINE_EXCEEDED, "invalid_hash": Code.UNAUTHENTICATED}


class UProtocolSession(Outgoing):
    """Either end of a connection: both speak alike.

    A request has as key the id of its event. Of an incoming request, `Message.id` is its `ReturnAddress`.
    """

    capabilities: Capabilities = _CAPABILITIES

    def __init__(self, codec: UProtocolCodec, adapter: UProtocol, limits: Limits, rng: random.Random) -> None:
        super().__init__(codec, adapter, limits, rng)
        self._read = codec.read
        self._checks_hash = adapter.verify is not None
        self._most_bad = limits.bad_messages
        self._allowance, self._skew = adapter.allowance, adapter.max_clock_skew
        self._seen, self._seen_ms = "", 0

    def start(self, now: float) -> None:
        """There is no handshake: ready at once."""
        self._events.append(_READY)

    # -- incoming --------------------------------------------------------------------------------------------------------

    def receive(self, frame: bytes, now: float) -> None:
        """One frame has come in. Never raises: a bad event becomes `Refused`, and is answered where it is a request."""
        if frame[:1] == b"[" and self.codec.writes == "text":
            self._receive_batch(frame, now)
            return
        try:
            self._received(self._read(frame), now)
        except RemoteProtocolError as error:
            self._refuse(error)

    def _receive_batch(self, frame: bytes, now: float) -> None:
        try:
            events = self.codec.reader.split(frame)
        except RemoteProtocolError as error:
            self._refuse(error)
            return
        bad = 0
        for event in events:
            try:
                self._received(self._read(event), now)
            except RemoteProtocolError as error:
                self._refuse(error)
                bad += 1
                if bad > self._most_bad:
                    return  # its link ends

    def _received(self, message: EventMessage, now: float) -> None:
        kind = message.kind
        if self._checks_hash:
            self._verify(message)
        if kind is _REQUEST:
            event, names = message.event, self._names
            address = message.id = ReturnAddress(event.id)
            address.event = event
            sink = event.sink or ""
            if names.peer is None:
                self._learn(event.source)
            message.subject = self._subjects.get(sink) or names.subject(sink)
            self._in_time(message, event.id, (event.ttl or 0) / 1000)
        elif kind is _RESPONSE or kind is _ERROR:
            if not self._check_answer(message):
                return
        elif kind is _PUBLISH or kind is _NOTIFY:
            source = str(message.subject)
            if self._names.peer is None and (kind is _NOTIFY or source.endswith(_PLAIN)):
                self._learn(source)
            message.subject = self._names.subject(source)
            if message.ttl is not None:
                if not self._in_time(message, message.event.id, message.ttl):
                    return
                message.expires = now + message.ttl
        elif kind is _OPEN:
            if message.id.endswith(self._ids.suffix):  # both ends name a channel by its opener's id
                raise refuse("an open under an id of this side", "invalid_id")
            message.subject = self._names.subject(str(message.subject))
        self._events.append(message)

    def _learn(self, source: str) -> None:
        if not read_uri(source).short:
            self._names.learn(source)
            self._methods.clear()

    def _check_answer(self, message: EventMessage) -> bool:
        """True if an answer is taken. For one that has expired the request goes on waiting, to its own deadline."""
        key, event = message.id, message.event
        sink = self._asked.get(key)
        if sink is None:
            if not key.endswith(self._ids.suffix):
                raise refuse("an answer to an id that is not of this side", "unknown_id")
            return True  # late: the bus counts it
        source = event.source
        if source != sink and read_uri(source).key != read_uri(sink).key:
            raise refuse(f"an answer from {source[:80]!r} to a request for {sink[:80]!r}", "wrong_peer")
        if event.ttl and not sink.endswith(_HELLO) and not self._in_time(message, event.id, event.ttl / 1000):
            return False
        del self._asked[key]
        return True

    def _in_time(self, message: Message, id: str, ttl: float) -> bool:
        """True if a message still lives (document, 1.1 ttl: expired strictly after); sets what is left of its time, but of an
        answer, for which a timer of this side runs."""
        if id[:15] == self._seen:  # ids of one sender and one millisecond have the same beginning
            made = self._seen_ms
        else:
            found = int(id[:8] + id[9:13], 16) if id[14] in "78" else id_time_ms(id)
            if found is None:
                return True  # lenient: no time, so no end by it
            made = found
            self._seen, self._seen_ms = id[:15], made
        age = (self._clock() // 1_000_000 - made) / 1000
        if age > ttl + self._allowance:
            kind = message.kind
            if kind is _REQUEST:
                message.ttl = 0.0  # the bus answers it, and holds what the peer does not read within bounds
            else:
                if kind is _RESPONSE or kind is _ERROR:
                    message.subject = self._names.subject(message.attributes["source"])
                text = f"made {age:.3f} s ago with a ttl of {ttl:.3f} s; where clocks differ, set allowance="
                self._events.append(Undelivered(message, Code.DEADLINE_EXCEEDED, "expired", text))
            return False
        if message.kind is _RESPONSE or message.kind is _ERROR:
            return True
        if -age > self._skew:
            text = f"made {-age:.3f} s in the future: at most {self._skew:g} s (max_clock_skew)"
            raise refuse(text, "clock_skew", message.id if message.kind is _REQUEST else None)
        left = ttl - age + self._allowance
        message.ttl = min(left, ttl) if left > 0 else _LAST_MOMENT
        return True

    def _verify(self, message: EventMessage) -> None:
        verify, given = self._options.verify, message.attributes.get("hash")
        assert verify is not None
        if message.raw is None and given is None:
            return  # a hash is made of data
        failure: Exception | None = None
        try:
            if isinstance(given, bytes) and verify(message.raw or b"", given):
                return
        except Exception as error:  # of the application: some say so in this way, and what a peer sends ends no connection
            failure = error
        address = return_address(message.event) if message.kind is _REQUEST else None
        text = "the hash is missing or not that of the data (document, 1.1 hash)"
        if failure is not None:
            text += f": verify() raised {type(failure).__name__}"
        raise refuse(text, "invalid_hash", address) from failure

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
        facts = {"text": text, "reason": reason, "undelivered": True}
        self._frames.append(self._response(Message(_ERROR, "", address, code=code, attributes=facts)))

    def events(self) -> list[Message | SessionEvent]:
        """Take away what has happened since the last call, in order."""
        events, self._events = self._events, []
        return events

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
