"""Tests of single attributes, of which the rules of the document are made; each says what was seen where it fails."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import define

from ..._levels import PRIORITIES
from ..._rules import WireRules
from ..._uuids import id_version
from ..uris import Uri, UriError, read_uri

WIRE_RULES: Final = WireRules("uprotocol")
refuse: Final = WIRE_RULES.refuse

MAX_INTEGER: Final = 2**31 - 1
"""An Integer of CloudEvents 1.0.2 is signed and has 32 bits."""
MAX_TTL: Final = 2**32 - 1
"""The document's Uint32 does not fit in one: JSON carries it all the same."""
PUBLISH, NOTIFICATION, REQUEST, RESPONSE = "publish", "notification", "request", "response"
TYPES: Final[Mapping[str, str]] = {
    "pub.v1": PUBLISH,
    "notif.v1": NOTIFICATION,
    "not.v1": NOTIFICATION,
    "up-not.v1": NOTIFICATION,
    "req.v1": REQUEST,
    "res.v1": RESPONSE,
}
"""Table 2, and the names that later releases gave to notifications. `pub.v1` with a sink is one too."""
_URI_TEXT: Final = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?#\[\]]|%[0-9A-Fa-f]{2})+")
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+\-]+/[A-Za-z0-9!#$&^_.+\-]+(?:[ \t]*;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_NAME: Final = re.compile(r"[a-z0-9]+")
HEADERS: Final = "polybusheaders"
"""The attribute in which headers of the bus travel, as JSON."""
_NO_TEXT: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(map(chr, (plane << 16 | low for plane in range(17) for low in (0xFFFE, 0xFFFF))))
    + "]"
)
"""Characters that a String of CloudEvents 1.0.2 must not have: controls, halves of pairs, and what is no character."""
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)", re.ASCII
)


@define
class Facts:
    """A message under examination.

    Attributes:
        attributes: By name; ``specversion`` too.
        kind: ``publish``, ``notification``, ``request``, ``response`` or, for what is ours, ``extension``.
        has_data: Whether there is a payload.
        is_any: Whether the content type says that it is a ``google.protobuf.Any``.
        local: Entities without authority that are known to be meant: None for all.
        limits: Sizes of an address and of an id.
    """

    attributes: dict[str, Any]
    kind: str = ""
    has_data: bool = False
    is_any: bool = True
    local: frozenset[str] | None = frozenset()
    subject_limit: int = 1024
    id_limit: int = 256

    def uri(self, text: Any) -> Uri | None:
        """The address that an attribute is, or None where it is none."""
        try:
            return read_uri(text) if isinstance(text, str) and len(text) <= self.subject_limit else None
        except UriError:
            return None


def _shown(value: Any) -> str:
    return repr(value)[:60]


# Each takes the message, the name of the attribute and its value.


def is_text(value: str) -> bool:
    """True of a String of CloudEvents."""
    return _NO_TEXT.search(value) is None


def filled(facts: Facts, name: str, value: Any) -> str | None:
    return f"{name} is empty: leave it out" if value == "" else None


def required(facts: Facts, name: str, value: Any, kinds: tuple[str, ...] = ()) -> str | None:
    missing = value is None and (not kinds or facts.kind in kinds)
    return f"{name} is missing in this {facts.kind or 'message'}" if missing else None


def is_a(facts: Facts, name: str, value: Any, kind: type, says: str) -> str | None:
    if value is None or type(value) is kind:
        return None
    return f"{name} is {says}, not {type(value).__name__}"  # not the value: a token is never shown


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
    return f"{name} {_shown(value)} is no UUID"


