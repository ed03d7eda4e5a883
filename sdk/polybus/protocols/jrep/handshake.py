"""State of a connection between two buses, and its transition tables. Commands and subscriptions change it.

The tables give the action of each event in each state, and the next state. Each role has one table for both dialects. ``v3`` is
the dialect of Errai 2.4 to 4.x: Associate is answered only by FinishAssociation. ``legacy`` is the document's: ConnectToQueue
is answered by RemoteSubscribe, CapabilitiesNotice and FinishStateSync; then the client sends RemoteSubscribe and
FinishStateSync. With ``auto`` a server follows the first verb that it receives. A client begins with Associate, and sends
ConnectToQueue after an empty answer or silence.
"""

from __future__ import annotations

import enum
import random
import string
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from attrs import define, field, frozen

from ...errors import RemoteProtocolError
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities, Ready, Role, SessionEvent
from .._rules import refusal
from .names import CLIENT_BUS, SERVER_BUS
from .writer import MessageWriter

Dialect: TypeAlias = Literal["auto", "v3", "legacy"]


class FederationState(enum.Enum):
    LISTENING = "listening"
    SYNCING = "syncing"
    ASSOCIATING = "associating"
    TRYING = "trying"
    QUEUEING = "queueing"
    CONNECTED = "connected"
    CLOSED = "closed"


class Action(enum.Enum):
    IGNORE = "ignore"
    """Do nothing; the payload counts as activity."""
    REFUSE = "refuse"
    """Unexpected: counted, and the peer gets an error."""
    VIOLATE = "violate"
    """Against the protocol: the connection ends."""
    EXPIRED = "expired"
    """Traffic without a federation: the peer gets SessionExpired."""
    ASSOCIATE = "associate"
    GREET = "greet"
    FINISH_SERVER = "finish_server"
    ASSOCIATED = "associated"
    FINISH_CLIENT = "finish_client"
    FALL_BACK = "fall_back"
    LEARN = "learn"
    UNLEARN = "unlearn"
    NOTE = "note"
    BEAT = "beat"
    VERIFY = "verify"
    LEAVE = "leave"
    RENEW = "renew"
    DELIVER = "deliver"


@frozen
class HandshakeStep:
    action: Action
    then: FederationState


VERBS: Final = tuple(
    "Associate FinishAssociation ConnectToQueue CapabilitiesNotice FinishStateSync RemoteSubscribe RemoteUnsubscribe "
    "Disconnect SessionExpired Heartbeat Resend WebsocketChannelVerify WebsocketChannelOpen WebsocketNegotiationFailed".split()
)
"""Verbs of the document and of Errai."""

EVENTS: Final = (*VERBS, "unknown", "message", "nothing", "silence")
"""Verbs, an unknown verb, any other message, an empty payload, and a client's time-out."""

FIRST: Final[Mapping[tuple[Role, Dialect], FederationState]] = {
    ("server", "auto"): FederationState.LISTENING,
    ("server", "v3"): FederationState.LISTENING,
    ("server", "legacy"): FederationState.LISTENING,
    ("client", "auto"): FederationState.TRYING,
    ("client", "v3"): FederationState.ASSOCIATING,
    ("client", "legacy"): FederationState.QUEUEING,
}

_SERVER: Final = """
                            listening       syncing         connected
Associate                   associate       associate       associate
ConnectToQueue              greet           greet           greet
FinishStateSync             violate         finish_server   finish_server
FinishAssociation           violate         violate         -
CapabilitiesNotice          violate         note            note
RemoteSubscribe             expired         learn           learn
RemoteUnsubscribe           expired         unlearn         unlearn
Disconnect                  leave           leave           leave
Heartbeat                   expired         beat            beat
Resend                      expired         -               associate
WebsocketChannelVerify      -               -               verify
message                     expired         -               deliver
"""
# `trying`: a server up to 2.3 answers Associate over HTTP with SessionExpired. The transport reads the last two verbs.
_CLIENT: Final = """
                            associating     trying          queueing        connected
FinishAssociation           associated      associated      associated      ignore
RemoteSubscribe             learn           learn           learn           learn
RemoteUnsubscribe           -               -               unlearn         unlearn
CapabilitiesNotice          -               note            note            note
FinishStateSync             -               finish_client   finish_client   ignore
Heartbeat                   beat            beat            beat            beat
Disconnect                  leave           leave           leave           leave
SessionExpired              renew           fall_back       renew           renew
nothing                     -               fall_back       -               -
silence                     -               fall_back       -               -
unknown                     -               fall_back       -               -
message                     -               -               -               deliver
WebsocketChannelOpen        -               -               -               ignore
WebsocketNegotiationFailed  -               -               -               ignore
"""


def _cells(table: str) -> Mapping[tuple[FederationState, str], Action]:
    states, *rows = [line.split() for line in table.strip().splitlines()]
    return {
        (FederationState(state), event): Action(name)
        for event, *names in rows
        for state, name in zip(states, names, strict=True)
        if name != "-"
    }


_TABLES: Final[Mapping[Role, Mapping[tuple[FederationState, str], Action]]] = {
    "server": _cells(_SERVER),
    "client": _cells(_CLIENT),
}
_THEN: Final[Mapping[Action, FederationState]] = {
    **dict.fromkeys((Action.VIOLATE, Action.LEAVE, Action.RENEW), FederationState.CLOSED),
    **dict.fromkeys((Action.ASSOCIATE, Action.FINISH_SERVER), FederationState.CONNECTED),
    **dict.fromkeys((Action.ASSOCIATED, Action.FINISH_CLIENT), FederationState.CONNECTED),
    Action.GREET: FederationState.SYNCING,
    Action.FALL_BACK: FederationState.QUEUEING,
}
"""Actions with a new state. CONNECTED lasts until the connection closes."""

