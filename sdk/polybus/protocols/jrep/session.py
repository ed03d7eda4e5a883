"""One J.REP connection, without I/O: the federation of two buses, and the messages between them.

The federation is moved by the tables in `handshake`; what its verbs do is in `federation`. Here are the messages: which are
ours to answer, which are answers to us, which may not be at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from ...errors import RemoteProtocolError, TooLarge
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import CloseWanted, Refused, Role
from .codec import JrepCodec
from .federation import Federation
from .handshake import Dialect, State
from .messages.checks import refuse
from .messages.payloads import by_priority, payloads_of
from .names import CLIENT_BUS_ERRORS, ECHO_SERVICE, ERRORS_SUFFIX, REPLY_SUFFIX, is_reserved, is_unusable

__all__ = ["JrepSession"]

_REQUEST, _OPEN, _PUBLISH, _NOTIFY = Kind.REQUEST, Kind.OPEN, Kind.PUBLISH, Kind.NOTIFY
_RESPONSE, _ERROR, _CONTROL = Kind.RESPONSE, Kind.ERROR, Kind.CONTROL
_SUBSCRIPTIONS: Final = (Kind.SUBSCRIBE, Kind.UNSUBSCRIBE)


class JrepSession(Federation):
    """Either end of a connection.

    Ids of ours are ``<token>-<n>``; they stand in ReplyTo and ErrorTo. An answer to one that was never given out is refused.
    """

    __slots__ = ("_bad", "_count", "_deliver", "_foretold", "_read", "_serial", "_write", "codec")

    state: State  # declared in `Tables`; again here for type checkers, because this half sets it too

    def __init__(
        self, codec: JrepCodec, role: Role, dialect: Dialect, limits: Limits, rng: random.Random, heartbeat: float
    ) -> None:
        super().__init__(codec.writer, role, dialect, limits, rng, heartbeat)
        self.codec: Final = codec
        self._read = codec.reader.read
        self._write = codec.writer.write
        self._bad = 0
        """Messages that were refused."""
        self._count = 0
        self._serial = 0
        self._foretold: dict[str, str] = {}
        """Requests to a peer that has been told where it may answer, with their subjects; it is told when that is over."""
        self._deliver: dict[Kind, Callable[[Message], None]] = {
            _REQUEST: self._request,
            _PUBLISH: self._publication,
            _NOTIFY: self._notification,
            _RESPONSE: self._answer,
            _ERROR: self._answer,
            _OPEN: self._opening,
        }

    # -- in --------------------------------------------------------------------------------------------------------------

    def receive(self, frame: bytes, now: float) -> None:
        """One payload has come in. Never raises: what is bad in it becomes `Refused`, and is answered where it can be."""
        self._heard = now
        if type(frame) is not bytes:
            self._offers = getattr(frame, "offers", None)
        try:
            messages = self._read(frame)
        except RemoteProtocolError as error:
            self._refused(error)
            return
        if not messages:
            self._moved("nothing", None, now)
        elif len(messages) > 1:
            messages = by_priority(messages)
        most = self._bad + self._limits.bad_messages
        for message in messages:
            try:
                if isinstance(message, RemoteProtocolError):
                    raise message
                if message.kind is _CONTROL:
                    self._command(message, now)
                elif self.state is State.CONNECTED:
                    self._message(message)
                else:
                    self._moved("message", message, now)
            except RemoteProtocolError as error:
                self._refused(error)
                if self._bad > most:
                    return  # its link ends

    def pieces(self, frame: bytes) -> list[bytes]:
        """A long payload as several; as it is, where it cannot be cut."""
        if type(frame) is not bytes:
            self._offers = getattr(frame, "offers", None)
        try:
            return self.codec.reader.cut(frame)
        except RemoteProtocolError:
            return [frame]  # `receive` says so

    def _message(self, message: Message) -> None:
        deliver = self._deliver.get(message.kind)
        if deliver is None:
            self._events.append(message)
        else:
            deliver(message)

    def deliver(self, message: Message | None, now: float) -> None:
        """`Action.DELIVER`"""
        if message is not None:
            self._message(message)

    def _request(self, message: Message) -> None:
        """
        Raises:
            RemoteProtocolError: ``reserved_subject``.
        """
        subject, reply_to = str(message.subject), str(message.reply_to)
        if subject == ECHO_SERVICE and self.role == "server":
            self._echo(message)
            return
        usual = reply_to.endswith(REPLY_SUFFIX)
        error_to = message.id[1]
        wrong = error_to is not None and not error_to.endswith(ERRORS_SUFFIX) and not self._may_be_told(error_to)
        if wrong or is_unusable(subject) or (not usual and is_reserved(reply_to)):
            name = subject if is_unusable(subject) else error_to if wrong else reply_to
            text = f"{str(name)[:60]!r} belongs to the buses: nobody else is asked or answered there"
            raise refuse(text, "reserved_subject", message.id)
        if not usual:  # the name may be used again while this request is in flight
            self._serial = serial = self._serial + 1
            message.id = (*message.id, serial)
        self._events.append(message)

    def _may_be_told(self, error_to: str) -> bool:
        """Errai's clients name ClientBusErrors in ErrorTo, where errors of theirs go anyhow."""
        return not is_reserved(error_to) or (error_to == CLIENT_BUS_ERRORS and self.role == "server")

    def _echo(self, message: Message) -> None:
        """What every server answers: it proves to an Errai client that a channel carries (notes section 2.3)."""
        answer = Message(_RESPONSE, ECHO_SERVICE, message.id, message.raw, message.format)
        if message.raw is None and message.has_body:
            answer._value = message.body
        document = self._write(answer, message.id)
        if len(document) + 2 <= self._max_frame:  # the name in ReplyTo may be longer than the question's
            self._documents.append(document)

    def _publication(self, message: Message) -> None:
        """
        Raises:
            RemoteProtocolError: ``reserved_subject``.
        """
        subject = str(message.subject)
        if subject == CLIENT_BUS_ERRORS:
            if self.role == "client":  # what a server says of something that asked for no answer, for whoever listens
                self._events.append(message)
            return
        self._notification(message)
        if not self.ours:
            # To Errai it is one thing: whoever listens gets it, whether it answers questions or not.
            twin = Message(_NOTIFY, subject, None, message.raw, message.format, message.headers)
            twin._attributes, twin._value = message._attributes, message._value
            self._events.append(twin)

    def _notification(self, message: Message) -> None:
        """
        Raises:
            RemoteProtocolError: ``reserved_subject``.
        """
        subject = str(message.subject)
        if is_unusable(subject):
            raise refuse(f"{subject[:60]!r} belongs to the buses", "reserved_subject")
        self._events.append(message)

    def _answer(self, message: Message) -> None:
        """
        Raises:
            RemoteProtocolError: ``unknown_id``.
        """
        prefix, id = self._prefix, message.id
        if not id.startswith(prefix):
            raise refuse("an answer to an id that is not of this side", "unknown_id")
        digits = id[len(prefix) :]
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and 0 < int(digits) <= self._count):
            raise refuse("an answer to an id that was never sent", "unknown_id")
        if self._foretold:
            self._take_back(id)
        self._events.append(message)

    def _opening(self, message: Message) -> None:
        """
        Raises:
            RemoteProtocolError: ``invalid_id``, ``reserved_subject``.
        """
        if str(message.id).startswith(self._prefix):
            # Both ends name a channel by its opener's id: a peer must not open one under a name of ours.
            raise refuse("an open under an id of this side", "invalid_id")
        if is_unusable(str(message.subject)):
            raise refuse(f"{str(message.subject)[:60]!r} belongs to the buses", "reserved_subject")
        self._events.append(message)

    def _refused(self, error: RemoteProtocolError) -> None:
        """Report something bad, and tell the peer where one can: the asker under ErrorTo, else a client's bus."""
        self._bad += 1
        if self._foretold and error.reply_id is not None:
            self._take_back(error.reply_id)
        self._events.append(Refused(error))
        if error.close_code is not None:
            self.state = State.CLOSED
            self._events.append(CloseWanted(error.close_code, error.reason, error))
        elif error.answer_id is not None:
            reply_to, error_to = error.answer_id[:2]
            if error_to is None or not self._may_be_told(error_to):
                if self.role == "client":
                    return  # as in `send`: only a client's bus hears errors that nobody asked for
                error_to = None
            self._tell_error(error, (reply_to, error_to))

    # -- out -------------------------------------------------------------------------------------------------------------

    def send(self, message: Message, now: float, peer_key: Any = None) -> str | None:
        """Queue a message. For a request, a notification or an open: its id, under which the answers will come.

        Raises:
            EncodeError: The body does not fit the wire.
            Unsupported: The wire has no form for this kind of message.
            LocalProtocolError: The subject, a header or the id does not fit the wire.
            ReservedSubject: The subject belongs to the buses.
            TooLarge: The payload would exceed `Limits.message`.
        """
        kind = message.kind
        if kind in _SUBSCRIPTIONS:
            self._announce(message)
            return None
        if kind is _REQUEST or kind is _OPEN:
            self._count = count = self._count + 1
            key: str | None = self._prefix + str(count)
            document = self._write(message, key, self.other_bus, self.ours)
        else:
            key = None
            if kind is _ERROR and message.id[1] is None and self.role == "client":
                return None  # no ErrorTo: a client's bus would listen to ClientBusErrors, a server's does not
            document = self._write(message, message.id, self.other_bus, self.ours)
        if len(document) + 2 > self._max_frame:
            raise TooLarge(f"a payload of {len(document) + 2} bytes is larger than {self._max_frame} (limit: message)")
        if key is not None and self._foretells and kind is _REQUEST:
            self._foretold[key] = str(message.subject)
            self._tell_of_answers("RemoteSubscribe", str(message.subject), key)
        if document:
            self._documents.append(document)
        return key

    def _tell_of_answers(self, verb: str, subject: str, key: str) -> None:
        for suffix in (REPLY_SUFFIX, ERRORS_SUFFIX):
            self._tell(verb, f"{subject}:{key}{suffix}")

    def _take_back(self, key: str) -> None:
        subject = self._foretold.pop(key, None)
        if subject is not None:
            self._tell_of_answers("RemoteUnsubscribe", subject, key)

    def frames_to_send(self) -> list[bytes]:
        """All that waits, in as few payloads as the limit allows."""
        if self._greeting is not None:
            self._finish_greeting()
        documents = self._documents
        if not documents:
            return []
        self._documents = []
        if len(documents) == 1:
            return [b"[%b]" % documents[0]]
        return payloads_of(documents, self._max_frame, self._most)

    def forget(self, key: Any, now: float) -> None:
        """Ids are never used again, so there is nothing to set aside; but an Errai client may forget where to answer."""
        if self._foretold:
            self._take_back(key)

    def connection_lost(self, reason: str) -> None:
        """What was not taken yet is dropped."""
        self._documents.clear()
        self._greeting = None
