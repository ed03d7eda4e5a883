"""Federation of two buses: its state, transition tables and commands (document, "Bus Management and Handshaking").

The tables list the action for each event in each state, and `ACTIONS` maps each action to a function. Each role has one table
that covers both dialects; `docs/reference/jrep.md` describes them. If the dialect is ``auto``, a server chooses it by the first
verb that it receives. A client begins with Associate, and sends ConnectToQueue if the answer is empty or does not arrive.
"""

from __future__ import annotations

import enum
import random
import string
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

from attrs import define, field

from ...errors import Forbidden, RemoteProtocolError, Unauthorized
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities, CloseWanted, Ready, Refused, Role, SessionEvent
from .._shared import refusal
from . import names
from .names import WIRE_RULES, check_subject, is_reserved, names_an_answer, refuse, service_of, subjects_of, text_of
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


VERBS: Final = tuple(
    "Associate FinishAssociation ConnectToQueue CapabilitiesNotice FinishStateSync RemoteSubscribe RemoteUnsubscribe "
    "Disconnect SessionExpired Heartbeat Resend WebsocketChannelVerify WebsocketChannelOpen WebsocketNegotiationFailed".split()
)

_FIRST: Final[Mapping[Dialect, FederationState]] = {
    "auto": FederationState.TRYING,
    "v3": FederationState.ASSOCIATING,
    "legacy": FederationState.QUEUEING,
}
"""A client's first state."""

# Events besides verbs: "unknown" (any other verb), "message", "nothing" (an empty payload), "silence" (a client's timeout).
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


def _cells(table: str) -> Mapping[tuple[FederationState, str], str]:
    states, *rows = [line.split() for line in table.strip().splitlines()]
    return {
        (FederationState(state), event): action
        for event, *actions in rows
        for state, action in zip(states, actions, strict=True)
        if action != "-"
    }


_TABLES: Final = {"server": _cells(_SERVER), "client": _cells(_CLIENT)}
_THEN: Final[Mapping[str, FederationState]] = {
    **dict.fromkeys(("violate", "leave", "renew"), FederationState.CLOSED),
    **dict.fromkeys(("associate", "associated", "finish_server", "finish_client"), FederationState.CONNECTED),
    "greet": FederationState.SYNCING,
    "fall_back": FederationState.QUEUEING,
}
"""Actions that lead to another state. The CONNECTED state lasts until the connection closes."""

_OTHER_DIALECT: Final = {"auto": (), "v3": ("ConnectToQueue",), "legacy": ("Associate", "Resend")}
"""Verbs of the other dialect. Like real servers, a server drops them, so that a client tries its other dialect."""


def step_of(role: Role, dialect: Dialect, state: FederationState, event: str) -> tuple[str, FederationState]:
    """Return an event's action and the next state. Events outside the table are rejected, except silence and empty payloads."""
    ignored = state is FederationState.CLOSED or event in ("nothing", "silence")
    action = _TABLES[role].get((state, event), "ignore" if ignored else "refuse")
    if role == "server" and not ignored and event in _OTHER_DIALECT[dialect]:
        action = "refuse"
    then = _THEN.get(action, state)
    if state is FederationState.CONNECTED and then is not FederationState.CLOSED:
        then = state
    return action, then


_ALPHABET: Final = string.ascii_letters + string.digits
_TOKEN_LENGTH: Final = 12  # 62^12: 71 bits, so that reply subjects cannot be guessed
_TO_POLYBUS: Final = Capabilities(bare_headers=False, shared_publish=True, announce="client")
"""Options for a polybus peer, also used until the peer is known."""
_TO_BARE: Final = Capabilities(bare_headers=False, shared_publish=True, announce="both", handlers=True, extensions=False)
"""An Errai client sends only to announced subjects and does not distinguish handlers from subscribers."""


