"""uProtocol on Zenoh (up-l1/zenoh.adoc): filters, and samples that have a key, an attachment and a payload.

`docs/reference/up.md` compares the three dialects. Keys of 11 segments never match keys of 9 segments. The two dialects with 9
segments share keys, so each receives the other's samples and rejects their attachment. An address without an authority belongs
to the sender's host. The key contains the name of that host (URI Mapping). The frame gets this name as its authority, because
otherwise a receiver would interpret the address as local.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

from attrs import evolve, frozen

from ...errors import LocalProtocolError, TooLarge
from ...plugins import Hear, Sample
from ...plugins.protobuf import length, read_varint
from ...subjects import canonical, is_pattern, matches, wire_pattern
from .names import UpNames, subject_text
from .uuris import ANY_AUTHORITY, ANY_PART, ANY_VERSION, UUri, UUriError, check_authority, parse_uuri
from .wire import LAST_PRIORITY, NAME, USUAL_PRIORITY, read_attributes, split_message, write_attributes, write_message


def segments_of(uri: UUri, host: str, *, whole_entity: bool = False) -> str:
    """Return the five segments of an address or pattern, or four if `whole_entity` is set, which may cover more addresses."""
    numbers = ((uri.type, ANY_PART), (uri.instance, ANY_PART), (uri.version, ANY_VERSION), (uri.resource, ANY_PART))
    type, instance, version, resource = ("*" if number == any else f"{number:X}" for number, any in numbers)
    entity = f"{type}/{instance}"
    if whole_entity:
        entity = "*" if "*" in entity else f"{uri.entity:X}"
    return f"{uri.authority or host}/{entity}/{version}/{resource}"


def key_of(source: UUri, sink: UUri | None, host: str, *, whole_entity: bool = False) -> str:
    if host in ("", ANY_AUTHORITY):
        raise ValueError(f"{host!r} does not name this host: keys need its name in place of an empty authority")
    start = f"up/{segments_of(source, host, whole_entity=whole_entity)}"
    no_sink = "{}/{}/{}/{}" if whole_entity else "{}/{}/{}/{}/{}"
    return f"{start}/{no_sink if sink is None else segments_of(sink, host, whole_entity=whole_entity)}"


_VERSION: Final = b"\x01"
_PAIRS: Final = b"\x02\x00\x01\x01\x00"
"""Two pairs of string and bytes in Zenoh's serialisation. Both strings are empty, and the first bytes value is the version."""
MAX_ATTACHMENT: Final = 64 * 1024  # Maximum bytes of an attachment; two addresses and three texts need far less
MAX_ATTRIBUTES: Final = MAX_ATTACHMENT - 16  # Maximum bytes of its attributes, in any dialect


def check_attributes(frame: bytes) -> None:
    size = len(split_message(frame)[0] or b"")
    if size > MAX_ATTRIBUTES:
        text = f"attributes of {size} bytes: the limit on a fabric is {MAX_ATTRIBUTES}"
        raise TooLarge(f"{text}; token= and the header traceparent count, and bodies do not")


class ForeignDialect(ValueError):
    """A sample in another dialect that uses the same keys."""


@frozen
class Dialect:
    """A way to represent a UMessage as a sample."""

    name: str
    whole_entity: bool = False  # True if the entity is one segment of a key, not type and instance
    serialized: bool = False  # True if attachment and payload use Zenoh's serialisation

    def filter(self, source: UUri, sink: UUri | None, host: str) -> str:
        return key_of(source, sink, host, whole_entity=self.whole_entity)

    def sample(self, frame: bytes, host: str) -> Sample:
        attributes, payload = split_message(frame)
        found = read_attributes(attributes or b"")
        if found.source is None:
            raise ValueError("a message without source has no key")
        data = payload or b""
        return Sample(
            self.filter(found.source, found.sink, host),
            _PAIRS + length(attributes or b"") + (attributes or b"") if self.serialized else _VERSION + (attributes or b""),
            length(data) + data if self.serialized else data,
            min(max(found.priority or USUAL_PRIORITY, 1), LAST_PRIORITY) - 1,
        )

    def frame(self, sample: Sample, limit: int) -> bytes:
        """Convert a sample to a frame. The key must match the attributes, because a fabric's access rules apply to keys.

        Raises `ForeignDialect` for a sample in another dialect that uses the same keys, and `ValueError` for an invalid sample.
        """
        attachment, payload = sample.attachment, sample.payload
        size = 0 if attachment is None else len(attachment)
        if attachment is None or size < 2:
            raise ValueError(
                f"an attachment of {size} bytes: a version and attributes are required; "
                "a deletion, or a sample over Limits.message, counts as one without"
            )
        if size > MAX_ATTACHMENT or size + len(payload) > limit:
            raise ValueError(
                f"an attachment of {size} bytes and a payload of {len(payload)}: "
                f"the limits are {MAX_ATTACHMENT}, and {limit} for both (Limits.message)"
            )
        attributes = self._attributes(attachment)
        given = read_attributes(attributes)
        source, sink = self._placed(sample.key, given.source, given.sink)
        if source != given.source or sink != given.sink:
            given.source, given.sink = source, sink
            attributes = write_attributes(given)
        data = _counted(payload, 0, "payload") if self.serialized and payload else payload
        # On Zenoh an empty payload equals none; a format shows that there was one.
        return write_message(attributes, data if data or given.payload_format else None)

    def _attributes(self, attachment: bytes) -> bytes:
        start, other = (_PAIRS, _VERSION) if self.serialized else (_VERSION, _PAIRS)
        if not attachment.startswith(start):
            if self.whole_entity and attachment.startswith(other):
                raise ForeignDialect(f"an attachment of another dialect than {self.name}")
            there = f"in the dialect {self.name} it is {start.hex()}"
            raise ValueError(f"an attachment that begins with {attachment[:5].hex()}: {there}")
        return _counted(attachment, len(start), "attachment") if self.serialized else attachment[len(start) :]

    def _placed(self, key: str, source: UUri | None, sink: UUri | None) -> tuple[UUri, UUri | None]:
        if source is None:
            raise ValueError("a message without source")
        source = _with_host(source, key, 1)
        sink = None if sink is None else _with_host(sink, key, 6 - self.whole_entity)
        if key != self.filter(source, sink, "-"):  # both have a host now
            raise ValueError(f"the key {key[:200]!r} does not match its attributes, from {source} to {sink}")
        return source, sink


