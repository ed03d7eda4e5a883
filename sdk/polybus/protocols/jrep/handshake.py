"""Federation of two buses: its state, transition tables and commands (document, "Bus Management and Handshaking").

The tables list the action for each event in each state. An action is a method of `Federation`. Each role has one table that
covers both dialects; `docs/reference/jrep.md` describes them. If the dialect is ``auto``, a server chooses it by the first verb
that it receives. A client begins with Associate, and sends ConnectToQueue if the answer is empty or does not arrive.
"""

from __future__ import annotations

import enum
import random
import string
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from ...errors import Forbidden, RemoteProtocolError, Unauthorized
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities, CloseWanted, Ready, Refused, Role, SessionEvent
from .._shared import refusal
from . import names
from .names import WIRE_RULES, is_reserved, is_unusable, names_an_answer, refuse

if TYPE_CHECKING:
    from .adapter import JrepCodec

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

# Events besides verbs: "unknown" (any other verb), "message" (a connected session delivers it without the table), "nothing" (an
# empty payload), "silence" (a client's timeout).
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
message                     expired         -               -
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
    action = _TABLES[role].get((state, event), "ignore" if ignored else "reject")
    if role == "server" and not ignored and event in _OTHER_DIALECT[dialect]:
        action = "reject"
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
_REFUSALS: Final[Mapping[int, type[Unauthorized] | type[Forbidden]]] = {4401: Unauthorized, 4403: Forbidden}
_FLAGS: Final = "LongPolling,SSE"
_LEGACY_FLAGS: Final = "NoLongPollAvailable"  # Flags without meaning outside HTTP, which Errai's clients require
_MAX_FLAGS: Final = 4096


