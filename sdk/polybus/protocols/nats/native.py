"""The dialect towards foreign services: subjects as they are, handlers in a queue group, answers to an inbox.

Answers come to subjects under the inbox, whose random part nobody can guess; the token of a request has one of its own, so that
who answers one request cannot answer another. What streams of others have stored comes to its readers beside them.
"""

from __future__ import annotations

import math
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
from .checks import is_answerable, local_pattern, local_subject, refuse
from .connection import NatsConnection, NatsSubscription, NatsSubscriptions, RequestTokens
from .failures import ServerError, error_message, is_failure
from .headers import ECHO, HeaderBlock
from .operations import INBOX_SID
from .stored import (
    ACKS,
    ToEngine,
    ToStore,
    give,
    give_unreadable,
    read_pull,
    read_refusal,
    read_stored,
    word_of_engine,
    write_to_engine,
)

_LENGTH: Final = 8
_DIGITS: Final = 18


class Echoes:
    """The copies of its own publications that the server brings a connection back, known by a mark: a header with a number.

    The server must bring them back, or a group could never give a publication to the side that made it. The bus itself gives it
    to its subscriptions without a group, so the copy for those is left out. Marks come back in order. A mark that comes twice
    is from a program that copies the headers of what it hears: its message counts.
    """

    __slots__ = ("_heard", "_marked", "_other", "_subscriptions", "key")

    def __init__(self, subscriptions: NatsSubscriptions, rng: random.Random) -> None:
        self._subscriptions = subscriptions
        self.key: str = "".join(rng.choices(string.ascii_letters + string.digits, k=_LENGTH))
        self._other = ""
        self._marked = 0
        self._heard = 0

    def mark(self, subject: str) -> list[tuple[str, str]]:
        """Make the field of what is published to a subject; none where it does not come back, or to members of groups alone."""
        if not self._subscriptions.alone.match(subject):
            return []
        self._marked += 1
        return [(ECHO, f"{self.key}.{self._marked}")]

    def know(self, key: str) -> None:
        """Take the marks of another connection of the same bus for own ones, too."""
        self._other = key

    def is_own(self, mark: str) -> bool:
        """Tell whether a mark is of this connection, and comes for the first time."""
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


_ALPHABET: Final = string.ascii_letters + string.digits
_PREFIX_LENGTH: Final = 20
_HANDLER: Final = "handler"
"""The tag of the subscriptions of handlers."""
_READER: Final = "reader"
"""The tag of the subscriptions of readers of streams."""
_LEFT: Final = 16
_PUBLISH, _REQUEST, _NOTIFY, _RESPONSE = Kind.PUBLISH, Kind.REQUEST, Kind.NOTIFY, Kind.RESPONSE


