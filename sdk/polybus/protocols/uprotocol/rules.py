"""The document's attribute rules and their clauses, in one table for reading and writing.

Readers handle ordinary cases inline and use this table for everything else, so that only the table rejects messages. Each rule
tests one attribute, and names the lowest `Leniency` that tolerates a violation. Tolerated violations are recorded in the
message.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, Final

from attrs import Factory, define, field, frozen

from .._shared import WireRules
from .._uprotocol import PRIORITIES, id_version
from .names import Uri, UriError, read_uri

WIRE_RULES: Final = WireRules("uprotocol")
refuse: Final = WIRE_RULES.refuse

MAX_INTEGER: Final = 2**31 - 1  # A CloudEvents 1.0.2 Integer is signed and has 32 bits
MAX_TTL: Final = 2**32 - 1  # The document's Uint32 exceeds a CloudEvents Integer, but JSON carries it
PUBLISH, NOTIFICATION, REQUEST, RESPONSE = "publish", "notification", "request", "response"
TYPES: Final[Mapping[str, str]] = {
    "pub.v1": PUBLISH,
    "notif.v1": NOTIFICATION,
    "not.v1": NOTIFICATION,
    "up-not.v1": NOTIFICATION,
    "req.v1": REQUEST,
    "res.v1": RESPONSE,
}
"""Event types from Table 2, and later type names for notifications. A `pub.v1` event with a sink is also a notification."""
_URI_TEXT: Final = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?#\[\]]|%[0-9A-Fa-f]{2})+")
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+\-]+/[A-Za-z0-9!#$&^_.+\-]+(?:[ \t]*;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_NAME: Final = re.compile(r"[a-z0-9]+")
HEADERS: Final = "polybusheaders"
_NO_TEXT: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(map(chr, (plane << 16 | low for plane in range(17) for low in (0xFFFE, 0xFFFF))))
    + "]"
)
"""Characters that a CloudEvents 1.0.2 String must not contain: controls, surrogates and noncharacters."""
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)", re.ASCII
)


@define
class Facts:
    attributes: dict[str, Any]  # Values by name, including ``specversion``
    kind: str = ""  # ``publish``, ``notification``, ``request``, ``response``; ``extension`` for polybus messages
    has_data: bool = False  # True if there is a payload
    is_any: bool = True  # True if the content type means a ``google.protobuf.Any``
    local: frozenset[str] | None = frozenset()  # Known entities that may lack an authority; None for all
    subject_limit: int = 1024  # Maximum characters of an address
    id_limit: int = 256  # Maximum characters of an id

    def uri(self, text: Any) -> Uri | None:
        try:
            return read_uri(text) if isinstance(text, str) and len(text) <= self.subject_limit else None
        except UriError:
            return None


def _shown(value: Any) -> str:
    return repr(value)[:60]


# Each check takes the message, the name of the attribute and its value.


def is_text(value: str) -> bool:
    return _NO_TEXT.search(value) is None


def filled(facts: Facts, name: str, value: Any) -> str | None:
    return f"{name} is empty: leave it out" if value == "" else None


def required(facts: Facts, name: str, value: Any, kinds: tuple[str, ...] = ()) -> str | None:
    missing = value is None and (not kinds or facts.kind in kinds)
    return f"{name} is missing in this {facts.kind or 'message'}" if missing else None


def is_a(facts: Facts, name: str, value: Any, kind: type, says: str) -> str | None:
    if value is None or type(value) is kind:
        return None
    return f"{name} must be {says}, not {type(value).__name__}"  # not the value: it may be a token


def within(facts: Facts, name: str, value: Any, high: int = MAX_INTEGER) -> str | None:
    bad = type(value) is int and not 0 <= value <= high
    return f"{name} {value} is not within 0 and {high}" if bad else None


def specversion(facts: Facts, name: str, value: Any) -> str | None:
    return None if value == "1.0" else f"specversion is {_shown(value)} and not '1.0'"


def known_type(facts: Facts, name: str, value: Any) -> str | None:
    return None if facts.kind else f"type {_shown(value)} is not one of {', '.join(TYPES)}"


def is_uuid(facts: Facts, name: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and len(value) <= facts.id_limit and id_version(value) is not None):
        return None
    return f"{name} {_shown(value)} is not a UUID"


def is_uprotocol_uuid(facts: Facts, name: str, value: Any) -> str | None:
    version = id_version(value) if isinstance(value, str) else None
    if version in (None, 6, 7, 8):
        return None
    return f"{name} {_shown(value)} is a UUID of version {version}, which has no time: a uProtocol UUID must have version 8"


def is_address(facts: Facts, name: str, value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    if len(value) > facts.subject_limit:
        return f"{name}, percent-encoded, has {len(value)} characters: more than {facts.subject_limit} (limit: subject)"
    try:
        uri = read_uri(value)
    except UriError as error:
        return f"{name}: {error}"
    return f"{name} {_shown(value)} has wildcards, which only subscriptions may" if uri.is_pattern else None


def usual_authority(facts: Facts, name: str, value: Any) -> str | None:
    uri = facts.uri(value)
    return f"{name}: {uri.strange}" if uri is not None and uri.strange else None


def has_authority(facts: Facts, name: str, value: Any) -> str | None:
    uri = facts.uri(value)
    if uri is None or not uri.local or facts.local is None or uri.entity in facts.local:
        return None
    return f"{name} {_shown(uri.text)} has no authority"


def versioned(facts: Facts, name: str, value: Any) -> str | None:
    uri = facts.uri(value)
    if uri is None or uri.is_versioned:
        return None
    return f"{name} {_shown(uri.text)} does not name an entity and its MAJOR or MAJOR.MINOR version"


_ROLES: Final[Mapping[tuple[str, str], tuple[Callable[[Uri], bool], str]]] = {
    ("source", PUBLISH): (lambda uri: uri.is_topic, "a topic, with resource and #Message"),
    ("source", NOTIFICATION): (lambda uri: uri.is_topic, "a topic, with resource and #Message"),
    ("source", REQUEST): (lambda uri: uri.is_response, "the asker's rpc.response"),
    ("source", RESPONSE): (lambda uri: uri.is_method, "the method, rpc.<name>"),
    ("sink", REQUEST): (lambda uri: uri.is_method, "the method, rpc.<name>"),
    ("sink", RESPONSE): (lambda uri: uri.is_response, "the asker's rpc.response"),
}


def in_role(facts: Facts, name: str, value: Any) -> str | None:
    uri, (fits, says) = facts.uri(value), _ROLES.get((name, facts.kind), (None, ""))
    if uri is None or fits is None or fits(uri):
        return None
    return f"{name} of a {facts.kind} must be {says}, not {_shown(uri.text)}"


def fits(facts: Facts, name: str, value: Any, test: Callable[[str], Any], says: str) -> str | None:
    valid = value is None or (isinstance(value, str) and test(value))
    return None if valid else f"{name} {_shown(value)} is not {says}"


def has_schema(facts: Facts, name: str, value: Any) -> str | None:
    missing = facts.has_data and not facts.is_any and value is None
    return "the data is not a google.protobuf.Any and dataschema is missing" if missing else None


def is_uri_reference(text: str) -> bool:
    """Return True if all characters are valid in a URI reference (RFC 3986, section 4.1)."""
    return _URI_TEXT.fullmatch(text) is not None


def urgent(facts: Facts, name: str, value: Any) -> str | None:
    if facts.kind != REQUEST or (isinstance(value, str) and value >= "CS4"):
        return None
    return f"priority of a request is {value if value is not None else 'missing, which means CS0'}: CS4 or greater is needed"


def is_timestamp(text: str) -> bool:
    found = _TIME.fullmatch(text)
    try:
        return found is not None and bool(datetime.date.fromisoformat(found[1]))
    except ValueError:
        return False


def alive(facts: Facts, name: str, value: Any) -> str | None:
    return "ttl of a request is 0, which means no deadline" if facts.kind == REQUEST and value == 0 else None


def only_responses(facts: Facts, name: str, value: Any) -> str | None:
    wrong = facts.kind not in (RESPONSE, "extension") and value is not None
    return f"commstatus in a {facts.kind}: only dispatchers set it, and only in responses" if wrong else None


def old_name(facts: Facts, name: str, value: Any) -> str | None:
    used = "permission_level" in facts.attributes
    return "permission_level is not a legal name in CloudEvents: it is plevel" if used else None


def named(facts: Facts, name: str, value: Any) -> str | None:
    bad = [one for one in facts.attributes if not _NAME.fullmatch(one) and one != "permission_level"]
    if "data" in facts.attributes:  # reserved in JSON
        bad.append("data")
    return f"{_shown(bad[0])} is not the name of an attribute: a to z and digits, and not data" if bad else None


def valued(facts: Facts, name: str, value: Any) -> str | None:
    for one, found in facts.attributes.items():
        if type(found) is int and not -MAX_INTEGER - 1 <= found <= MAX_INTEGER and one != "ttl":
            return f"{one} has more than 32 bits"
        if not isinstance(found, (str, int, bool, bytes)):
            return f"{one} must be a string, an integer or a bool, not {type(found).__name__}"
        if isinstance(found, str) and one != HEADERS and not is_text(found):
            return f"{one} has control characters, or others that are not text"  # not the value: it may be a token
    return None


_NUMBERS: Final = "ttl plevel permission_level commstatus".split()
_TABLE_3: Final = "specversion id source sink datacontenttype dataschema priority ttl hash".split()
_CLAUSES: Final = {
    "type": "1.1 Table 2",
    "plevel": "1.2.1 Table 4, permission_level",
    "attributes": "CloudEvents 1.0.2, naming conventions",
    "traceparent": "CloudEvents 1.0.2, distributed tracing",
    **{name: f"CloudEvents 1.0.2, {name}" for name in ("subject", "time")},
    **{name: f"1.2.1 Table 4, {name}" for name in ("token", "permission_level")},
    **{name: f"1.2.2 Table 5, {name}" for name in ("reqid", "commstatus")},
    **{name: f"1.1 Table 3, {name}" for name in _TABLE_3},
}
"""Clauses of the document by attribute."""

TOLERATED: Final = "polybus-lenient"
"""Member of `Message.attributes` that lists tolerated violations. Event attributes cannot have this name."""


class Leniency(IntEnum):
    """Strictness of a reader, set by ``mode=``."""

    STRICT = 0
    DOCUMENT = 1  # Tolerate violations in the document's own examples
    LENIENT = 2  # Also tolerate violations of that time's SDKs

    @classmethod
    def of(cls, mode: str) -> Leniency:
        found = cls.__members__.get(mode.upper())
        if found is None:
            raise ValueError(f"mode={mode!r} must be one of {', '.join(name.lower() for name in cls.__members__)}")
        return found


@frozen
class Rule:
    name: str  # Name for programs and logs: ``ttl.required``
    # Given message, name and value of the attribute, returns a text for a violation, or None
    check: Callable[[Facts, str, Any], str | None]
    reason: str = "invalid_attribute"  # `RemoteProtocolError.reason`
    tolerated: Leniency | None = None  # Minimum leniency that tolerates a violation; None for never
    attribute: str = field(init=False, default=Factory(lambda self: self.name.partition(".")[0], takes_self=True))
    clause: str = field(default=Factory(lambda self: _CLAUSES[self.attribute], takes_self=True))  # Clause of the document

    def counts(self, leniency: Leniency) -> bool:
        return self.tolerated is None or leniency < self.tolerated


def violations(facts: Facts, rules: Sequence[Rule] | None = None) -> Iterator[tuple[Rule, str]]:
    """Yield each broken rule with a text that names the rule and its clause."""
    for rule in RULES if rules is None else rules:
        seen = rule.check(facts, rule.attribute, facts.attributes.get(rule.attribute))
        if seen is not None:
            yield rule, f"{seen} (rule {rule.name}; document, {rule.clause})"


_PRIORITY: Final = f"one of {', '.join(PRIORITIES)}"
_TIMESTAMP: Final = "a timestamp such as 2026-11-21T10:00:00Z (RFC 3339)"
_TEXTS: Final = "id source sink datacontenttype dataschema priority token reqid traceparent subject".split()

RULES: Final[tuple[Rule, ...]] = (
    Rule("specversion.required", required, "missing_field"),
    Rule("specversion.value", specversion),
    Rule("type.required", required, "missing_field"),
    Rule("type.value", known_type, "unknown_type"),
    Rule("id.required", required, "missing_field"),
    *(Rule(f"{name}.type", partial(is_a, kind=str, says="a string")) for name in _TEXTS),
    *(Rule(f"{name}.type", partial(is_a, kind=int, says="an integer")) for name in _NUMBERS),
    Rule("hash.type", partial(is_a, kind=bytes, says="bytes")),
    Rule("id.uuid", is_uuid),
    Rule("id.version", is_uprotocol_uuid, tolerated=Leniency.DOCUMENT, clause="1.1 Table 3, id (a uProtocol UUID)"),
    Rule("source.required", required, "missing_field"),
    Rule("source.grammar", is_address, "invalid_uri"),
    Rule("source.form", usual_authority, "invalid_uri", tolerated=Leniency.LENIENT),
    Rule("source.authority", has_authority, "invalid_uri", tolerated=Leniency.DOCUMENT),
    Rule("source.version", versioned, "invalid_uri"),
    Rule("source.role", in_role, "invalid_uri", clause="1.1 Table 1"),
    Rule("sink.required", partial(required, kinds=(NOTIFICATION, REQUEST, RESPONSE)), "missing_field"),
    Rule("sink.grammar", is_address, "invalid_uri"),
    Rule("sink.form", usual_authority, "invalid_uri", tolerated=Leniency.LENIENT),
    Rule("sink.authority", has_authority, "invalid_uri", tolerated=Leniency.DOCUMENT),
    Rule("sink.version", versioned, "invalid_uri"),
    Rule("sink.role", in_role, "invalid_uri"),
    Rule("datacontenttype.media_type", partial(fits, test=_MEDIA_TYPE.fullmatch, says="a media type")),
    Rule("dataschema.required", has_schema, "missing_field"),
    Rule("dataschema.uri", partial(fits, test=is_uri_reference, says="a URI reference")),
    Rule("priority.value", partial(fits, test=PRIORITIES.__contains__, says=_PRIORITY)),
    Rule("priority.request", urgent),
    Rule("ttl.range", partial(within, high=MAX_TTL)),
    Rule("ttl.required", partial(required, kinds=(REQUEST,)), "missing_field"),
    Rule("ttl.request", alive),
    Rule("plevel.name", old_name, tolerated=Leniency.DOCUMENT),
    Rule("plevel.range", within),
    Rule("reqid.required", partial(required, kinds=(RESPONSE,)), "missing_field"),
    Rule("reqid.uuid", is_uuid),
    Rule("reqid.version", is_uprotocol_uuid, tolerated=Leniency.DOCUMENT),
    Rule("commstatus.range", within),
    Rule("commstatus.response", only_responses),
    Rule("subject.filled", filled, tolerated=Leniency.LENIENT),
    Rule("time.timestamp", partial(fits, test=is_timestamp, says=_TIMESTAMP), tolerated=Leniency.LENIENT),
    Rule("attributes.names", named),
    Rule("attributes.values", valued, clause="CloudEvents 1.0.2, type system"),
)
"""The rules in Tables 1 to 5 of the document, including rules that are missing from its copy."""
