"""Steps of the two handshakes, on both sides (document, "Bus Management and Handshaking"; notes, sections 2.1 and 2.2)."""

from __future__ import annotations

from itertools import islice
from typing import Final

from ...message import Message
from .federation import Federation, verb_of
from .messages.checks import check_subject, refuse, services_in, text_of
from .names import OWN, RESERVED
from .subscriptions import add, remove

_FLAGS: Final = "LongPolling,SSE"
_LEGACY_FLAGS: Final = "NoLongPollAvailable"
"""Flags without meaning where there is no HTTP, but Errai's clients look for them."""
_MAX_FLAGS: Final = 4096

# -- a server's handshake ------------------------------------------------------------------------------------------------


def associate(federation: Federation, message: Message | None, now: float) -> None:
    """Associate, also another one: what the client can receive. May raise `RemoteProtocolError`: RemoteServices is none."""
    assert message is not None
    services = text_of(message.attributes, "RemoteServices", federation.limits.message)
    if services is None:
        raise refuse("RemoteServices is required: what the client can receive, separated by commas", "missing_part")
    subjects = _services_in(federation, services)
    for subject in subjects:
        check_subject(subject, federation.limits.subject)
    for subject in [one for one in federation.wanted if one not in subjects]:
        remove(federation, subject)
    federation.wanted.clear()  # the others are told anew: the bus may have had no room for them
    federation.greeting = "FinishAssociation"
    _recognise(federation, message)
    if not federation.ready:
        federation.become_ready(now)
    for subject in subjects:
        add(federation, subject)


def greet(federation: Federation, message: Message | None, now: float) -> None:
    """ConnectToQueue, or another one: the client tells anew all that it can receive."""
    assert message is not None
    federation.renewing = federation.ready
    if federation.ready:
        for subject in list(federation.wanted):
            remove(federation, subject)
    _recognise(federation, message)
    federation.greeting = "FinishStateSync"


def finish_server(federation: Federation, message: Message | None, now: float) -> None:
    """The client's FinishStateSync: both have sent it, so the federation is active, or still is."""
    federation.renewing = False
    if not federation.ready:
        federation.become_ready(now)


def finish_greeting(federation: Federation) -> None:
    """Write the answer to a handshake, with all that has been announced meanwhile."""
    verb, federation.greeting = federation.greeting, None
    waiting, federation.documents = federation.documents, []
    own = OWN["server"]
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
    """Send the first word of a client."""
    if legacy:
        federation.say("ConnectToQueue", PriorityProcessing="1", Polybus="1")
    else:
        federation.say("Associate", PriorityProcessing="1", RemoteServices=",".join(OWN["client"]), Polybus="1")


def associated(federation: Federation, message: Message | None, now: float) -> None:
    """FinishAssociation: the server's one answer."""
    assert message is not None
    _recognise(federation, message)
    note(federation, message, now)
    federation.become_ready(now)
    services = text_of(message.attributes, "RemoteServices", federation.limits.message)
    for name in _services_in(federation, services or ""):
        add(federation, name)


def _services_in(federation: Federation, text: str) -> dict[str, None]:
    """Names that a handshake lists, each once: no more than are kept, and a few, so that the bus says so."""
    most = federation.limits.subscriptions + 2 * len(RESERVED)
    return dict.fromkeys(islice(dict.fromkeys(services_in(text)), most))


def finish_client(federation: Federation, message: Message | None, now: float) -> None:
    """The server's FinishStateSync; ours follows, behind what this side can receive."""
    federation.say("RemoteSubscribe", SubjectsList=[*OWN["client"], *federation.announced])
    federation.say("FinishStateSync")
    federation.become_ready(now, legacy=True)


def fall_back(federation: Federation, message: Message | None, now: float) -> None:
    """Try the older dialect: Associate was not understood."""
    federation.due = None
    begin(federation, legacy=True)


def note(federation: Federation, message: Message | None, now: float) -> None:
    """CapabilitiesNotice. May raise `RemoteProtocolError`: ``missing_part``, ``invalid_part``, ``too_large``."""
    assert message is not None
    flags = text_of(message.attributes, "CapabilitiesFlags", _MAX_FLAGS)
    if flags is None and verb_of(message) == "CapabilitiesNotice":
        raise refuse("CapabilitiesFlags is required", "missing_part")
    _recognise(federation, message)
