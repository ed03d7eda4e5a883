"""The dialect for ordinary NATS clients: plain subjects, handlers in a queue group, and answers to an inbox.

Inbox subjects contain a random part, and each request token contains another, so that a client that answers one request cannot
answer others. Messages from external streams arrive at their readers on separate subjects.
"""

from __future__ import annotations

import random
import string
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from attrs import evolve

from ...errors import Code, Forbidden, LocalProtocolError, RemoteProtocolError
from ...message import Kind, Message
from ...plugins import Ready, Refused, Undelivered
from ...plugins.tools import SubjectIndex
from .connection import NatsConnection, NatsDialect, NatsSubscriptions
from .headers import ECHO, HeaderBlock, ServerError, error_message, is_failure
from .operations import INBOX_SID, is_answerable, local_pattern, local_subject, refuse, write_named
from .stored import ACKS, ToEngine, ToStore, read_pull, read_refusal, read_stored, write_to_engine

_LENGTH: Final = 8
_DIGITS: Final = 18
_ALPHABET: Final = string.ascii_letters + string.digits


class Echoes:
    """Recognises copies of this side's own publications by a numbered header.

    The server has to send the copies back, because otherwise a queue group could never choose the connection that published the
    message. The bus itself delivers publications to its own subscriptions outside a group, so the server's copies for these
    subscriptions are dropped. Marks return in order. If a mark arrives twice, a client has copied the headers, and the message
    is delivered.
    """

    def __init__(self, subscriptions: NatsSubscriptions, rng: random.Random) -> None:
        self._subscriptions = subscriptions
        self.key: str = "".join(rng.choices(_ALPHABET, k=_LENGTH))
        self._other = ""
        self._marked = 0
        self._heard = 0

    def mark(self, subject: str) -> list[tuple[str, str]]:
        """Return the header fields for a publication, if a copy will come back to a subscription outside a group."""
        if not self._subscriptions.alone.match(subject):
            return []
        self._marked += 1
        return [(ECHO, f"{self.key}.{self._marked}")]

    def know(self, key: str) -> None:
        self._other = key

    def is_own(self, mark: str) -> bool:
        key, _, digits = mark.partition(".")
        if key == self._other:
            return True
        if key != self.key or len(digits) > _DIGITS or not (digits.isascii() and digits.isdigit()):
            return False
        number = int(digits)
        if not self._heard < number <= self._marked:
            return False
        self._heard = number
        return True


_PREFIX_LENGTH: Final = 20
_HANDLER: Final = "handler"
_READER: Final = "reader"
_LEFT: Final = 16
_PUBLISH, _REQUEST, _NOTIFY, _RESPONSE = Kind.PUBLISH, Kind.REQUEST, Kind.NOTIFY, Kind.RESPONSE


