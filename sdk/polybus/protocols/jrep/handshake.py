"""Tables of the handshakes: the action of each verb in each state, and the state that follows. All transitions stand here.

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
    """One cell of the table."""

    action: Action
    then: FederationState


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
"""Verbs, an unknown verb, any other message, an empty payload, and the end of a client's patience."""

FIRST: Final[Mapping[tuple[Role, Dialect], FederationState]] = {
    ("server", "auto"): FederationState.LISTENING,
    ("server", "v3"): FederationState.LISTENING,
    ("server", "legacy"): FederationState.LISTENING,
    ("client", "auto"): FederationState.TRYING,
    ("client", "v3"): FederationState.ASSOCIATING,
    ("client", "legacy"): FederationState.QUEUEING,
}

_L, _S, _C, _X = FederationState.LISTENING, FederationState.SYNCING, FederationState.CONNECTED, FederationState.CLOSED
_A, _T, _Q = FederationState.ASSOCIATING, FederationState.TRYING, FederationState.QUEUEING

_SERVER: Final[Mapping[FederationState, Mapping[str, HandshakeStep]]] = {
    _L: {
        "Associate": HandshakeStep(Action.ASSOCIATE, _C),
        "ConnectToQueue": HandshakeStep(Action.GREET, _S),
        "FinishStateSync": HandshakeStep(Action.VIOLATE, _X),
        "FinishAssociation": HandshakeStep(Action.VIOLATE, _X),
        "CapabilitiesNotice": HandshakeStep(Action.VIOLATE, _X),
        "RemoteSubscribe": HandshakeStep(Action.EXPIRED, _L),
        "RemoteUnsubscribe": HandshakeStep(Action.EXPIRED, _L),
        "Disconnect": HandshakeStep(Action.LEAVE, _X),
        "Heartbeat": HandshakeStep(Action.EXPIRED, _L),
        "Resend": HandshakeStep(Action.EXPIRED, _L),
        "message": HandshakeStep(Action.EXPIRED, _L),
    },
    _S: {
        "Associate": HandshakeStep(Action.ASSOCIATE, _C),
        "ConnectToQueue": HandshakeStep(Action.GREET, _S),
        "FinishStateSync": HandshakeStep(Action.FINISH_SERVER, _C),
        "FinishAssociation": HandshakeStep(Action.VIOLATE, _X),
        "CapabilitiesNotice": HandshakeStep(Action.NOTE, _S),
        "RemoteSubscribe": HandshakeStep(Action.LEARN, _S),
        "RemoteUnsubscribe": HandshakeStep(Action.UNLEARN, _S),
        "Disconnect": HandshakeStep(Action.LEAVE, _X),
        "Heartbeat": HandshakeStep(Action.BEAT, _S),
    },
    _C: {
        "Associate": HandshakeStep(Action.ASSOCIATE, _C),
        "Resend": HandshakeStep(Action.ASSOCIATE, _C),
        "ConnectToQueue": HandshakeStep(Action.GREET, _C),
        "FinishStateSync": HandshakeStep(Action.FINISH_SERVER, _C),
        "CapabilitiesNotice": HandshakeStep(Action.NOTE, _C),
        "RemoteSubscribe": HandshakeStep(Action.LEARN, _C),
        "RemoteUnsubscribe": HandshakeStep(Action.UNLEARN, _C),
        "Disconnect": HandshakeStep(Action.LEAVE, _X),
        "Heartbeat": HandshakeStep(Action.BEAT, _C),
        "WebsocketChannelVerify": HandshakeStep(Action.VERIFY, _C),
        "message": HandshakeStep(Action.DELIVER, _C),
    },
}

_HALFWAY: Final[Mapping[str, HandshakeStep]] = {
    "Disconnect": HandshakeStep(Action.LEAVE, _X),
    "SessionExpired": HandshakeStep(Action.RENEW, _X),
}

_CLIENT: Final[Mapping[FederationState, Mapping[str, HandshakeStep]]] = {
    _A: {
        **_HALFWAY,
        "FinishAssociation": HandshakeStep(Action.ASSOCIATED, _C),
        "RemoteSubscribe": HandshakeStep(Action.LEARN, _A),
        "Heartbeat": HandshakeStep(Action.BEAT, _A),
    },
    _T: {
        **_HALFWAY,
        "FinishAssociation": HandshakeStep(Action.ASSOCIATED, _C),
        "RemoteSubscribe": HandshakeStep(Action.LEARN, _T),
        "CapabilitiesNotice": HandshakeStep(Action.NOTE, _T),
        "FinishStateSync": HandshakeStep(Action.FINISH_CLIENT, _C),
        "Heartbeat": HandshakeStep(Action.BEAT, _T),
        "SessionExpired": HandshakeStep(Action.FALL_BACK, _Q),  # what a server until 2.3 says of Associate over HTTP
        "nothing": HandshakeStep(Action.FALL_BACK, _Q),
        "silence": HandshakeStep(Action.FALL_BACK, _Q),
        "unknown": HandshakeStep(Action.FALL_BACK, _Q),
    },
    _Q: {
        **_HALFWAY,
        "FinishAssociation": HandshakeStep(Action.ASSOCIATED, _C),
        "RemoteSubscribe": HandshakeStep(Action.LEARN, _Q),
        "RemoteUnsubscribe": HandshakeStep(Action.UNLEARN, _Q),
        "CapabilitiesNotice": HandshakeStep(Action.NOTE, _Q),
        "FinishStateSync": HandshakeStep(Action.FINISH_CLIENT, _C),
        "Heartbeat": HandshakeStep(Action.BEAT, _Q),
    },
    _C: {
        "FinishAssociation": HandshakeStep(Action.IGNORE, _C),
        "FinishStateSync": HandshakeStep(Action.IGNORE, _C),
        "CapabilitiesNotice": HandshakeStep(Action.NOTE, _C),
        "RemoteSubscribe": HandshakeStep(Action.LEARN, _C),
        "RemoteUnsubscribe": HandshakeStep(Action.UNLEARN, _C),
        "Disconnect": HandshakeStep(Action.LEAVE, _X),
        "SessionExpired": HandshakeStep(Action.RENEW, _X),
        "Heartbeat": HandshakeStep(Action.BEAT, _C),
        # The transport has read these two.
        "WebsocketChannelOpen": HandshakeStep(Action.IGNORE, _C),
        "WebsocketNegotiationFailed": HandshakeStep(Action.IGNORE, _C),
        "message": HandshakeStep(Action.DELIVER, _C),
    },
}
_TABLES: Final[Mapping[Role, Mapping[FederationState, Mapping[str, HandshakeStep]]]] = {"server": _SERVER, "client": _CLIENT}

_OTHER_DIALECT: Final[Mapping[Dialect, frozenset[str]]] = {
    "auto": frozenset(),
    "v3": frozenset(("ConnectToQueue",)),
    "legacy": frozenset(("Associate", "Resend")),
}
"""Verbs that a server of one dialect does not know; as real servers it drops them, so that a client can try the other one."""


def step_of(role: Role, dialect: Dialect, state: FederationState, event: str) -> HandshakeStep:
    """Look up one step. Events that the table does not have are refused, except silence."""
    if state is FederationState.CLOSED or event in ("nothing", "silence"):
        return _TABLES[role].get(state, {}).get(event, HandshakeStep(Action.IGNORE, state))
    if role == "server" and event in _OTHER_DIALECT[dialect]:
        return HandshakeStep(Action.REFUSE, state)
    return _TABLES[role].get(state, {}).get(event, HandshakeStep(Action.REFUSE, state))