@define(eq=False)
class Federation:
    """The federation with the peer's bus: its state, the subjects that each side receives, and pending output."""

    writer: MessageWriter
    role: Role
    dialect: Dialect
    limits: Limits
    rng: random.Random
    heartbeat: float  # Seconds between this side's Heartbeat messages; 0 for none
    state: FederationState = field(init=False)
    own_bus: str = field(init=False)
    other_bus: str = field(init=False)
    capabilities: Capabilities = field(default=_TO_POLYBUS, init=False)
    ours: bool = field(default=False, init=False)
    ready: bool = field(default=False, init=False)
    renewing: bool = field(default=False, init=False)
    answers_announced: bool = field(default=False, init=False)
    """True if the peer sends answers only to announced subjects, as Errai clients and Errai servers up to 2.3 do."""
    greeting: str | None = field(default=None, init=False)
    """Verb of the pending handshake answer, which is written after all announcements."""
    offers: Mapping[str, str] | None = field(default=None, init=False)
    """FinishAssociation parts from the transport. They are attached to the payload of a client that associates."""
    announced: dict[str, set[str]] = field(factory=dict, init=False)
    wanted: dict[str, None] = field(factory=dict, init=False)
    withdrawn: dict[str, int] = field(factory=dict, init=False)
    """Withdrawn services, with the number of confirmations still expected from an Errai client."""
    documents: list[bytes] = field(factory=list, init=False)
    events: list[Message | SessionEvent] = field(factory=list, init=False)
    due: float | None = field(default=None, init=False)
    heard: float = field(default=0.0, init=False)
    silence: float | None = field(default=None, init=False)
    """Seconds without a payload that are allowed by the peer's heartbeat."""
    missed: float | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.own_bus, self.other_bus, self.state = names.SERVER_BUS, names.CLIENT_BUS, FederationState.LISTENING
        if self.role == "client":
            self.own_bus, self.other_bus, self.state = names.CLIENT_BUS, names.SERVER_BUS, _FIRST[self.dialect]

    def token(self) -> str:
        return "".join(self.rng.choices(_ALPHABET, k=_TOKEN_LENGTH))

    def say(self, verb: str, **parts: Any) -> None:
        self.documents.append(self.writer.command(self.other_bus, {"CommandType": verb, **parts}))

    def say_of(self, verb: str, subject: str) -> None:
        self.say(verb, Subject=subject, PriorityProcessing="1")

    def tell_error(self, error: RemoteProtocolError, goal: tuple[str, str | None] | None) -> None:
        """Send an error to a request's (ReplyTo, ErrorTo), or to a client's bus, which expects a Throwable (notes 2, M11)."""
        told = refusal(error, goal or ("", None))
        self.documents.append(self.writer.write(told, told.id))

    def become_ready(self, now: float, legacy: bool = False) -> None:
        self.ready = True
        self.capabilities = _TO_POLYBUS if self.ours else _TO_BARE
        self.answers_announced = not self.ours and (self.role == "server" or legacy)
        self.events.append(Ready(bare=not self.ours))
        self.events.extend(Message(Kind.SUBSCRIBE, subject) for subject in self.wanted)
        self.due = now + self.heartbeat if self.heartbeat else None
        self.missed = now + self.silence if self.silence is not None else None


def verb_of(message: Message) -> str | None:
    verb = message.attributes.get("CommandType") if message.kind is Kind.CONTROL else None
    return verb if isinstance(verb, str) else None


def learn(federation: Federation, message: Message, now: float) -> None:
    subjects = subjects_of(message.attributes, federation.limits.subject, federation.limits.subscriptions)
    if federation.state is FederationState.CONNECTED and federation.role == "server" and not federation.renewing:
        # In the handshake a client lists all its subjects, including its own bus.
        for subject in subjects:
            if is_reserved(subject):
                text = f"{subject[:60]!r} is reserved for the buses: the whole RemoteSubscribe was ignored"
                raise refuse(text, "reserved_subject")
    for subject in subjects:
        add(federation, subject)


