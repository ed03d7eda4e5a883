"""Facts and buffers of one connection, which its session and its dialect share: what the server says of itself in INFO, the
subscriptions, and the tokens of requests. Of several copies of a message one counts.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from attrs import define, field, frozen

from ...errors import Code, RemoteProtocolError, TooLarge, Unsupported
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities, SessionEvent
from ...plugins.tools import SubjectIndex
from .._rules import too_large
from .cluster.known_handlers import KnownHandlers
from .codec import NatsCodec
from .credentials import Credentials
from .failures import ServerError
from .headers import HeaderBlock
from .operations import INBOX_SID, write_subscription, write_unsubscription

_LEAVING: Final = 4096
"""Subscriptions that are remembered after their end."""


@define(eq=False)
class NatsSubscription:
    """One subscription of this side.

    Attributes:
        number: Its sid; later ones are higher.
        queue: The queue group that it is in.
        tag: What it is for, to the dialect.
    """

    number: int
    pattern: str
    queue: str | None
    tag: Any = None
    name: Any = None
    """The pattern as the bus knows it."""


@define(eq=False)
class NatsSubscriptions:
    """The subscriptions of one connection, by sid.

    A server sends a connection one copy of a message for each of its subscriptions that match, in any order. The copy of the
    oldest counts; the others are left out. When the oldest is given up while a message is on its way, that message may come by
    the next one again: the wire has no sign by which the two copies could be told to be one. Groups have copies of their own.
    """

    by_sid: dict[str, NatsSubscription] = field(factory=dict)
    refused: dict[Any, None] = field(factory=dict)
    """Patterns that the server does not allow."""
    alone: SubjectIndex[int] = field(factory=lambda: SubjectIndex[int]())
    """The numbers of those that are in no group."""
    _sids: dict[tuple[str, str | None], str] = field(factory=dict)
    _last: int = int(INBOX_SID)
    _leaving: dict[str, None] = field(factory=dict)
    """Subscriptions in groups that were given up: what the server had chosen this side for before is still to be taken."""

    def add(self, pattern: str, queue: str | None = None, tag: Any = None, name: Any = None) -> str | None:
        """Add a subscription; its sid, or None where it is there already."""
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
        """Remove a subscription; the sid that it had, or None where there is none."""
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

    def groups(self) -> list[tuple[str, str]]:
        """Patterns and groups of the subscriptions that are in one."""
        return [(pattern, queue) for pattern, queue in self._sids if queue is not None]

    def leaving(self) -> tuple[str, ...]:
        """The sids that were given up, and of which messages may still be on their way."""
        return tuple(self._leaving)

    def left(self, sids: Iterable[str]) -> None:
        """Forget these: the server knows, and nothing more of them comes."""
        for sid in sids:
            if sid in self._leaving:
                del self._leaving[sid], self.by_sid[sid]

    def sid(self, pattern: str, queue: str | None) -> str | None:
        """Find the sid of a subscription; None where there is none."""
        return self._sids.get((pattern, queue))

    def refuse(self, pattern: str, queue: str | None = None) -> None:
        """Take note that the server does not allow a subscription."""
        sid = self._sids.get((pattern, queue))
        name = None if sid is None else self.by_sid[sid].name
        if self.remove(pattern, queue) is not None and queue is None:
            self.refused[name] = None

    def counts(self, subscription: NatsSubscription, subject: str) -> bool:
        """True for the copy of a publication that is the one to deliver."""
        matching = self.alone.match(subject)
        return len(matching) < 2 or subscription.number == min(matching)


_SALT: Final = 8
"""Hexadecimal digits of a token that are random: who answers one request cannot answer another."""
_AT_ONCE: Final = 64
"""Tokens whose random digits are drawn together: the system is asked for each draw."""


@define(eq=False)
class RequestTokens:
    """The tokens that were made on one connection. They are never made twice."""

    _rng: random.Random
    _count: int = 0
    _salts: str = ""

    def next(self) -> str:
        """Make another one."""
        at = self._count % _AT_ONCE * _SALT
        if not at:
            digits = _SALT * _AT_ONCE
            self._salts = f"{self._rng.getrandbits(4 * digits):0{digits}x}"
        self._count += 1
        return f"{self._count}{self._salts[at : at + _SALT]}"

    def was_given(self, token: str) -> bool:
        """True for a token that could be ours; whether it is, and still waited for, the link knows."""
        count = token[:-_SALT]
        return count.isascii() and count.isdigit() and len(count) < 20 and 0 < int(count) <= self._count


_MOST: Final = 64
"""Addresses of other servers that are remembered."""
_VERSION: Final = 40
"""Characters that are kept of a version."""
_PAYLOAD: Final = 1024 * 1024
"""Largest payload that servers take by default, in bytes."""


@frozen(kw_only=True)
class ServerInfo:
    """The members of INFO that matter to a client.

    Attributes:
        id: Of the server; None before the first INFO.
        version: Of the server.
        max_payload: Bytes of headers and payload together that it takes.
        headers: It carries headers.
        nonce: What a client with a key is to sign.
        others: Addresses of servers of the same cluster, ``host:port``.
        leaving: It is about to end: clients had better go elsewhere (lame duck).
    """

    id: str | None = None
    version: str = ""
    max_payload: int = _PAYLOAD
    headers: bool = True
    tls_required: bool = False
    nonce: str | None = None
    others: tuple[str, ...] = ()
    leaving: bool = False

    @classmethod
    def read(cls, members: Mapping[str, Any], before: ServerInfo) -> ServerInfo:
        """From the JSON of an INFO. What has another type than it should counts as not said; what is not said stays."""

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


@frozen(kw_only=True)
class SessionOptions:
    """Facts that a session tells of itself."""

    queue: str
    inbox: str
    client: str
    credentials: Credentials = field(repr=False)
    renews: bool = False
    """The next connection may have newer credentials."""
    cluster: str = ""
    """The cluster that the bus is a node of; empty for a client of foreign services."""
    member: str = ""
    """The id of the bus, in a cluster."""
    host: str = ""
    """The machine of the bus, in a cluster."""
    known_handlers: KnownHandlers = field(factory=KnownHandlers, repr=False)
    """The handlers that other nodes of a cluster have, or had lately: the same for all connections of a bus."""


@define(eq=False)
class NatsConnection:
    """One connection to a server, as far as it is known; what has happened on it, and what is to be written."""

    codec: Final[NatsCodec]
    limits: Final[Limits]
    rng: Final[random.Random]
    options: Final[SessionOptions]
    capabilities: Capabilities
    info: ServerInfo = field(factory=ServerInfo, init=False)
    subscriptions: Final[NatsSubscriptions] = field(factory=NatsSubscriptions, init=False)
    events: list[Message | SessionEvent] = field(factory=list, init=False)
    frames: list[bytes] = field(factory=list, init=False)
    """Given out at the end of each call, but for the events of a `send`, which go with the next that comes."""
    heard: float = field(default=0.0, init=False)
    """Time at which something last came in."""
    _surely: int = field(default=0, init=False)
    """Bytes up to which the server takes any frame."""

    def taken(self) -> list[bytes]:
        """Take the frames."""
        frames, self.frames = self.frames, []
        return frames

    def learn(self, info: ServerInfo) -> None:
        """Take note of what the server says of itself."""
        self.info = info
        self._surely = min(self.limits.message, info.max_payload) if info.headers else 0

    def queue(self, frame: bytes) -> None:
        """Queue a frame with a payload. May raise `TooLarge`: for this side, or for the server; `Unsupported`."""
        if len(frame) > self._surely:
            self._check(frame)
        self.frames.append(frame)

    def _check(self, frame: bytes) -> None:
        if len(frame) > self.limits.message:
            raise too_large(len(frame), self.limits.message)
        most = self.info.max_payload
        if len(frame) > most and (size := len(frame) - frame.find(b"\r\n") - 4) > most:
            raise TooLarge(f"a payload of {size} bytes, with its headers: the NATS server takes {most} (its max_payload)")
        if frame[:1] == b"H" and not self.info.headers:
            raise Unsupported("this NATS server carries no headers")

    def subscribe(self, subject: str, queue: str | None = None, *, tag: Any = None, name: Any = None) -> None:
        """Subscribe, unless it is done already; `tag` tells the dialect what for, `name` is what the bus calls it."""
        sid = self.subscriptions.add(subject, queue, tag, name)
        if sid is not None:
            self.frames.append(write_subscription(subject, queue, sid))

    def queue_for_others(self, frame: bytes, patterns: Iterable[str], queue: str) -> None:
        """Queue a frame for the other members of a group: while the server reads it, this side is in none. As `queue`."""
        self.queue(frame)
        members = [(pattern, sid) for pattern in patterns if (sid := self.subscriptions.sid(pattern, queue)) is not None]
        self.frames[-1:] = [
            *(write_unsubscription(sid) for _, sid in members),
            frame,
            *(write_subscription(pattern, queue, sid) for pattern, sid in members),
        ]

    def answer_malformed(self, error: RemoteProtocolError, reply: str) -> None:
        """Answer a malformed question."""
        facts = {"text": error.text, "reason": error.reason}
        code = Code.RESOURCE_EXHAUSTED if error.reason == "too_large" else Code.INVALID_ARGUMENT
        self.frames.append(self.codec.answer(Message(Kind.ERROR, "", reply, code=code, attributes=facts), reply))

    def unsubscribe(self, subject: str, queue: str | None = None) -> None:
        """Unsubscribe; what is not there is ignored."""
        sid = self.subscriptions.remove(subject, queue)
        if sid is not None:
            self.frames.append(write_unsubscription(sid))


class NatsDialect(Protocol):
    """The meaning of messages on a connection: to foreign services, or among the nodes of a cluster."""

    inbox: str
    """The subjects to which answers come: subscribed to before anything else, as `operations.INBOX_SID`."""
    probes: tuple[bytes, ...]
    """Frames that are sent beside that: what the server does not allow, it says before it lets this side in."""

    @property
    def signs(self) -> Sequence[str]:
        """Texts that only what this side has said bears."""
        ...

    def know(self, signs: Sequence[str]) -> None:
        """Take what another connection of this bus says for what this side has said."""

    def holds(self, key: Any) -> bool:
        """Tell whether a request or channel, by its id or token, is one of this connection."""
        ...

    def asked(self) -> list[str]:
        """List the tokens of the requests that are not answered."""
        ...

    @property
    def echo(self) -> bool:
        """True if the server sends back what this connection publishes."""
        ...

    @property
    def idle(self) -> bool:
        """True if nothing is under way."""
        ...

    @property
    def due(self) -> float:
        """The time of the next `tick`; infinite for never. An event `plugins.Due` waits for the next thing that comes in."""
        ...

    def delivered(self, subject: str, sid: str, reply: str | None, headers: HeaderBlock | None, payload: bytes) -> None:
        """Take a message of the server."""

    def malformed(self, error: RemoteProtocolError, subject: str, sid: str, frame: bytes) -> None:
        """Note which request a malformed answer belongs to, in the error, and answer a malformed question."""

    def judged(self, error: ServerError) -> ServerError:
        """Give an error with all that it means: the end, where nothing works without what is not allowed."""
        ...

    def not_allowed(self, error: ServerError) -> None:
        """Take note that something is not allowed: a publication, or a subscription."""

    def send(self, message: Message, now: float) -> str | None:
        """Queue the frames of a message, and give the key of a request or an open. Raises as `plugins.Session.send`."""
        ...

    def forget(self, key: Any, now: float) -> None:
        """Forget a request or a channel."""

    def ready(self) -> None:
        """The server has let this side in: give `plugins.Ready`."""

    def tick(self, now: float) -> None:
        """Time has passed."""

    def servers_joined(self) -> None:
        """Take note that the server has found others."""

    def leave(self) -> None:
        """Say goodbye to others than the server, where there is a word for it."""

    def lost(self) -> None:
        """Drop all: the connection is gone."""
