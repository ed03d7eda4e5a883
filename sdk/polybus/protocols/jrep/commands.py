"""Commands between two buses: handshake, subscriptions, heartbeat, goodbye (document, "Bus Management and Handshaking").

Each moves the federation by the tables in `handshake`; `_ACTIONS` has the function of each action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ...errors import Forbidden, RemoteProtocolError, Unauthorized
from ...message import Message
from ...plugins import CloseWanted
from . import handshake_flows as flows
from . import subscriptions
from .federation import Federation, verb_of
from .handshake import VERBS, Action, FederationState, step_of
from .messages.checks import count_of, refuse

_REFUSALS: Final[Mapping[int, type[Unauthorized] | type[Forbidden]]] = {4401: Unauthorized, 4403: Forbidden}
_PATIENCE: Final = 1.0
"""Seconds of silence after Associate before a client tries the older dialect."""


def start(federation: Federation, now: float) -> None:
    """Begin: the connection is there, and a client says its first word."""
    federation.heard = now
    if federation.role == "client":
        flows.begin(federation, legacy=federation.state is FederationState.QUEUEING)
        if federation.state is FederationState.TRYING:
            federation.due = now + _PATIENCE


def receive(federation: Federation, message: Message, now: float) -> None:
    """Take a command. May raise `RemoteProtocolError`: it is not for this bus, lacks something, or cannot come now."""
    try:
        verb = _verb_for_us(federation, message)
    except RemoteProtocolError as error:
        if message.subject != "":  # who negotiates a WebSocket has been told in its own words
            _complain(federation, error)
        raise
    move(federation, verb if verb in VERBS else "unknown", message, now)


def _verb_for_us(federation: Federation, message: Message) -> str:
    """May raise `RemoteProtocolError`: it is not for this bus, or lacks something."""
    if message.subject not in ("", federation.own_bus):
        text = f"{message.subject} is not this side's bus: a peer cannot speak for it"
        raise refuse(text, "reserved_subject")
    verb = message.attributes.get("CommandType")
    if type(verb) is not str:
        raise refuse("a message to a bus needs a CommandType", "missing_part")
    if message.subject == "":  # the bare object of a WebSocket negotiation, which is the transport's
        federation.say("WebsocketNegotiationFailed", ErrorMessage="illegal handshake")
        raise refuse("an Associate without ToSubject: the WebSocket negotiation begins over HTTP", "handshake_order")
    return verb


def move(federation: Federation, event: str, message: Message | None, now: float) -> None:
    """Make one step of the table. The state changes first, unless this raises `RemoteProtocolError`."""
    before = federation.state
    step = step_of(federation.role, federation.dialect, before, event)
    federation.state = step.then
    try:
        _ACTIONS[step.action](federation, message, now)
    except RemoteProtocolError as error:
        if federation.state is step.then and error.close_code is None:
            federation.state = before
        _complain(federation, error)
        raise


def _complain(federation: Federation, error: RemoteProtocolError) -> None:
    """Tell a client's bus what was wrong with a command; commands have no ErrorTo."""
    if federation.role == "server" and error.close_code is None and error.reason != "session_expired":
        federation.tell_error(error, None)


# -- actions: what is not expected ---------------------------------------------------------------------------------------


def _ignore(federation: Federation, message: Message | None, now: float) -> None:
    """Do nothing."""


def _refuse(federation: Federation, message: Message | None, now: float) -> None:
    """Raise `RemoteProtocolError` always."""
    verb = verb_of(message)
    if verb is not None and verb not in VERBS:
        raise refuse(f"the command {verb[:60]!r} is not known", "unknown_verb")
    raise refuse(f"{verb or 'a message'} is not expected while {federation.state.value}", "handshake_order")


def _violate(federation: Federation, message: Message | None, now: float) -> None:
    """Raise `RemoteProtocolError` always; it ends the connection."""
    raise refuse(f"{verb_of(message)} before any handshake", "handshake_order", None, 1002)


