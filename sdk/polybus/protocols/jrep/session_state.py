"""What two buses know of each other: the subjects that each can receive, and what is still to be said."""

from __future__ import annotations

from typing import Any, Final

from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Refused, Role, SessionEvent
from .handshake import State
from .messages.checks import check_local_subject, refuse, subjects_of
from .messages.writer import MessageWriter
from .names import CLIENT_BUS, CLIENT_BUS_ERRORS, LOCAL_PREFIX, SERVER_BUS, is_reserved, names_an_answer, service_of

__all__ = ["Tables"]


class Tables:
    """The lower half of a session: its queues, and the tables that RemoteSubscribe and RemoteUnsubscribe keep."""

    __slots__ = ("_documents", "_events", "_greeting", "_limits", "_renewing", "_told", "_wants", "_writer", "role", "state")

    def __init__(self, writer: MessageWriter, role: Role, state: State, limits: Limits) -> None:
        self._writer = writer
        self._limits = limits
        self.role: Final = role
        self.state: State = state
        self._documents: list[bytes] = []
        self._events: list[Message | SessionEvent] = []
        self._greeting: str | None = None
        """The answer to a handshake that is written when it is known what else to tell: its verb."""
        self._renewing = False
        """Whether a client that is connected begins the legacy handshake anew."""
        self._told: dict[str, set[str]] = {}
        """Services that the peer knows of, with the subjects that stand behind each."""
        self._wants: dict[str, None] = {}
        """What the peer can receive."""

    @property
    def other_bus(self) -> str:
        """The subject of the other bus's management."""
        return SERVER_BUS if self.role == "client" else CLIENT_BUS

    def events(self) -> list[Message | SessionEvent]:
        """What has happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def _say(self, verb: str, **parts: Any) -> None:
        self._documents.append(self._writer.command(self.other_bus, {"CommandType": verb, **parts}))

    # -- subjects ---------------------------------------------------------------------------------------------------------

    def learn(self, message: Message | None, now: float) -> None:
        """RemoteSubscribe: all of it or nothing.

        Raises:
            RemoteProtocolError: What `checks.subjects_of` says, or ``reserved_subject``.
        """
        assert message is not None
        subjects = subjects_of(message.attributes, self._limits.subject, self._limits.subscriptions)
        if self.state is State.CONNECTED and self.role == "server" and not self._renewing:
            # Within the handshake a client lists all that it has, its own bus included.
            for subject in subjects:
                if is_reserved(subject):
                    text = f"{subject[:60]!r} is reserved for the buses: nothing of this RemoteSubscribe was done"
                    raise refuse(text, "reserved_subject")
        for subject in subjects:
            self._want(subject)

    def unlearn(self, message: Message | None, now: float) -> None:
        """RemoteUnsubscribe: a peer can end its own subscriptions only.

        Raises:
            RemoteProtocolError: What `checks.subjects_of` says, or ``not_subscribed``.
        """
        assert message is not None
        for subject in subjects_of(message.attributes, self._limits.subject, self._limits.subscriptions):
            if names_an_answer(subject):
                continue  # never kept: see `_want`
            if subject not in self._wants:
                self._events.append(Refused(refuse(f"{subject[:60]!r} was not subscribed", "not_subscribed")))
            else:
                self._unwant(subject)

    def _want(self, subject: str) -> None:
        if names_an_answer(subject):
            return  # answers come without a subscription, and nothing else goes there
        if subject in self._wants or is_reserved(subject) or subject.startswith(LOCAL_PREFIX):
            return
        if len(self._wants) < self._limits.subscriptions:
            self._wants[subject] = None
        if self.state is State.CONNECTED:
            self._events.append(Message(Kind.SUBSCRIBE, subject))

    def _unwant(self, subject: str) -> None:
        del self._wants[subject]
        if self.state is State.CONNECTED:
            self._events.append(Message(Kind.UNSUBSCRIBE, subject))

    def _announce(self, message: Message) -> None:
        """Tell the peer what this side can receive, once for each service.

        Raises:
            LocalProtocolError, ReservedSubject: The subject cannot be announced.
        """
        name = str(message.subject)
        if name == CLIENT_BUS_ERRORS and self.role == "client":
            return  # known already
        service = service_of(check_local_subject(message.subject, self._limits.subject))
        behind = self._told.get(service)
        if message.kind is Kind.SUBSCRIBE:
            if behind is None:
                behind = self._told[service] = set()
                if self._greeting is None:
                    self._tell("RemoteSubscribe", service)
            behind.add(name)
        elif behind is not None:
            behind.discard(name)
            if not behind:
                del self._told[service]
                self._tell("RemoteUnsubscribe", service)

    def _tell(self, verb: str, subject: str) -> None:
        self._say(verb, Subject=subject, PriorityProcessing="1")
