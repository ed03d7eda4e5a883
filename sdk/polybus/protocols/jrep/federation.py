"""What the verbs between two buses do: handshake, subjects, heartbeat, goodbye (document, "Bus Management and Handshaking")."""

from __future__ import annotations

import random
import string
from collections.abc import Mapping
from typing import Any, Final

from ...errors import Forbidden, RemoteProtocolError, Unauthorized
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities, CloseWanted, Ready, Role
from .checks import check_subject, count_of, refuse, text_of
from .handshake import FIRST, VERBS, Dialect, State, step_of
from .message_writer import MessageWriter
from .names import CLIENT_BUS, CLIENT_BUS_ERRORS, ECHO_SERVICE, MAX_MESSAGES, SERVER_BUS
from .tables import Tables

__all__ = ["CAPABILITIES", "Federation"]

_ALPHABET: Final = string.ascii_letters + string.digits
_TOKEN_LENGTH: Final = 12  # 62^12: 71 bits, so that nobody guesses where an answer goes
CAPABILITIES: Final = Capabilities(shared_publish=True, announce="client")
"""Towards a bus of ours, and before it is known who is there."""
_TO_BARE: Final = Capabilities(shared_publish=True, announce="both", handlers=True, extensions=False)
"""An Errai client sends only to subjects that it was told of, and to handlers as to any other."""
_OWN: Final[Mapping[Role, tuple[str, ...]]] = {
    "server": (SERVER_BUS, ECHO_SERVICE),
    "client": (CLIENT_BUS, CLIENT_BUS_ERRORS),
}
_FLAGS: Final = "LongPolling,SSE"
_LEGACY_FLAGS: Final = "NoLongPollAvailable"
"""Where there is no HTTP these say nothing, but Errai's clients look for them."""
_MAX_FLAGS: Final = 4096
_REFUSALS: Final[Mapping[int, type[Unauthorized] | type[Forbidden]]] = {4401: Unauthorized, 4403: Forbidden}
_PATIENCE: Final = 1.0
"""Seconds of silence after Associate before a client tries the older dialect."""