_OTHER_DIALECT: Final[Mapping[Dialect, frozenset[str]]] = {
    "auto": frozenset(),
    "v3": frozenset(("ConnectToQueue",)),
    "legacy": frozenset(("Associate", "Resend")),
}
"""Verbs that a server of one dialect drops, as real servers do, so that a client can try the other dialect."""


def step_of(role: Role, dialect: Dialect, state: FederationState, event: str) -> HandshakeStep:
    """Look up one step. Events outside the table are refused, except silence."""
    ignored = state is FederationState.CLOSED or event in ("nothing", "silence")
    action = _TABLES[role].get((state, event), Action.IGNORE if ignored else Action.REFUSE)
    if role == "server" and not ignored and event in _OTHER_DIALECT[dialect]:
        action = Action.REFUSE
    then = _THEN.get(action, state)
    if state is FederationState.CONNECTED and then is not FederationState.CLOSED:
        then = state
    return HandshakeStep(action, then)


_ALPHABET: Final = string.ascii_letters + string.digits
_TOKEN_LENGTH: Final = 12  # 62^12: 71 bits, so that reply subjects cannot be guessed
_TO_POLYBUS: Final = Capabilities(bare_headers=False, shared_publish=True, announce="client")
"""For a polybus peer, and before the peer is known."""
_TO_BARE: Final = Capabilities(bare_headers=False, shared_publish=True, announce="both", handlers=True, extensions=False)
"""An Errai client sends only to announced subjects, and does not distinguish handlers from subscribers."""


@define(eq=False)
class Federation:
    """Federation of this bus with the peer's: its state, what each side receives, and pending output."""

    writer: MessageWriter
    role: Role
    dialect: Dialect
    limits: Limits
    rng: random.Random
    heartbeat: float
    """Seconds between this side's Heartbeat messages; 0 for none."""
    state: FederationState = field(init=False)
    own_bus: str = field(init=False)
    other_bus: str = field(init=False)
    capabilities: Capabilities = field(default=_TO_POLYBUS, init=False)
    ours: bool = field(default=False, init=False)
    ready: bool = field(default=False, init=False)
    renewing: bool = field(default=False, init=False)
    answers_announced: bool = field(default=False, init=False)
    """True if the peer answers only on announced subjects: Errai's clients, and its servers up to 2.3."""
    greeting: str | None = field(default=None, init=False)
    """Verb of a pending handshake answer, which is written with all announcements."""
    offers: Mapping[str, str] | None = field(default=None, init=False)
    """Parts of FinishAssociation from the transport, for a client that associates; the transport attaches them to the payload.
    """
    announced: dict[str, set[str]] = field(factory=dict, init=False)
    wanted: dict[str, None] = field(factory=dict, init=False)
    withdrawn: dict[str, int] = field(factory=dict, init=False)
    """Withdrawn services, with the number of times that a foreign client has not confirmed yet."""
    documents: list[bytes] = field(factory=list, init=False)
    events: list[Message | SessionEvent] = field(factory=list, init=False)
    due: float | None = field(default=None, init=False)
    heard: float = field(default=0.0, init=False)
    silence: float | None = field(default=None, init=False)
    """Seconds without a payload that the peer's own heartbeat allows."""
    missed: float | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.state = FIRST[self.role, self.dialect]
        self.own_bus, self.other_bus = (CLIENT_BUS, SERVER_BUS) if self.role == "client" else (SERVER_BUS, CLIENT_BUS)

    def token(self) -> str:
        return "".join(self.rng.choices(_ALPHABET, k=_TOKEN_LENGTH))

    def say(self, verb: str, **parts: Any) -> None:
        self.documents.append(self.writer.command(self.other_bus, {"CommandType": verb, **parts}))

    def say_of(self, verb: str, subject: str) -> None:
        self.say(verb, Subject=subject, PriorityProcessing="1")

    def tell_error(self, error: RemoteProtocolError, goal: tuple[str, str | None] | None) -> None:
        """Send an error to an asker's (ReplyTo, ErrorTo) or to a client's bus, which looks for a Throwable in it (notes 2,
        M11).
        """
        told = refusal(error, goal or ("", None))
        self.documents.append(self.writer.write(told, told.id))

    def become_ready(self, now: float, legacy: bool = False) -> None:
        """Report the end of the handshake, and each subject that the peer has named in it."""
        self.ready = True
        self.capabilities = _TO_POLYBUS if self.ours else _TO_BARE
        self.answers_announced = not self.ours and (self.role == "server" or legacy)
        self.events.append(Ready(bare=not self.ours))
        self.events.extend(Message(Kind.SUBSCRIBE, subject) for subject in self.wanted)
        self.due = now + self.heartbeat if self.heartbeat else None
        self.missed = now + self.silence if self.silence is not None else None


def verb_of(message: Message) -> str | None:
    """The command of a message to a bus; None for any other message."""
    verb = message.attributes.get("CommandType") if message.kind is Kind.CONTROL else None
    return verb if isinstance(verb, str) else None
