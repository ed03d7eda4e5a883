"""State of a connection between two buses. The handshake, the subscriptions and the other commands work on it."""

from __future__ import annotations

import random
import string
from collections.abc import Mapping
from typing import Any, Final

from attrs import define, field

from ...errors import Code, RemoteProtocolError
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities, Ready, Role, SessionEvent
from .handshake import FIRST, Dialect, FederationState
from .messages.writer import MessageWriter
from .names import CLIENT_BUS, SERVER_BUS

_ALPHABET: Final = string.ascii_letters + string.digits
_TOKEN_LENGTH: Final = 12  # 62^12: 71 bits, so that where an answer goes cannot be guessed
_TO_POLYBUS: Final = Capabilities(bare_headers=False, shared_publish=True, announce="client")
"""Towards a bus of ours, and before it is known what the peer is."""
_TO_BARE: Final = Capabilities(bare_headers=False, shared_publish=True, announce="both", handlers=True, extensions=False)
"""An Errai client sends only to subjects that it was told of, and to handlers as to any other."""


@define(eq=False)
class Federation:
    """Federation of this bus with that of the peer: its state, what each side can receive, and what waits to be taken."""

    writer: MessageWriter
    role: Role
    dialect: Dialect
    limits: Limits
    rng: random.Random
    heartbeat: float
    """Seconds between two Heartbeat messages of ours; 0: none."""
    state: FederationState = field(init=False)
    own_bus: str = field(init=False)
    other_bus: str = field(init=False)
    """Subject of the other bus's management."""
    capabilities: Capabilities = field(default=_TO_POLYBUS, init=False)
    ours: bool = field(default=False, init=False)
    """True once the peer has said that it is a polybus."""
    ready: bool = field(default=False, init=False)
    """True once the link has been told that it is up."""
    renewing: bool = field(default=False, init=False)
    """True while a client that is connected goes through the legacy handshake anew."""
    answers_announced: bool = field(default=False, init=False)
    """True if the peer answers only on subjects that it was told of: Errai's clients, and its servers until 2.3."""
    greeting: str | None = field(default=None, init=False)
    """Verb of the answer to a handshake that is written when it is known what else to tell."""
    offers: Mapping[str, str] | None = field(default=None, init=False)
    """Parts of FinishAssociation, from the transport of a client that associates: it marks the payload with them."""
    announced: dict[str, set[str]] = field(factory=dict, init=False)
    """Services that the peer knows of, with the subjects that stand behind each."""
    wanted: dict[str, None] = field(factory=dict, init=False)
    """Subjects that the peer can receive."""
    withdrawn: dict[str, int] = field(factory=dict, init=False)
    """Services of which a foreign client was told that they are gone, and how often it has not said that back yet."""
    documents: list[bytes] = field(factory=list, init=False)
    """Messages that wait to be sent."""
    events: list[Message | SessionEvent] = field(factory=list, init=False)
    """Events that wait for the link."""
    due: float | None = field(default=None, init=False)
    """Time to fall back, or to beat."""
    heard: float = field(default=0.0, init=False)
    """Time of the last payload."""
    silence: float | None = field(default=None, init=False)
    """Seconds without a payload that the peer's own heartbeat allows."""
    missed: float | None = field(default=None, init=False)
    """Time to look whether the peer's heartbeat is missing."""

    def __attrs_post_init__(self) -> None:
        self.state = FIRST[self.role, self.dialect]
        self.own_bus, self.other_bus = (CLIENT_BUS, SERVER_BUS) if self.role == "client" else (SERVER_BUS, CLIENT_BUS)

    def token(self) -> str:
        """Make the random part of ids, or the key of a session."""
        return "".join(self.rng.choices(_ALPHABET, k=_TOKEN_LENGTH))

    def say(self, verb: str, **parts: Any) -> None:
        """Queue a command for the other bus."""
        self.documents.append(self.writer.command(self.other_bus, {"CommandType": verb, **parts}))

    def say_of(self, verb: str, subject: str) -> None:
        """Queue a command about one subject."""
        self.say(verb, Subject=subject, PriorityProcessing="1")

    def tell_error(self, error: RemoteProtocolError, goal: tuple[str, str | None] | None) -> None:
        """Tell who asked, under (ReplyTo, ErrorTo); or a client's bus, which looks for a Throwable in it (notes 2, M11)."""
        facts = {"text": error.text, "reason": error.reason}
        code = Code.RESOURCE_EXHAUSTED if error.reason == "too_large" else Code.INVALID_ARGUMENT
        told = Message(Kind.ERROR, "", goal or ("", None), code=code, attributes=facts)
        self.documents.append(self.writer.write(told, told.id))

    def become_ready(self, now: float, legacy: bool = False) -> None:
        """Report the end of the handshake, and every subject that the peer has named in it."""
        self.ready = True
        self.capabilities = _TO_POLYBUS if self.ours else _TO_BARE
        self.answers_announced = not self.ours and (self.role == "server" or legacy)
        self.events.append(Ready(bare=not self.ours))
        self.events.extend(Message(Kind.SUBSCRIBE, subject) for subject in self.wanted)
        self.due = now + self.heartbeat if self.heartbeat else None
        self.missed = now + self.silence if self.silence is not None else None


def verb_of(message: Message) -> str | None:
    """The command of a message to a bus; None of any other message."""
    verb = message.attributes.get("CommandType") if message.kind is Kind.CONTROL else None
    return verb if isinstance(verb, str) else None
