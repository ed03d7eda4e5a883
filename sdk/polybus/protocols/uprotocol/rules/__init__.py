"""The rules of the document for the attributes of a message, each with its clause: one table for reading and writing.

The readers test the usual case inline and come here for everything else; so this table alone decides what is a message. A
rule says from which `Leniency` on a reader looks away; the message says that it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, Final

from attrs import Factory, field, frozen

from ....errors import RemoteProtocolError
from . import checks
from .checks import NOTIFICATION, REQUEST, RESPONSE, Facts

__all__ = ["RULES", "TOLERATED", "Leniency", "Rule", "Violation", "violations"]

TOLERATED: Final = "polybus-lenient"
"""The member of `Message.attributes` that names the rules which a message breaks and was read all the same. No attribute of an
event can have this name."""


class Leniency(IntEnum):
    """The rules that a reader looks away from, by ``mode=``."""

    STRICT = 0
    """Every rule counts."""
    DOCUMENT = 1
    """All count but those that the document itself breaks in what it shows."""
    LENIENT = 2
    """Nor those that the SDKs of its time broke."""

    @classmethod
    def of(cls, mode: str) -> Leniency:
        """That of an option's value. May raise `ValueError`: it is none."""
        found = cls.__members__.get(mode.upper())
        if found is None:
            raise ValueError(f"mode={mode!r}: one of {', '.join(name.lower() for name in cls.__members__)}")
        return found


@frozen
class Rule:
    """One rule.

    Attributes:
        name: For programs and logs: ``ttl.required``.
        clause: Where the document says so.
        check: Of the message, the name and the value of the attribute: what was seen where it is broken; None where it is kept.
        reason: `RemoteProtocolError.reason`.
        tolerated: The least leniency with which a reader looks away; None: none does.
    """

    name: str
    clause: str
    check: Callable[[Facts, str, Any], str | None]
    reason: str = "invalid_attribute"
    tolerated: Leniency | None = None
    attribute: str = field(init=False, default=Factory(lambda self: self.name.partition(".")[0], takes_self=True))

    def counts(self, leniency: Leniency) -> bool:
        """True if a reader refuses what breaks it."""
        return self.tolerated is None or leniency < self.tolerated


class Violation(RemoteProtocolError):
    """A message breaks a rule of the document. `rule` says which."""

    def __init__(self, rule: Rule, seen: str, *, answer_id: Any = None, reply_id: Any = None) -> None:
        text = f"{seen} (rule {rule.name}; document, {rule.clause})"
        super().__init__(text, reason=rule.reason, protocol="uprotocol", answer_id=answer_id, reply_id=reply_id)
        self.rule: Rule = rule


def violations(facts: Facts, rules: Sequence[Rule] | None = None) -> Iterator[tuple[Rule, str]]:
    """Every rule that a message breaks, in the order of the table, and what was seen."""
    for rule in RULES if rules is None else rules:
        seen = rule.check(facts, rule.attribute, facts.attributes.get(rule.attribute))
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
    "subject": "CloudEvents 1.0.2, subject",
}
_NUMBERS: Final = {
    "ttl": "1.1 Table 3, ttl",
    "plevel": "1.2.1 Table 4, permission_level",
    "permission_level": "1.2.1 Table 4, permission_level",
    "commstatus": "1.2.2 Table 5, commstatus",
}

