"""The rules for message attributes (eclipse-uprotocol/up-spec, basics/uattributes.adoc), one table per profile.

Messages are checked when sent and when received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from attrs import frozen

from .._rules import WireRules
from .attributes import LAST_PRIORITY, REQUEST_PRIORITY, Attributes, MessageType, PayloadFormat, is_v7
from .uuris import UUri

NAME: Final = "up"
WIRE_RULES: Final = WireRules(NAME)
refuse: Final = WIRE_RULES.refuse

_TOKEN: Final = b"\x52"


def shown(frame: bytes) -> bytes:
    """The beginning of a frame, for people; empty if it may contain a token, which is never shown."""
    return b"" if _TOKEN in frame else frame[:200]


PROFILE: Final = "1.6-alpha.7"
"""The release of these rules; later ones require a ttl and a priority in each message."""


@frozen
class MessageRule:
    """One rule.

    Attributes:
        name: Name for programs and logs: ``publish.source``.
        types: Message types that it applies to.
        kept: Returns True for attributes that keep the rule.
        text: The rule in words.
    """

    name: str
    types: frozenset[MessageType]
    kept: Callable[[Attributes], bool]
    text: str


_PUBLISH, _REQUEST, _RESPONSE = MessageType.PUBLISH, MessageType.REQUEST, MessageType.RESPONSE
_NOTIFICATION: Final = MessageType.NOTIFICATION
_ALL: Final = frozenset((_PUBLISH, _REQUEST, _RESPONSE, _NOTIFICATION))


def _only(*types: MessageType) -> frozenset[MessageType]:
    return frozenset(types)


def _is_topic(uri: UUri | None) -> bool:
    return uri is not None and uri.is_topic and not uri.is_pattern


def _is_method(uri: UUri | None) -> bool:
    return uri is not None and uri.is_method and not uri.is_pattern


def _is_entity(uri: UUri | None) -> bool:
    return uri is not None and uri.resource == 0 and not uri.is_pattern


def _is_stream_sink(uri: UUri | None) -> bool:
    """True for no sink, and for a streamer's: an authority with only wildcards."""
    return uri is None or (
        bool(uri.authority) and uri.authority != "*" and (uri.entity, uri.version, uri.resource) == (0xFFFF_FFFF, 0xFF, 0xFFFF)
    )


RULES: Final[Sequence[MessageRule]] = (
    MessageRule("id", _ALL, lambda given: is_v7(given.id), "the id is a UUID of version 7"),
    MessageRule("type", _ALL, lambda given: given.type in _ALL, "the type is publish, request, response or notification"),
    MessageRule("source", _ALL, lambda given: given.source is not None, "a message has a source"),
    MessageRule("priority", _ALL, lambda given: 0 <= given.priority <= LAST_PRIORITY, "the priority is CS0 to CS6, or none"),
    MessageRule(
        "payload_format",
        _ALL,
        lambda given: 0 <= given.payload_format <= PayloadFormat.SHARED_MEMORY,
        "the payload format is 1 to 8, or none",
    ),
    MessageRule(
        "publish.source",
        _only(_PUBLISH),
        lambda given: _is_topic(given.source),
        "a publication comes from a topic, whose resource is 8000 to FFFE",
    ),
    MessageRule(
        "publish.sink",
        _only(_PUBLISH),
        lambda given: _is_stream_sink(given.sink),
        "a publication has no sink, except a streamer's: an authority with only wildcards",
    ),
    MessageRule(
        "notification.source",
        _only(_NOTIFICATION),
        lambda given: _is_topic(given.source),
        "a notification comes from a topic, whose resource is 8000 to FFFE",
    ),
    MessageRule(
        "notification.sink",
        _only(_NOTIFICATION),
        lambda given: _is_entity(given.sink),
        "a notification goes to an entity: its sink has resource 0",
    ),
    MessageRule(
        "request.source",
        _only(_REQUEST),
        lambda given: _is_entity(given.source),
        "the source of a request is for the answer: it has resource 0",
    ),
    MessageRule(
        "request.sink",
        _only(_REQUEST),
        lambda given: _is_method(given.sink),
        "a request goes to a method, whose resource is 1 to 7FFF",
    ),
    MessageRule(
        "request.priority",
        _only(_REQUEST),
        lambda given: given.priority >= REQUEST_PRIORITY,
        "a request has priority CS4 or more",
    ),
    MessageRule("request.ttl", _only(_REQUEST), lambda given: bool(given.ttl), "a request has a ttl above 0"),
    MessageRule(
        "response.source",
        _only(_RESPONSE),
        lambda given: _is_method(given.source),
        "a response comes from the method, whose resource is 1 to 7FFF",
    ),
    MessageRule(
        "response.sink",
        _only(_RESPONSE),
        lambda given: _is_entity(given.sink),
        "a response goes to the source of its request, which has resource 0",
    ),
    MessageRule("response.reqid", _only(_RESPONSE), lambda given: is_v7(given.reqid), "a response has the id of its request"),
    MessageRule(
        "response.priority",
        _only(_RESPONSE),
        lambda given: given.priority == 0 or given.priority >= REQUEST_PRIORITY,
        "a response has the priority of its request, which is CS4 or more",
    ),
)


def violations(given: Attributes) -> Iterator[MessageRule]:
    for rule in RULES:
        if (given.type in rule.types or given.type not in _ALL) and (rule.types == _ALL or given.type in _ALL):
            if not rule.kept(given):
                yield rule


def first_violation(given: Attributes) -> MessageRule | None:
    if not is_v7(given.id) or (given.type == _RESPONSE and not is_v7(given.reqid)):
        return next(violations(given))
    return _violation_of_head(given.type, given.source, given.sink, given.priority, bool(given.ttl), given.payload_format)


_SOME_ID: Final = bytes.fromhex("018bcfe5687b70008010101010101a1a")


@lru_cache(maxsize=4096)
def _violation_of_head(
    type: int, source: UUri | None, sink: UUri | None, priority: int, lives: bool, format: int
) -> MessageRule | None:
    """`first_violation` without the ids, which is cached because many messages share the rest."""
    ttl = 1 if lives else None
    given = Attributes(_SOME_ID, type, source, sink, priority, ttl, reqid=_SOME_ID, payload_format=format)
    return next(violations(given), None)