def unlearn(federation: Federation, message: Message, now: float) -> None:
    """Handle RemoteUnsubscribe, which may also be an Errai client's confirmation."""
    for subject in subjects_of(message.attributes, federation.limits.subject, federation.limits.subscriptions):
        if names_an_answer(subject):
            continue  # never stored: see `add`
        if subject in federation.wanted:
            remove(federation, subject)
        elif left := federation.withdrawn.pop(subject, 0):  # an Errai client confirms a withdrawal
            if left > 1:
                federation.withdrawn[subject] = left - 1
        else:
            federation.events.append(Refused(refuse(f"{subject[:60]!r} was not subscribed", "not_subscribed")))


def add(federation: Federation, subject: str) -> None:
    if names_an_answer(subject):
        return  # reply subjects need no subscription
    if subject in federation.wanted or is_reserved(subject) or subject.startswith(names.LOCAL_PREFIX):
        return
    if len(federation.wanted) < federation.limits.subscriptions:
        federation.wanted[subject] = None
    if federation.state is FederationState.CONNECTED:
        federation.events.append(Message(Kind.SUBSCRIBE, subject))


def remove(federation: Federation, subject: str) -> None:
    del federation.wanted[subject]
    if federation.state is FederationState.CONNECTED:
        federation.events.append(Message(Kind.UNSUBSCRIBE, subject))


def announce(federation: Federation, message: Message) -> None:
    name = str(message.subject)
    if name == names.CLIENT_BUS_ERRORS and federation.role == "client":
        return  # known to the server
    service = service_of(names.check_local_subject(message.subject, federation.limits.subject))
    behind = federation.announced.get(service)
    if message.kind is Kind.SUBSCRIBE:
        if behind is None:
            behind = federation.announced[service] = set()
            if federation.greeting is None:
                federation.say_of("RemoteSubscribe", service)
        behind.add(name)
    elif behind is not None:
        behind.discard(name)
        if not behind:
            del federation.announced[service]
            withdraw(federation, service)


def withdraw(federation: Federation, service: str) -> None:
    """Withdraw a service unless the client has subscribed to it.

    An Errai client then cancels its *own* subscriptions to the subject and confirms this. It may still send to the subject
    (`ClientMessageBusImpl`).
    """
    if federation.role == "server" and not federation.ours:
        if service in federation.wanted:
            return
        withdrawn = federation.withdrawn
        if service in withdrawn or len(withdrawn) < federation.limits.subscriptions:
            withdrawn[service] = withdrawn.get(service, 0) + 1
    federation.say_of("RemoteUnsubscribe", service)


_REFUSALS: Final[Mapping[int, type[Unauthorized] | type[Forbidden]]] = {4401: Unauthorized, 4403: Forbidden}
_FLAGS: Final = "LongPolling,SSE"
_LEGACY_FLAGS: Final = "NoLongPollAvailable"  # Flags without meaning outside HTTP, which Errai's clients require
_MAX_FLAGS: Final = 4096


def receive_command(federation: Federation, message: Message, now: float) -> None:
    try:
        verb = _verb_for_us(federation, message)
    except RemoteProtocolError as error:
        if message.subject != "":  # a WebSocket negotiation was already refused in its own form
            _complain(federation, error)
        raise
    move(federation, verb if verb in VERBS else "unknown", message, now)


def _verb_for_us(federation: Federation, message: Message) -> str:
    if message.subject not in ("", federation.own_bus):
        text = f"{message.subject} is not this side's bus: a peer cannot speak for it"
        raise refuse(text, "reserved_subject")
    verb = message.attributes.get("CommandType")
    if type(verb) is not str:
        raise refuse("a message to a bus needs a CommandType", "missing_field")
    if message.subject == "":  # the bare object of a WebSocket negotiation, which belongs to the transport
        federation.say("WebsocketNegotiationFailed", ErrorMessage="illegal handshake")
        raise refuse("an Associate without ToSubject: the WebSocket negotiation begins over HTTP", "handshake_order")
    return verb


