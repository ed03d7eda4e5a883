"""One connection to a NATS server, without I/O: the client's side.

INFO is answered by CONNECT, the subscription to the inbox and PING; the PONG to that says that the server has let us in. From
then on publications, subscriptions and requests are one operation each. Answers come to subjects under the inbox, whose random
part nobody can guess; the token of a request has one of its own, so that who answers one request cannot answer another.
"""

from __future__ import annotations

import random
import string
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import evolve, field, frozen

from ...errors import Code, Forbidden, LocalProtocolError, RemoteProtocolError, TooLarge, Unsupported
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities, CloseWanted, Confirmed, OtherServers, Ready, Refused, SessionEvent, Undelivered
from .checks import local_pattern, refuse
from .codec import NatsCodec
from .credentials import Credentials
from .failures import ServerError, error_message, is_failure, read_error
from .headers import HeaderBlock
from .operations import (
    PING,
    PONG,
    Operation,
    write_json,
    write_subscription,
    write_unsubscription,
)
from .server_info import ServerInfo
from .states import TRANSITIONS, NatsEvent, NatsState
from .subscriptions import INBOX_SID, NatsSubscriptions

_CAPABILITIES: Final = Capabilities(patterns=True, extensions=False, handlers=True, groups=True)
_ALPHABET: Final = string.ascii_letters + string.digits
_PREFIX_LENGTH: Final = 20
_SALT: Final = 8
"""Hexadecimal digits of a token that are random."""
_HANDSHAKE: Final = 0
"""The key of the PING whose PONG lets us in."""
_PUBLISH, _REQUEST, _NOTIFY, _RESPONSE = Kind.PUBLISH, Kind.REQUEST, Kind.NOTIFY, Kind.RESPONSE
_CLOSE_CODES: Final[Mapping[str, int]] = {
    "stale connection": 1006,
    "slow consumer": 1013,
    "maximum connections": 1013,
    "maximum payload": 1009,
    "server shutdown": 1001,
}
"""Beginnings of errors that end a connection; others break a rule of the protocol."""


@frozen(kw_only=True)
class SessionOptions:
    """Facts that a session tells of itself."""

    queue: str
    inbox: str
    client: str
    credentials: Credentials = field(repr=False)
    renews: bool = False
    """The next connection may have newer credentials."""