class NativeDialect(NatsDialect):
    def __init__(self, connection: NatsConnection) -> None:
        self._inbox = f"{connection.options.inbox}.{''.join(connection.rng.choices(_ALPHABET, k=_PREFIX_LENGTH))}."
        super().__init__(connection, f"{self._inbox}*")
        self._inboxes: tuple[str, ...] = (self._inbox,)
        self._readers = f"{self._inbox}j."  # one token more than answers, so that the server sends no second copy
        self._no_inbox = ""  # Reason why answers cannot arrive: the user may not subscribe to the inbox
        self._echoes = Echoes(connection.subscriptions, connection.rng)
        self._handled: SubjectIndex[str] = SubjectIndex()
        self._waiting: dict[str, str] = {}
        self._publications: dict[str, None] = {}  # Tokens of pending publications, which only a stream may answer
        self._pulled: dict[int, str] = {}  # Stream and consumer of each active reader; empty before its first pull
        self._left: deque[str] = deque(maxlen=_LEFT)
        """Streams and consumers of closed readers, which may still acknowledge messages."""
        self._serial = 0
        self._owed: dict[Any, None] = {}

    @property
    def echo(self) -> bool:
        return self._connection.info.headers

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._owed

    @property
    def signs(self) -> Sequence[str]:
        return self._inbox, self._echoes.key

    def know(self, signs: Sequence[str]) -> None:
        inbox, key = signs
        self._inboxes = (self._inbox, inbox)
        self._echoes.know(key)

    def holds(self, key: Any) -> bool:
        return key in self._waiting or key in self._owed

    def asked(self) -> list[str]:
        return [*self._waiting]

    # -- in --------------------------------------------------------------------------------------------------------------

    def delivered(self, subject: str, sid: str, reply: str | None, headers: HeaderBlock | None, payload: bytes) -> None:
        if sid == INBOX_SID:
            self._answered(subject, headers, payload)
            return
        subscriptions = self._connection.subscriptions
        subscription = subscriptions.by_sid.get(sid)
        if subscription is None:  # ended while the message was in flight
            return
        if subscription.tag is _HANDLER:
            if reply is None:
                message = self._message(_NOTIFY, subject, None, headers, payload)
            elif reply[0] == "$":  # as in `is_answerable`, without a call
                self._connection.events.append(Refused(refuse(f"the reply subject {reply[:60]!r} is a command to the server")))
                return
            else:
                self._serial = serial = self._serial + 1
                id = (reply, serial)
                self._owed[id] = None
                message = self._message(_REQUEST, subject, id, headers, payload, reply)
        elif subscription.tag is _READER:
            self.give_stored(subscription, subject, reply, headers, payload)
            return
        elif headers is not None and headers.only is not None:  # a retried dead letter was received before
            return
        elif subscription.queue is not None:
            message = self._message(_PUBLISH, subject, None, headers, payload, reply)
            message.attributes.update(group=subscription.queue, pattern=subscription.pattern)
        elif subscriptions.counts(subscription, subject) and (
            (headers is None and reply is None and subject[0] != "$") or not self._is_own(subject, reply, headers)
        ):
            message = self._message(_PUBLISH, subject, None, headers, payload, reply)
        else:
            return
        self._connection.events.append(message)

    def _is_own(self, subject: str, reply: str | None, headers: HeaderBlock | None) -> bool:
        if headers is not None and headers.echo is not None:
            return self._echoes.is_own(headers.echo)
        if reply is not None:
            return reply.startswith(self._inboxes)
        return subject.startswith(ACKS) and self._is_of_reader(subject)

    def _answered(self, subject: str, headers: HeaderBlock | None, payload: bytes) -> None:
        token = subject.removeprefix(self._inbox)
        if token in self._publications:
            refused_by_server = headers is not None and headers.status is not None
            if not refused_by_server and (headers is not None or read_stored(payload) is None):
                return  # an answer of another subscriber says nothing about the stream
            del self._publications[token]
        events = self._connection.events
        if self._waiting.pop(token, None) is None and not self._tokens.was_given(token):
            events.append(Refused(refuse("an answer to an unknown token", "unknown_id")))
        elif headers is not None and is_failure(headers):
            events.append(error_message(token, headers, payload))
        else:
            events.append(self._message(_RESPONSE, "", token, headers, payload))

    def malformed(self, error: RemoteProtocolError, subject: str, sid: str, frame: bytes) -> None:
        if sid == INBOX_SID:
            error.reply_id = subject.removeprefix(self._inbox)
        subscription = self._connection.subscriptions.by_sid.get(sid)
        if subscription is not None and subscription.tag is _READER:
            if self.give_unreadable(subscription, subject, error, frame):
                return
        self._connection.events.append(Refused(error))
        reply = error.answer_id
        if reply is not None and is_answerable(reply) and subscription is not None and subscription.tag is _HANDLER:
            self._connection.answer_malformed(error, reply)

    def not_allowed(self, error: ServerError) -> None:
        connection, subject, text = self._connection, error.refused, f"the NATS server says: {error.text}"
        if self._is_of_reader(subject) and (word := read_refusal(error)) is not None:
            connection.events.append(word)
        elif subject is None:
            connection.events.append(Undelivered(Message(_PUBLISH, ""), Code.INVALID_ARGUMENT, "refused", text))
        elif not error.subscribing:
            self._publication_not_allowed(subject, text)
        elif subject == self.inbox:
            wanted = f"{self._inbox[: -_PREFIX_LENGTH - 1]}>"
            self._no_inbox = f"no answer can come, for {text}: allow this user to subscribe to {wanted}"
        else:
            connection.subscriptions.refuse(subject, error.queue)
            told = Message(Kind.SUBSCRIBE, subject, attributes={_HANDLER: True} if error.queue is not None else None)
            connection.events.append(Undelivered(told, Code.PERMISSION_DENIED, "forbidden", text))

    def _is_of_reader(self, subject: str | None) -> bool:
        """Return True if a reader pulled or acknowledged messages at the subject. Applications may also do that themselves."""
        return any(f".{consumer}." in f"{subject}." for consumer in (*self._pulled.values(), *self._left))

    def _publication_not_allowed(self, subject: str, text: str) -> None:
        token = next((token for token, asked in self._waiting.items() if asked == subject), None)
        if token is None:
            lost = Undelivered(Message(_PUBLISH, subject), Code.PERMISSION_DENIED, "forbidden", text)
            self._connection.events.append(lost)
        else:
            del self._waiting[token]
            self._publications.pop(token, None)
            self.deny(token, text)

    # -- out -------------------------------------------------------------------------------------------------------------

    def send(self, message: Message, now: float) -> str | None:
        kind, connection = message.kind, self._connection
        if kind is _REQUEST:
            return self._request(message)
        if kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
            self._subscribe(message)
        elif kind is _RESPONSE or kind is Kind.ERROR:
            mark = self._mark(message.id[0]) if connection.subscriptions.alone.size else ()
            connection.queue(connection.codec.answer(message, message.id[0], mark))
            if message.id in self._owed:  # after calls that can raise: then another answer is tried
                del self._owed[message.id]
        elif kind is _NOTIFY and message.extras is not None and (to := message.extras.get("to")) is not None:
            reader = message.extras.get(_READER)
            connection.queue(self._to_engine(message, to, "" if reader is None else f"{self._readers}{reader}"))
            if reader in self._pulled:
                self._pulled[reader] = read_pull(str(message.subject))
        else:
            mark = self._mark(message.subject) if connection.subscriptions.alone.size else ()
            frame = connection.codec.publication(message, mark)
            if self._handled.size:
                self._queue_for_others(frame, message.subject)
            else:
                connection.queue(frame)
        return None

    def publication(self, subject: str | int, raw: bytes) -> bytes | None:
        """Write a publication with a JSON body. Returns None if this side's own subscriptions or handlers might receive it."""
        connection = self._connection
        alone = connection.subscriptions.alone
        if self._handled.size or (alone.size and alone.match(subject)):
            return None
        connection.queue(write_named(connection.codec.subjects[subject], b"", raw))
        return connection.frames.pop()

    def _queue_for_others(self, frame: bytes, subject: Any) -> None:
        """Queue a frame that this side's own handlers will not receive, because the caller wants another program's answer."""
        connection = self._connection
        patterns = self._handled.match(subject) if self.echo else ()
        connection.queue_for_others(frame, patterns, connection.options.queue)

    def _mark(self, subject: Any) -> Sequence[tuple[str, str]]:
        return self._echoes.mark(subject) if self._connection.info.headers else ()

    def _to_engine(self, message: Message, to: ToEngine | ToStore, reply: str) -> bytes:
        codec = self._connection.codec
        payload, own = codec.payload(message)
        subject = str(message.subject)
        if isinstance(to, ToStore):  # the mark of a repeated publication is used only between nodes
            subject, to = to.at or local_subject(message.subject, self._connection.limits.subject), evolve(to, again=False)
            own += () if reply else self._mark(subject)
        names = f"{subject} {reply}" if reply else subject
        return write_to_engine(names, to, message, payload, own, self._connection.limits.headers)

    def _request(self, message: Message) -> str:
        if self._no_inbox:
            raise Forbidden(self._no_inbox)
        connection, token = self._connection, self._tokens.next()
        to = None if message.extras is None else message.extras.get("to")
        subject = str(message.subject)
        if to is None:
            frame = connection.codec.request(message, self._inbox + token, headers=connection.info.headers)
            if self._handled.size:
                self._queue_for_others(frame, subject)
            else:
                connection.queue(frame)
        else:
            connection.queue(self._to_engine(message, to, self._inbox + token))
            if isinstance(to, ToStore):
                subject = to.at or subject
                self._publications[token] = None
        self._waiting[token] = subject
        return token

    def _subscribe(self, message: Message) -> None:
        connection, extras = self._connection, message.extras or {}
        if _READER in extras:
            reader = extras[_READER]
            subject, group = f"{self._readers}{reader}", connection.options.queue
            # A queue group of one, so that messages in flight at UNSUB are still delivered.
            if message.kind is Kind.SUBSCRIBE:
                connection.subscribe(subject, group, tag=_READER, name=reader)
                self._pulled[reader] = ""
            else:
                if consumer := self._pulled.pop(reader, ""):
                    self._left.append(consumer)
                connection.unsubscribe(subject, group)
            return
        pattern = local_pattern(message.subject, connection.limits.subject)
        queue, tag = extras.get("group"), None
        if extras.get(_HANDLER):
            queue, tag = connection.options.queue, _HANDLER
        elif queue == connection.options.queue:
            text = f"this bus's handlers use the group {queue!r}: choose another name, or connect with queue="
            raise LocalProtocolError(text, protocol="nats")
        if message.kind is Kind.SUBSCRIBE:
            connection.subscribe(pattern, queue, tag=tag)
        else:
            connection.unsubscribe(pattern, queue)
        if tag is _HANDLER:
            self._handled.remove(pattern, pattern)
            if message.kind is Kind.SUBSCRIBE:
                self._handled.add(pattern, pattern)

    def forget(self, key: Any, now: float) -> None:
        """Forget a key. Tokens are not reused, and NATS cannot cancel requests."""
        self._waiting.pop(key, None)
        self._publications.pop(key, None)
        self._owed.pop(key, None)

    # -- life ------------------------------------------------------------------------------------------------------------

    def ready(self) -> None:
        self._connection.events.append(Ready(bare=True))

    def lost(self) -> None:
        self._waiting.clear()
        self._publications.clear()