class Federation(Tables):
    """What the verbs do with the state of a federation; `Action` names the methods."""

    __slots__ = (
        "_due",
        "_flags",
        "_heard",
        "_heartbeat",
        "_max_frame",
        "_met",
        "_missed",
        "_most",
        "_offers",
        "_prefix",
        "_rng",
        "_silence",
        "capabilities",
        "dialect",
        "ours",
    )

    state: State  # declared in `Tables`; again here for type checkers, because this half sets it too

    def __init__(
        self, writer: MessageWriter, role: Role, dialect: Dialect, limits: Limits, rng: random.Random, heartbeat: float
    ) -> None:
        super().__init__(writer, role, FIRST[role, dialect], limits)
        self.dialect: Final = dialect
        self.capabilities: Capabilities = CAPABILITIES
        self.ours: bool = False
        """Whether the peer has said that it is a polybus."""
        self._max_frame = limits.message
        self._most = MAX_MESSAGES
        self._met = False
        """Whether the link has been told that it is up."""
        self._rng = rng
        self._prefix = "".join(rng.choices(_ALPHABET, k=_TOKEN_LENGTH)) + "-"
        self._flags = ""
        self._heartbeat = heartbeat
        self._silence: float | None = None
        """Seconds without a word that the peer's own heartbeat allows."""
        self._heard = 0.0
        self._due: float | None = None
        """When to fall back, or to beat."""
        self._offers: Mapping[str, str] | None = None
        """Of the transport, for a client that associates: parts of FinishAssociation. It marks the payload with them."""
        self._missed: float | None = None
        """When to look whether the peer's heartbeat is missing."""

    # -- moving ----------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """The connection is there: a client says its first word."""
        self._heard = now
        if self.role == "client":
            if self.state is State.QUEUEING:
                self._say("ConnectToQueue", PriorityProcessing="1", Polybus="1")
            else:
                names = ",".join(_OWN["client"])
                self._say("Associate", PriorityProcessing="1", RemoteServices=names, Polybus="1")
            if self.state is State.TRYING:
                self._due = now + _PATIENCE

    def _command(self, message: Message, now: float) -> None:
        """
        Raises:
            RemoteProtocolError: It is not for this bus, or lacks something.
        """
        try:
            verb = self._verb_for_us(message)
        except RemoteProtocolError as error:
            if message.subject != "":  # who negotiates a WebSocket has been told in its own words
                self._complain(error)
            raise
        self._moved(verb if verb in VERBS else "unknown", message, now)

    def _verb_for_us(self, message: Message) -> str:
        """
        Raises:
            RemoteProtocolError: It is not for this bus, or lacks something.
        """
        if message.subject not in ("", self._own_bus):
            text = f"{message.subject} is not this side's bus: a peer cannot speak for it"
            raise refuse(text, "reserved_subject")
        verb = message.attributes.get("CommandType")
        if type(verb) is not str:
            raise refuse("a message to a bus needs a CommandType", "missing_part")
        if message.subject == "":  # the bare object of a WebSocket negotiation, which is the transport's
            self._say("WebsocketNegotiationFailed", ErrorMessage="illegal handshake")
            raise refuse("an Associate without ToSubject: the WebSocket negotiation begins over HTTP", "handshake_order")
        return verb

    @property
    def _own_bus(self) -> str:
        return CLIENT_BUS if self.role == "client" else SERVER_BUS

    def _moved(self, event: str, message: Message | None, now: float) -> None:
        """One step of the table. The state changes first, unless the action finds something wrong."""
        before = self.state
        step = step_of(self.role, self.dialect, before, event)
        self.state = step.then
        try:
            getattr(self, step.action.value)(message, now)
        except RemoteProtocolError as error:
            if self.state is step.then and error.close_code is None:
                self.state = before
            self._complain(error)
            raise

    def _complain(self, error: RemoteProtocolError) -> None:
        """Tell a client's bus what was wrong with a command; commands have no ErrorTo."""
        if self.role == "server" and error.close_code is None and error.reason != "session_expired":
            parts = {"ErrorMessage": error.text, "AdditionalDetails": error.reason}
            self._documents.append(self._writer.command(CLIENT_BUS_ERRORS, parts))

    # -- actions: what is not expected -----------------------------------------------------------------------------------

    def ignore(self, message: Message | None, now: float) -> None:
        """Nothing."""

    def refuse(self, message: Message | None, now: float) -> None:
        """
        Raises:
            RemoteProtocolError: Always.
        """
        verb = _verb_of(message)
        if verb is not None and verb not in VERBS:
            raise refuse(f"the command {verb[:60]!r} is not known", "unknown_verb")
        raise refuse(f"{verb or 'a message'} is not expected while {self.state.value}", "handshake_order")

    def violate(self, message: Message | None, now: float) -> None:
        """
        Raises:
            RemoteProtocolError: Always; it ends the connection.
        """
        raise refuse(f"{_verb_of(message)} before any handshake", "handshake_order", None, 1002)

    def expired(self, message: Message | None, now: float) -> None:
        """Somebody goes on as if there were a federation: it has to associate again (document, "SessionExpired").

        Raises:
            RemoteProtocolError: Always.
        """
        self._say("SessionExpired")
        raise refuse("no federation: Associate or ConnectToQueue comes first", "session_expired")

    # -- actions: a server's handshake -----------------------------------------------------------------------------------

    def associate(self, message: Message | None, now: float) -> None:
        """Associate, or another one: the client tells anew all that it can receive.

        Raises:
            RemoteProtocolError: RemoteServices is missing, or is none.
        """
        assert message is not None
        services = text_of(message.attributes, "RemoteServices", self._limits.message)
        if services is None:
            raise refuse("RemoteServices is required: what the client can receive, separated by commas", "missing_part")
        subjects = [name for name in (part.strip() for part in services.split(",")) if name]
        for subject in subjects:
            check_subject(subject, self._limits.subject)
        for subject in list(self._wants):
            self._unwant(subject)
        self._greeting = "FinishAssociation"
        self._know(message)
        if not self._met:
            self._ready(now)
        for subject in subjects:
            self._want(subject)

    def greet(self, message: Message | None, now: float) -> None:
        """ConnectToQueue."""
        assert message is not None
        self._know(message)
        self._greeting = "FinishStateSync"

    def finish_server(self, message: Message | None, now: float) -> None:
        """The client's FinishStateSync: both have sent it, so the federation is active."""
        self._ready(now)

    def _finish_greeting(self) -> None:
        """Write the answer to a handshake, with all that has been announced meanwhile."""
        verb, self._greeting = self._greeting, None
        waiting, self._documents = self._documents, []
        own = _OWN["server"]
        if verb == "FinishAssociation":
            named = [name for name in self._told if "," not in name]
            key = "".join(self._rng.choices(_ALPHABET, k=_TOKEN_LENGTH))
            offers = {"ConnectionSessionKey": key, "CapabilitiesFlags": _FLAGS, **(self._offers or {})}
            self._say(verb, RemoteServices=",".join((*own, *named)), Polybus="1", **offers)
            for name in self._told:
                if "," in name:
                    self._tell("RemoteSubscribe", name)
        else:
            self._say("RemoteSubscribe", SubjectsList=[*own, *self._told])
            flags = _LEGACY_FLAGS if self._offers is None else "LongPollAvailable"
            self._say("CapabilitiesNotice", CapabilitiesFlags=flags, Polybus="1")
            self._say("FinishStateSync", ConnectionSessionKey="".join(self._rng.choices(_ALPHABET, k=_TOKEN_LENGTH)))
        self._documents.extend(waiting)

    def _know(self, message: Message) -> None:
        if message.attributes.get("Polybus") is not None:
            self.ours = True

    def _ready(self, now: float) -> None:
        self._met = True
        self.capabilities = CAPABILITIES if self.ours else _TO_BARE
        self._events.append(Ready(bare=not self.ours))
        self._events.extend(Message(Kind.SUBSCRIBE, subject) for subject in self._wants)
        self._due = now + self._heartbeat if self._heartbeat else None
        self._missed = now + self._silence if self._silence is not None else None

    # -- actions: a client's handshake -----------------------------------------------------------------------------------

    def associated(self, message: Message | None, now: float) -> None:
        """FinishAssociation: the server's one answer."""
        assert message is not None
        self._know(message)
        self.note(message, now)
        self._ready(now)
        services = text_of(message.attributes, "RemoteServices", self._limits.message)
        for name in (services or "").split(","):
            if name.strip():
                self._want(name.strip())

    def finish_client(self, message: Message | None, now: float) -> None:
        """The server's FinishStateSync; ours follows, behind what this side can receive."""
        self._say("RemoteSubscribe", SubjectsList=[*_OWN["client"], *self._told])
        self._say("FinishStateSync")
        self._ready(now)

    def fall_back(self, message: Message | None, now: float) -> None:
        """Associate was not understood: the older dialect."""
        self._due = None
        self._say("ConnectToQueue", PriorityProcessing="1", Polybus="1")

    # -- actions: the rest -----------------------------------------------------------------------------------------------

    def note(self, message: Message | None, now: float) -> None:
        """CapabilitiesNotice.

        Raises:
            RemoteProtocolError: ``missing_part``, ``invalid_part``, ``too_large``.
        """
        assert message is not None
        flags = text_of(message.attributes, "CapabilitiesFlags", _MAX_FLAGS)
        if flags is None and _verb_of(message) == "CapabilitiesNotice":
            raise refuse("CapabilitiesFlags is required", "missing_part")
        self._flags = flags or ""
        self._know(message)

    def verify(self, message: Message | None, now: float) -> None:
        """WebsocketChannelVerify: the transport that offered a WebSocket has looked at it.

        Raises:
            RemoteProtocolError: ``handshake_order``: none was offered.
        """
        if self._offers is None:
            raise refuse("WebsocketChannelVerify, but no WebSocket was offered", "handshake_order")

    def beat(self, message: Message | None, now: float) -> None:
        """Heartbeat. One of ours says how often it beats, and is held to that."""
        interval = message.attributes.get("PolybusInterval") if message is not None else None
        if interval is not None:
            self._silence = 3 * max(1, count_of(interval, "PolybusInterval")) / 1000
            self._missed = now + self._silence

    def leave(self, message: Message | None, now: float) -> None:
        """Disconnect. One of ours says the code with which its connection ends, which not every transport can."""
        parts = message.attributes if message is not None else {}
        reason, code = parts.get("Reason"), parts.get("PolybusCode")
        text = reason[:200] if type(reason) is str and reason else "the peer has left"
        if type(code) is not int or not 1000 <= code <= 4999:
            code = 1000 if self.role == "server" else 1001
        error = _REFUSALS[code](text) if self.role == "client" and code in _REFUSALS else None
        self._events.append(CloseWanted(code, text, error))

    def renew(self, message: Message | None, now: float) -> None:
        """SessionExpired: the link is made anew, with all that it had announced."""
        self._events.append(CloseWanted(1001, "the session has expired"))

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> None:
        """Queue the goodbye."""
        if self.state in (State.CONNECTED, State.SYNCING, State.QUEUEING):
            parts = {"PolybusCode": code} if self.ours else {}
            self._say("Disconnect", Reason=reason, **parts)
        self.state = State.CLOSED

    # -- time ------------------------------------------------------------------------------------------------------------

    def next_tick(self) -> float | None:
        """When to fall back, to beat, or to miss the peer's heartbeat."""
        if self._missed is None or (self._due is not None and self._due < self._missed):
            return self._due
        return self._missed

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self.state is not State.CONNECTED:
            self._due = self._missed = None
            self._moved("silence", None, now)
            return
        if self._missed is not None and self._silence is not None and now >= self._missed:
            self._missed = self._heard + self._silence
            if now >= self._missed:
                self.state, self._due, self._missed = State.CLOSED, None, None
                self._events.append(CloseWanted(1006, "no heartbeat for too long"))
                return
        if self._due is not None and now >= self._due:
            self._say("Heartbeat", PolybusInterval=round(self._heartbeat * 1000))
            self._due = now + self._heartbeat


def _verb_of(message: Message | None) -> str | None:
    if message is None or message.kind is not Kind.CONTROL:
        return None
    verb = message.attributes.get("CommandType")
    return verb if isinstance(verb, str) else None
