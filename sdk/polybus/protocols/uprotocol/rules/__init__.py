"""The rules of the document for the attributes of a message, each with its clause: one table for reading and writing.

The readers test the usual case inline and come here for everything else; so this table alone decides what is a message. In
lenient mode the rules that are marked as tolerated are not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from attrs import frozen

from ....errors import RemoteProtocolError
from . import checks
from .checks import NOTIFICATION, REQUEST, RESPONSE, Facts

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


def _of(check: Callable[..., str | None], name: str, **more: Any) -> Callable[[Facts], str | None]:
    """A check of the attribute of this name."""
    return partial(check, name=name, **more)


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
    Rule("specversion.required", "1.1 Table 3, specversion", _of(checks.required, "specversion"), "missing_attribute"),
    Rule("specversion.value", "1.1 Table 3, specversion", checks.specversion),
    Rule("type.required", "1.1 Table 2", _of(checks.required, "type"), "missing_attribute"),
    Rule("type.value", "1.1 Table 2", checks.known_type, "unknown_verb"),
    Rule("id.required", "1.1 Table 3, id", _of(checks.required, "id"), "missing_attribute"),
    *(Rule(f"{name}.type", clause, _of(checks.is_a, name, kind=str, says="text")) for name, clause in _TEXTS.items()),
    *(
        Rule(f"{name}.type", clause, _of(checks.is_a, name, kind=int, says="a whole number"))
        for name, clause in _NUMBERS.items()
    ),
    Rule("hash.type", "1.1 Table 3, hash", _of(checks.is_a, "hash", kind=bytes, says="binary")),
    Rule("id.uuid", "1.1 Table 3, id", _of(checks.is_uuid, "id")),
    Rule("id.version", "1.1 Table 3, id (a uProtocol UUID)", _of(checks.is_uprotocol_uuid, "id"), tolerated=True),
    Rule("source.required", _SOURCE, _of(checks.required, "source"), "missing_attribute"),
    Rule("source.grammar", _SOURCE, _of(checks.is_address, "source"), "invalid_uri"),
    Rule("source.form", _SOURCE, _of(checks.usual_authority, "source"), "invalid_uri", tolerated=True),
    Rule("source.authority", _SOURCE, _of(checks.has_authority, "source"), "invalid_uri", tolerated=True),
    Rule("source.version", _SOURCE, _of(checks.versioned, "source"), "invalid_uri"),
    Rule("source.role", "1.1 Table 1", _of(checks.in_role, "source"), "invalid_uri"),
    Rule("sink.required", _SINK, _of(checks.required, "sink", kinds=(NOTIFICATION, REQUEST, RESPONSE)), "missing_attribute"),
    Rule("sink.grammar", _SINK, _of(checks.is_address, "sink"), "invalid_uri"),
    Rule("sink.form", _SINK, _of(checks.usual_authority, "sink"), "invalid_uri", tolerated=True),
    Rule("sink.authority", _SINK, _of(checks.has_authority, "sink"), "invalid_uri", tolerated=True),
    Rule("sink.version", _SINK, _of(checks.versioned, "sink"), "invalid_uri"),
    Rule("sink.role", _SINK, _of(checks.in_role, "sink"), "invalid_uri"),
    Rule("datacontenttype.media_type", "1.1 Table 3, datacontenttype", checks.media_type),
    Rule("dataschema.required", "1.1 Table 3, dataschema", checks.has_schema, "missing_attribute"),
    Rule("dataschema.uri", "1.1 Table 3, dataschema", checks.schema_uri),
    Rule("priority.value", "1.1 Table 3, priority", checks.known_priority),
    Rule("priority.request", "1.1 Table 3, priority", checks.urgent),
    Rule("ttl.range", "1.1 Table 3, ttl", _of(checks.within, "ttl", high=checks.MAX_TTL)),
    Rule("ttl.required", "1.1 Table 3, ttl", _of(checks.required, "ttl", kinds=(REQUEST,)), "missing_attribute"),
    Rule("ttl.request", "1.1 Table 3, ttl", checks.alive),
    Rule("plevel.name", "1.2.1 Table 4, permission_level", checks.old_name, tolerated=True),
    Rule("plevel.range", "1.2.1 Table 4, permission_level", _of(checks.within, "plevel")),
    Rule("reqid.required", "1.2.2 Table 5, reqid", _of(checks.required, "reqid", kinds=(RESPONSE,)), "missing_attribute"),
    Rule("reqid.uuid", "1.2.2 Table 5, reqid", _of(checks.is_uuid, "reqid")),
    Rule("reqid.version", "1.2.2 Table 5, reqid", _of(checks.is_uprotocol_uuid, "reqid"), tolerated=True),
    Rule("commstatus.range", "1.2.2 Table 5, commstatus", _of(checks.within, "commstatus")),
    Rule("commstatus.response", "1.2.2 Table 5, commstatus", checks.only_responses),
    Rule("time.timestamp", "CloudEvents 1.0.2, time", checks.timestamp, tolerated=True),
    Rule("attributes.names", "CloudEvents 1.0.2, naming conventions", checks.named),
    Rule("attributes.values", "CloudEvents 1.0.2, type system", checks.valued),
)
"""Tables 1 to 5 of the document, with the rules that its copy lost."""
