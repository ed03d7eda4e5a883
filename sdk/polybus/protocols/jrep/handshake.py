"""State of a connection between two buses, and the tables that move it. Commands and subscriptions work on it.

The tables are those of the handshakes: the action of each event in each state, and the state that follows; no other transitions
exist. Each role has a table for both dialects. ``v3`` is what Errai 2.4 to 4.x speaks: Associate is answered by
FinishAssociation alone. ``legacy`` is the document's: ConnectToQueue is answered by RemoteSubscribe, CapabilitiesNotice and
FinishStateSync; then the client sends its RemoteSubscribe and FinishStateSync. With ``auto`` a server follows the first verb
that it sees. A client begins with Associate and says ConnectToQueue when that is answered by nothing, or by silence.
"""

from __future__ import annotations

import enum
import random
import string
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from attrs import define, field, frozen

from ...errors import Code, RemoteProtocolError
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities, Ready, Role, SessionEvent
from .names import CLIENT_BUS, SERVER_BUS
from .writer import MessageWriter

Dialect: TypeAlias = Literal["auto", "v3", "legacy"]


class FederationState(enum.Enum):
    """States of a federation."""

    LISTENING = "listening"
    """A server before the first command."""
    SYNCING = "syncing"
    """A server that has greeted in the legacy way."""
    ASSOCIATING = "associating"
    """A client that has sent Associate."""
    TRYING = "trying"
    """The same, of a client that will try the legacy way too."""
    QUEUEING = "queueing"
    """A client that has sent ConnectToQueue."""
    CONNECTED = "connected"
    CLOSED = "closed"


class Action(enum.Enum):
    """Actions of a session; `commands` has the function of each."""

    IGNORE = "ignore"
    """Nothing: it says nothing here, and counts as activity."""
    REFUSE = "refuse"
    """It is not expected: counted, and the peer is told."""
    VIOLATE = "violate"
    """It cannot come here: the connection ends."""
    EXPIRED = "expired"
    """Traffic without a federation: the peer is told that its session has expired."""
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
    """An action, and the state that it leads to."""

    action: Action
    then: FederationState


VERBS: Final = tuple(
    "Associate FinishAssociation ConnectToQueue CapabilitiesNotice FinishStateSync RemoteSubscribe RemoteUnsubscribe "
    "Disconnect SessionExpired Heartbeat Resend WebsocketChannelVerify WebsocketChannelOpen WebsocketNegotiationFailed".split()
)
"""The document's and Errai's."""

EVENTS: Final = (*VERBS, "unknown", "message", "nothing", "silence")
"""Verbs, an unknown verb, any other message, an empty payload, and the end of a client's patience."""

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
# `trying`: a server until 2.3 says SessionExpired of Associate over HTTP. The transport has read the last two verbs.
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
"""The state that follows, where it is another. What is connected stays so until it is closed."""

_OTHER_DIALECT: Final[Mapping[Dialect, frozenset[str]]] = {
    "auto": frozenset(),
    "v3": frozenset(("ConnectToQueue",)),
    "legacy": frozenset(("Associate", "Resend")),
}
"""Verbs that a server of one dialect does not know; as real servers it drops them, so that a client can try the other one."""


def step_of(role: Role, dialect: Dialect, state: FederationState, event: str) -> HandshakeStep:
    """Look up one step. Events that the table does not have are refused, except silence."""
    ignored = state is FederationState.CLOSED or event in ("nothing", "silence")
    action = _TABLES[role].get((state, event), Action.IGNORE if ignored else Action.REFUSE)
    if role == "server" and not ignored and event in _OTHER_DIALECT[dialect]:
        action = Action.REFUSE
    then = _THEN.get(action, state)
    if state is FederationState.CONNECTED and then is not FederationState.CLOSED:
        then = state
    return HandshakeStep(action, then)


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
