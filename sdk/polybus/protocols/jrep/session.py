"""One J.REP connection without I/O: the federation of two buses, and the messages between them.

`handshake` handles the commands between the buses. This module handles all other messages.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ...errors import RemoteProtocolError
from ...limits import Limits
from ...message import MISSING, Kind, Message
from ...plugins import CloseWanted, Frames, Refused, Role, SessionEvent, SessionOutput
from .._shared import too_large
from .handshake import Dialect, Federation, FederationState
from .names import CLIENT_BUS_ERRORS, ECHO_SERVICE, ERRORS_SUFFIX, MAX_MESSAGES, REPLY_SUFFIX, is_reserved, is_unusable, refuse
from .reader import by_priority
from .writer import payloads_of

if TYPE_CHECKING:
    from .adapter import JrepCodec

_REQUEST, _OPEN, _PUBLISH, _NOTIFY = Kind.REQUEST, Kind.OPEN, Kind.PUBLISH, Kind.NOTIFY
_RESPONSE, _ERROR, _CONTROL = Kind.RESPONSE, Kind.ERROR, Kind.CONTROL
_SUBSCRIPTIONS: Final = (Kind.SUBSCRIBE, Kind.UNSUBSCRIBE)
_PATIENCE: Final = 1.0  # Seconds without an answer to Associate before a client tries the older dialect


class JrepSession(Federation):
    """Session for one end of a connection.

    Local ids, in ReplyTo and ErrorTo, are ``<token>-<n>``. Answers with any other id are rejected.
    """

    state: FederationState  # declared in `Federation`; repeated for type checkers

    def __init__(
        self, codec: JrepCodec, role: Role, dialect: Dialect, limits: Limits, rng: random.Random, heartbeat: float
    ) -> None:
        super().__init__(codec, role, dialect, limits, rng, heartbeat)
        self._prefix = self._token() + "-"
        self._bad = 0
        self._count = 0
        self._serial = 0
        self._unanswered: dict[str, str] = {}
        """The subject of each request with an announced reply subject, which is withdrawn after the answer."""

    def start(self, now: float) -> SessionOutput:
        self._heard = now
        if self.role == "client":
            self._begin(legacy=self.state is FederationState.QUEUEING)
            if self.state is FederationState.TRYING:
                self._due = now + _PATIENCE
        return self._payloads()

    def _output(self) -> SessionOutput:
        events, self._events = self._events, []
        if self._greeting is not None:
            return self._greet_behind(events)
        if not self._documents:
            return events[0] if len(events) == 1 and isinstance(events[0], Message) else events
        return [*self._payloads(), *events]

    def _greet_behind(self, events: list[Message | SessionEvent]) -> Iterator[Message | SessionEvent | bytes]:
        """Answer a handshake after its events, so that the answer includes everything that they announce."""
        yield from events
        yield from self._payloads()

    def _payloads(self) -> list[bytes]:
        if self._greeting is not None:
            self._finish_greeting()
        documents = self._documents
        if not documents:
            return []
        self._documents = []
        if len(documents) == 1:
            return [b"[%b]" % documents[0]]
        return payloads_of(documents, self._limits.message, MAX_MESSAGES)

    # -- in --------------------------------------------------------------------------------------------------------------

    def receive(self, frame: bytes, now: float) -> SessionOutput:
        self._heard = now
        if type(frame) is not bytes:
            self._offers = getattr(frame, "offers", None)
        try:
            messages = self.codec.reader.read(frame)
        except RemoteProtocolError as error:
            self._refused(error)
            return self._output()
        if not messages:
            self._move("nothing", Message(_CONTROL), now)
        elif len(messages) > 1:
            messages = by_priority(messages)
        most = self._bad + self._limits.bad_messages
        for message in messages:
            try:
                if isinstance(message, RemoteProtocolError):
                    raise message
                if message.kind is _CONTROL:
                    self._command(message, now)
                elif self.state is FederationState.CONNECTED:
                    _RECEIVERS.get(message.kind, JrepSession._deliver)(self, message)
                else:
                    self._move("message", message, now)
            except RemoteProtocolError as error:
                self._refused(error)
                if self._bad > most:
                    break  # the link closes
        return self._output()

    def pieces(self, frame: bytes) -> list[bytes]:
        if type(frame) is not bytes:
            self._offers = getattr(frame, "offers", None)
        try:
            return self.codec.reader.cut(frame)
        except RemoteProtocolError:
            return [frame]  # `receive` reports it

    def _deliver(self, message: Message) -> None:
        self._events.append(message)

    def _request(self, message: Message) -> None:
        subject, reply_to = str(message.subject), str(message.reply_to)
        if subject == ECHO_SERVICE and self.role == "server":
            self._echo(message)
            return
        usual = reply_to.endswith(REPLY_SUFFIX)
        error_to = message.id[1]
        wrong = error_to is not None and not error_to.endswith(ERRORS_SUFFIX) and not self._may_be_told(error_to)
        if wrong or is_unusable(subject) or (not usual and is_reserved(reply_to)):
            name = subject if is_unusable(subject) else error_to if wrong else reply_to
            text = f"{str(name)[:60]!r} is reserved for the buses"
            raise refuse(text, "reserved_subject", message.id)
        if not usual:  # the peer may reuse the name while this request is active
            self._serial = serial = self._serial + 1
            message.id = (*message.id, serial)
        self._events.append(message)

    def _may_be_told(self, error_to: str) -> bool:
        """Return True if an error may be sent to a subject. Errai clients use ClientBusErrors, which is allowed."""
        return not is_reserved(error_to) or (error_to == CLIENT_BUS_ERRORS and self.role == "server")

    def _echo(self, message: Message) -> None:
        """Answer the echo service, which Errai clients use to test a channel (notes section 2.3)."""
        value = message.body if message.raw is None and message.has_body else MISSING
        answer = Message(_RESPONSE, ECHO_SERVICE, message.id, message.raw, message.format, body=value, checked=message.checked)
        document = self._write(answer, message.id)
        if len(document) + 2 <= self._limits.message:  # ReplyTo may be longer than the request's subject
            self._documents.append(document)

    def _publication(self, message: Message) -> None:
        subject = str(message.subject)
        if subject == CLIENT_BUS_ERRORS:
            if self.role == "client":  # a server's error for a message without reply subject
                self._events.append(message)
            return
        self._notification(message)
        if not self.ours:
            # Errai does not distinguish them: subscribers and handlers get the message.
            twin = message.with_headers(message.headers)
            twin.kind = _NOTIFY
            self._events.append(twin)

    def _notification(self, message: Message) -> None:
        subject = str(message.subject)
        if is_unusable(subject):
            raise refuse(f"{subject[:60]!r} is reserved for buses", "reserved_subject")
        self._events.append(message)

    def _answer(self, message: Message) -> None:
        prefix, id = self._prefix, message.id
        if not id.startswith(prefix):
            raise refuse("an answer to an id that this side did not create", "unknown_id")
        digits = id[len(prefix) :]
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and 0 < int(digits) <= self._count):
            raise refuse("an answer to an id that was never sent", "unknown_id")
        if self._unanswered:
            self._take_back(id)
        self._events.append(message)

    def _opening(self, message: Message) -> None:
        if str(message.id).startswith(self._prefix):
            # Both ends name a channel by its opener's id, so a peer must not use this side's ids.
            raise refuse("a request with an id that belongs to this side", "invalid_id")
        self._notification(message)

    def _refused(self, error: RemoteProtocolError) -> None:
        """Report a malformed message. If possible, send an error to its ErrorTo or to the client's bus."""
        self._bad += 1
        if self._unanswered and error.reply_id is not None:
            self._take_back(error.reply_id)
        self._events.append(Refused(error))
        if error.close_code is not None:
            self.state = FederationState.CLOSED
            self._events.append(CloseWanted(error.close_code, error.reason, error))
        elif error.answer_id is not None:
            reply_to, error_to = error.answer_id[:2]
            if error_to is None or not self._may_be_told(error_to):
                if self.role == "client":
                    return  # as in `send`: only a client's bus receives errors outside requests
                error_to = None
            self._tell_error(error, (reply_to, error_to))

    # -- out -------------------------------------------------------------------------------------------------------------

    def send(self, message: Message, now: float, peer_key: Any = None) -> tuple[str | None, Frames]:
        kind = message.kind
        if kind in _SUBSCRIPTIONS:
            self._announce(message)
            return None, () if self._greeting is not None else self._payloads()
        if kind is _REQUEST or kind is _OPEN:
            self._count = count = self._count + 1
            key: str | None = self._prefix + str(count)
            document = self._write(message, key, self._other_bus, self.ours)
        else:
            key = None
            if kind is _ERROR and message.id[1] is None and self.role == "client":
                return None, ()  # no ErrorTo: only a client's bus listens to ClientBusErrors
            document = self._write(message, message.id, self._other_bus, self.ours)
        if len(document) + 2 > self._limits.message:
            raise too_large(len(document) + 2, self._limits.message, "a payload")
        if key is not None and self._answers_announced and kind is _REQUEST:
            self._unanswered[key] = str(message.subject)
            self._tell_of_answers("RemoteSubscribe", str(message.subject), key)
        if self._greeting is None and not self._documents:
            return key, b"[%b]" % document if document else ()
        if document:
            self._documents.append(document)
        return key, self._payloads()

    def _tell_of_answers(self, verb: str, subject: str, key: str) -> None:
        for suffix in (REPLY_SUFFIX, ERRORS_SUFFIX):
            self._say_of(verb, f"{subject}:{key}{suffix}")

    def _take_back(self, key: str) -> None:
        subject = self._unanswered.pop(key, None)
        if subject is not None:
            self._tell_of_answers("RemoteUnsubscribe", subject, key)

    def forget(self, key: Any, now: float) -> Frames:
        """Withdraw the reply subject that was announced to an Errai client. Ids are not reused, so nothing else is stored."""
        if self._unanswered:
            self._take_back(key)
        return self._payloads()

    def next_tick(self) -> float | None:
        due, missed = self._due, self._missed
        return due if missed is None or (due is not None and due < missed) else missed

    def tick(self, now: float) -> SessionOutput:
        if self.state is not FederationState.CONNECTED:
            self._due = self._missed = None
            self._move("silence", Message(_CONTROL), now)
            return self._output()
        if self._missed is not None and self._silence is not None and now >= self._missed:
            self._missed = self._heard + self._silence
            if now >= self._missed:
                self.state, self._due, self._missed = FederationState.CLOSED, None, None
                self._events.append(CloseWanted(1006, "no heartbeat for too long"))
                return self._output()
        if self._due is not None and now >= self._due:
            self._say("Heartbeat", PolybusInterval=round(self._heartbeat * 1000))
            self._due = now + self._heartbeat
        return self._output()

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> Frames:
        if self.state in (FederationState.CONNECTED, FederationState.SYNCING, FederationState.QUEUEING):
            self._say("Disconnect", Reason=reason, **({"PolybusCode": code} if self.ours else {}))
        self.state = FederationState.CLOSED
        return self._payloads()

    def connection_lost(self, reason: str) -> None:
        self._documents.clear()
        self._greeting = None


_RECEIVERS: Final[Mapping[Kind, Callable[[JrepSession, Message], None]]] = {
    _REQUEST: JrepSession._request,
    _PUBLISH: JrepSession._publication,
    _NOTIFY: JrepSession._notification,
    _RESPONSE: JrepSession._answer,
    _ERROR: JrepSession._answer,
    _OPEN: JrepSession._opening,
}