def move(federation: Federation, event: str, message: Message, now: float) -> None:
    """Make one transition. If the action raises `RemoteProtocolError`, the state is restored."""
    before = federation.state
    action, then = step_of(federation.role, federation.dialect, before, event)
    federation.state = then
    try:
        ACTIONS[action](federation, message, now)
    except RemoteProtocolError as error:
        if federation.state is then and error.close_code is None:
            federation.state = before
        _complain(federation, error)
        raise


def _complain(federation: Federation, error: RemoteProtocolError) -> None:
    """Report a faulty command to the client's bus, because commands have no ErrorTo."""
    if federation.role == "server" and error.close_code is None and error.reason != "session_expired":
        federation.tell_error(error, None)


# -- actions: unexpected events ------------------------------------------------------------------------------------------


def _ignore(federation: Federation, message: Message, now: float) -> None:
    """Do nothing, because the payload is only a sign of life."""


def _refuse(federation: Federation, message: Message, now: float) -> None:
    verb = verb_of(message)
    if verb is not None and verb not in VERBS:
        raise refuse(f"the command {verb[:60]!r} is not known", "unknown_type")
    raise refuse(f"{verb or 'a message'} is not expected while {federation.state.value}", "handshake_order")


def _violate(federation: Federation, message: Message, now: float) -> None:
    raise refuse(f"{verb_of(message)} before any handshake", "handshake_order", None, 1002)


def _expired(federation: Federation, message: Message, now: float) -> None:
    federation.say("SessionExpired")
    raise refuse("no federation: send Associate or ConnectToQueue first", "session_expired")


# -- a server's handshake ------------------------------------------------------------------------------------------------


def _associate(federation: Federation, message: Message, now: float) -> None:
    """Handle Associate, which lists everything that the client can receive. The client may repeat it."""
    services = text_of(message.attributes, "RemoteServices", federation.limits.message)
    if services is None:
        raise refuse("RemoteServices is required: what the client can receive, separated by commas", "missing_field")
    subjects = _services_in(federation, services)
    for subject in subjects:
        check_subject(subject, federation.limits.subject)
    for subject in [one for one in federation.wanted if one not in subjects]:
        remove(federation, subject)
    federation.wanted.clear()  # the rest is reported again, as the bus may not have had space for it
    federation.greeting = "FinishAssociation"
    _recognise(federation, message)
    if not federation.ready:
        federation.become_ready(now)
    for subject in subjects:
        add(federation, subject)


def _greet(federation: Federation, message: Message, now: float) -> None:
    """Handle ConnectToQueue. A client that repeats it also lists all its subjects again."""
    federation.renewing = federation.ready
    if federation.ready:
        for subject in list(federation.wanted):
            remove(federation, subject)
    _recognise(federation, message)
    federation.greeting = "FinishStateSync"


def _finish_server(federation: Federation, message: Message, now: float) -> None:
    federation.renewing = False
    if not federation.ready:
        federation.become_ready(now)


def finish_greeting(federation: Federation) -> None:
    verb, federation.greeting = federation.greeting, None
    waiting, federation.documents = federation.documents, []
    own = names.OWN["server"]
    if verb == "FinishAssociation":
        named = [name for name in federation.announced if "," not in name]
        offers = {"ConnectionSessionKey": federation.token(), "CapabilitiesFlags": _FLAGS, **(federation.offers or {})}
        federation.say(verb, RemoteServices=",".join((*own, *named)), Polybus="1", **offers)
        for name in federation.announced:
            if "," in name:
                federation.say_of("RemoteSubscribe", name)
    else:
        federation.say("RemoteSubscribe", SubjectsList=[*own, *federation.announced])
        flags = _LEGACY_FLAGS if federation.offers is None else "LongPollAvailable"
        federation.say("CapabilitiesNotice", CapabilitiesFlags=flags, Polybus="1")
        federation.say("FinishStateSync", ConnectionSessionKey=federation.token())
    federation.documents.extend(waiting)


def _recognise(federation: Federation, message: Message) -> None:
    if message.attributes.get("Polybus") is not None:
        federation.ours = True


