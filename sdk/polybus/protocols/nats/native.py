"""The dialect towards foreign services: subjects as they are, handlers in a queue group, answers to an inbox.

Answers come to subjects under the inbox, whose random part nobody can guess; the token of a request has one of its own, so that
who answers one request cannot answer another.
"""

from __future__ import annotations

import string
from typing import Any, Final

from ...errors import Code, Forbidden, LocalProtocolError, RemoteProtocolError
from ...message import Kind, Message
from ...plugins import Ready, Refused, Undelivered
from .checks import local_pattern, refuse
from .connection import NatsConnection
from .failures import ServerError, error_message, is_failure
from .headers import HeaderBlock
from .subscriptions import INBOX_SID
from .tokens import Tokens

_ALPHABET: Final = string.ascii_letters + string.digits
_PREFIX_LENGTH: Final = 20
_HANDLER: Final = "handler"
"""The tag of the subscriptions of handlers."""
_PUBLISH, _REQUEST, _NOTIFY, _RESPONSE = Kind.PUBLISH, Kind.REQUEST, Kind.NOTIFY, Kind.RESPONSE


class NativeDialect:
    """Requests, answers and publications as any client of NATS has them. Implements `connection.NatsDialect`."""

    __slots__ = (
        "_answers_owed",
        "_connection",
        "_inbox",
        "_message",
        "_no_inbox",
        "_serial",
        "_tokens",
        "_waiting",
        "echo",
        "inbox",
    )

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._message = connection.codec.message
        self._inbox = f"{connection.options.inbox}.{''.join(connection.rng.choices(_ALPHABET, k=_PREFIX_LENGTH))}."
        self.inbox: str = f"{self._inbox}*"
        self._no_inbox = ""
        """Why no answer can come: the user may not subscribe to the inbox."""
        self.echo: bool = False  # a bus gives its publications to its own subscriptions itself
        self._tokens = Tokens(connection.rng)
        self._waiting: dict[str, str] = {}
        """Subjects of the requests that wait for an answer, by their token."""
        self._serial = 0
        self._answers_owed = 0

    @property
    def idle(self) -> bool:
        """True if no answer is waited for, and none is owed."""
        return not self._waiting and not self._answers_owed

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
            else:
                self._serial = serial = self._serial + 1
                self._answers_owed += 1
                message = self._message(_REQUEST, subject, (reply, serial), headers, payload, reply)
        elif subscription.queue is not None:
            message = self._message(_PUBLISH, subject, None, headers, payload, reply)
            message.extras = {"group": subscription.queue, "pattern": subscription.pattern}
        elif subscriptions.counts(subscription, subject):
            message = self._message(_PUBLISH, subject, None, headers, payload, reply)
        else:
            return
        self._connection.events.append(message)

    def _answered(self, subject: str, headers: HeaderBlock | None, payload: bytes) -> None:
        token = subject.removeprefix(self._inbox)
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
        self._connection.events.append(Refused(error))
        subscription = self._connection.subscriptions.by_sid.get(sid)
        if error.answer_id is not None and subscription is not None and subscription.tag is _HANDLER:
            self._connection.answer_malformed(error, error.answer_id)

    def not_allowed(self, error: ServerError) -> None:
        """Tell whom it concerns: who has asked, or subscribed; else it is a lost message."""
        connection, subject, text = self._connection, error.refused, f"the NATS server says: {error.text}"
        if subject is None:
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

    def _publication_not_allowed(self, subject: str, text: str) -> None:
        token = next((token for token, asked in self._waiting.items() if asked == subject), None)
        if token is None:
            lost = Undelivered(Message(_PUBLISH, subject), Code.PERMISSION_DENIED, "forbidden", text)
            self._connection.events.append(lost)
            return
        del self._waiting[token]
        facts: dict[str, Any] = {"text": text, "reason": None, "detail": None}
        self._connection.events.append(Message(Kind.ERROR, "", token, code=Code.PERMISSION_DENIED, attributes=facts))

    # -- out -------------------------------------------------------------------------------------------------------------

    def send(self, message: Message, now: float, peer_key: Any = None) -> str | None:
        """Queue a message. For a request: its token, under which the answer will come."""
        kind, connection = message.kind, self._connection
        if kind is _REQUEST:
            return self._request(message)
        if kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
            self._subscribe(message)
        elif kind is _RESPONSE or kind is Kind.ERROR:
            connection.queue(connection.codec.answer(message, message.id[0]))
            self._answers_owed -= 1  # behind what may fail: then another answer is tried
        else:
            connection.queue(connection.codec.publication(message))
        return None

    def _request(self, message: Message) -> str:
        if self._no_inbox:
            raise Forbidden(self._no_inbox)
        connection, token = self._connection, self._tokens.next()
        connection.queue(connection.codec.request(message, self._inbox + token, headers=connection.info.headers))
        self._waiting[token] = str(message.subject)
        return token

    def _subscribe(self, message: Message) -> None:
        connection, extras = self._connection, message.extras or {}
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

    def forget(self, key: Any, now: float) -> None:
        """Tokens are never used again; nothing is told, for the wire has no word for a cancel."""
        self._waiting.pop(key, None)

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