class NatsSession:
    """The client's side of a connection."""

    __slots__ = (
        "_answers_owed",
        "_asked_at",
        "_count",
        "_events",
        "_fill",
        "_frames",
        "_heard",
        "_inbox",
        "_info",
        "_serial",
        "_limits",
        "_no_inbox",
        "_options",
        "_pings",
        "_read",
        "_read_delivery",
        "_rng",
        "_waiting",
        "capabilities",
        "codec",
        "state",
        "subscriptions",
    )

    def __init__(self, codec: NatsCodec, limits: Limits, rng: random.Random, options: SessionOptions) -> None:
        self.codec: Final = codec
        self.capabilities: Capabilities = _CAPABILITIES
        self.state: NatsState = NatsState.WAITING
        self.subscriptions: Final = NatsSubscriptions()
        self._limits = limits
        self._options = options
        self._rng = rng
        self._read = codec.reader.read
        self._read_delivery = codec.reader.delivery
        self._fill = codec.fill
        self._info = ServerInfo()
        self._inbox = f"{options.inbox}.{''.join(rng.choices(_ALPHABET, k=_PREFIX_LENGTH))}."
        self._no_inbox = ""
        """Why no answer can come: the user may not subscribe to the inbox."""
        self._count = 0
        self._serial = _HANDSHAKE
        self._waiting: dict[str, str] = {}
        """Subjects of the requests that wait for an answer, by their token."""
        self._answers_owed = 0
        self._pings: deque[int | None] = deque()
        """The PINGs without a PONG: the keys of those that somebody waits for."""
        self._heard = 0.0
        self._asked_at: float | None = None
        """Since when a sign of life is waited for."""
        self._events: list[Message | SessionEvent] = []
        self._frames: list[bytes] = []

    def start(self, now: float) -> None:
        """Wait: the server speaks first."""
        self._heard = now

    def events(self) -> list[Message | SessionEvent]:
        """Take away what has happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def frames_to_send(self) -> list[bytes]:
        """Frames queued since the last call, in order."""
        frames, self._frames = self._frames, []
        return frames

    # -- in --------------------------------------------------------------------------------------------------------------

    def receive(self, frame: bytes, now: float) -> None:
        """One operation has come in. Never raises: a bad one becomes `Refused`, or ends the connection."""
        self._heard = now
        try:
            if self.state is NatsState.READY and (frame[:4] == b"MSG " or frame[:5] == b"HMSG "):
                self._delivered(*self._read_delivery(frame))
                return
            operation = self._read(frame)
        except RemoteProtocolError as error:
            self._malformed(error, frame)
            return
        event, act = _RECEIVERS.get(operation.verb, _FOREIGN)
        if event is NatsEvent.ERROR:
            self._server_error(read_error(operation.text))
        elif self._move(event, operation.verb):
            act(self, operation)

    def _move(self, event: NatsEvent, what: str) -> bool:
        """Go on to the next state. False where the connection ends, or has ended, because this cannot come here."""
        before, self.state = self.state, TRANSITIONS[self.state][event]
        if self.state is not NatsState.CLOSED:
            return True
        if before is not NatsState.CLOSED:
            expected = "a NATS server begins with INFO" if before is NatsState.WAITING else "that is not for a server to say"
            error = refuse(f"{what} in the state {before.value}: {expected}", "unexpected", close_code=1002)
            self._events += [Refused(error), CloseWanted(1002, error.text, error)]
        return False

    def _end(self, event: NatsEvent, wanted: CloseWanted) -> None:
        if self.state is not NatsState.CLOSED:
            self.state = TRANSITIONS[self.state][event]
            self._events.append(wanted)

    def _malformed(self, error: RemoteProtocolError, frame: bytes) -> None:
        """Count what is malformed. A question is answered, and the request that it should have answered ends."""
        if not self._move(NatsEvent.MALFORMED, f"{frame[:40]!r} ({error.text})"):
            return
        _, subject, sid, *_ = (*frame[: frame.find(b"\r\n")].decode("utf-8", "replace").split(" "), "", "", "")
        subscription = self.subscriptions.by_sid.get(sid)
        if sid == INBOX_SID:
            error.reply_id = subject.removeprefix(self._inbox)
        self._events.append(Refused(error))
        if error.answer_id is not None and subscription is not None and subscription.group:
            facts = {"text": error.text, "reason": error.reason}
            code = Code.RESOURCE_EXHAUSTED if error.reason == "too_large" else Code.INVALID_ARGUMENT
            answer = Message(Kind.ERROR, "", error.answer_id, code=code, attributes=facts)
            self._frames.append(self.codec.answer(answer, error.answer_id))

    def _information(self, operation: Operation) -> None:
        """Learn about the server; the first time say who we are."""
        before = self._info
        self._info = info = ServerInfo.read(operation.info or {}, before)
        if info.others != before.others or info.leaving != before.leaving:
            self._events.append(OtherServers(info.others, info.leaving))
        if before.id is not None:
            self._leave_if_idle()
            return
        if not info.headers:
            self.capabilities = evolve(self.capabilities, headers=False, deadlines=False)
        try:
            members = self._connect_members(info)
        except LocalProtocolError as error:
            self._end(NatsEvent.FATAL, CloseWanted(4401, error.text, Forbidden(error.text)))
            return
        self._frames += [write_json("CONNECT", members), write_subscription(f"{self._inbox}*", None, INBOX_SID)]
        self._ping(_HANDSHAKE)

    def _leave_if_idle(self) -> None:
        """Go elsewhere, when the server is about to end and nothing is under way; where there is nowhere else, stay."""
        if self._info.leaving and self._info.others and not self._waiting and not self._answers_owed:
            why = "the NATS server is about to end (lame duck): going to another"
            self._end(NatsEvent.CLOSED, CloseWanted(1012, why))

    def _connect_members(self, info: ServerInfo) -> dict[str, Any]:
        """May raise `LocalProtocolError`: credentials that this server cannot check."""
        options = self._options
        return {
            "verbose": False,
            "pedantic": False,
            "tls_required": info.tls_required,
            "lang": "python-polybus",
            "name": options.client,
            "protocol": 1,
            "echo": False,  # a bus gives its publications to its own subscriptions itself
            "headers": info.headers,
            "no_responders": info.headers,
            **options.credentials.members(info.nonce),
        }

    def _ping(self, key: int | None) -> None:
        self._pings.append(key)
        self._frames.append(PING)

    def _asked(self, operation: Operation) -> None:
        self._frames.append(PONG)

    def _pong(self, operation: Operation) -> None:
        if not self._pings:
            self._events.append(Refused(refuse("PONG without a PING", "unexpected")))
            return
        key = self._pings.popleft()
        if key == _HANDSHAKE:
            self._events.append(Ready(bare=True))
        elif key is not None:
            self._events.append(Confirmed(key, tuple(self.subscriptions.refused)))

    def _ignore(self, operation: Operation) -> None:
        """+OK says nothing."""

    # -- errors of the server --------------------------------------------------------------------------------------------

    def _server_error(self, error: ServerError) -> None:
        if error.ends:
            lower = error.text.lower()
            code = next((number for text, number in _CLOSE_CODES.items() if lower.startswith(text)), 1002)
            if error.expired and self._options.renews:
                code = 4401
                error = evolve(error, error=None)
            elif error.error is not None:
                code = 4403 if isinstance(error.error, Forbidden) else 4401
            self._end(NatsEvent.FATAL, CloseWanted(code, f"the NATS server says: {error.text}", error.error))
        elif self._move(NatsEvent.ERROR, f"-ERR {error.text!r}"):
            self._not_allowed(error)

    def _not_allowed(self, error: ServerError) -> None:
        """Tell whom it concerns: who has asked, or subscribed; else it is a lost message."""
        subject, text = error.refused, f"the NATS server says: {error.text}"
        if subject is None:
            self._events.append(Undelivered(Message(_PUBLISH, ""), Code.INVALID_ARGUMENT, "refused", text))
        elif not error.subscribing:
            self._publication_not_allowed(subject, text)
        elif subject == f"{self._inbox}*":
            self._no_inbox = (
                f"no answer can come, for {text}: allow this user to subscribe to {self._inbox[: -_PREFIX_LENGTH - 1]}>"
            )
        else:
            group = error.queue is not None
            self.subscriptions.refuse(subject, group=group)
            told = Message(Kind.SUBSCRIBE, subject, attributes={"handler": True} if group else None)
            self._events.append(Undelivered(told, Code.PERMISSION_DENIED, "forbidden", text))

    def _publication_not_allowed(self, subject: str, text: str) -> None:
        token = next((token for token, asked in self._waiting.items() if asked == subject), None)
        if token is None:
            self._events.append(Undelivered(Message(_PUBLISH, subject), Code.PERMISSION_DENIED, "forbidden", text))
            return
        del self._waiting[token]
        facts: dict[str, Any] = {"text": text, "reason": None, "detail": None}
        self._events.append(Message(Kind.ERROR, "", token, code=Code.PERMISSION_DENIED, attributes=facts))

    # -- messages that come in -------------------------------------------------------------------------------------------

    def _message(self, operation: Operation) -> None:
        """A message whose verb is written in an unusual way."""
        self._delivered(operation.subject, operation.sid, operation.reply, operation.headers, operation.payload)

    def _delivered(self, subject: str, sid: str, reply: str | None, headers: HeaderBlock | None, payload: bytes) -> None:
        subscription = self.subscriptions.by_sid.get(sid)
        if subscription is None:  # or it was given up while this was on its way
            if sid == INBOX_SID:
                self._answered(subject, headers, payload)
            return
        if subscription.group:
            message = self._question(subject, reply)
        elif self.subscriptions.counts(subscription, subject):
            message = Message(_PUBLISH, subject)
            message.reply_to = reply
        else:
            return
        self._fill(message, headers, payload)
        self._events.append(message)

    def _question(self, subject: str, reply: str | None) -> Message:
        """Make the message for a handler: a request, or where no answer is wanted a notification."""
        if reply is None:
            return Message(_NOTIFY, subject)
        self._serial = serial = self._serial + 1
        self._answers_owed += 1
        message = Message(_REQUEST, subject, (reply, serial))
        message.reply_to = reply
        return message

    def _answered(self, subject: str, headers: HeaderBlock | None, payload: bytes) -> None:
        token = subject.removeprefix(self._inbox)
        if self._waiting.pop(token, None) is None and not self._was_given(token):
            self._events.append(Refused(refuse("an answer to a token that was never given", "unknown_id")))
            return
        if headers is not None and is_failure(headers):
            self._events.append(error_message(token, headers, payload))
            return
        message = Message(_RESPONSE, "", token)
        self._fill(message, headers, payload)
        self._events.append(message)

    def _was_given(self, token: str) -> bool:
        """True for a token that could be ours; whether it is, and still waited for, the link knows."""
        count = token[:-_SALT]
        if len(token) <= _SALT or len(token) > 2 * _SALT or not token.isalnum():
            return False
        try:
            return 0 < int(count, 16) <= self._count
        except ValueError:
            return False

    # -- out -------------------------------------------------------------------------------------------------------------

    def send(self, message: Message, now: float, peer_key: Any = None) -> str | None:
        """Queue a message. For a request: its token, under which the answer will come."""
        kind = message.kind
        if kind is _REQUEST:
            return self._request(message)
        if kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
            self._subscribe(message)
        elif kind is _RESPONSE or kind is Kind.ERROR:
            self._queue(self.codec.answer(message, message.id[0]))
            self._answers_owed -= 1  # behind what may fail: then another answer is tried
        else:
            self._queue(self.codec.publication(message))
        return None

    def _request(self, message: Message) -> str:
        if self._no_inbox:
            raise Forbidden(self._no_inbox)
        token = f"{self._count + 1:x}{self._rng.getrandbits(4 * _SALT):0{_SALT}x}"
        self._queue(self.codec.request(message, self._inbox + token, headers=self._info.headers))
        self._count += 1
        self._waiting[token] = str(message.subject)
        return token

    def _queue(self, frame: bytes) -> None:
        """May raise `TooLarge`: for this side, or for the server."""
        if len(frame) > self._limits.message:
            raise TooLarge(f"a frame of {len(frame)} bytes is larger than {self._limits.message} (limit: message)")
        most = self._info.max_payload
        if len(frame) > most and (size := len(frame) - frame.find(b"\r\n") - 4) > most:
            raise TooLarge(f"a payload of {size} bytes, with its headers: the NATS server takes {most} (its max_payload)")
        if frame[:1] == b"H" and not self._info.headers:
            raise Unsupported("this NATS server carries no headers")
        self._frames.append(frame)

    def _subscribe(self, message: Message) -> None:
        pattern = local_pattern(message.subject, self._limits.subject)
        group = message.extras is not None and bool(message.extras.get("handler"))
        if message.kind is Kind.UNSUBSCRIBE:
            if (sid := self.subscriptions.remove(pattern, group=group)) is not None:
                self._frames.append(write_unsubscription(sid))
        elif (sid := self.subscriptions.add(pattern, group=group)) is not None:
            self._frames.append(write_subscription(pattern, self._options.queue if group else None, sid))

    def confirm(self, now: float) -> int:
        """Ask with a PING whether all is handled that was queued before; `Confirmed` follows."""
        self._serial = key = self._serial + 1
        self._ping(key)
        return key

    def forget(self, key: Any, now: float) -> None:
        """Tokens are never used again; nothing is told, for the wire has no word for a cancel."""
        self._waiting.pop(key, None)

    # -- time and end ----------------------------------------------------------------------------------------------------

    def next_tick(self) -> float | None:
        """Time at which a sign of life is due."""
        if self.state is not NatsState.READY:
            return None
        if self._info.leaving:
            return self._heard
        if self._asked_at is not None:
            return self._asked_at + self._limits.ping_timeout
        return self._heard + self._limits.ping_interval

    def tick(self, now: float) -> None:
        """Ask a silent server for a sign of life, and give it up when none comes. Leave one that is about to end."""
        if self.state is not NatsState.READY:
            return
        self._leave_if_idle()
        if self._asked_at is not None and self._heard > self._asked_at:
            self._asked_at = None
        if self._asked_at is None:
            if now - self._heard >= self._limits.ping_interval:
                self._asked_at = now
                self._ping(None)
        elif now - self._asked_at >= self._limits.ping_timeout:
            self._end(NatsEvent.SILENCE, CloseWanted(1006, f"no PONG within {self._limits.ping_timeout:g} s"))

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> None:
        """The protocol has no goodbye: the end of the connection is the end of its subscriptions."""
        self.state = TRANSITIONS[self.state][NatsEvent.CLOSED]

    def connection_lost(self, reason: str) -> None:
        """Frames that were not taken yet are dropped."""
        self.state = TRANSITIONS[self.state][NatsEvent.CLOSED]
        self._frames.clear()
        self._waiting.clear()


_RECEIVERS: Final[Mapping[str, tuple[NatsEvent, Callable[[NatsSession, Operation], None]]]] = {
    "MSG": (NatsEvent.MESSAGE, NatsSession._message),
    "HMSG": (NatsEvent.MESSAGE, NatsSession._message),
    "INFO": (NatsEvent.INFO, NatsSession._information),
    "PING": (NatsEvent.PING, NatsSession._asked),
    "PONG": (NatsEvent.PONG, NatsSession._pong),
    "OK": (NatsEvent.OK, NatsSession._ignore),
    "ERR": (NatsEvent.ERROR, NatsSession._ignore),
}
_FOREIGN: Final = NatsEvent.FOREIGN, NatsSession._ignore