# -- a client's handshake ------------------------------------------------------------------------------------------------


def begin(federation: Federation, legacy: bool) -> None:
    if legacy:
        federation.say("ConnectToQueue", PriorityProcessing="1", Polybus="1")
    else:
        federation.say("Associate", PriorityProcessing="1", RemoteServices=",".join(names.OWN["client"]), Polybus="1")


def _associated(federation: Federation, message: Message, now: float) -> None:
    """Handle FinishAssociation, the server's only answer."""
    _recognise(federation, message)
    _note(federation, message, now)
    federation.become_ready(now)
    services = text_of(message.attributes, "RemoteServices", federation.limits.message)
    for name in _services_in(federation, services or ""):
        add(federation, name)


def _services_in(federation: Federation, text: str) -> dict[str, None]:
    """Return the distinct names in a handshake: a few more than the bus can store, so that it reports the excess."""
    most = federation.limits.subscriptions + 2 * len(names.RESERVED)
    return dict.fromkeys(islice(dict.fromkeys(names.services_in(text)), most))


def _finish_client(federation: Federation, message: Message, now: float) -> None:
    federation.say("RemoteSubscribe", SubjectsList=[*names.OWN["client"], *federation.announced])
    federation.say("FinishStateSync")
    federation.become_ready(now, legacy=True)


def _fall_back(federation: Federation, message: Message, now: float) -> None:
    federation.due = None
    begin(federation, legacy=True)


def _note(federation: Federation, message: Message, now: float) -> None:
    """Handle CapabilitiesNotice and the flags in FinishAssociation."""
    flags = text_of(message.attributes, "CapabilitiesFlags", _MAX_FLAGS)
    if flags is None and verb_of(message) == "CapabilitiesNotice":
        raise refuse("CapabilitiesFlags is required", "missing_field")
    _recognise(federation, message)


# -- actions: the rest ---------------------------------------------------------------------------------------------------


def _verify(federation: Federation, message: Message, now: float) -> None:
    """Handle WebsocketChannelVerify, which the transport has already checked."""
    if federation.offers is None:
        raise refuse("WebsocketChannelVerify, but no WebSocket was offered", "handshake_order")


def _beat(federation: Federation, message: Message, now: float) -> None:
    """Handle Heartbeat. If a polybus peer sends its interval, a longer silence closes the connection."""
    interval = message.attributes.get("PolybusInterval")
    if interval is not None:
        federation.silence = 3 * max(1, WIRE_RULES.read_count(interval, "PolybusInterval", reason="invalid_part")) / 1000
        federation.missed = now + federation.silence


def _leave(federation: Federation, message: Message, now: float) -> None:
    """Handle Disconnect. A polybus peer includes its close code, because some transports cannot carry close codes."""
    reason, code = message.attributes.get("Reason"), message.attributes.get("PolybusCode")
    text = reason[:200] if type(reason) is str and reason else "the peer has left"
    if type(code) is not int or not 1000 <= code <= 4999:
        code = 1000 if federation.role == "server" else 1001
    error = _REFUSALS[code](text) if federation.role == "client" and code in _REFUSALS else None
    federation.events.append(CloseWanted(code, text, error))


def _renew(federation: Federation, message: Message, now: float) -> None:
    """Handle SessionExpired. The link reconnects and announces its subjects again."""
    federation.events.append(CloseWanted(1001, "the session has expired"))


ACTIONS: Final[Mapping[str, Callable[[Federation, Message, float], None]]] = {
    "ignore": _ignore,
    "refuse": _refuse,
    "violate": _violate,
    "expired": _expired,
    "associate": _associate,
    "greet": _greet,
    "finish_server": _finish_server,
    "associated": _associated,
    "finish_client": _finish_client,
    "fall_back": _fall_back,
    "learn": learn,
    "unlearn": unlearn,
    "note": _note,
    "beat": _beat,
    "verify": _verify,
    "leave": _leave,
    "renew": _renew,
    "deliver": _ignore,  # a connected session delivers without the table
}
