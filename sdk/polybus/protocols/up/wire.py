"""Message attributes, their rules, and their protobuf encoding, without the protobuf package.

The rules are from eclipse-uprotocol/up-spec, basics/uattributes.adoc. Messages are checked both when sent and when received.

UMessage, UAttributes, UUri and UUID from ``uprotocol.v1`` are written with fields in numeric order and without default values.
All forms that proto3 allows can be read, and unknown fields are skipped. An id has 16 bytes. On the wire it consists of two
fixed64 fields with reversed bytes: ``09`` with time, version and counter, and ``11`` with variant and random part. Sessions
generate, compare and store ids in this form of 18 bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

from attrs import frozen
from msgspec import Struct
from msgspec.structs import asdict

from ...errors import Code
from ...plugins import FrameField
from ...plugins.protobuf import Fixed, field, length, read_fields, varint, walk_fields
from .._shared import WireRules, plain_field, shown_text
from .._uprotocol import id_version
from .uuris import LONGEST_AUTHORITY, UUri, UUriError, check_authority


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


TYPE_NAMES: Final[Mapping[int, str]] = {1: "up-pub.v1", 2: "up-req.v1", 3: "up-res.v1", 4: "up-not.v1"}
"""Type names from the CloudEvents and MQTT bindings."""
USUAL_PRIORITY: Final = 2  # CS1, also the meaning of 0. The number on the wire is the class's number plus one.
REQUEST_PRIORITY: Final = 5
LAST_PRIORITY: Final = 7
FORMAT_NAMES: Final = tuple(format.name.lower() for format in PayloadFormat)


class Attributes(Struct, gc=False):
    """The attributes of one message. Ids are 16 bytes. An empty string, `None` or 0 means that an attribute is absent."""

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
        given = asdict(self) | {
            "id": uuid_text(self.id) if self.id else None,
            "type": TYPE_NAMES.get(self.type),
            "source": None if self.source is None else str(self.source),
            "sink": None if self.sink is None else str(self.sink),
            "priority": priority_name(self.priority) if self.priority else None,
            "reqid": uuid_text(self.reqid) if self.reqid else None,
            "payload_format": FORMAT_NAMES[self.payload_format] if 0 < self.payload_format < len(FORMAT_NAMES) else None,
        }
        return {name: value for name, value in given.items() if value is not None}


def priority_name(priority: int) -> str:
    """Return the priority class for a wire priority. The class for 0 and 2 is ``CS1``."""
    return f"CS{(priority or USUAL_PRIORITY) - 1}"


def uuid_text(id: bytes) -> str:
    text = id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def uuid_bytes(text: str) -> bytes:
    if id_version(text) != 7:
        raise ValueError(f"{text[:60]!r} is not a UUID of version 7, which has the form 018bcfe5-687b-7000-8010-101010101a1a")
    return bytes.fromhex(text.replace("-", ""))


def is_v7(id: bytes) -> bool:
    """Return True for a version 7 UUID (RFC 9562)."""
    return len(id) == 16 and id[6] >> 4 == 7 and id[8] >> 6 == 2


def id_ms(id: bytes) -> int:
    return int.from_bytes(id[:6], "big")


NAME: Final = "up"
WIRE_RULES: Final = WireRules(NAME)
refuse: Final = WIRE_RULES.refuse


def shown(frame: bytes) -> bytes:
    """Return the beginning of a frame for display, or nothing if it may contain a token (tag 0x52)."""
    return b"" if b"\x52" in frame else frame[:200]


PROFILE: Final = "1.6-alpha.7"  # The release of these rules; later ones require a ttl and a priority in each message


@frozen
class MessageRule:
    name: str  # Name for programs and logs, which ends with the attribute: ``publish.source``
    types: frozenset[MessageType]  # Message types that it applies to
    kept: Callable[[Any], bool]  # Returns True for a value of the attribute that keeps the rule
    text: str


def _is_topic(uri: UUri | None) -> bool:
    return uri is not None and uri.is_topic and not uri.is_pattern


def _is_method(uri: UUri | None) -> bool:
    return uri is not None and uri.is_method and not uri.is_pattern


def _is_entity(uri: UUri | None) -> bool:
    return uri is not None and uri.resource == 0 and not uri.is_pattern


def _is_stream_sink(uri: UUri | None) -> bool:
    """Accept a sink that is empty or consists of an authority and only wildcards, as streamers use."""
    return uri is None or (
        bool(uri.authority) and uri.authority != "*" and (uri.entity, uri.version, uri.resource) == (0xFFFF_FFFF, 0xFF, 0xFFFF)
    )


_RESPONSE: Final = MessageType.RESPONSE
_ALL: Final = frozenset((MessageType.PUBLISH, MessageType.REQUEST, MessageType.RESPONSE, MessageType.NOTIFICATION))
_URGENT: Final = range(REQUEST_PRIORITY, 2**31)
_TABLE: Final[Sequence[tuple[str, Callable[[Any], bool], str]]] = (
    ("id", is_v7, "the id must be a version 7 UUID"),
    ("type", _ALL.__contains__, "the type must be publish, request, response or notification"),
    ("source", lambda uri: uri is not None, "a message must have a source"),
    ("priority", range(LAST_PRIORITY + 1).__contains__, "the priority must be CS0 to CS6, or absent"),
    ("payload_format", range(len(FORMAT_NAMES)).__contains__, "the payload format must be 1 to 8, or absent"),
    ("publish.source", _is_topic, "a publication must come from a topic, whose resource is 8000 to FFFE"),
    (
        "publish.sink",
        _is_stream_sink,
        "a publication must not have a sink, except a streamer's: an authority with only wildcards",
    ),
    ("notification.source", _is_topic, "a notification must come from a topic, whose resource is 8000 to FFFE"),
    ("notification.sink", _is_entity, "a notification must go to an entity, whose resource is 0"),
    ("request.source", _is_entity, "the source of a request must have resource 0, because the answer goes there"),
    ("request.sink", _is_method, "a request must go to a method, whose resource is 1 to 7FFF"),
    ("request.priority", _URGENT.__contains__, "a request must have priority CS4 or higher"),
    ("request.ttl", bool, "a request must have a ttl above 0"),
    ("response.source", _is_method, "a response must come from the method, whose resource is 1 to 7FFF"),
    ("response.sink", _is_entity, "a response must go to the source of its request, whose resource is 0"),
    ("response.reqid", is_v7, "a response must have the id of its request"),
    (
        "response.priority",
        lambda priority: priority == 0 or priority in _URGENT,
        "a response must have the priority of its request, which is CS4 or higher",
    ),
)
RULES: Final[Sequence[MessageRule]] = tuple(
    MessageRule(name, frozenset((MessageType[name.partition(".")[0].upper()],)) if "." in name else _ALL, kept, text)
    for name, kept, text in _TABLE
)


def violations(given: Attributes) -> Iterator[MessageRule]:
    for rule in RULES:
        if (given.type in rule.types or given.type not in _ALL) and (rule.types == _ALL or given.type in _ALL):
            if not rule.kept(getattr(given, rule.name.rpartition(".")[2])):
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
    """Like `first_violation`, but without ids, so that results can be cached: many messages share the other attributes."""
    ttl = 1 if lives else None
    given = Attributes(_SOME_ID, type, source, sink, priority, ttl, reqid=_SOME_ID, payload_format=format)
    return next(violations(given), None)


_COUNTS: Final = 4096
_LAST_MS: Final = 2**48 - 1
_VERSION: Final = 7 << 12
_VARIANT: Final = 2 << 62


class WireIds:
    """Generates unique, ordered ids of version 7 (RFC 9562), even if the clock is set back.

    After 4,096 ids in one millisecond, or if the clock is set back, ids contain times ahead of the clock until the clock
    catches up. Not thread-safe.
    """

    __slots__ = ("_clock", "_next", "_limit", "suffix")

    def __init__(self, clock: Callable[[], int], rng: random.Random) -> None:
        self._clock = clock
        self.suffix: Final = b"\x11" + (_VARIANT | rng.getrandbits(62)).to_bytes(8, "little")
        self._next = self._limit = -1

    def next(self) -> bytes:
        first = (self._clock() // 1_000_000) << 16 | _VERSION
        number = self._next
        if first > number or number == self._limit:
            ms = first >> 16 if first > number else (number >> 16) + (number == self._limit)
            number = min(max(ms, 0), _LAST_MS) << 16 | _VERSION
            self._limit = number + _COUNTS
        self._next = number + 1
        return b"\x09" + number.to_bytes(8, "little") + self.suffix


def is_wire_id(id: bytes) -> bool:
    return len(id) == 18 and id[0] == 9 and id[9] == 17 and id[2] >> 4 == 7 and id[17] >> 6 == 2


def wire_ms(id: bytes) -> int:
    return int.from_bytes(id[3:9], "little")


_LONGEST_UUID: Final = 64
_LONGEST_UUri: Final = 2 * LONGEST_AUTHORITY  # Maximum bytes of a cached address; no valid address needs more
_NUMBERS: Final = {2: "type", 5: "priority", 6: "ttl", 7: "permission_level", 8: "commstatus", 12: "payload_format"}
_IDS: Final = {1: "id", 9: "reqid"}
_ADDRESSES: Final = {3: "source", 4: "sink"}
_TEXTS: Final = {10: "token", 11: "traceparent"}


def write_uuid(id: bytes) -> bytes:
    return b"\x09" + id[7::-1] + b"\x11" + id[15:7:-1]


def read_uuid(data: bytes) -> bytes:
    if len(data) == 18 and data[0] == 9 and data[9] == 17:
        return data[8:0:-1] + data[17:9:-1]
    if len(data) > _LONGEST_UUID:
        raise ValueError(f"a UUID of {len(data)} bytes: 18 are enough")
    halves = {1: bytes(8), 2: bytes(8)}
    for number, part in read_fields(data):
        if number in halves:
            if not isinstance(part, Fixed) or len(part) != 8:
                raise ValueError("half of a UUID is not a fixed64")
            halves[number] = part[::-1]
    return halves[1] + halves[2]


@lru_cache(maxsize=4096)
def write_uuri(uri: UUri) -> bytes:
    data = field(b"\x0a", uri.authority.encode()) if uri.authority else b""
    for tag, number in ((b"\x10", uri.entity), (b"\x18", uri.version), (b"\x20", uri.resource)):
        if number:
            data += tag + varint(number)
    return data


def read_uuri(data: bytes) -> UUri:
    """Return the address in a UUri message. It may break a rule for addresses."""
    if len(data) > _LONGEST_UUri:  # keeps the cache small
        raise UUriError(f"an address of {len(data)} bytes: an authority has at most {LONGEST_AUTHORITY} characters")
    return _read_uuri(data)


@lru_cache(maxsize=4096)
def _read_uuri(data: bytes) -> UUri:
    authority, numbers = "", {2: 0, 3: 0, 4: 0}
    for number, part in read_fields(data):
        if number == 1:
            if type(part) is not bytes:
                raise UUriError("an authority must be a string")
            authority = str(part, "utf-8")
        elif number in numbers:
            if not isinstance(part, int):
                raise UUriError("entity, version and resource must be numbers")
            numbers[number] = part & 0xFFFF_FFFF  # as protobuf reads a uint32
    check_authority(authority)
    entity, version, resource = numbers.values()
    if version > 0xFF or resource > 0xFFFF:
        raise UUriError(f"version {version:X} and resource {resource:X}: they have 8 and 16 bits")
    return UUri(authority, entity, version, resource)


def write_attributes(given: Attributes) -> bytes:
    parts: list[bytes] = []
    for name, absent, tag, write in _WRITTEN:
        value = getattr(given, name)
        if value == absent:
            continue
        if write is None:
            parts.append(tag + varint(value & 0xFFFF_FFFF_FFFF_FFFF))
        else:
            parts.append(field(tag, write(value)))
    return b"".join(parts)


@lru_cache(maxsize=1024)
def head_of(type: int, source: UUri | None, sink: UUri | None, priority: int, ttl: int | None = None) -> bytes:
    """Write the attributes that many messages share."""
    return write_attributes(Attributes(type=type, source=source, sink=sink, priority=priority, ttl=ttl))


_FIELDS: Final = _NUMBERS | _IDS | _ADDRESSES | _TEXTS
_WRITERS: Final[Mapping[int, Callable[[Any], bytes]]] = {
    **dict.fromkeys(_IDS, write_uuid),
    **dict.fromkeys(_ADDRESSES, write_uuri),
    **dict.fromkeys(_TEXTS, str.encode),
}
_WRITTEN: Final = tuple(
    (name, getattr(Attributes(), name), varint(number << 3 | (2 if number in _WRITERS else 0)), _WRITERS.get(number))
    for number, name in sorted(_FIELDS.items())
)
"""Name, value if absent, tag and writer of each attribute, in the order of their numbers."""
_READERS: Final[Mapping[int, Callable[[bytes], UUri | bytes | str]]] = {
    **dict.fromkeys(_IDS, read_uuid),
    **dict.fromkeys(_ADDRESSES, read_uuri),
    **dict.fromkeys(_TEXTS, lambda part: str(part, "utf-8")),
}


def read_attributes(data: bytes) -> Attributes:
    found = Attributes()
    for number, value in read_fields(data):
        name = _FIELDS.get(number)
        if name is None:  # of a later version
            continue
        read = _READERS.get(number)
        if isinstance(value, int):
            if read is not None:
                raise ValueError(f"{name} is not a number")
            if value >= 2**31:  # the low 32 bits, as in proto3; a negative int32 has ten bytes on the wire
                value &= 0xFFFF_FFFF
                value = value if name in ("ttl", "permission_level") or value < 2**31 else value - 2**32
            setattr(found, name, value)
        elif read is None:
            raise ValueError(f"{name} must be a number")
        elif isinstance(value, Fixed):
            raise ValueError(f"{name} is not a fixed-width number")
        else:
            setattr(found, name, read(value))
    return found


def write_message(attributes: bytes, payload: bytes | None) -> bytes:
    head = b"\x0a" + length(attributes) + attributes
    return head if payload is None else head + b"\x12" + length(payload) + payload


def split_message(frame: bytes) -> tuple[bytes | None, bytes | None]:
    attributes: bytes | None = None
    payload: bytes | None = None
    for number, part in read_fields(frame):
        if number in (1, 2):
            if type(part) is not bytes:
                raise ValueError("attributes and payload of a UMessage must be bytes")
            if number == 1:
                attributes = part
            else:
                payload = part
    return attributes, payload


# -- for display ---------------------------------------------------------------------------------------------------------

_SHOWN: Final = 200
_NOTES: Final[Mapping[str, Callable[[int], str]]] = {
    "type": lambda number: TYPE_NAMES.get(number, "of no type"),
    "priority": lambda number: priority_name(number) if number <= LAST_PRIORITY else "of no class",
    "ttl": lambda number: "ms" if number else "for ever",
    "permission_level": lambda number: "",
    "commstatus": lambda number: next((code.name for code in Code if code == number), "of no code" if number else "OK"),
    "payload_format": lambda number: FORMAT_NAMES[number] if number < len(FORMAT_NAMES) else "of no format",
}


def dissect(frame: bytes) -> Iterator[FrameField]:
    for start, end, number, value, part, note in walk_fields(frame, 0, len(frame)):
        if part is None or number not in (1, 2):
            name = f"field {number}" if number else "field"
            yield FrameField(start, end - start, name, plain_field(value)[:_SHOWN], note or "unknown")
        elif number == 2:
            yield FrameField(start, end - start, "payload", shown_text(frame[part:end]), note)
        else:
            yield FrameField(start, part - start, "attributes", f"{end - part} bytes", note)
            for at, stop, number, value, _, note in walk_fields(frame, part, end):
                name = _FIELDS.get(number, f"field {number}" if number else "field")
                shown, seen = _shown_attribute(number, value)
                yield FrameField(at, stop - at, name, shown[:_SHOWN], note or seen)


def _shown_attribute(number: int, value: int | bytes) -> tuple[str, str]:
    name = _FIELDS.get(number)
    if name is None:
        return plain_field(value), "of a later version"
    if name == "token":
        return "...", "not shown"
    if isinstance(value, int) is not (name in _NOTES):
        return plain_field(value), "not a number" if name in _NOTES else "not bytes"
    if isinstance(value, int):
        return str(value), _NOTES[name](value)
    try:
        return _shown_part(number, value)
    except ValueError as error:
        return value.hex(" "), f"not that: {error}"


def _shown_part(number: int, part: bytes) -> tuple[str, str]:
    if number in _IDS:
        id = read_uuid(part)
        return uuid_text(id), f"made {id_ms(id)} ms after 1970" if is_v7(id) else "not a UUID of version 7"
    if number in _TEXTS:
        return shown_text(part), ""
    uri = read_uuri(part)
    resource = "a topic" if uri.is_topic else "a method" if uri.is_method else "an entity" if not uri.resource else ""
    return str(uri), "a pattern" if uri.is_pattern else resource
