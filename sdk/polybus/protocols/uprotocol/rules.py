"""The rules of the document for the attributes of a message, each with its clause: one table for reading and writing.

The readers test the usual case inline and come here for everything else; so this table alone decides what is a message. In
lenient mode the rules that are marked as tolerated are not asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from attrs import define, frozen

from ...errors import RemoteProtocolError
from .ids import id_version
from .uris import Uri, UriError, parse_uri

__all__ = ["MAX_INTEGER", "PRIORITIES", "RULES", "TYPES", "Facts", "Rule", "Violation", "is_uri_reference", "violations"]

MAX_INTEGER: Final = 2**31 - 1
"""An Integer of CloudEvents 1.0.2 is signed and has 32 bits; the document's Uint32 does not fit."""
PRIORITIES: Final = tuple(f"CS{level}" for level in range(7))
_PUBLISH, _NOTIFICATION, _REQUEST, _RESPONSE = "publish", "notification", "request", "response"
TYPES: Final[Mapping[str, str]] = {
    "pub.v1": _PUBLISH,
    "notif.v1": _NOTIFICATION,
    "not.v1": _NOTIFICATION,
    "up-not.v1": _NOTIFICATION,
    "req.v1": _REQUEST,
    "res.v1": _RESPONSE,
}
"""Table 2, and the names that later releases gave to notifications. `pub.v1` with a sink is one too."""
_URI_TEXT: Final = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?#\[\]]|%[0-9A-Fa-f]{2})+")
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+\-]+/[A-Za-z0-9!#$&^_.+\-]+(?:\s*;.*)?")
_NAME: Final = re.compile(r"[a-z0-9]+")


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

    def get(self, name: str) -> Any:
        return self.attributes.get(name)

    def uri(self, name: str) -> Uri | None:
        """The address of an attribute, or None where it is none."""
        text = self.attributes.get(name)
        try:
            return parse_uri(text) if isinstance(text, str) and len(text) <= self.subject_limit else None
        except UriError:
            return None


@frozen
class Rule:
    """One rule.

    Attributes:
        name: For programs and logs: ``ttl.required``.
        clause: Where the document says so.
        broken: What was seen, where a message breaks it; None where it keeps it.
        reason: `RemoteProtocolError.reason`.
        tolerated: Whether a lenient reader looks away.
    """

    name: str
    clause: str
    broken: Callable[[Facts], str | None]
    reason: str = "invalid_attribute"
    tolerated: bool = False


class Violation(RemoteProtocolError):
    """A message breaks a rule of the document. `rule` says which."""

    def __init__(self, rule: Rule, seen: str, *, answer_id: Any = None, reply_id: Any = None) -> None:
        text = f"{seen} (rule {rule.name}; document, {rule.clause})"
        super().__init__(text, reason=rule.reason, protocol="uprotocol", answer_id=answer_id, reply_id=reply_id)
        self.rule: Rule = rule


def violations(facts: Facts, *, lenient: bool = False) -> Iterator[tuple[Rule, str]]:
    """Every rule that a message breaks, in the order of the table, and what was seen."""
    for rule in RULES:
        if not (lenient and rule.tolerated):
            seen = rule.broken(facts)
            if seen is not None:
                yield rule, seen


# -- what the rules are made of ------------------------------------------------------------------------------------------


def _shown(value: Any) -> str:
    return repr(value)[:60]


def _required(name: str, *kinds: str) -> Callable[[Facts], str | None]:
    def broken(facts: Facts) -> str | None:
        missing = facts.get(name) is None and (not kinds or facts.kind in kinds)
        return f"{name} is missing in this {facts.kind or 'message'}" if missing else None

    return broken


def _is(name: str, kind: type, says: str) -> Callable[[Facts], str | None]:
    def broken(facts: Facts) -> str | None:
        value = facts.get(name)
        if value is None or type(value) is kind:
            return None
        return f"{name} is {says}, not {type(value).__name__}"  # not the value: a token is never shown

    return broken


def _within(name: str, low: int) -> Callable[[Facts], str | None]:
    def broken(facts: Facts) -> str | None:
        value = facts.get(name)
        bad = type(value) is int and not low <= value <= MAX_INTEGER
        return f"{name} {value} is not within {low} and {MAX_INTEGER}" if bad else None

    return broken


def _specversion(facts: Facts) -> str | None:
    value = facts.get("specversion")
    return None if value == "1.0" else f"specversion is {_shown(value)} and not '1.0'"


def _type(facts: Facts) -> str | None:
    value = facts.get("type")
    return None if facts.kind else f"type {_shown(value)} is not one of {', '.join(TYPES)}"


def _uuid(name: str) -> Callable[[Facts], str | None]:
    def broken(facts: Facts) -> str | None:
        value = facts.get(name)
        if value is None or (isinstance(value, str) and len(value) <= facts.id_limit and id_version(value) is not None):
            return None
        return f"{name} {_shown(value)} is no UUID"

    return broken


def _uprotocol_uuid(name: str) -> Callable[[Facts], str | None]:
    def broken(facts: Facts) -> str | None:
        value = facts.get(name)
        version = id_version(value) if isinstance(value, str) else None
        if version in (None, 6, 7, 8):
            return None
        return f"{name} {_shown(value)} is a UUID of version {version}, which has no time: a uProtocol UUID has version 8"

    return broken


def _grammar(name: str) -> Callable[[Facts], str | None]:
    def broken(facts: Facts) -> str | None:
        text = facts.get(name)
        if not isinstance(text, str):
            return None
        if len(text) > facts.subject_limit:
            return f"{name} of {len(text)} characters is longer than {facts.subject_limit} (limit: subject)"
        try:
            uri = parse_uri(text)
        except UriError as error:
            return f"{name}: {error}"
        return f"{name} {_shown(text)} has wildcards, which only subscriptions may" if uri.is_pattern else None

    return broken


def _authority(name: str) -> Callable[[Facts], str | None]:
    def broken(facts: Facts) -> str | None:
        uri = facts.uri(name)
        if uri is None or not uri.local or facts.local is None or uri.entity in facts.local:
            return None
        return f"{name} {_shown(uri.text)} has no authority"

    return broken


def _versioned(name: str) -> Callable[[Facts], str | None]:
    def broken(facts: Facts) -> str | None:
        uri = facts.uri(name)
        if uri is None or uri.is_versioned:
            return None
        return f"{name} {_shown(uri.text)} does not name an entity and its MAJOR or MAJOR.MINOR version"

    return broken


_ROLES: Final[Mapping[tuple[str, str], tuple[Callable[[Uri], bool], str]]] = {
    ("source", _PUBLISH): (lambda uri: uri.is_topic, "a topic, with resource and #Message"),
    ("source", _NOTIFICATION): (lambda uri: uri.is_topic, "a topic, with resource and #Message"),
    ("source", _REQUEST): (lambda uri: uri.is_response, "the rpc.response of who asks"),
    ("source", _RESPONSE): (lambda uri: uri.is_method, "the method, rpc.<name>"),
    ("sink", _REQUEST): (lambda uri: uri.is_method, "the method, rpc.<name>"),
    ("sink", _RESPONSE): (lambda uri: uri.is_response, "the rpc.response of who asked"),
}


def _role(name: str) -> Callable[[Facts], str | None]:
    def broken(facts: Facts) -> str | None:
        uri, (fits, says) = facts.uri(name), _ROLES.get((name, facts.kind), (None, ""))
        if uri is None or fits is None or fits(uri):
            return None
        return f"{name} of a {facts.kind} is {says}, not {_shown(uri.text)}"

    return broken


def _media_type(facts: Facts) -> str | None:
    value = facts.get("datacontenttype")
    bad = isinstance(value, str) and not _MEDIA_TYPE.fullmatch(value)
    return f"datacontenttype {_shown(value)} is no media type" if bad else None


def _schema_required(facts: Facts) -> str | None:
    missing = facts.has_data and not facts.is_any and facts.get("dataschema") is None
    return "the data is not a google.protobuf.Any and dataschema is missing" if missing else None


def is_uri_reference(text: str) -> bool:
    """Whether all its characters may stand in a URI reference (RFC 3986, section 4.1)."""
    return _URI_TEXT.fullmatch(text) is not None


def _schema(facts: Facts) -> str | None:
    value = facts.get("dataschema")
    bad = isinstance(value, str) and not is_uri_reference(value)
    return f"dataschema {_shown(value)} is no URI reference" if bad else None


def _priority(facts: Facts) -> str | None:
    value = facts.get("priority")
    return None if value is None or value in PRIORITIES else f"priority {_shown(value)} is not one of {', '.join(PRIORITIES)}"


def _urgent(facts: Facts) -> str | None:
    value = facts.get("priority")
    if facts.kind != _REQUEST or (isinstance(value, str) and value >= "CS4"):
        return None
    return f"priority of a request is {value if value is not None else 'missing, which means CS0'}: CS4 or greater is needed"


def _alive(facts: Facts) -> str | None:
    return "ttl of a request is 0, which never ends" if facts.kind == _REQUEST and facts.get("ttl") == 0 else None


def _only_responses(facts: Facts) -> str | None:
    wrong = facts.kind not in (_RESPONSE, "extension") and facts.get("commstatus") is not None
    return f"commstatus in a {facts.kind}: only dispatchers set it, and only in responses" if wrong else None


def _old_name(facts: Facts) -> str | None:
    return "permission_level is no legal name in CloudEvents: it is plevel" if "permission_level" in facts.attributes else None


def _names(facts: Facts) -> str | None:
    bad = [name for name in facts.attributes if not _NAME.fullmatch(name) and name != "permission_level"]
    return f"{_shown(bad[0])} is no name of an attribute: a to z and digits" if bad else None


def _values(facts: Facts) -> str | None:
    for name, value in facts.attributes.items():
        if type(value) is int and not -MAX_INTEGER <= value <= MAX_INTEGER + 1:
            return f"{name} has more than 32 bits"
        if not isinstance(value, (str, int, bool, bytes)):
            return f"{name} is text, a whole number or true or false, not {type(value).__name__}"
    return None


_SOURCE, _SINK = "1.1 Table 3, source", "1.1 Table 3, sink"
_TEXTS: Final = {
    "id": "1.1 Table 3, id",
    "source": _SOURCE,
    "sink": _SINK,
    "datacontenttype": "1.1 Table 3, datacontenttype",
    "dataschema": "1.1 Table 3, dataschema",
    "priority": "1.1 Table 3, priority",
    "token": "1.2.1 Table 4, token",
    "reqid": "1.2.2 Table 5, reqid",
    "traceparent": "CloudEvents 1.0.2, distributed tracing",
}
_NUMBERS: Final = {
    "ttl": "1.1 Table 3, ttl",
    "plevel": "1.2.1 Table 4, permission_level",
    "permission_level": "1.2.1 Table 4, permission_level",
    "commstatus": "1.2.2 Table 5, commstatus",
}

RULES: Final[tuple[Rule, ...]] = (
    Rule("specversion.required", "1.1 Table 3, specversion", _required("specversion"), "missing_attribute"),
    Rule("specversion.value", "1.1 Table 3, specversion", _specversion),
    Rule("type.required", "1.1 Table 2", _required("type"), "missing_attribute"),
    Rule("type.value", "1.1 Table 2", _type, "unknown_verb"),
    Rule("id.required", "1.1 Table 3, id", _required("id"), "missing_attribute"),
    *(Rule(f"{name}.type", clause, _is(name, str, "text")) for name, clause in _TEXTS.items()),
    *(Rule(f"{name}.type", clause, _is(name, int, "a whole number")) for name, clause in _NUMBERS.items()),
    Rule("hash.type", "1.1 Table 3, hash", _is("hash", bytes, "binary")),
    Rule("id.uuid", "1.1 Table 3, id", _uuid("id")),
    Rule("id.version", "1.1 Table 3, id (a uProtocol UUID)", _uprotocol_uuid("id"), tolerated=True),
    Rule("source.required", _SOURCE, _required("source"), "missing_attribute"),
    Rule("source.grammar", _SOURCE, _grammar("source"), "invalid_uri"),
    Rule("source.authority", _SOURCE, _authority("source"), "invalid_uri", tolerated=True),
    Rule("source.version", _SOURCE, _versioned("source"), "invalid_uri"),
    Rule("source.role", "1.1 Table 1", _role("source"), "invalid_uri"),
    Rule("sink.required", _SINK, _required("sink", _NOTIFICATION, _REQUEST, _RESPONSE), "missing_attribute"),
    Rule("sink.grammar", _SINK, _grammar("sink"), "invalid_uri"),
    Rule("sink.authority", _SINK, _authority("sink"), "invalid_uri", tolerated=True),
    Rule("sink.version", _SINK, _versioned("sink"), "invalid_uri"),
    Rule("sink.role", _SINK, _role("sink"), "invalid_uri"),
    Rule("datacontenttype.media_type", "1.1 Table 3, datacontenttype", _media_type),
    Rule("dataschema.required", "1.1 Table 3, dataschema", _schema_required, "missing_attribute"),
    Rule("dataschema.uri", "1.1 Table 3, dataschema", _schema),
    Rule("priority.value", "1.1 Table 3, priority", _priority),
    Rule("priority.request", "1.1 Table 3, priority", _urgent),
    Rule("ttl.range", "1.1 Table 3, ttl", _within("ttl", 0)),
    Rule("ttl.required", "1.1 Table 3, ttl", _required("ttl", _REQUEST), "missing_attribute"),
    Rule("ttl.request", "1.1 Table 3, ttl", _alive),
    Rule("plevel.name", "1.2.1 Table 4, permission_level", _old_name, tolerated=True),
    Rule("plevel.range", "1.2.1 Table 4, permission_level", _within("plevel", 0)),
    Rule("reqid.required", "1.2.2 Table 5, reqid", _required("reqid", _RESPONSE), "missing_attribute"),
    Rule("reqid.uuid", "1.2.2 Table 5, reqid", _uuid("reqid")),
    Rule("reqid.version", "1.2.2 Table 5, reqid", _uprotocol_uuid("reqid"), tolerated=True),
    Rule("commstatus.range", "1.2.2 Table 5, commstatus", _within("commstatus", 0)),
    Rule("commstatus.response", "1.2.2 Table 5, commstatus", _only_responses),
    Rule("attributes.names", "CloudEvents 1.0.2, naming conventions", _names),
    Rule("attributes.values", "CloudEvents 1.0.2, type system", _values),
)
"""Tables 1 to 5 of the document, with the rules that its copy lost."""