def _with_host(uri: UUri, key: str, place: int) -> UUri:
    if uri.authority:
        return uri
    segments = key.split("/", place + 1)
    host = segments[place] if len(segments) > place else ""
    try:
        check_authority(host)
    except UUriError as error:
        raise ValueError(f"the key {key[:200]!r} does not match its attributes: {error}") from error
    if host in ("", ANY_AUTHORITY):
        raise ValueError(f"the key {key[:200]!r} does not match its attributes: it names no host for {uri}")
    return evolve(uri, authority=host)


def _counted(data: bytes, at: int, what: str) -> bytes:
    try:
        size, at = read_varint(data, at)
    except IndexError as error:
        raise ValueError(f"the {what} is cut off in its length") from error
    if at + size != len(data):
        raise ValueError(f"the {what} announces {size} bytes and has {len(data) - at}")
    return data[at:]


_CPP: Final = Dialect("cpp-1.0", whole_entity=True, serialized=True)
DIALECTS: Final = {one.name: one for one in (Dialect("spec"), _CPP, Dialect("rust-0.6", whole_entity=True))}


# -- filters: what Zenoh delivers to this side -----------------------------------------------------------------------------

# The subject of a publication is its name or, without one, its address. A pattern therefore selects the topics with matching
# names. A pattern that begins with a wildcard matches addresses, too, and selects any topic. A filter may select more than the
# pattern; the bus matches again.

_ANY_ENTITY: Final = 0xFFFF_FFFF
ANYTHING: Final = UUri(ANY_AUTHORITY, _ANY_ENTITY, ANY_VERSION, ANY_PART)
_ANY_PARTS: Final = (ANY_AUTHORITY, f"{_ANY_ENTITY:X}", f"{ANY_VERSION:X}", f"{ANY_PART:X}")
_WILDCARDS: Final = ("*", ">")


class Filters:
    """Manages the active filters. `hear` is called with all filter expressions, at the start and after each change."""

    __slots__ = ("_dialect", "_hear", "_heard", "_to_us", "_wanted", "names")

    def __init__(self, dialect: Dialect, names: UpNames, hear: Hear) -> None:
        self._dialect: Final = dialect
        self._hear: Final = hear
        self.names: Final = names
        self._to_us: Final = self._expression(ANYTHING, names.entity.with_resource(ANY_PART))
        self._wanted: dict[str | int, tuple[str, ...]] = {}
        self._heard: tuple[str, ...] = ()

    def add(self, pattern: str | int) -> None:
        self._wanted[pattern] = tuple(self._expression(source, None) for source in self._sources(pattern))
        self.declare()

    def remove(self, pattern: str | int) -> None:
        self._wanted.pop(pattern, None)
        self.declare()

    def declare(self) -> None:
        expressions = tuple(dict.fromkeys((self._to_us, *chain.from_iterable(self._wanted.values()))))
        if expressions != self._heard:
            self._heard = expressions
            self._hear(expressions)

    def is_ours(self, sink: UUri | None) -> bool:
        return sink is not None and sink.with_resource(0) == self.names.entity.with_resource(0)

    def _expression(self, source: UUri, sink: UUri | None) -> str:
        return self._dialect.filter(source, sink, self.names.entity.authority)

    def _sources(self, pattern: str | int) -> tuple[UUri, ...]:
        pattern = subject_text(pattern)
        if "/" in pattern:
            return (_sources_of_addresses(pattern),)
        if not is_pattern(pattern):
            return self.names.sources(pattern)
        if str(wire_pattern(pattern)).partition(".")[0] in _WILDCARDS:
            return (ANYTHING,)
        return tuple(uri for name in self.names.topics if matches(pattern, name) for uri in self.names.sources(name))


def _sources_of_addresses(pattern: str) -> UUri:
    """Return the narrowest filter for the addresses that match a bus pattern."""
    tokens = canonical(pattern).split("/")
    parts = tokens[2:] if tokens[:2] == ["", ""] else ["", *tokens[1:]]
    if parts[-1] == ">":
        parts[-1:] = ["*"] * (5 - len(parts))
    text = "subjects of publications are addresses such as //device1/10AB/3/80CD; each part may be *"
    if len(parts) != len(_ANY_PARTS):
        raise LocalProtocolError(f"{pattern[:100]!r}: {text}", protocol=NAME)
    authority, *numbers = (any if "*" in part else part for part, any in zip(parts, _ANY_PARTS, strict=True))
    try:
        uri = parse_uuri("/".join((f"//{authority}" if authority else "", *numbers)))
    except UUriError as error:
        raise LocalProtocolError(f"{pattern[:100]!r}: {text}: {error}", protocol=NAME) from error
    if "*" not in parts[-1] and not uri.is_topic:
        raise LocalProtocolError(f"{pattern[:100]!r} is not a topic: its last number must be from 8000 to FFFE", protocol=NAME)
    return uri