def is_uprotocol_uuid(facts: Facts, name: str, value: Any) -> str | None:
    version = id_version(value) if isinstance(value, str) else None
    if version in (None, 6, 7, 8):
        return None
    return f"{name} {_shown(value)} is a UUID of version {version}, which has no time: a uProtocol UUID has version 8"


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
    ("source", REQUEST): (lambda uri: uri.is_response, "the rpc.response of who asks"),
    ("source", RESPONSE): (lambda uri: uri.is_method, "the method, rpc.<name>"),
    ("sink", REQUEST): (lambda uri: uri.is_method, "the method, rpc.<name>"),
    ("sink", RESPONSE): (lambda uri: uri.is_response, "the rpc.response of who asked"),
}


def in_role(facts: Facts, name: str, value: Any) -> str | None:
    uri, (fits, says) = facts.uri(value), _ROLES.get((name, facts.kind), (None, ""))
    if uri is None or fits is None or fits(uri):
        return None
    return f"{name} of a {facts.kind} is {says}, not {_shown(uri.text)}"


def media_type(facts: Facts, name: str, value: Any) -> str | None:
    bad = isinstance(value, str) and not _MEDIA_TYPE.fullmatch(value)
    return f"datacontenttype {_shown(value)} is no media type" if bad else None


def has_schema(facts: Facts, name: str, value: Any) -> str | None:
    missing = facts.has_data and not facts.is_any and value is None
    return "the data is not a google.protobuf.Any and dataschema is missing" if missing else None


def is_uri_reference(text: str) -> bool:
    """True if all its characters may stand in a URI reference (RFC 3986, section 4.1)."""
    return _URI_TEXT.fullmatch(text) is not None


def schema_uri(facts: Facts, name: str, value: Any) -> str | None:
    bad = isinstance(value, str) and not is_uri_reference(value)
    return f"dataschema {_shown(value)} is no URI reference" if bad else None


def known_priority(facts: Facts, name: str, value: Any) -> str | None:
    return None if value is None or value in PRIORITIES else f"priority {_shown(value)} is not one of {', '.join(PRIORITIES)}"


def urgent(facts: Facts, name: str, value: Any) -> str | None:
    if facts.kind != REQUEST or (isinstance(value, str) and value >= "CS4"):
        return None
    return f"priority of a request is {value if value is not None else 'missing, which means CS0'}: CS4 or greater is needed"


def timestamp(facts: Facts, name: str, value: Any) -> str | None:
    if value is None:
        return None
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    try:
        if found is not None and datetime.date.fromisoformat(found[1]):
            return None
    except ValueError:
        pass
    return f"time {_shown(value)} is no timestamp, as 2026-11-21T10:00:00Z (RFC 3339)"


def alive(facts: Facts, name: str, value: Any) -> str | None:
    return "ttl of a request is 0, which never ends" if facts.kind == REQUEST and value == 0 else None


def only_responses(facts: Facts, name: str, value: Any) -> str | None:
    wrong = facts.kind not in (RESPONSE, "extension") and value is not None
    return f"commstatus in a {facts.kind}: only dispatchers set it, and only in responses" if wrong else None


def old_name(facts: Facts, name: str, value: Any) -> str | None:
    return "permission_level is no legal name in CloudEvents: it is plevel" if "permission_level" in facts.attributes else None


def named(facts: Facts, name: str, value: Any) -> str | None:
    bad = [one for one in facts.attributes if not _NAME.fullmatch(one) and one != "permission_level"]
    if "data" in facts.attributes:  # in JSON its name is taken
        bad.append("data")
    return f"{_shown(bad[0])} is no name of an attribute: a to z and digits, and not data" if bad else None


def valued(facts: Facts, name: str, value: Any) -> str | None:
    for one, found in facts.attributes.items():
        if type(found) is int and not -MAX_INTEGER - 1 <= found <= MAX_INTEGER and one != "ttl":
            return f"{one} has more than 32 bits"
        if not isinstance(found, (str, int, bool, bytes)):
            return f"{one} is text, a whole number or true or false, not {type(found).__name__}"
        if isinstance(found, str) and one != HEADERS and not is_text(found):
            return f"{one} has control characters, or others that are no text"  # not the value: a token is never shown
    return None