class Federation:
    """The federation with the peer's bus: its state, the subjects that each side receives, and pending output."""

    def __init__(
        self, codec: JrepCodec, role: Role, dialect: Dialect, limits: Limits, rng: random.Random, heartbeat: float
    ) -> None:
        self.codec: Final = codec
        self._write = codec.writer.write
        self.role: Final[Role] = role
        self._dialect: Final[Dialect] = dialect
        self._limits = limits
        self._rng = rng
        self._heartbeat = heartbeat
        """Seconds between this side's Heartbeat messages; 0 for none."""
        server = role == "server"
        self.state: FederationState = FederationState.LISTENING if server else _FIRST[dialect]
        self._own_bus, self._other_bus = (
            (names.SERVER_BUS, names.CLIENT_BUS) if server else (names.CLIENT_BUS, names.SERVER_BUS)
        )
        self.capabilities: Capabilities = _TO_POLYBUS
        self.ours: bool = False
        self._ready = False
        self._renewing = False
        self._answers_announced = False
        """True if the peer sends answers only to announced subjects, as Errai clients and Errai servers up to 2.3 do."""
        self._greeting: str | None = None
        """Verb of the pending handshake answer, which is written after all announcements."""
        self._offers: Mapping[str, str] | None = None
        """FinishAssociation parts from the transport. They are attached to the payload of a client that associates."""
        self._announced: dict[str, set[str]] = {}
        self.wanted: dict[str, None] = {}
        self._withdrawn: dict[str, int] = {}
        """Withdrawn services, with the number of confirmations still expected from an Errai client."""
        self._documents: list[bytes] = []
        self._events: list[Message | SessionEvent] = []
        self._due: float | None = None
        self._heard = 0.0
        self._silence: float | None = None
        """Seconds without a payload that are allowed by the peer's heartbeat."""
        self._missed: float | None = None

    def _token(self) -> str:
        return "".join(self._rng.choices(_ALPHABET, k=_TOKEN_LENGTH))

    def _say(self, verb: str, **parts: Any) -> None:
        self._documents.append(self.codec.writer.command(self._other_bus, {"CommandType": verb, **parts}))

    def _say_of(self, verb: str, subject: str) -> None:
        self._say(verb, Subject=subject, PriorityProcessing="1")

    def _tell_error(self, error: RemoteProtocolError, goal: tuple[str, str | None] | None) -> None:
        """Send an error to a request's (ReplyTo, ErrorTo), or to a client's bus, which expects a Throwable (notes 2, M11)."""
        told = refusal(error, goal or ("", None))
        self._documents.append(self._write(told, told.id))

    def _become_ready(self, now: float, legacy: bool = False) -> None:
        self._ready = True
        self.capabilities = _TO_POLYBUS if self.ours else _TO_BARE
        self._answers_announced = not self.ours and (self.role == "server" or legacy)
        self._events.append(Ready(bare=not self.ours))
        self._events.extend(Message(Kind.SUBSCRIBE, subject) for subject in self.wanted)
        self._due = now + self._heartbeat if self._heartbeat else None
        self._missed = now + self._silence if self._silence is not None else None

    # -- commands --------------------------------------------------------------------------------------------------------

    def _command(self, message: Message, now: float) -> None:
        try:
            verb = self._verb_for_us(message)
        except RemoteProtocolError as error:
            if message.subject != "":  # a WebSocket negotiation was already refused in its own form
                self._complain(error)
            raise
        self._move(verb if verb in VERBS else "unknown", message, now)

    def _verb_for_us(self, message: Message) -> str:
        if message.subject not in ("", self._own_bus):
            text = f"{message.subject} is not this side's bus: a peer cannot speak for it"
            raise refuse(text, "reserved_subject")
        verb = message.attributes.get("CommandType")
        if type(verb) is not str:
            raise refuse("a message to a bus needs a CommandType", "missing_field")
        if message.subject == "":  # the bare object of a WebSocket negotiation, which belongs to the transport
            self._say("WebsocketNegotiationFailed", ErrorMessage="illegal handshake")
            raise refuse("an Associate without ToSubject: the WebSocket negotiation begins over HTTP", "handshake_order")
        return verb

    def _move(self, event: str, message: Message, now: float) -> None:
        """Make one transition. If the action raises `RemoteProtocolError`, the state is restored."""
        before = self.state
        action, then = step_of(self.role, self._dialect, before, event)
        self.state = then
        try:
            getattr(self, action)(message, now)
        except RemoteProtocolError as error:
            if self.state is then and error.close_code is None:
                self.state = before
            self._complain(error)
            raise

    def _complain(self, error: RemoteProtocolError) -> None:
        """Report a faulty command to the client's bus, because commands have no ErrorTo."""
        if self.role == "server" and error.close_code is None and error.reason != "session_expired":
            self._tell_error(error, None)

    # -- subjects --------------------------------------------------------------------------------------------------------

    def learn(self, message: Message, now: float) -> None:
        subjects = names.subjects_of(message.attributes, self._limits.subject, self._limits.subscriptions)
        if self.state is FederationState.CONNECTED and self.role == "server" and not self._renewing:
            # In the handshake a client lists all its subjects, including its own bus.
            for subject in subjects:
                if is_reserved(subject):
                    text = f"{subject[:60]!r} is reserved for the buses: the whole RemoteSubscribe was ignored"
                    raise refuse(text, "reserved_subject")
        for subject in subjects:
            self._add(subject)

    def unlearn(self, message: Message, now: float) -> None:
        """Handle RemoteUnsubscribe, which may also be an Errai client's confirmation."""
        for subject in names.subjects_of(message.attributes, self._limits.subject, self._limits.subscriptions):
            if names_an_answer(subject):
                continue  # never stored: see `_add`
            if subject in self.wanted:
                self._remove(subject)
            elif left := self._withdrawn.pop(subject, 0):  # an Errai client confirms a withdrawal
                if left > 1:
                    self._withdrawn[subject] = left - 1
            else:
                self._events.append(Refused(refuse(f"{subject[:60]!r} was not subscribed", "not_subscribed")))

    def _add(self, subject: str) -> None:
        # Reply subjects need no subscription.
        if subject in self.wanted or is_unusable(subject) or subject.startswith(names.LOCAL_PREFIX):
            return
        if len(self.wanted) < self._limits.subscriptions:
            self.wanted[subject] = None
        if self.state is FederationState.CONNECTED:
            self._events.append(Message(Kind.SUBSCRIBE, subject))

    def _remove(self, subject: str) -> None:
        del self.wanted[subject]
        if self.state is FederationState.CONNECTED:
            self._events.append(Message(Kind.UNSUBSCRIBE, subject))

    def _announce(self, message: Message) -> None:
        name = str(message.subject)
        if name == names.CLIENT_BUS_ERRORS and self.role == "client":
            return  # known to the server
        service = names.service_of(names.check_local_subject(message.subject, self._limits.subject))
        behind = self._announced.get(service)
        if message.kind is Kind.SUBSCRIBE:
            if behind is None:
                behind = self._announced[service] = set()
                if self._greeting is None:
                    self._say_of("RemoteSubscribe", service)
            behind.add(name)
        elif behind is not None:
            behind.discard(name)
            if not behind:
                del self._announced[service]
                self._withdraw(service)

    def _withdraw(self, service: str) -> None:
        """Withdraw a service unless the client has subscribed to it.

        An Errai client then cancels its *own* subscriptions to the subject and confirms this. It may still send to the subject
        (`ClientMessageBusImpl`).
        """
        if self.role == "server" and not self.ours:
            if service in self.wanted:
                return
            withdrawn = self._withdrawn
            if service in withdrawn or len(withdrawn) < self._limits.subscriptions:
                withdrawn[service] = withdrawn.get(service, 0) + 1
        self._say_of("RemoteUnsubscribe", service)

    # -- a server's handshake --------------------------------------------------------------------------------------------

    def associate(self, message: Message, now: float) -> None:
        """Handle Associate, which lists everything that the client can receive. The client may repeat it."""
        services = names.text_of(message.attributes, "RemoteServices", self._limits.message)
        if services is None:
            raise refuse("RemoteServices is required: what the client can receive, separated by commas", "missing_field")
        subjects = self._services_in(services)
        for subject in subjects:
            names.check_subject(subject, self._limits.subject)
        for subject in [one for one in self.wanted if one not in subjects]:
            self._remove(subject)
        self.wanted.clear()  # the rest is reported again, as the bus may not have had space for it
        self._greeting = "FinishAssociation"
        self._recognise(message)
        if not self._ready:
            self._become_ready(now)
        for subject in subjects:
            self._add(subject)

    def greet(self, message: Message, now: float) -> None:
        """Handle ConnectToQueue. A client that repeats it also lists all its subjects again."""
        self._renewing = self._ready
        if self._ready:
            for subject in list(self.wanted):
                self._remove(subject)
        self._recognise(message)
        self._greeting = "FinishStateSync"

    def finish_server(self, message: Message, now: float) -> None:
        self._renewing = False
        if not self._ready:
            self._become_ready(now)

    def _finish_greeting(self) -> None:
        verb, self._greeting = self._greeting, None
        waiting, self._documents = self._documents, []
        own = names.OWN["server"]
        if verb == "FinishAssociation":
            named = [name for name in self._announced if "," not in name]
            offers = {"ConnectionSessionKey": self._token(), "CapabilitiesFlags": _FLAGS, **(self._offers or {})}
            self._say(verb, RemoteServices=",".join((*own, *named)), Polybus="1", **offers)
            for name in self._announced:
                if "," in name:
                    self._say_of("RemoteSubscribe", name)
        else:
            self._say("RemoteSubscribe", SubjectsList=[*own, *self._announced])
            flags = _LEGACY_FLAGS if self._offers is None else "LongPollAvailable"
            self._say("CapabilitiesNotice", CapabilitiesFlags=flags, Polybus="1")
            self._say("FinishStateSync", ConnectionSessionKey=self._token())
        self._documents.extend(waiting)

    def _recognise(self, message: Message) -> None:
        if message.attributes.get("Polybus") is not None:
            self.ours = True

    # -- a client's handshake --------------------------------------------------------------------------------------------

    def _begin(self, legacy: bool) -> None:
        if legacy:
            self._say("ConnectToQueue", PriorityProcessing="1", Polybus="1")
        else:
            self._say("Associate", PriorityProcessing="1", RemoteServices=",".join(names.OWN["client"]), Polybus="1")

    def associated(self, message: Message, now: float) -> None:
        """Handle FinishAssociation, the server's only answer."""
        self._recognise(message)
        self.note(message, now)
        self._become_ready(now)
        for name in self._services_in(names.text_of(message.attributes, "RemoteServices", self._limits.message) or ""):
            self._add(name)

    def _services_in(self, text: str) -> dict[str, None]:
        """Return the distinct names in a handshake: a few more than the bus can store, so that it reports the excess."""
        most = self._limits.subscriptions + 2 * len(names.RESERVED)
        return dict.fromkeys(islice(dict.fromkeys(names.services_in(text)), most))

    def finish_client(self, message: Message, now: float) -> None:
        self._say("RemoteSubscribe", SubjectsList=[*names.OWN["client"], *self._announced])
        self._say("FinishStateSync")
        self._become_ready(now, legacy=True)

    def fall_back(self, message: Message, now: float) -> None:
        self._due = None
        self._begin(legacy=True)

    def note(self, message: Message, now: float) -> None:
        """Handle CapabilitiesNotice and the flags in FinishAssociation."""
        flags = names.text_of(message.attributes, "CapabilitiesFlags", _MAX_FLAGS)
        if flags is None and verb_of(message) == "CapabilitiesNotice":
            raise refuse("CapabilitiesFlags is required", "missing_field")
        self._recognise(message)

    # -- the other actions -----------------------------------------------------------------------------------------------

    def ignore(self, message: Message, now: float) -> None:
        """Do nothing, because the payload is only a sign of life."""

    def reject(self, message: Message, now: float) -> None:
        verb = verb_of(message)
        if verb is not None and verb not in VERBS:
            raise refuse(f"the command {verb[:60]!r} is not known", "unknown_type")
        raise refuse(f"{verb or 'a message'} is not expected while {self.state.value}", "handshake_order")

    def violate(self, message: Message, now: float) -> None:
        raise refuse(f"{verb_of(message)} before any handshake", "handshake_order", None, 1002)

    def expired(self, message: Message, now: float) -> None:
        self._say("SessionExpired")
        raise refuse("no federation: send Associate or ConnectToQueue first", "session_expired")

    def verify(self, message: Message, now: float) -> None:
        """Handle WebsocketChannelVerify, which the transport has already checked."""
        if self._offers is None:
            raise refuse("WebsocketChannelVerify, but no WebSocket was offered", "handshake_order")

    def beat(self, message: Message, now: float) -> None:
        """Handle Heartbeat. If a polybus peer sends its interval, a longer silence closes the connection."""
        interval = message.attributes.get("PolybusInterval")
        if interval is not None:
            self._silence = 3 * max(1, WIRE_RULES.read_count(interval, "PolybusInterval", reason="invalid_part")) / 1000
            self._missed = now + self._silence

    def leave(self, message: Message, now: float) -> None:
        """Handle Disconnect. A polybus peer includes its close code, because some transports cannot carry close codes."""
        reason, code = message.attributes.get("Reason"), message.attributes.get("PolybusCode")
        text = reason[:200] if type(reason) is str and reason else "the peer has left"
        if type(code) is not int or not 1000 <= code <= 4999:
            code = 1000 if self.role == "server" else 1001
        error = _REFUSALS[code](text) if self.role == "client" and code in _REFUSALS else None
        self._events.append(CloseWanted(code, text, error))

    def renew(self, message: Message, now: float) -> None:
        """Handle SessionExpired. The link reconnects and announces its subjects again."""
        self._events.append(CloseWanted(1001, "the session has expired"))


def verb_of(message: Message) -> str | None:
    verb = message.attributes.get("CommandType") if message.kind is Kind.CONTROL else None
    return verb if isinstance(verb, str) else None