def _expired(federation: Federation, message: Message | None, now: float) -> None:
    """Raise `RemoteProtocolError` always: the peer has to associate again (document, "SessionExpired")."""
    federation.say("SessionExpired")
    raise refuse("no federation: Associate or ConnectToQueue comes first", "session_expired")


# -- actions: the rest ---------------------------------------------------------------------------------------------------


def _verify(federation: Federation, message: Message | None, now: float) -> None:
    """WebsocketChannelVerify: the transport has looked at it. May raise `RemoteProtocolError`: none was offered."""
    if federation.offers is None:
        raise refuse("WebsocketChannelVerify, but no WebSocket was offered", "handshake_order")


def _beat(federation: Federation, message: Message | None, now: float) -> None:
    """Heartbeat. One of ours says how often it beats, and is held to that."""
    interval = message.attributes.get("PolybusInterval") if message is not None else None
    if interval is not None:
        federation.silence = 3 * max(1, count_of(interval, "PolybusInterval")) / 1000
        federation.missed = now + federation.silence


def _leave(federation: Federation, message: Message | None, now: float) -> None:
    """Disconnect. One of ours says the code with which its connection ends, which not every transport can."""
    parts = message.attributes if message is not None else {}
    reason, code = parts.get("Reason"), parts.get("PolybusCode")
    text = reason[:200] if type(reason) is str and reason else "the peer has left"
    if type(code) is not int or not 1000 <= code <= 4999:
        code = 1000 if federation.role == "server" else 1001
    error = _REFUSALS[code](text) if federation.role == "client" and code in _REFUSALS else None
    federation.events.append(CloseWanted(code, text, error))


def _renew(federation: Federation, message: Message | None, now: float) -> None:
    """SessionExpired: the link is made anew, with all that it had announced."""
    federation.events.append(CloseWanted(1001, "the session has expired"))


def close(federation: Federation, code: int, reason: str) -> None:
    """Queue the goodbye."""
    if federation.state in (FederationState.CONNECTED, FederationState.SYNCING, FederationState.QUEUEING):
        parts = {"PolybusCode": code} if federation.ours else {}
        federation.say("Disconnect", Reason=reason, **parts)
    federation.state = FederationState.CLOSED


_ACTIONS: Final[Mapping[Action, Callable[[Federation, Message | None, float], None]]] = {
    Action.IGNORE: _ignore,
    Action.REFUSE: _refuse,
    Action.VIOLATE: _violate,
    Action.EXPIRED: _expired,
    Action.ASSOCIATE: flows.associate,
    Action.GREET: flows.greet,
    Action.FINISH_SERVER: flows.finish_server,
    Action.ASSOCIATED: flows.associated,
    Action.FINISH_CLIENT: flows.finish_client,
    Action.FALL_BACK: flows.fall_back,
    Action.LEARN: subscriptions.learn,
    Action.UNLEARN: subscriptions.unlearn,
    Action.NOTE: flows.note,
    Action.BEAT: _beat,
    Action.VERIFY: _verify,
    Action.LEAVE: _leave,
    Action.RENEW: _renew,
    Action.DELIVER: _ignore,  # a connected session does so itself, without the table
}

# -- time ----------------------------------------------------------------------------------------------------------------


def next_tick(federation: Federation) -> float | None:
    """Time to fall back, to beat, or to miss the peer's heartbeat."""
    if federation.missed is None or (federation.due is not None and federation.due < federation.missed):
        return federation.due
    return federation.missed


def tick(federation: Federation, now: float) -> None:
    """Fall back, beat, or end a connection whose peer has stopped to beat."""
    if federation.state is not FederationState.CONNECTED:
        federation.due = federation.missed = None
        move(federation, "silence", None, now)
        return
    if federation.missed is not None and federation.silence is not None and now >= federation.missed:
        federation.missed = federation.heard + federation.silence
        if now >= federation.missed:
            federation.state, federation.due, federation.missed = FederationState.CLOSED, None, None
            federation.events.append(CloseWanted(1006, "no heartbeat for too long"))
            return
    if federation.due is not None and now >= federation.due:
        federation.say("Heartbeat", PolybusInterval=round(federation.heartbeat * 1000))
        federation.due = now + federation.heartbeat
