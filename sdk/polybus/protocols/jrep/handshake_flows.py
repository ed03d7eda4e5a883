"""The two handshakes, from both sides (document, "Bus Management and Handshaking"; notes, sections 2.1 and 2.2)."""

from __future__ import annotations

import random
import string
from collections.abc import Mapping
from itertools import islice
from typing import Final

from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities, Ready, Role
from .handshake import FIRST, Dialect, State
from .messages.checks import check_subject, refuse, services_in, text_of
from .messages.writer import MessageWriter
from .names import MAX_MESSAGES, OWN, RESERVED
from .session_state import Tables

__all__ = ["CAPABILITIES", "Greetings", "verb_of"]

_ALPHABET: Final = string.ascii_letters + string.digits
_TOKEN_LENGTH: Final = 12  # 62^12: 71 bits, so that nobody guesses where an answer goes
CAPABILITIES: Final = Capabilities(shared_publish=True, announce="client")
"""Towards a bus of ours, and before it is known who is there."""
_TO_BARE: Final = Capabilities(shared_publish=True, announce="both", handlers=True, extensions=False)
"""An Errai client sends only to subjects that it was told of, and to handlers as to any other."""
_FLAGS: Final = "LongPolling,SSE"
_LEGACY_FLAGS: Final = "NoLongPollAvailable"
"""Where there is no HTTP these say nothing, but Errai's clients look for them."""
_MAX_FLAGS: Final = 4096


class Greetings(Tables):
    """What becomes of a handshake, and what is known of the peer then; `Action` names the methods."""

    __slots__ = (
        "_due",
        "_foretells",
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
        self._heartbeat = heartbeat
        self._silence: float | None = None
        """Seconds without a word that the peer's own heartbeat allows."""
        self._heard = 0.0
        self._foretells = False
        """Whether the peer answers only on subjects that it was told of: Errai's clients, and its servers until 2.3."""
        self._due: float | None = None
        """When to fall back, or to beat."""
        self._offers: Mapping[str, str] | None = None
        """Of the transport, for a client that associates: parts of FinishAssociation. It marks the payload with them."""
        self._missed: float | None = None
        """When to look whether the peer's heartbeat is missing."""

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
        subjects = self._services_in(services)
        for subject in subjects:
            check_subject(subject, self._limits.subject)
        for subject in [one for one in self._wants if one not in subjects]:
            self._unwant(subject)
        self._wants.clear()  # the others are told anew: the bus may have had no room for them
        self._greeting = "FinishAssociation"
        self._know(message)
        if not self._met:
            self._ready(now)
        for subject in subjects:
            self._want(subject)

    def greet(self, message: Message | None, now: float) -> None:
        """ConnectToQueue, or another one: the client tells anew all that it can receive."""
        assert message is not None
        self._renewing = self._met
        if self._met:
            for subject in list(self._wants):
                self._unwant(subject)
        self._know(message)
        self._greeting = "FinishStateSync"

    def finish_server(self, message: Message | None, now: float) -> None:
        """The client's FinishStateSync: both have sent it, so the federation is active, or still is."""
        self._renewing = False
        if not self._met:
            self._ready(now)

    def _finish_greeting(self) -> None:
        """Write the answer to a handshake, with all that has been announced meanwhile."""
        verb, self._greeting = self._greeting, None
        waiting, self._documents = self._documents, []
        own = OWN["server"]
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

    def _ready(self, now: float, legacy: bool = False) -> None:
        self._met = True
        self.capabilities = CAPABILITIES if self.ours else _TO_BARE
        self._foretells = not self.ours and (self.role == "server" or legacy)
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
        for name in self._services_in(services or ""):
            self._want(name)

    def _services_in(self, text: str) -> dict[str, None]:
        """Names that a handshake lists, each once: no more than are kept, and a few, so that the bus says so."""
        return dict.fromkeys(islice(dict.fromkeys(services_in(text)), self._limits.subscriptions + 2 * len(RESERVED)))

    def finish_client(self, message: Message | None, now: float) -> None:
        """The server's FinishStateSync; ours follows, behind what this side can receive."""
        self._say("RemoteSubscribe", SubjectsList=[*OWN["client"], *self._told])
        self._say("FinishStateSync")
        self._ready(now, legacy=True)

    def fall_back(self, message: Message | None, now: float) -> None:
        """Associate was not understood: the older dialect."""
        self._due = None
        self._say("ConnectToQueue", PriorityProcessing="1", Polybus="1")

    def note(self, message: Message | None, now: float) -> None:
        """CapabilitiesNotice.

        Raises:
            RemoteProtocolError: ``missing_part``, ``invalid_part``, ``too_large``.
        """
        assert message is not None
        flags = text_of(message.attributes, "CapabilitiesFlags", _MAX_FLAGS)
        if flags is None and verb_of(message) == "CapabilitiesNotice":
            raise refuse("CapabilitiesFlags is required", "missing_part")
        self._know(message)


def verb_of(message: Message | None) -> str | None:
    if message is None or message.kind is not Kind.CONTROL:
        return None
    verb = message.attributes.get("CommandType")
    return verb if isinstance(verb, str) else None
