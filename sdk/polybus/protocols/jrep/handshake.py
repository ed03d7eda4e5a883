"""The handshakes as tables: what each verb does in each state, and what comes then. All that is about transitions stands here.

Each role has a table for both. ``v3`` is what Errai 2.4 to 4.x speaks: Associate is answered by FinishAssociation alone.
``legacy`` is the document's: ConnectToQueue is answered by RemoteSubscribe, CapabilitiesNotice and FinishStateSync; then the
client sends its RemoteSubscribe and FinishStateSync. With ``auto`` a server follows the first verb that it sees. A client
begins with Associate and says ConnectToQueue when that is answered by nothing, or by silence.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from attrs import frozen

from ...plugins import Role

__all__ = ["EVENTS", "FIRST", "VERBS", "Action", "Dialect", "State", "Step", "step_of"]

Dialect: TypeAlias = Literal["auto", "v3", "legacy"]


class State(enum.Enum):
    """Where a federation stands."""

    LISTENING = "listening"
    """A server that nobody has spoken to."""
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
    """What a session does; its method has this name."""

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
class Step:
    """One cell of the table."""

    action: Action
    then: State


VERBS: Final = (
    "Associate",
    "FinishAssociation",
    "ConnectToQueue",
    "CapabilitiesNotice",
    "FinishStateSync",
    "RemoteSubscribe",
    "RemoteUnsubscribe",
    "Disconnect",
    "SessionExpired",
    "Heartbeat",
    "Resend",
    "WebsocketChannelVerify",
    "WebsocketChannelOpen",
    "WebsocketNegotiationFailed",
)
"""The document's and Errai's."""

EVENTS: Final = (*VERBS, "unknown", "message", "nothing", "silence")
"""Verbs, a verb that nobody knows, any other message, an empty payload, and the end of a client's patience."""

FIRST: Final[Mapping[tuple[Role, Dialect], State]] = {
    ("server", "auto"): State.LISTENING,
    ("server", "v3"): State.LISTENING,
    ("server", "legacy"): State.LISTENING,
    ("client", "auto"): State.TRYING,
    ("client", "v3"): State.ASSOCIATING,
    ("client", "legacy"): State.QUEUEING,
}

_L, _S, _C, _X = State.LISTENING, State.SYNCING, State.CONNECTED, State.CLOSED
_A, _T, _Q = State.ASSOCIATING, State.TRYING, State.QUEUEING

_SERVER: Final[Mapping[State, Mapping[str, Step]]] = {
    _L: {
        "Associate": Step(Action.ASSOCIATE, _C),
        "ConnectToQueue": Step(Action.GREET, _S),
        "FinishStateSync": Step(Action.VIOLATE, _X),
        "FinishAssociation": Step(Action.VIOLATE, _X),
        "CapabilitiesNotice": Step(Action.VIOLATE, _X),
        "RemoteSubscribe": Step(Action.EXPIRED, _L),
        "RemoteUnsubscribe": Step(Action.EXPIRED, _L),
        "Disconnect": Step(Action.LEAVE, _X),
        "Heartbeat": Step(Action.EXPIRED, _L),
        "Resend": Step(Action.EXPIRED, _L),
        "message": Step(Action.EXPIRED, _L),
    },
    _S: {
        "Associate": Step(Action.ASSOCIATE, _C),
        "ConnectToQueue": Step(Action.GREET, _S),
        "FinishStateSync": Step(Action.FINISH_SERVER, _C),
        "FinishAssociation": Step(Action.VIOLATE, _X),
        "CapabilitiesNotice": Step(Action.NOTE, _S),
        "RemoteSubscribe": Step(Action.LEARN, _S),
        "RemoteUnsubscribe": Step(Action.UNLEARN, _S),
        "Disconnect": Step(Action.LEAVE, _X),
        "Heartbeat": Step(Action.BEAT, _S),
    },
    _C: {
        "Associate": Step(Action.ASSOCIATE, _C),
        "Resend": Step(Action.ASSOCIATE, _C),
        "ConnectToQueue": Step(Action.GREET, _C),
        "FinishStateSync": Step(Action.FINISH_SERVER, _C),
        "CapabilitiesNotice": Step(Action.NOTE, _C),
        "RemoteSubscribe": Step(Action.LEARN, _C),
        "RemoteUnsubscribe": Step(Action.UNLEARN, _C),
        "Disconnect": Step(Action.LEAVE, _X),
        "Heartbeat": Step(Action.BEAT, _C),
        "WebsocketChannelVerify": Step(Action.VERIFY, _C),
        "message": Step(Action.DELIVER, _C),
    },
}

