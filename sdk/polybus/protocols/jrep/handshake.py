"""Tables of the handshakes: the action of each event in each state, and the state that follows. All transitions stand here.

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
