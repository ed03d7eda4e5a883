"""The protobuf format of CloudEvents 1.0.2 (``io.cloudevents.v1.CloudEvent``), with data as the document requires.

Usual events are read without the generated class, with repeated attributes cached by their bytes. Other events use the class
and the table of rules. Events are written without the class, so that shared parts are encoded once; a test compares both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, Final

from ...body import OCTETS, BodyFormat
from ...errors import EncodeError, RemoteProtocolError
from ...limits import Limits
from ...message import Kind
from ...plugins import FrameField
from ...plugins.protobuf import field, length, read_fields, read_varint, varint, walk_fields
from .._protobuf import ANY, check_any, known_class
from .._shared import plain_field, remember
from .._uprotocol import LEVELS, Pairs
from .events import (
    BATCH,
    ITEM,
    OCTET_STREAM,
    PROTOBUF,
    STATUS_URLS,
    Envelope,
    EventMessage,
    Extra,
    UsualEvent,
    format_of,
    from_text,
    is_id,
    is_packed,
    known_schema,
    read_proto_item,
    shown,
)
from .rules import MAX_INTEGER, WIRE_RULES, is_text, refuse

_DESCRIPTOR: Final = (  # cloudevents.proto in this folder, compiled by protoc; a test compares them
    b"\n\x11cloudevents.proto\x12\x11io.cloudevents.v1\x1a\x19google/protobuf/any.proto\x1a\x1fgoogle/protobuf/timestam"
    b'p.proto"\xb0\x04\n\nCloudEvent\x12\n\n\x02id\x18\x01 \x01(\t\x12\x0e\n\x06source\x18\x02 \x01(\t\x12\x14\n\x0cspe'
    b"c_version\x18\x03 \x01(\t\x12\x0c\n\x04type\x18\x04 \x01(\t\x12A\n\nattributes\x18\x05 \x03(\x0b2-.io.cloudevents"
    b".v1.CloudEvent.AttributesEntry\x12\x15\n\x0bbinary_data\x18\x06 \x01(\x0cH\x00\x12\x13\n\ttext_data\x18\x07 \x01("
    b"\tH\x00\x12*\n\nproto_data\x18\x08 \x01(\x0b2\x14.google.protobuf.AnyH\x00\x1ai\n\x0fAttributesEntry\x12\x0b\n"
    b"\x03key\x18\x01 \x01(\t\x12E\n\x05value\x18\x02 \x01(\x0b26.io.cloudevents.v1.CloudEvent.CloudEventAttributeValue"
    b":\x028\x01\x1a\xd3\x01\n\x18CloudEventAttributeValue\x12\x14\n\nce_boolean\x18\x01 \x01(\x08H\x00\x12\x14\n\nce_i"
    b"nteger\x18\x02 \x01(\x05H\x00\x12\x13\n\tce_string\x18\x03 \x01(\tH\x00\x12\x12\n\x08ce_bytes\x18\x04 \x01(\x0cH"
    b"\x00\x12\x10\n\x06ce_uri\x18\x05 \x01(\tH\x00\x12\x14\n\nce_uri_ref\x18\x06 \x01(\tH\x00\x122\n\x0cce_timestamp"
    b'\x18\x07 \x01(\x0b2\x1a.google.protobuf.TimestampH\x00B\x06\n\x04attrB\x06\n\x04data"@\n\x0fCloudEventBatch\x12-'
    b"\n\x06events\x18\x01 \x03(\x0b2\x1d.io.cloudevents.v1.CloudEventb\x06proto3"
)


@cache
def cloud_event_classes() -> tuple[type[Any], type[Any]]:
    """Return ``CloudEvent`` and ``CloudEventBatch``, perhaps from another package that has registered these names.

    They are built from a descriptor, because code that protoc generates works with only two generations of protobuf.
    """
    from google.protobuf import any_pb2, descriptor_pool, timestamp_pb2  # noqa: F401  # which it imports

    if known_class("io.cloudevents.v1.CloudEvent") is None:
        descriptor_pool.Default().AddSerializedFile(_DESCRIPTOR)
    event, batch = known_class("io.cloudevents.v1.CloudEvent"), known_class("io.cloudevents.v1.CloudEventBatch")
    assert event is not None and batch is not None
    return event, batch


_REQUEST, _RESPONSE = Kind.REQUEST, Kind.RESPONSE
# Fields of CloudEvent.
_ID, _SOURCE, _VERSION, _TYPE, _ATTRIBUTE, _BINARY, _PROTO = 0x0A, 0x12, 0x1A, 0x22, 0x2A, 0x32, 0x42
_REQUIRED: Final = frozenset({"id", "source", "type"})
_PROTOBUFS: Final = frozenset({PROTOBUF, "application/x-protobuf"})
_REQID: Final = b"\n\x05reqid\x12&\x1a$"
_REQID_FIELD: Final = b"*/" + _REQID
_NAMES: Final = frozenset({"sink", "priority", "ttl", "datacontenttype", "dataschema", "token", "plevel"})
_KNOWN: Final = 2048
_ID_HEAD: Final = b"\n$"  # an id of 36 characters
_BLOCK: Final = len(_ID_HEAD) + 36
_BLOCKS: Final = 256
_SIZES: Final = 6


class ProtoReader:
    """Reads protobuf events. Repeated fields are cached by their bytes."""

    def __init__(self, envelope: Envelope, limits: Limits) -> None:
        self._limits = limits
        self._envelope = envelope
        self._max_frame = limits.message
        # Attributes, and texts of source and type, by their bytes. Bounded.
        self._known: dict[bytes, tuple[str, Any]] = {}
        self._texts: dict[bytes, str] = {}
        # Bytes between id and reqid or data, and their few sizes. Bounded.
        self._blocks: dict[bytes, tuple[Kind, UsualEvent, BodyFormat]] = {}
        self._sizes: tuple[int, ...] = ()  # replaced, never changed: buses in other threads share this reader

    def read(self, frame: bytes) -> EventMessage:
        if len(frame) > self._max_frame:
            raise WIRE_RULES.refuse_size(len(frame), self._max_frame)
        try:
            message = self._quick(frame)
        except (ValueError, IndexError):
            message = None
        if message is not None:
            return message
        try:
            return self._envelope.examined(*self.parts(frame))
        except RemoteProtocolError as error:
            error.frame = shown(frame)
            raise
        except (ValueError, RecursionError, EncodeError) as error:
            refused = refuse(f"not an event: {error}", "bad_protobuf")
            refused.frame = shown(frame)
            raise refused from error

    def split(self, frame: bytes) -> list[bytes]:
        if len(frame) > self._max_frame:
            raise refuse(f"a batch of {len(frame)} bytes is larger than {self._max_frame} (limit: message)", "too_large")
        try:
            found = [value for number, value in read_fields(frame, most=len(frame)) if number == 1]
        except ValueError as error:
            raise refuse(f"not a CloudEventBatch: {error}", "bad_protobuf") from error
        if len(found) > BATCH:
            raise refuse(f"a batch of {len(found)} events: the limit is {BATCH}", "too_large")
        events = [value for value in found if isinstance(value, bytes)]
        if len(events) < len(found):
            raise refuse("not a CloudEventBatch: an event is not a number", "bad_protobuf")
        return events

    # -- fields ----------------------------------------------------------------------------------------------------------

    def _text(self, part: bytes) -> str:
        text = str(part, "utf-8")
        return remember(self._texts, part, text, _KNOWN) if len(part) <= self._limits.subject else text

    def _attribute(self, part: bytes) -> tuple[str, Any]:
        """Return the name and value of an entry, or raise `ValueError` if it is unusual. Unique ids are not cached."""
        if part.startswith(_REQID) and len(part) == len(_REQID) + 36:
            return "reqid", str(part[len(_REQID) :], "ascii")
        name_end = part[1] + 2
        value = part[name_end + 2 :]
        name = str(part[2:name_end], "ascii")
        if part[0] != 10 or part[name_end] != 0x12 or part[name_end + 1] != len(value) or name not in _NAMES:
            raise ValueError
        found: Any
        if value[0] in (0x1A, 0x32) and value[1] == len(value) - 2 < 128:  # ce_string, ce_uri_ref
            found = str(value[2:], "utf-8")
            if name in ("ttl", "plevel") or (name == "priority" and found not in LEVELS):
                raise ValueError
        elif value[0] == 0x10 and name in ("ttl", "plevel"):  # ce_integer
            found, end = read_varint(value, 1)
            if end != len(value) or found > MAX_INTEGER:
                raise ValueError
        else:
            raise ValueError
        return (name, found) if name == "token" else remember(self._known, part, (name, found), _KNOWN)

    def answers(self, frame: bytes) -> str | None:
        return self.parts(frame)[0].get("reqid")

    def parts(self, frame: bytes) -> tuple[dict[str, Any], bytes | None, BodyFormat]:
        from google.protobuf.message import DecodeError

        try:
            event = cloud_event_classes()[0].FromString(frame)
        except DecodeError as error:
            raise refuse(f"not an io.cloudevents.v1.CloudEvent: {error}", "bad_protobuf") from error
        attributes: dict[str, Any] = {name: _value(name, value) for name, value in event.attributes.items()}
        for name, own in (("id", "id"), ("source", "source"), ("type", "type"), ("specversion", "spec_version")):
            if name in attributes:
                raise refuse(f"{name} is among the attributes, but has its own field", "ambiguous")
            attributes[name] = getattr(event, own) or None
        where = event.WhichOneof("data")
        content = attributes.get("datacontenttype")
        format = format_of(content if isinstance(content, str) else None)
        if where is None:
            return attributes, None, ANY
        if where == "proto_data":
            if format is not ANY:
                raise refuse(f"proto_data, but the content type is {content!r}", "ambiguous")
            return attributes, event.proto_data.SerializeToString(), ANY
        data = event.binary_data if where == "binary_data" else event.text_data.encode()
        return attributes, from_text(data, format, self._limits.depth), format

    # -- the usual case --------------------------------------------------------------------------------------------------

    def _quick(self, frame: bytes) -> EventMessage | None:
        """Read a usual event. Any other returns None or raises `ValueError` or `IndexError`.

        The bytes between the id and the reqid or data repeat in many events, so they are cached as one block.
        """
        for size in self._sizes:
            begin = frame[_BLOCK : _BLOCK + size]
            found = self._blocks.get(begin)
            if found is not None:
                return self._known_block(frame, _BLOCK + size, *found)
        return self._by_fields(frame)

    def _known_block(self, frame: bytes, at: int, kind: Kind, known: UsualEvent, format: BodyFormat) -> EventMessage | None:
        if not frame.startswith(_ID_HEAD):
            return None
        id, reqid, raw = str(frame[2:_BLOCK], "ascii"), None, None
        if frame.startswith(_REQID_FIELD, at):
            begin, at = at + len(_REQID_FIELD), at + len(_REQID_FIELD) + 36
            reqid = str(frame[begin:at], "ascii")
        end = len(frame)
        if at < end:
            if frame[at] != (_PROTO if format is ANY else _BINARY):
                return self._by_fields(frame)
            size, at = frame[at + 1], at + 2
            if size > 127:
                size, at = read_varint(frame, at - 1)
            raw = frame[at:]
            if at + size != end or (format is ANY and not check_any(raw)):
                return self._by_fields(frame)
        if is_id(id) is None:
            return None
        event = UsualEvent("1.0", id, known.source, known.type, known.sink, known.priority, known.ttl, reqid)
        if format is not ANY:
            event.datacontenttype, event.dataschema = known.datacontenttype, known.dataschema
        return self._message(kind, event, raw, format)

    def _by_fields(self, frame: bytes) -> EventMessage | None:
        attributes: dict[str, Any] = {}
        raw: bytes | None = None
        format: BodyFormat = ANY
        version = False
        at, end, block = 0, len(frame), 0
        while at < end:
            start, tag, size = at, frame[at], frame[at + 1]
            at += 2
            if size > 127:
                size, at = read_varint(frame, at - 1)
            part = frame[at : at + size]
            at += size
            if tag == _ATTRIBUTE:
                name, value = self._known.get(part) or self._attribute(part)
                if name in attributes:
                    return None  # the last one counts, which the generated class handles
                attributes[name] = value
                if name == "reqid":
                    block = block or start
            elif tag == _PROTO or tag == _BINARY:
                if raw is not None:
                    return None
                raw, format = part, ANY if tag == _PROTO else OCTETS
                block = block or start
            elif tag == _ID:
                if "id" in attributes:
                    return None
                attributes["id"] = str(part, "ascii")
            elif tag == _SOURCE:
                attributes["source"] = self._texts.get(part) or self._text(part)
            elif tag == _TYPE:
                attributes["type"] = self._texts.get(part) or self._text(part)
            elif tag == _VERSION and part == b"1.0":
                version = True
            else:
                return None
        if at != end or not version or not _REQUIRED <= attributes.keys():
            return None
        if attributes["type"] == ITEM and format is OCTETS and (item := read_proto_item(attributes, raw)) is not None:
            return item
        return self._checked(frame, block or end, attributes, raw, format)

    def _checked(
        self, frame: bytes, block: int, attributes: dict[str, Any], raw: bytes | None, format: BodyFormat
    ) -> EventMessage | None:
        event = UsualEvent("1.0", **attributes)
        kind = self._envelope.usual(event)
        if kind is None or is_id(event.id) is None:
            return None
        content, schema = event.datacontenttype, event.dataschema
        if content is not None and content != OCTET_STREAM and content not in _PROTOBUFS:
            return None
        if event.token is not None and not is_text(event.token):
            return None
        if raw is not None:
            if content is not None or format is OCTETS:
                if format is OCTETS and (content is None or content in _PROTOBUFS):
                    format = ANY  # written by up-python 1.5
                elif (content in _PROTOBUFS) is not (format is ANY) or (format is OCTETS and content != OCTET_STREAM):
                    return None
            if (schema is None) if format is OCTETS else not (check_any(raw) if schema is None else is_packed(raw)):
                return None
        if schema is not None and not known_schema(schema):
            return None
        usual = (content is None and schema is None) if format is ANY else raw is not None
        if usual and event.token is None and event.plevel is None:
            self._remember(frame, block, kind, event, raw, format)
        return self._message(kind, event, raw, format)

    def _remember(self, frame: bytes, block: int, kind: Kind, event: UsualEvent, raw: bytes | None, format: BodyFormat) -> None:
        """Cache the bytes between the id and the reqid or data. If more followed, it would be read into other events."""
        size, rest = block - _BLOCK, block
        if frame.startswith(_REQID_FIELD, rest):
            rest += len(_REQID_FIELD) + 36
        if raw is not None:
            rest += 1 + len(length(raw)) + len(raw)
        if rest == len(frame) and frame.startswith(_ID_HEAD) and 0 < size <= self._limits.subject * 3:
            if len(self._blocks) >= _BLOCKS:
                self._blocks.clear()
                self._sizes = ()
            if size not in self._sizes and len(self._sizes) < _SIZES:
                self._sizes = (*self._sizes, size)
            if size in self._sizes:
                self._blocks[frame[_BLOCK:block]] = kind, event, format

    def _message(self, kind: Kind, event: UsualEvent, raw: bytes | None, format: BodyFormat) -> EventMessage | None:
        ttl, reqid = event.ttl, event.reqid
        if reqid is not None and is_id(reqid) is None:
            return None
        if kind is _REQUEST:
            if not ttl:
                return None
            return EventMessage(_REQUEST, event.sink or "", event.id, raw, format, ttl / 1000, event)
        if kind is _RESPONSE:
            if reqid is None or (raw is not None and raw.startswith(STATUS_URLS, 2)):
                return None
            return EventMessage(_RESPONSE, "", reqid, raw, format, None, event)
        seconds = ttl / 1000 if ttl else None
        return EventMessage(kind, event.source, None, raw, format, seconds, event)


def _value(name: str, value: Any) -> Any:
    kind = value.WhichOneof("attr")
    if kind is None:
        raise refuse(f"the attribute {name[:60]!r} has no value (CloudEvents 1.0.2, protobuf format)", "invalid_attribute")
    found = getattr(value, kind)
    return found.ToJsonString() if kind == "ce_timestamp" else found


# The tags as bytes, and fields of CloudEventAttributeValue.
_ID_TAG, _SOURCE_TAG, _VERSION_TAG, _TYPE_TAG, _ATTRIBUTE_TAG, _BINARY_TAG, _PROTO_TAG = (
    bytes((tag,)) for tag in (_ID, _SOURCE, _VERSION, _TYPE, _ATTRIBUTE, _BINARY, _PROTO)
)
_CE_BOOLEAN, _CE_INTEGER, _CE_STRING, _CE_BYTES, _CE_URI_REF, _CE_TIMESTAMP = b"\x08", b"\x10", b"\x1a", b'"', b"2", b":"
_NO_DATA: Final = _BINARY_TAG + length(b"")  # `UCloudEvent.get_payload` of up-python raises without a data field
_REFERENCES: Final = frozenset({"sink", "dataschema"})


class ProtoWriter:
    """Writes protobuf events or, if `old`, those of up-python 1.5: always with `binary_data`, addresses as ``ce_string``."""

    def __init__(self, schema: str, old: bool) -> None:
        self._old = old
        self._data = _BINARY_TAG if old else _PROTO_TAG
        self._octets = self._attribute("datacontenttype", OCTET_STREAM)
        self._octets_and_schema = self._octets + self._attribute("dataschema", schema)
        # ``ce_integer`` is signed with 32 bits, the document's ttl unsigned.
        self._ttl = lru_cache(1024)(lambda ttl: self._attribute("ttl", min(ttl, MAX_INTEGER)))
        self.head: Final = lru_cache(1024)(self._head)
        """``head(type, source, sink, priority, more)`` writes the part that many events share."""

    def write(
        self, head: bytes, id: str, ttl: int | None, reqid: str | None, extra: Extra, raw: bytes | None, format: BodyFormat
    ) -> bytes:
        parts = [_ID_TAG, length(name := id.encode()), name, head]
        if raw is not None and format is not ANY:  # before the parts that differ between events
            parts.append(self._octets if extra and "dataschema" in extra else self._octets_and_schema)
        if ttl:
            parts.append(self._ttl(ttl))
        if reqid is not None:
            if len(reqid) == 36:
                parts += (b"*/\n\x05reqid\x12&\x1a$", reqid.encode())
            else:
                parts.append(self._attribute("reqid", reqid))
        if extra:
            parts += (self._attribute(name, value) for name, value in extra.items())
        if raw is not None:
            parts += (self._data if format is ANY else _BINARY_TAG, length(raw), raw)
        elif self._old:
            parts.append(_NO_DATA)
        return b"".join(parts)

    @staticmethod
    def item(head: bytes, id: str, raw: bytes, format: BodyFormat) -> bytes:
        return b"".join((_ID_TAG, length(name := id.encode()), name, head, _BINARY_TAG, length(raw), raw))

    @staticmethod
    def batch(frames: Sequence[bytes]) -> bytes:
        return b"".join(field(b"\n", frame) for frame in frames)

    def _head(self, type: str, source: str, sink: str | None, priority: str | None, more: Pairs = ()) -> bytes:
        head = field(_SOURCE_TAG, source.encode()) + field(_VERSION_TAG, b"1.0") + field(_TYPE_TAG, type.encode())
        if sink is not None:
            head += self._attribute("sink", sink)
        if priority is not None:
            head += self._attribute("priority", priority)
        return head + b"".join(self._attribute(name, value) for name, value in more)

    def _attribute(self, name: str, value: str | int | bool | bytes) -> bytes:
        if isinstance(value, bool):
            inner = _CE_BOOLEAN + (b"\x01" if value else b"\x00")
        elif isinstance(value, int):
            inner = _CE_INTEGER + varint(value if value >= 0 else value + 2**64)
        elif isinstance(value, bytes):
            inner = field(_CE_BYTES, value)
        elif name == "time" and not self._old and (moment := _timestamp(value)) is not None:
            inner = field(_CE_TIMESTAMP, moment)
        else:
            inner = field(_CE_URI_REF if name in _REFERENCES and not self._old else _CE_STRING, value.encode())
        return field(_ATTRIBUTE_TAG, field(b"\n", name.encode()) + field(b"\x12", inner))


def _timestamp(text: str) -> bytes | None:
    """Write a ``google.protobuf.Timestamp`` (CloudEvents 1.0.2, protobuf format, 2.1), or return None for an invalid time."""
    from google.protobuf.timestamp_pb2 import Timestamp

    moment = Timestamp()
    try:
        moment.FromJsonString(text)
    except ValueError:
        return None
    return moment.SerializeToString()


# -- for display ---------------------------------------------------------------------------------------------------------

# By number, from 1.
_FIELDS: Final = dict(enumerate("id source spec_version type attribute binary_data text_data proto_data".split(), 1))
_VALUES: Final = dict(enumerate("ce_boolean ce_integer ce_string ce_bytes ce_uri ce_uri_ref ce_timestamp".split(), 1))
_SHOWN: Final = 200


def dissect(frame: bytes) -> Iterator[FrameField]:
    for start, end, number, value, part, note in walk_fields(frame, 0, len(frame)):
        name = _FIELDS.get(number, f"field {number}") if number else "field"
        if part is None or isinstance(value, int):
            name, text, note = f"field {number}" if number else name, plain_field(value), note or "not of a CloudEvent"
        elif number == 5 and not note:
            name, text, note = _shown_attribute(value)
        else:
            text = _escaped(value) if number < 5 or number == 7 else value.hex(" ")
        yield FrameField(start, end - start, name, text[:_SHOWN], note)


def _shown_attribute(entry: bytes) -> tuple[str, str, str]:
    try:
        parts = dict(read_fields(entry))
        name, held = parts.get(1, b""), parts.get(2, b"")
        (kind, value), *_ = [*read_fields(held), (0, b"")] if isinstance(held, bytes) else [(0, b"")]
    except ValueError:
        return "attribute", entry.hex(" "), "not a map entry"
    text = _escaped(name) if isinstance(name, bytes) else str(name)
    if text == "token":
        return text, "...", "not shown"
    shown = plain_field(value) if isinstance(value, int) or kind in (4, 7) else _escaped(value)
    return text, shown, _VALUES.get(kind, "of no kind")


def _escaped(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
