"""The words of the wire: parts, suffixes, reserved subjects (document J.REP; Errai's `MessageParts` and `BusTools`)."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal

SERVER_BUS: Final = "ServerBus"
CLIENT_BUS: Final = "ClientBus"
CLIENT_BUS_ERRORS: Final = "ClientBusErrors"
ECHO_SERVICE: Final = "ServerEchoService"
CONTROL_SUBJECTS: Final = frozenset((SERVER_BUS, CLIENT_BUS))

OWN: Final[Mapping[Literal["client", "server"], tuple[str, ...]]] = {
    "server": (SERVER_BUS, ECHO_SERVICE),
    "client": (CLIENT_BUS, CLIENT_BUS_ERRORS),
}
"""Subjects that each side announces of itself."""

RESERVED: Final = frozenset(
    (SERVER_BUS, CLIENT_BUS, CLIENT_BUS_ERRORS, ECHO_SERVICE, "AuthorizationService", "AuthenticationService")
)
"""The document's three and Errai's others (`BUS/client/util/BusTools`)."""

LOCAL_PREFIX: Final = "local:"
"""Subjects that never leave a bus."""
REPLY_SUFFIX: Final = ":RespondTo:RPC"
ERRORS_SUFFIX: Final = ":Errors:RPC"
RPC_MARK: Final = ":RPC."
"""Between interface and method in the subject of a remote procedure; on the wire the method is the CommandType."""

MAX_MESSAGES: Final = 1024
"""Messages in one payload that leaves; earlier versions of polybus refuse more."""
MAX_PARTS: Final = 256
"""Parts of one message."""

PROTOCOL_PARTS: Final = frozenset(
    "ToSubject ReplyTo ErrorTo SessionID Value MethodParms MethodReply Polybus PolybusHeaders PolybusTtl PolybusVerb PolybusId "
    "PolybusFrame PolybusMode PolybusN PolybusHops PolybusCode PolybusReason PolybusDetail PolybusInterval".split()
)
"""Parts that the bus fills in itself: they are never taken from an application's attributes."""

_ANSWERS: Final = (REPLY_SUFFIX, ERRORS_SUFFIX)
_LOOK_ALIKES: Final = frozenset(name.casefold() for name in RESERVED)


@lru_cache(2048)
def is_reserved(subject: str) -> bool:
    """True if a subject is one of the buses' own, or only looks like one.

    Compared after NFKC, without white space and invisible characters, and whatever the case.
    """
    plain = unicodedata.normalize("NFKC", subject)
    seen = "".join(c for c in plain if not (c.isspace() or unicodedata.category(c) in ("Cf", "Cc", "Mn")))
    return seen.casefold() in _LOOK_ALIKES


def names_an_answer(subject: str) -> bool:
    """True if a peer would take what goes to this subject for an answer, and not for a message of its own."""
    return subject.endswith(_ANSWERS) or service_of(subject).endswith(_ANSWERS)


@lru_cache(2048)
def is_unusable(subject: str) -> bool:
    """True if no message may go to this subject: it is the buses', or names an answer."""
    return is_reserved(subject) or names_an_answer(subject)


def service_of(subject: str) -> str:
    """Name that is announced of a handler: of a remote procedure its interface, ``x.Svc:RPC``."""
    mark = subject.find(RPC_MARK)
    return subject if mark < 0 else subject[: mark + len(RPC_MARK) - 1]
