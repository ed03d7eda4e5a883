"""Names on the wire (document J.REP; Errai's `MessageParts` and `BusTools`), and the rules for parts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from ...errors import LocalProtocolError, ReservedSubject
from .._shared import MAX_INT, WireRules, fault_in_subject

SERVER_BUS: Final = "ServerBus"
CLIENT_BUS: Final = "ClientBus"
CLIENT_BUS_ERRORS: Final = "ClientBusErrors"
ECHO_SERVICE: Final = "ServerEchoService"
CONTROL_SUBJECTS: Final = frozenset((SERVER_BUS, CLIENT_BUS))

OWN: Final = {"server": (SERVER_BUS, ECHO_SERVICE), "client": (CLIENT_BUS, CLIENT_BUS_ERRORS)}

RESERVED: Final = frozenset(
    (SERVER_BUS, CLIENT_BUS, CLIENT_BUS_ERRORS, ECHO_SERVICE, "AuthorizationService", "AuthenticationService")
)
"""The document's three reserved subjects, and Errai's own (`BUS/client/util/BusTools`)."""

LOCAL_PREFIX: Final = "local:"
REPLY_SUFFIX: Final = ":RespondTo:RPC"
ERRORS_SUFFIX: Final = ":Errors:RPC"
RPC_MARK: Final = ":RPC."
"""Separator between interface and method in a remote procedure's subject. On the wire the method is the CommandType."""

MAX_MESSAGES: Final = 1024  # Maximum number of messages in an outgoing payload; earlier versions of polybus refuse more
MAX_PARTS: Final = 256

PROTOCOL_PARTS: Final = frozenset(
    "ToSubject ReplyTo ErrorTo SessionID Value MethodParms MethodReply Polybus PolybusHeaders PolybusTtl PolybusVerb PolybusId "
    "PolybusFrame PolybusMode PolybusN PolybusHops PolybusCode PolybusReason PolybusDetail PolybusInterval".split()
)
"""Parts that only the bus sets. They are never copied from an application's attributes."""

_ANSWERS: Final = (REPLY_SUFFIX, ERRORS_SUFFIX)
_LOOK_ALIKES: Final = frozenset(name.casefold() for name in RESERVED)


@lru_cache(2048)
def is_reserved(subject: str) -> bool:
    """Return True for a subject reserved by the buses.

    Look-alikes are included: names are compared after NFKC normalisation, without invisible characters and case-insensitively.
    """
    plain = unicodedata.normalize("NFKC", subject)
    seen = "".join(c for c in plain if not (c.isspace() or unicodedata.category(c) in ("Cf", "Cc", "Mn")))
    return seen.casefold() in _LOOK_ALIKES


def names_an_answer(subject: str) -> bool:
    """Return True for a subject that a peer would mistake for an answer."""
    return subject.endswith(_ANSWERS) or service_of(subject).endswith(_ANSWERS)


@lru_cache(2048)
def is_unusable(subject: str) -> bool:
    return is_reserved(subject) or names_an_answer(subject)


def service_of(subject: str) -> str:
    mark = subject.find(RPC_MARK)
    return subject if mark < 0 else subject[: mark + len(RPC_MARK) - 1]


WIRE_RULES: Final = WireRules("jrep")
refuse: Final = WIRE_RULES.refuse
refuse_json: Final = WIRE_RULES.refuse_json
_NAMING: Final = ("Subject", "SubjectsList", "RemoteServices")
_whole_number: Final = re.compile(r"\s*[+-]?[0-9]{1,16}\s*").fullmatch


def check_subject(value: Any, limit: int, answer_id: Any = None) -> None:
    """Check an incoming subject. Local subjects are not allowed."""
    fault = fault_in_subject(value, limit)
    if fault is not None:
        raise refuse(fault, "invalid_subject", answer_id)
    if not value:
        raise refuse("the subject is empty", "missing_field", answer_id)
    if value.startswith(LOCAL_PREFIX):
        raise refuse(f"subjects that begin with {LOCAL_PREFIX!r} do not leave their bus", "reserved_subject", answer_id)


def check_local_subject(value: Any, limit: int) -> str:
    WIRE_RULES.check_local_subject(value, limit)
    if not value:
        raise LocalProtocolError("the subject is empty", protocol="jrep")
    if is_reserved(value) or value.startswith(LOCAL_PREFIX):
        raise ReservedSubject(f"the subject {value!r} belongs to J.REP's buses: choose another name")
    if names_an_answer(value):
        advice = "choose a name without ':RespondTo:RPC' or ':Errors:RPC'"
        raise ReservedSubject(f"J.REP treats messages to {value!r} as answers: {advice}")
    return str(value)


def text_of(parts: Mapping[str, Any], name: str, limit: int, answer_id: Any = None) -> str | None:
    value = parts.get(name)
    if value is None:
        return None
    if type(value) is not str:
        raise refuse(f"{name} must be a string, not {type(value).__name__}", "invalid_part", answer_id)
    if len(value) > limit:
        raise refuse(f"{name} of {len(value)} characters: the limit is {limit}", "too_large", answer_id)
    return value


def check_priority(value: Any, answer_id: Any = None) -> None:
    """Check a priority number, which Errai writes as a string (notes section 3)."""
    if type(value) is float or (type(value) is int and abs(value) <= MAX_INT):
        return
    if type(value) is not str or not _whole_number(value):
        raise refuse(f"PriorityProcessing must be a number of at most {MAX_INT}", "invalid_part", answer_id)


def subjects_of(parts: Mapping[str, Any], limit: int, many: int) -> list[str]:
    """Return the subjects in a RemoteSubscribe or RemoteUnsubscribe, which are in Subject, SubjectsList or RemoteServices.

    An Errai client that associates lists all its subjects in RemoteServices, separated by commas (notes of the second round,
    B2). The client's own bus is left out.
    """
    given = [(name, parts[name]) for name in _NAMING if parts.get(name) is not None]
    if len(given) > 1:
        raise refuse(f"both {given[0][0]} and {given[1][0]}", "ambiguous")
    if not given:
        raise refuse("Subject, SubjectsList or RemoteServices is required", "missing_field")
    ((name, value),) = given
    if name == "RemoteServices":
        subjects: list[Any] = [one for one in services_in(value) if one not in OWN["client"]]
    elif name == "Subject":
        subjects = [value]
    elif isinstance(value, (list, set)):
        subjects = list(value)
    else:
        raise refuse(f"SubjectsList must be a list of strings, not {type(value).__name__}", "invalid_part")
    if len(subjects) > many:
        raise refuse(f"{len(subjects)} subjects at once: the limit is {many} (limit: subscriptions)", "too_large")
    for subject in subjects:
        check_subject(subject, limit)
    return subjects


def services_in(value: Any) -> list[str]:
    if type(value) is not str:
        raise refuse(f"RemoteServices must be a string, not {type(value).__name__}", "invalid_part")
    return [name for part in value.split(",") if (name := part.strip())]


def read_headers(text: Any, limit: int, answer_id: Any = None) -> dict[str, str] | None:
    """Read polybus headers from a JSON object in a string."""
    try:
        headers = msgspec.json.decode(text, type=dict) if type(text) is str else text
    except (ValueError, RecursionError):
        headers = text  # not an object
    return WIRE_RULES.read_headers(headers, limit, answer_id)
