"""State shared by a session and its dialect: the server's INFO, subscriptions and request tokens."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import define, evolve, field, frozen

from ...errors import Code, RemoteProtocolError, TooLarge, Unsupported
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities, Refused, SessionEvent
from ...plugins.tools import SubjectIndex
from .._shared import error_facts, refusal, too_large
from .codec import NatsCodec
from .credentials import Credentials
from .headers import HeaderBlock, ServerError, raw_without_those_of_engine
from .operations import INBOX_SID, cut_delivery, write_subscription, write_unsubscription
from .stored import give, word_of_engine

if TYPE_CHECKING:
    from .adapter import Nats

_LEAVING: Final = 4096


@define(eq=False)
class NatsSubscription:
    number: int  # Its sid; later ones are higher
    pattern: str
    queue: str | None
    tag: Any = None  # Purpose, for the dialect
    name: Any = None


@define(eq=False)
class NatsSubscriptions:
    """The subscriptions of one connection, by sid.

    A server sends one copy of a message for each matching subscription, in any order. Only the copy for the oldest subscription
    counts. If that subscription ends while a message is in flight, the message may be delivered twice, because copies are not
    marked on the wire. Queue groups receive separate copies.
    """

    by_sid: dict[str, NatsSubscription] = field(factory=dict)
    refused: dict[Any, None] = field(factory=dict)
    alone: SubjectIndex[int] = field(factory=lambda: SubjectIndex[int]())
    _sids: dict[tuple[str, str | None], str] = field(factory=dict)
    _last: int = int(INBOX_SID)
    _leaving: dict[str, None] = field(factory=dict)
    """Unsubscribed queue-group subscriptions. Their messages in flight are still accepted."""

    def add(self, pattern: str, queue: str | None = None, tag: Any = None, name: Any = None) -> str | None:
        if (pattern, queue) in self._sids:
            return None
        self.refused.pop(pattern if name is None else name, None)
        self._last = number = self._last + 1
        sid = self._sids[pattern, queue] = str(number)
        self.by_sid[sid] = NatsSubscription(number, pattern, queue, tag, pattern if name is None else name)
        if queue is None:
            self.alone.add(pattern, number)
        return sid

    def remove(self, pattern: str, queue: str | None = None) -> str | None:
        if queue is None:
            self.refused.pop(pattern, None)
        sid = self._sids.pop((pattern, queue), None)
        if sid is not None:
            if queue is None:
                self.alone.remove(pattern, self.by_sid.pop(sid).number)
            else:
                self._leaving[sid] = None
                if len(self._leaving) > _LEAVING:
                    self.left((next(iter(self._leaving)),))
        return sid

    def leaving(self) -> tuple[str, ...]:
        return tuple(self._leaving)

    def left(self, sids: Iterable[str]) -> None:
        for sid in sids:
            if sid in self._leaving:
                del self._leaving[sid], self.by_sid[sid]

    def sid(self, pattern: str, queue: str | None) -> str | None:
        return self._sids.get((pattern, queue))

    def refuse(self, pattern: str, queue: str | None = None) -> None:
        sid = self._sids.get((pattern, queue))
        name = None if sid is None else self.by_sid[sid].name
        if self.remove(pattern, queue) is not None and queue is None:
            self.refused[name] = None

    def counts(self, subscription: NatsSubscription, subject: str) -> bool:
        matching = self.alone.match(subject)
        return len(matching) < 2 or subscription.number == min(matching)


_SALT: Final = 8  # Random hexadecimal digits of a token, so that the responder to one request cannot answer another
_AT_ONCE: Final = 64  # Tokens per call to the random source, which may be a system call


@define(eq=False)
class RequestTokens:
    _rng: random.Random
    _count: int = 0
    _salts: str = ""

    def next(self) -> str:
        at = self._count % _AT_ONCE * _SALT
        if not at:
            digits = _SALT * _AT_ONCE
            self._salts = f"{self._rng.getrandbits(4 * digits):0{digits}x}"
        self._count += 1
        return f"{self._count}{self._salts[at : at + _SALT]}"

    def was_given(self, token: str) -> bool:
        """Return True if this connection may have issued a token, whether or not it still waits for the answer."""
        count = token[:-_SALT]
        return count.isascii() and count.isdigit() and len(count) < 20 and 0 < int(count) <= self._count


_MOST: Final = 64
_VERSION: Final = 40
_PAYLOAD: Final = 1024 * 1024  # Default maximum payload of servers, in bytes


@frozen(kw_only=True)
class ServerInfo:
    id: str | None = None  # None before the first INFO
    version: str = ""
    max_payload: int = _PAYLOAD  # Largest size of headers and payload together, in bytes
    headers: bool = True
    tls_required: bool = False
    nonce: str | None = None  # Bytes that a client with a key signs
    others: tuple[str, ...] = ()  # Addresses of servers of the same cluster, ``host:port``
    leaving: bool = False  # The server will shut down soon (lame duck mode)

    @classmethod
    def read(cls, members: Mapping[str, Any], before: ServerInfo) -> ServerInfo:
        """Read INFO as JSON. If a member is missing or has the wrong type, its previous value is kept."""

        def member(name: str, kind: type, otherwise: Any) -> Any:
            value = members.get(name)
            return value if type(value) is kind else otherwise

        size = member("max_payload", int, before.max_payload)
        urls = member("connect_urls", list, None)
        others = before.others if urls is None else tuple(url for url in urls if type(url) is str)[:_MOST]
        return cls(
            id=member("server_id", str, before.id or ""),
            version=member("version", str, before.version)[:_VERSION],
            max_payload=size if size > 0 else before.max_payload,
            headers=member("headers", bool, before.headers if before.id is not None else False),
            tls_required=member("tls_required", bool, before.tls_required),
            nonce=member("nonce", str, before.nonce),
            others=others,
            leaving=member("ldm", bool, before.leaving),
        )


@define(eq=False)
class NatsConnection:
    codec: Final[NatsCodec]
    limits: Final[Limits]
    rng: Final[random.Random]
    options: Final[Nats]
    credentials: Final[Credentials]
    capabilities: Capabilities
    info: ServerInfo = field(factory=ServerInfo, init=False)
    subscriptions: Final[NatsSubscriptions] = field(factory=NatsSubscriptions, init=False)
    events: list[Message | SessionEvent] = field(factory=list, init=False)
    frames: list[bytes] = field(factory=list, init=False)
    """Frames returned by the current call. Events caused by a `send` are returned by the next `receive` or `tick`."""
    heard: float = field(default=0.0, init=False)
    _surely: int = field(default=0, init=False)  # The server accepts any frame up to this size, in bytes

    def taken(self) -> list[bytes]:
        frames, self.frames = self.frames, []
        return frames

    def learn(self, info: ServerInfo) -> None:
        self.info = info
        self._surely = min(self.limits.message, info.max_payload) if info.headers else 0

    def queue(self, frame: bytes) -> None:
        """Queue a frame with a payload. Raises `TooLarge` if the payload exceeds the local limit or the server's limit."""
        if len(frame) > self._surely:
            self._check(frame)
        self.frames.append(frame)

    def _check(self, frame: bytes) -> None:
        if len(frame) > self.limits.message:
            raise too_large(len(frame), self.limits.message)
        most = self.info.max_payload
        if len(frame) > most and (size := len(frame) - frame.find(b"\r\n") - 4) > most:
            raise TooLarge(f"a payload of {size} bytes, with its headers: the NATS server accepts {most} (its max_payload)")
        if frame[:1] == b"H" and not self.info.headers:
            raise Unsupported("this NATS server does not support headers")

    def subscribe(self, subject: str, queue: str | None = None, *, tag: Any = None, name: Any = None) -> None:
        sid = self.subscriptions.add(subject, queue, tag, name)
        if sid is not None:
            self.frames.append(write_subscription(subject, queue, sid))

    def queue_for_others(self, frame: bytes, patterns: Iterable[str], queue: str) -> None:
        """Queue a frame for the other members of a group. This side leaves the group while the frame is sent."""
        self.queue(frame)
        members = [(pattern, sid) for pattern in patterns if (sid := self.subscriptions.sid(pattern, queue)) is not None]
        again = [write_subscription(pattern, queue, sid) for pattern, sid in members]
        self.frames[-1:] = [*(write_unsubscription(sid) for _, sid in members), frame, *again]

    def answer_malformed(self, error: RemoteProtocolError, reply: str) -> None:
        self.frames.append(self.codec.answer(refusal(error, reply), reply))

    def unsubscribe(self, subject: str, queue: str | None = None) -> None:
        sid = self.subscriptions.remove(subject, queue)
        if sid is not None:
            self.frames.append(write_unsubscription(sid))


