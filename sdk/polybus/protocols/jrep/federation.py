"""What the verbs between two buses do: handshake, subjects, heartbeat, goodbye (document, "Bus Management and Handshaking")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...errors import Code, Forbidden, RemoteProtocolError, Unauthorized
from ...message import Kind, Message
from ...plugins import CloseWanted
from .handshake import VERBS, State, step_of
from .handshake_flows import Greetings, verb_of
from .messages.checks import count_of, refuse
from .names import CLIENT_BUS, OWN, SERVER_BUS

__all__ = ["Federation"]

_REFUSALS: Final[Mapping[int, type[Unauthorized] | type[Forbidden]]] = {4401: Unauthorized, 4403: Forbidden}
_PATIENCE: Final = 1.0
"""Seconds of silence after Associate before a client tries the older dialect."""


class Federation(Greetings):
    """What the verbs do with the state of a federation; `Action` names the methods."""

    __slots__ = ()

    state: State  # declared in `Tables`; again here for type checkers, because this half sets it too

    # -- moving ----------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """The connection is there: a client says its first word."""
        self._heard = now
        if self.role == "client":
            if self.state is State.QUEUEING:
                self._say("ConnectToQueue", PriorityProcessing="1", Polybus="1")
            else:
                names = ",".join(OWN["client"])
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
            self._tell_error(error, None)

    def _tell_error(self, error: RemoteProtocolError, goal: tuple[str, str | None] | None) -> None:
        """Tell who asked, under (ReplyTo, ErrorTo); or a client's bus, which looks for a Throwable in it (notes 2, M11)."""
        facts = {"text": error.text, "reason": error.reason}
        code = Code.RESOURCE_EXHAUSTED if error.reason == "too_large" else Code.INVALID_ARGUMENT
        told = Message(Kind.ERROR, "", goal or ("", None), code=code, attributes=facts)
        self._documents.append(self._writer.write(told, told.id))

    # -- actions: what is not expected -----------------------------------------------------------------------------------

    def ignore(self, message: Message | None, now: float) -> None:
        """Nothing."""

    def refuse(self, message: Message | None, now: float) -> None:
        """
        Raises:
            RemoteProtocolError: Always.
        """
        verb = verb_of(message)
        if verb is not None and verb not in VERBS:
            raise refuse(f"the command {verb[:60]!r} is not known", "unknown_verb")
        raise refuse(f"{verb or 'a message'} is not expected while {self.state.value}", "handshake_order")

    def violate(self, message: Message | None, now: float) -> None:
        """
        Raises:
            RemoteProtocolError: Always; it ends the connection.
        """
        raise refuse(f"{verb_of(message)} before any handshake", "handshake_order", None, 1002)

    def expired(self, message: Message | None, now: float) -> None:
        """Somebody goes on as if there were a federation: it has to associate again (document, "SessionExpired").

        Raises:
            RemoteProtocolError: Always.
        """
        self._say("SessionExpired")
        raise refuse("no federation: Associate or ConnectToQueue comes first", "session_expired")

    # -- actions: the rest -----------------------------------------------------------------------------------------------

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