RULES: Final[tuple[Rule, ...]] = (
    Rule("specversion.required", "1.1 Table 3, specversion", checks.required, "missing_attribute"),
    Rule("specversion.value", "1.1 Table 3, specversion", checks.specversion),
    Rule("type.required", "1.1 Table 2", checks.required, "missing_attribute"),
    Rule("type.value", "1.1 Table 2", checks.known_type, "unknown_verb"),
    Rule("id.required", "1.1 Table 3, id", checks.required, "missing_attribute"),
    *(Rule(f"{name}.type", clause, partial(checks.is_a, kind=str, says="text")) for name, clause in _TEXTS.items()),
    *(Rule(f"{name}.type", clause, partial(checks.is_a, kind=int, says="a whole number")) for name, clause in _NUMBERS.items()),
    Rule("hash.type", "1.1 Table 3, hash", partial(checks.is_a, kind=bytes, says="binary")),
    Rule("id.uuid", "1.1 Table 3, id", checks.is_uuid),
    Rule("id.version", "1.1 Table 3, id (a uProtocol UUID)", checks.is_uprotocol_uuid, tolerated=Leniency.DOCUMENT),
    Rule("source.required", _SOURCE, checks.required, "missing_attribute"),
    Rule("source.grammar", _SOURCE, checks.is_address, "invalid_uri"),
    Rule("source.form", _SOURCE, checks.usual_authority, "invalid_uri", tolerated=Leniency.LENIENT),
    Rule("source.authority", _SOURCE, checks.has_authority, "invalid_uri", tolerated=Leniency.DOCUMENT),
    Rule("source.version", _SOURCE, checks.versioned, "invalid_uri"),
    Rule("source.role", "1.1 Table 1", checks.in_role, "invalid_uri"),
    Rule("sink.required", _SINK, partial(checks.required, kinds=(NOTIFICATION, REQUEST, RESPONSE)), "missing_attribute"),
    Rule("sink.grammar", _SINK, checks.is_address, "invalid_uri"),
    Rule("sink.form", _SINK, checks.usual_authority, "invalid_uri", tolerated=Leniency.LENIENT),
    Rule("sink.authority", _SINK, checks.has_authority, "invalid_uri", tolerated=Leniency.DOCUMENT),
    Rule("sink.version", _SINK, checks.versioned, "invalid_uri"),
    Rule("sink.role", _SINK, checks.in_role, "invalid_uri"),
    Rule("datacontenttype.media_type", "1.1 Table 3, datacontenttype", checks.media_type),
    Rule("dataschema.required", "1.1 Table 3, dataschema", checks.has_schema, "missing_attribute"),
    Rule("dataschema.uri", "1.1 Table 3, dataschema", checks.schema_uri),
    Rule("priority.value", "1.1 Table 3, priority", checks.known_priority),
    Rule("priority.request", "1.1 Table 3, priority", checks.urgent),
    Rule("ttl.range", "1.1 Table 3, ttl", partial(checks.within, high=checks.MAX_TTL)),
    Rule("ttl.required", "1.1 Table 3, ttl", partial(checks.required, kinds=(REQUEST,)), "missing_attribute"),
    Rule("ttl.request", "1.1 Table 3, ttl", checks.alive),
    Rule("plevel.name", "1.2.1 Table 4, permission_level", checks.old_name, tolerated=Leniency.DOCUMENT),
    Rule("plevel.range", "1.2.1 Table 4, permission_level", checks.within),
    Rule("reqid.required", "1.2.2 Table 5, reqid", partial(checks.required, kinds=(RESPONSE,)), "missing_attribute"),
    Rule("reqid.uuid", "1.2.2 Table 5, reqid", checks.is_uuid),
    Rule("reqid.version", "1.2.2 Table 5, reqid", checks.is_uprotocol_uuid, tolerated=Leniency.DOCUMENT),
    Rule("commstatus.range", "1.2.2 Table 5, commstatus", checks.within),
    Rule("commstatus.response", "1.2.2 Table 5, commstatus", checks.only_responses),
    Rule("subject.filled", "CloudEvents 1.0.2, subject", checks.filled, tolerated=Leniency.LENIENT),
    Rule("time.timestamp", "CloudEvents 1.0.2, time", checks.timestamp, tolerated=Leniency.LENIENT),
    Rule("attributes.names", "CloudEvents 1.0.2, naming conventions", checks.named),
    Rule("attributes.values", "CloudEvents 1.0.2, type system", checks.valued),
)
"""Tables 1 to 5 of the document, with the rules that its copy lost."""
