"""Facts and buffers of one connection, which its session and its dialect share."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from attrs import define, field, frozen

from ...errors import Code, RemoteProtocolError, TooLarge, Unsupported
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities, SessionEvent
from .._rules import too_large
from .cluster.known_handlers import KnownHandlers
from .codec import NatsCodec
from .credentials import Credentials
from .failures import ServerError
from .headers import HeaderBlock
from .operations import write_subscription, write_unsubscription
from .server_info import ServerInfo
from .subscriptions import NatsSubscriptions


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
    turn: int = field(default=0, init=False)
    """Number of times that the events were taken: what comes in between belongs to one turn."""
    heard: float = field(default=0.0, init=False)
    """Time at which something last came in."""
    _surely: int = field(default=0, init=False)
    """Bytes up to which the server takes any frame."""

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
    """The subjects to which answers come: subscribed to before anything else, as `subscriptions.INBOX_SID`."""
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

    def send(self, message: Message, now: float, peer_key: Any = None) -> str | None:
        """Queue a message. As `plugins.Session.send`."""
        ...

    def forget(self, key: Any, now: float) -> None:
        """Forget a request or a channel. As `plugins.Session.forget`."""

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