_HALFWAY: Final[Mapping[str, Step]] = {
    "Disconnect": Step(Action.LEAVE, _X),
    "SessionExpired": Step(Action.RENEW, _X),
}

_CLIENT: Final[Mapping[State, Mapping[str, Step]]] = {
    _A: {
        **_HALFWAY,
        "FinishAssociation": Step(Action.ASSOCIATED, _C),
        "RemoteSubscribe": Step(Action.LEARN, _A),
        "Heartbeat": Step(Action.BEAT, _A),
    },
    _T: {
        **_HALFWAY,
        "FinishAssociation": Step(Action.ASSOCIATED, _C),
        "RemoteSubscribe": Step(Action.LEARN, _T),
        "CapabilitiesNotice": Step(Action.NOTE, _T),
        "FinishStateSync": Step(Action.FINISH_CLIENT, _C),
        "Heartbeat": Step(Action.BEAT, _T),
        "SessionExpired": Step(Action.FALL_BACK, _Q),  # what a server until 2.3 says of Associate over HTTP
        "nothing": Step(Action.FALL_BACK, _Q),
        "silence": Step(Action.FALL_BACK, _Q),
        "unknown": Step(Action.FALL_BACK, _Q),
    },
    _Q: {
        **_HALFWAY,
        "FinishAssociation": Step(Action.ASSOCIATED, _C),
        "RemoteSubscribe": Step(Action.LEARN, _Q),
        "RemoteUnsubscribe": Step(Action.UNLEARN, _Q),
        "CapabilitiesNotice": Step(Action.NOTE, _Q),
        "FinishStateSync": Step(Action.FINISH_CLIENT, _C),
        "Heartbeat": Step(Action.BEAT, _Q),
    },
    _C: {
        "FinishAssociation": Step(Action.IGNORE, _C),
        "FinishStateSync": Step(Action.IGNORE, _C),
        "CapabilitiesNotice": Step(Action.NOTE, _C),
        "RemoteSubscribe": Step(Action.LEARN, _C),
        "RemoteUnsubscribe": Step(Action.UNLEARN, _C),
        "Disconnect": Step(Action.LEAVE, _X),
        "SessionExpired": Step(Action.RENEW, _X),
        "Heartbeat": Step(Action.BEAT, _C),
        # The transport has read these two.
        "WebsocketChannelOpen": Step(Action.IGNORE, _C),
        "WebsocketNegotiationFailed": Step(Action.IGNORE, _C),
        "message": Step(Action.DELIVER, _C),
    },
}
_TABLES: Final[Mapping[Role, Mapping[State, Mapping[str, Step]]]] = {"server": _SERVER, "client": _CLIENT}

_OTHER_DIALECT: Final[Mapping[Dialect, frozenset[str]]] = {
    "auto": frozenset(),
    "v3": frozenset(("ConnectToQueue",)),
    "legacy": frozenset(("Associate", "Resend")),
}
"""What a server of one dialect does not know; as real servers it drops that, so that a client can try the other one."""


def step_of(role: Role, dialect: Dialect, state: State, event: str) -> Step:
    """What happens: of what the table does not have, a message is refused and everything else too, except silence."""
    if state is State.CLOSED or event in ("nothing", "silence"):
        return _TABLES[role].get(state, {}).get(event, Step(Action.IGNORE, state))
    if role == "server" and event in _OTHER_DIALECT[dialect]:
        return Step(Action.REFUSE, state)
    return _TABLES[role].get(state, {}).get(event, Step(Action.REFUSE, state))