class NativeDialect:
    """Requests, answers and publications as any client of NATS has them. Implements `connection.NatsDialect`."""

    __slots__ = (
        "_connection",
        "_echoes",
        "_handled",
        "_inbox",
        "_inboxes",
        "_left",
        "_message",
        "_no_inbox",
        "_owed",
        "_publications",
        "_pulled",
        "_readers",
        "_serial",
        "_tokens",
        "_waiting",
        "inbox",
    )

    probes: tuple[bytes, ...] = ()

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._message = connection.codec.message
        self._inbox = f"{connection.options.inbox}.{''.join(connection.rng.choices(_ALPHABET, k=_PREFIX_LENGTH))}."
        self._inboxes: tuple[str, ...] = (self._inbox,)
        """With those of other connections of this bus."""
        self.inbox: str = f"{self._inbox}*"
        self._readers = f"{self._inbox}j."  # one token more than answers have: the server sends no second copy
        self._no_inbox = ""
        """Why no answer can come: the user may not subscribe to the inbox."""
        self._echoes = Echoes(connection.subscriptions, connection.rng)
        self._handled: SubjectIndex[str] = SubjectIndex()
        """The patterns of this side's handlers."""
        self._tokens = RequestTokens(connection.rng)
        self._waiting: dict[str, str] = {}
        """Subjects of the requests that wait for an answer, by their token."""
        self._publications: dict[str, None] = {}
        """The same of publications, which only a stream can answer."""
        self._pulled: dict[int, str] = {}
        """Stream and consumer that each reader asks, once it has; empty before."""
        self._left: deque[str] = deque(maxlen=_LEFT)
        """The same of readers that ask no more: they may still settle what they have."""
        self._serial = 0
        self._owed: dict[Any, None] = {}
        """The questions that wait for an answer of this side."""

    @property
    def echo(self) -> bool:
        """True where what comes back can be told from what others publish: by a header."""
        return self._connection.info.headers

    @property
    def idle(self) -> bool:
        """True if no answer is waited for, and none is owed."""
        return not self._waiting and not self._owed

    @property
    def signs(self) -> Sequence[str]:
        """The inbox, and the key of the marks."""
        return self._inbox, self._echoes.key

    def know(self, signs: Sequence[str]) -> None:
        """Take what another connection of this bus says for what this side has said."""
        inbox, key = signs
        self._inboxes = (self._inbox, inbox)
        self._echoes.know(key)

    def holds(self, key: Any) -> bool:
        """Tell whether this side waits for the answer of a request, or owes it."""
        return key in self._waiting or key in self._owed

    def asked(self) -> list[str]:
        """List the tokens of the requests that wait."""
        return [*self._waiting]

    @property
    def due(self) -> float:
        """Never: nothing is due."""
        return math.inf

    # -- in --------------------------------------------------------------------------------------------------------------

    def delivered(self, subject: str, sid: str, reply: str | None, headers: HeaderBlock | None, payload: bytes) -> None:
        """Take a message of the server."""
        if sid == INBOX_SID:
            self._answered(subject, headers, payload)
            return
        subscriptions = self._connection.subscriptions
        subscription = subscriptions.by_sid.get(sid)
        if subscription is None:  # it was given up while this was on its way
            return
        if subscription.tag is _HANDLER:
            if reply is None:
                message = self._message(_NOTIFY, subject, None, headers, payload)
            elif reply[0] == "$":  # as `is_answerable` says, without a call
                self._connection.events.append(Refused(refuse(f"an answer is asked for at {reply[:60]!r}", "malformed")))
                return
            else:
                self._serial = serial = self._serial + 1
                id = (reply, serial)
                self._owed[id] = None
                message = self._message(_REQUEST, subject, id, headers, payload, reply)
        elif subscription.tag is _READER:
            self._stored(subscription, subject, reply, headers, payload)
            return
        elif headers is not None and headers.only is not None:  # a dead letter that is tried again was heard before
            return
        elif subscription.queue is not None:
            message = self._message(_PUBLISH, subject, None, headers, payload, reply)
            message.attributes.update(group=subscription.queue, pattern=subscription.pattern)
        elif subscriptions.counts(subscription, subject) and not self._is_own(subject, reply, headers):
            message = self._message(_PUBLISH, subject, None, headers, payload, reply)
        else:
            return
        self._connection.events.append(message)

    def _is_own(self, subject: str, reply: str | None, headers: HeaderBlock | None) -> bool:
        """Tell whether the server brings back what this side has said: to whom else has subscribed here the bus gives it."""
        if headers is not None and headers.echo is not None:
            return self._echoes.is_own(headers.echo)
        if reply is not None:
            return reply.startswith(self._inboxes)
        return subject.startswith(ACKS) and self._is_of_reader(subject)

    def _stored(
        self, subscription: NatsSubscription, subject: str, reply: str | None, headers: HeaderBlock | None, payload: bytes
    ) -> None:
        """A stored publication that a reader has asked for, or a word of the engine to it."""
        if headers is not None and headers.status is not None:
            self._connection.events.append(word_of_engine(subscription.name, headers))
            return
        try:
            to = give(subscription.name, reply, headers)
        except RemoteProtocolError as error:
            self._connection.events.append(Refused(error))
            return
        self._connection.events.append(self._message(_PUBLISH, subject, None, headers, payload, None, to))

    def _unreadable(self, subscription: NatsSubscription, subject: str, error: RemoteProtocolError, frame: bytes) -> bool:
        """Give a reader what cannot be read. False where nobody knows what it was."""
        read = self._connection.codec.reader.headers.read
        try:
            to, headers, payload = give_unreadable(subscription.name, error.text, frame, read)
        except RemoteProtocolError:
            return False
        self._connection.events.append(self._message(_PUBLISH, subject, None, headers, payload, None, to))
        return True

    def _answered(self, subject: str, headers: HeaderBlock | None, payload: bytes) -> None:
        token = subject.removeprefix(self._inbox)
        if token in self._publications:
            refused_by_server = headers is not None and headers.status is not None
            if not refused_by_server and (headers is not None or read_stored(payload) is None):
                return  # whoever else has heard it, and answers, says nothing of the stream
            del self._publications[token]
        if self._waiting.pop(token, None) is None and not self._tokens.was_given(token):
            refused = refuse("an answer to a token that was never given", "unknown_id")
            self._connection.events.append(Refused(refused))
            return
        if headers is not None and is_failure(headers):
            self._connection.events.append(error_message(token, headers, payload))
            return
        self._connection.events.append(self._message(_RESPONSE, "", token, headers, payload))

    def malformed(self, error: RemoteProtocolError, subject: str, sid: str, frame: bytes) -> None:
        """Note which request a malformed answer belongs to, and answer a malformed question."""
        if sid == INBOX_SID:
            error.reply_id = subject.removeprefix(self._inbox)
        subscription = self._connection.subscriptions.by_sid.get(sid)
        if subscription is not None and subscription.tag is _READER and self._unreadable(subscription, subject, error, frame):
            return
        self._connection.events.append(Refused(error))
        reply = error.answer_id
        if reply is not None and is_answerable(reply) and subscription is not None and subscription.tag is _HANDLER:
            self._connection.answer_malformed(error, reply)

    def judged(self, error: ServerError) -> ServerError:
        """Give an error as it is: a foreign network may allow what it likes."""
        return error

    def not_allowed(self, error: ServerError) -> None:
        """Tell whom it concerns: who has asked, or subscribed; else it is a lost message."""
        connection, subject, text = self._connection, error.refused, f"the NATS server says: {error.text}"
        if self._is_of_reader(subject) and (word := read_refusal(error)) is not None:
            connection.events.append(word)
        elif subject is None:
            connection.events.append(Undelivered(Message(_PUBLISH, ""), Code.INVALID_ARGUMENT, "refused", text))
        elif not error.subscribing:
            self._publication_not_allowed(subject, text)
        elif subject == self.inbox:
            self._no_inbox = (
                f"no answer can come, for {text}: allow this user to subscribe to {self._inbox[: -_PREFIX_LENGTH - 1]}>"
            )
        else:
            connection.subscriptions.refuse(subject, error.queue)
            told = Message(Kind.SUBSCRIBE, subject, attributes={_HANDLER: True} if error.queue is not None else None)
            connection.events.append(Undelivered(told, Code.PERMISSION_DENIED, "forbidden", text))

    def _is_of_reader(self, subject: str | None) -> bool:
        """Tell whether a reader has asked or settled there: the application may do so by hand, too."""
        return any(f".{consumer}." in f"{subject}." for consumer in (*self._pulled.values(), *self._left))

    def _publication_not_allowed(self, subject: str, text: str) -> None:
        token = next((token for token, asked in self._waiting.items() if asked == subject), None)
        if token is None:
            lost = Undelivered(Message(_PUBLISH, subject), Code.PERMISSION_DENIED, "forbidden", text)
            self._connection.events.append(lost)
            return
        del self._waiting[token]
        self._publications.pop(token, None)
        facts: dict[str, Any] = {"text": text, "reason": None, "detail": None}
        self._connection.events.append(Message(Kind.ERROR, "", token, code=Code.PERMISSION_DENIED, attributes=facts))

    # -- out -------------------------------------------------------------------------------------------------------------

    def send(self, message: Message, now: float) -> str | None:
        """Queue a message. For a request: its token, under which the answer will come."""
        kind, connection = message.kind, self._connection
        if kind is _REQUEST:
            return self._request(message)
        if kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
            self._subscribe(message)
        elif kind is _RESPONSE or kind is Kind.ERROR:
            mark = self._mark(message.id[0]) if connection.subscriptions.alone.size else ()
            connection.queue(connection.codec.answer(message, message.id[0], mark))
            if message.id in self._owed:  # behind what may fail: then another answer is tried
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

    def _queue_for_others(self, frame: bytes, subject: Any) -> None:
        """Queue a frame, not for the handlers of this side: an asker that handles the subject itself wants another's answer."""
        connection = self._connection
        patterns = self._handled.match(subject) if self.echo else ()
        connection.queue_for_others(frame, patterns, connection.options.queue)

    def _mark(self, subject: Any) -> Sequence[tuple[str, str]]:
        return self._echoes.mark(subject) if self._connection.info.headers else ()

    def _to_engine(self, message: Message, to: ToEngine | ToStore, reply: str) -> bytes:
        """PUB or HPUB for what streams answer."""
        codec = self._connection.codec
        payload, own = codec.payload(message)
        subject = str(message.subject)
        if isinstance(to, ToStore):  # that it comes again is a word among nodes
            subject, to = to.at or local_subject(message.subject, self._connection.limits.subject), evolve(to, again=False)
            own += () if reply else self._mark(subject)
        return write_to_engine(self._connection, f"{subject} {reply}" if reply else subject, to, message, payload, own)

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
            # In a group, of one: what is on its way when it is given up still comes.
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
            text = f"the group {queue!r} is that of this bus's handlers: give it another name, or connect with queue="
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
        """Tokens are never used again; nothing is told, for the wire has no word for a cancel."""
        self._waiting.pop(key, None)
        self._publications.pop(key, None)
        self._owed.pop(key, None)

    # -- time and end: nothing is due, and nobody but the server is told ---------------------------------------------------

    def ready(self) -> None:
        """The other end is a server, and none of ours."""
        self._connection.events.append(Ready(bare=True))

    def tick(self, now: float) -> None:
        """Nothing is due."""

    def servers_joined(self) -> None:
        """Do nothing: there is nobody to greet."""

    def leave(self) -> None:
        """The protocol has no goodbye: the end of the connection is the end of its subscriptions."""

    def lost(self) -> None:
        """No answer comes any more."""
        self._waiting.clear()
        self._publications.clear()
