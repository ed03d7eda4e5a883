"""The rules of the document for the attributes of a message, each with its clause: one table for reading and writing.

The readers test the usual case inline and come here for everything else; so this table alone decides what is a message. In
lenient mode the rules that are marked as tolerated are not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from attrs import frozen

from ....errors import RemoteProtocolError
from .checks import (
    MAX_TTL,
    NOTIFICATION,
    REQUEST,
    RESPONSE,
    Facts,
    alive,
    has_authority,
    has_schema,
    in_role,
    is_a,
    is_address,
    is_uprotocol_uuid,
    is_uuid,
    known_priority,
    known_type,
    media_type,
    named,
    old_name,
    only_responses,
    required,
    schema_uri,
    specversion,
    timestamp,
    urgent,
    usual_authority,
    valued,
    versioned,
    within,
)

__all__ = ["RULES", "Rule", "Violation", "violations"]


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
    Rule("specversion.required", "1.1 Table 3, specversion", required("specversion"), "missing_attribute"),
    Rule("specversion.value", "1.1 Table 3, specversion", specversion),
    Rule("type.required", "1.1 Table 2", required("type"), "missing_attribute"),
    Rule("type.value", "1.1 Table 2", known_type, "unknown_verb"),
    Rule("id.required", "1.1 Table 3, id", required("id"), "missing_attribute"),
    *(Rule(f"{name}.type", clause, is_a(name, str, "text")) for name, clause in _TEXTS.items()),
    *(Rule(f"{name}.type", clause, is_a(name, int, "a whole number")) for name, clause in _NUMBERS.items()),
    Rule("hash.type", "1.1 Table 3, hash", is_a("hash", bytes, "binary")),
    Rule("id.uuid", "1.1 Table 3, id", is_uuid("id")),
    Rule("id.version", "1.1 Table 3, id (a uProtocol UUID)", is_uprotocol_uuid("id"), tolerated=True),
    Rule("source.required", _SOURCE, required("source"), "missing_attribute"),
    Rule("source.grammar", _SOURCE, is_address("source"), "invalid_uri"),
    Rule("source.form", _SOURCE, usual_authority("source"), "invalid_uri", tolerated=True),
    Rule("source.authority", _SOURCE, has_authority("source"), "invalid_uri", tolerated=True),
    Rule("source.version", _SOURCE, versioned("source"), "invalid_uri"),
    Rule("source.role", "1.1 Table 1", in_role("source"), "invalid_uri"),
    Rule("sink.required", _SINK, required("sink", NOTIFICATION, REQUEST, RESPONSE), "missing_attribute"),
    Rule("sink.grammar", _SINK, is_address("sink"), "invalid_uri"),
    Rule("sink.form", _SINK, usual_authority("sink"), "invalid_uri", tolerated=True),
    Rule("sink.authority", _SINK, has_authority("sink"), "invalid_uri", tolerated=True),
    Rule("sink.version", _SINK, versioned("sink"), "invalid_uri"),
    Rule("sink.role", _SINK, in_role("sink"), "invalid_uri"),
    Rule("datacontenttype.media_type", "1.1 Table 3, datacontenttype", media_type),
    Rule("dataschema.required", "1.1 Table 3, dataschema", has_schema, "missing_attribute"),
    Rule("dataschema.uri", "1.1 Table 3, dataschema", schema_uri),
    Rule("priority.value", "1.1 Table 3, priority", known_priority),
    Rule("priority.request", "1.1 Table 3, priority", urgent),
    Rule("ttl.range", "1.1 Table 3, ttl", within("ttl", 0, MAX_TTL)),
    Rule("ttl.required", "1.1 Table 3, ttl", required("ttl", REQUEST), "missing_attribute"),
    Rule("ttl.request", "1.1 Table 3, ttl", alive),
    Rule("plevel.name", "1.2.1 Table 4, permission_level", old_name, tolerated=True),
    Rule("plevel.range", "1.2.1 Table 4, permission_level", within("plevel", 0)),
    Rule("reqid.required", "1.2.2 Table 5, reqid", required("reqid", RESPONSE), "missing_attribute"),
    Rule("reqid.uuid", "1.2.2 Table 5, reqid", is_uuid("reqid")),
    Rule("reqid.version", "1.2.2 Table 5, reqid", is_uprotocol_uuid("reqid"), tolerated=True),
    Rule("commstatus.range", "1.2.2 Table 5, commstatus", within("commstatus", 0)),
    Rule("commstatus.response", "1.2.2 Table 5, commstatus", only_responses),
    Rule("time.timestamp", "CloudEvents 1.0.2, time", timestamp, tolerated=True),
    Rule("attributes.names", "CloudEvents 1.0.2, naming conventions", named),
    Rule("attributes.values", "CloudEvents 1.0.2, type system", valued),
)
"""Tables 1 to 5 of the document, with the rules that its copy lost."""
