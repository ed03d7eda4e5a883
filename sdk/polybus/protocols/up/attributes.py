"""The attributes of a message, and the rules for them (eclipse-uprotocol/up-spec, basics/uattributes.adoc).

Messages are checked when sent and when received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

from attrs import frozen
from msgspec import Struct

from .._shared import WireRules
from .uuris import UUri


class MessageType(IntEnum):
    UNSPECIFIED = 0
    PUBLISH = 1
    REQUEST = 2
    RESPONSE = 3
    NOTIFICATION = 4


class PayloadFormat(IntEnum):
    UNSPECIFIED = 0
    PROTOBUF_IN_ANY = 1
    PROTOBUF = 2
    JSON = 3
    SOMEIP = 4
    SOMEIP_TLV = 5
    RAW = 6
    TEXT = 7
    SHARED_MEMORY = 8


TYPE_NAMES: Final[Mapping[int, str]] = {
    MessageType.PUBLISH: "up-pub.v1",
    MessageType.REQUEST: "up-req.v1",
    MessageType.RESPONSE: "up-res.v1",
    MessageType.NOTIFICATION: "up-not.v1",
}
"""Names as in the bindings to CloudEvents and MQTT."""
USUAL_PRIORITY: Final = 2  # CS1, also the meaning of 0. The number on the wire is the class's number plus one.
REQUEST_PRIORITY: Final = 5
LAST_PRIORITY: Final = 7
FORMAT_NAMES: Final = tuple(format.name.lower() for format in PayloadFormat)


class Attributes(Struct, gc=False):
    """The attributes of one message. Ids are 16 bytes. Empty, None and 0 mean absent."""

    id: bytes = b""
    type: int = 0
    source: UUri | None = None
    sink: UUri | None = None
    priority: int = 0
    ttl: int | None = None
    permission_level: int | None = None
    commstatus: int | None = None
    reqid: bytes = b""
    token: str | None = None
    traceparent: str | None = None
    payload_format: int = 0

    def as_texts(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            "id": uuid_text(self.id) if self.id else None,
            "type": TYPE_NAMES.get(MessageType(self.type)) if 0 < self.type <= MessageType.NOTIFICATION else None,
            "source": None if self.source is None else str(self.source),
            "sink": None if self.sink is None else str(self.sink),
            "priority": priority_name(self.priority) if self.priority else None,
            "ttl": self.ttl,
            "permission_level": self.permission_level,
            "commstatus": self.commstatus,
            "reqid": uuid_text(self.reqid) if self.reqid else None,
            "token": self.token,
            "traceparent": self.traceparent,
            "payload_format": FORMAT_NAMES[self.payload_format] if 0 < self.payload_format < len(FORMAT_NAMES) else None,
        }
        return {name: value for name, value in given.items() if value is not None}


def priority_name(priority: int) -> str:
    """The class of a wire priority: ``CS1`` for 0 and 2."""
    return f"CS{(priority or USUAL_PRIORITY) - 1}"


def uuid_text(id: bytes) -> str:
    text = id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def uuid_bytes(text: str) -> bytes:
    try:
        found = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        found = b""
    if uuid_text(found) != text.lower() or not is_v7(found):
        raise ValueError(f"{text[:60]!r} is not a UUID of version 7: one has the form 018bcfe5-687b-7000-8010-101010101a1a")
    return found


def is_v7(id: bytes) -> bool:
    """True if an id is a UUID of version 7 (RFC 9562)."""
    return len(id) == 16 and id[6] >> 4 == 7 and id[8] >> 6 == 2


def id_ms(id: bytes) -> int:
    return int.from_bytes(id[:6], "big")


NAME: Final = "up"
WIRE_RULES: Final = WireRules(NAME)
refuse: Final = WIRE_RULES.refuse

_TOKEN: Final = b"\x52"


def shown(frame: bytes) -> bytes:
    """The beginning of a frame, for people; empty if it may contain a token, which is never shown."""
    return b"" if _TOKEN in frame else frame[:200]


PROFILE: Final = "1.6-alpha.7"  # The release of these rules; later ones require a ttl and a priority in each message


@frozen
class MessageRule:
    """One rule."""

    name: str  # Name for programs and logs: ``publish.source``
    types: frozenset[MessageType]  # Message types that it applies to
    kept: Callable[[Attributes], bool]  # Returns True for attributes that keep the rule
    text: str


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


_RESPONSE: Final = MessageType.RESPONSE
_ALL: Final = frozenset((MessageType.PUBLISH, MessageType.REQUEST, MessageType.RESPONSE, MessageType.NOTIFICATION))
_FORMATS: Final = range(PayloadFormat.SHARED_MEMORY + 1)
_TABLE: Final[Sequence[tuple[str, Callable[[Attributes], bool], str]]] = (
    ("id", lambda given: is_v7(given.id), "the id is a UUID of version 7"),
    ("type", lambda given: given.type in _ALL, "the type is publish, request, response or notification"),
    ("source", lambda given: given.source is not None, "a message has a source"),
    ("priority", lambda given: 0 <= given.priority <= LAST_PRIORITY, "the priority is CS0 to CS6, or none"),
    ("payload_format", lambda given: given.payload_format in _FORMATS, "the payload format is 1 to 8, or none"),
    (
        "publish.source",
        lambda given: _is_topic(given.source),
        "a publication comes from a topic: its resource is 8000 to FFFE",
    ),
    (
        "publish.sink",
        lambda given: _is_stream_sink(given.sink),
        "a publication has no sink, except a streamer's: an authority with only wildcards",
    ),
    (
        "notification.source",
        lambda given: _is_topic(given.source),
        "a notification comes from a topic: its resource is 8000 to FFFE",
    ),
    ("notification.sink", lambda given: _is_entity(given.sink), "a notification goes to an entity: its sink has resource 0"),
    ("request.source", lambda given: _is_entity(given.source), "the source of a request is for the answer: it has resource 0"),
    ("request.sink", lambda given: _is_method(given.sink), "a request goes to a method: its resource is 1 to 7FFF"),
    ("request.priority", lambda given: given.priority >= REQUEST_PRIORITY, "a request has priority CS4 or more"),
    ("request.ttl", lambda given: bool(given.ttl), "a request has a ttl above 0"),
    (
        "response.source",
        lambda given: _is_method(given.source),
        "a response comes from the method: its resource is 1 to 7FFF",
    ),
    (
        "response.sink",
        lambda given: _is_entity(given.sink),
        "a response goes to the source of its request: resource 0",
    ),
    ("response.reqid", lambda given: is_v7(given.reqid), "a response has the id of its request"),
    (
        "response.priority",
        lambda given: given.priority == 0 or given.priority >= REQUEST_PRIORITY,
        "a response has the priority of its request, which is CS4 or more",
    ),
)
RULES: Final[Sequence[MessageRule]] = tuple(
    MessageRule(name, frozenset((MessageType[name.partition(".")[0].upper()],)) if "." in name else _ALL, kept, text)
    for name, kept, text in _TABLE
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