class NatsDialect:
    """Base class of the dialects, which interpret the messages of a connection for NATS clients or for cluster nodes."""

    probes: tuple[bytes, ...] = ()
    """Frames sent before the first PING, so that the server reports missing permissions before its PONG."""

    def __init__(self, connection: NatsConnection, inbox: str) -> None:
        self._connection = connection
        self._message = connection.codec.message
        self._tokens = RequestTokens(connection.rng)
        self.inbox: str = inbox  # Subject of all answers, subscribed first, as `operations.INBOX_SID`

    def named(self, subject: str) -> str | int:
        return subject

    def give_stored(
        self, subscription: NatsSubscription, subject: str, reply: str | None, headers: HeaderBlock | None, payload: bytes
    ) -> None:
        if headers is not None and headers.status is not None:
            self._connection.events.append(word_of_engine(subscription.name, headers))
            return
        try:
            to = give(subscription.name, reply, headers)
            message = self._message(Kind.PUBLISH, self.named(subject), None, headers, payload, None, to)
        except RemoteProtocolError as error:
            self._connection.events.append(Refused(error))
        else:
            self._connection.events.append(message)

    def give_unreadable(self, subscription: NatsSubscription, subject: str, error: RemoteProtocolError, frame: bytes) -> bool:
        """Pass an unreadable message to its reader, because the engine would redeliver it forever.

        Returns False if its address is also unreadable.
        """
        reply, block, payload = cut_delivery(frame)
        headers = self._connection.codec.reader.headers.read(block)
        try:
            to = evolve(give(subscription.name, reply, headers), fault=error.text, block=raw_without_those_of_engine(block))
            message = self._message(Kind.PUBLISH, self.named(subject), None, headers, payload, None, to)
        except RemoteProtocolError:
            return False
        self._connection.events.append(message)
        return True

    def deny(self, token: str, text: str) -> None:
        facts = error_facts(text, None, None)
        self._connection.events.append(Message(Kind.ERROR, "", token, code=Code.PERMISSION_DENIED, attributes=facts))

    # -- by default, nothing is due, and the server is the only one to tell --------------------------------------------------

    @property
    def due(self) -> float:
        """Time of the next `tick`, or infinity if none is needed. A `plugins.Due` event waits for the next input."""
        return math.inf

    def judged(self, error: ServerError) -> ServerError:
        """Return the error, marked as fatal if the dialect cannot work without the denied permission."""
        return error

    def tick(self, now: float) -> None: ...

    def servers_joined(self) -> None: ...

    def leave(self) -> None: ...
