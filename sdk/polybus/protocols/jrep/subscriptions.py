"""Subscriptions between two buses: RemoteSubscribe and RemoteUnsubscribe, in both directions."""

from __future__ import annotations

from ...message import Kind, Message
from ...plugins import Refused
from .federation import Federation
from .handshake import FederationState
from .messages.checks import check_local_subject, refuse, subjects_of
from .names import CLIENT_BUS_ERRORS, LOCAL_PREFIX, is_reserved, names_an_answer, service_of


def learn(federation: Federation, message: Message, now: float) -> None:
    """RemoteSubscribe: all of it or nothing. May raise `RemoteProtocolError`, as `subjects_of`, or ``reserved_subject``."""
    subjects = subjects_of(message.attributes, federation.limits.subject, federation.limits.subscriptions)
    if federation.state is FederationState.CONNECTED and federation.role == "server" and not federation.renewing:
        # Within the handshake a client lists all that it has, its own bus included.
        for subject in subjects:
            if is_reserved(subject):
                text = f"{subject[:60]!r} is reserved for the buses: nothing of this RemoteSubscribe was done"
                raise refuse(text, "reserved_subject")
    for subject in subjects:
        add(federation, subject)


def unlearn(federation: Federation, message: Message, now: float) -> None:
    """RemoteUnsubscribe, of the peer's own only. May raise `RemoteProtocolError`, as `subjects_of`, or ``not_subscribed``."""
    for subject in subjects_of(message.attributes, federation.limits.subject, federation.limits.subscriptions):
        if names_an_answer(subject):
            continue  # never kept: see `add`
        if subject in federation.wanted:
            remove(federation, subject)
        elif left := federation.withdrawn.pop(subject, 0):  # an Errai client says back what it was told
            if left > 1:
                federation.withdrawn[subject] = left - 1
        else:
            federation.events.append(Refused(refuse(f"{subject[:60]!r} was not subscribed", "not_subscribed")))


def add(federation: Federation, subject: str) -> None:
    """Keep that the peer can receive a subject, and report it."""
    if names_an_answer(subject):
        return  # answers come without a subscription, and nothing else goes there
    if subject in federation.wanted or is_reserved(subject) or subject.startswith(LOCAL_PREFIX):
        return
    if len(federation.wanted) < federation.limits.subscriptions:
        federation.wanted[subject] = None
    if federation.state is FederationState.CONNECTED:
        federation.events.append(Message(Kind.SUBSCRIBE, subject))


def remove(federation: Federation, subject: str) -> None:
    """Forget that the peer can receive a subject, and report it."""
    del federation.wanted[subject]
    if federation.state is FederationState.CONNECTED:
        federation.events.append(Message(Kind.UNSUBSCRIBE, subject))


def announce(federation: Federation, message: Message) -> None:
    """Tell the peer what this side can receive, once for each service. Raises as `check_local_subject`."""
    name = str(message.subject)
    if name == CLIENT_BUS_ERRORS and federation.role == "client":
        return  # known already
    service = service_of(check_local_subject(message.subject, federation.limits.subject))
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
    """Tell the peer that a service is gone.

    An Errai client thereupon ends its *own* subscriptions to that subject, says so, and may go on sending there
    (`ClientMessageBusImpl`): it is told nothing of what it has subscribed itself.
    """
    if federation.role == "server" and not federation.ours:
        if service in federation.wanted:
            return
        withdrawn = federation.withdrawn
        if service in withdrawn or len(withdrawn) < federation.limits.subscriptions:
            withdrawn[service] = withdrawn.get(service, 0) + 1
    federation.say_of("RemoteUnsubscribe", service)
