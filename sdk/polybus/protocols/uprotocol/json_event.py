"""The CloudEvents 1.0.2 JSON format, with data as required by the document (3 Formats, Table 6).

An ordinary event is decoded into a typed struct, including base64. Any other event takes a slower path, which accepts the event
or names the broken rule. The writer joins bytes and decodes nothing.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from ...body import JSON, OCTETS, BodyFormat, check_json
from ...errors import EncodeError, RemoteProtocolError
from ...limits import Limits
from ...message import Kind
from .._protobuf import ANY, check_any
from .._shared import remember
from .._uprotocol import Pairs
from . import events
from .events import OCTET_STREAM, STATUS_URLS, Envelope, EventMessage, Extra, UsualEvent, is_id, is_packed, known_schema
from .rules import TOLERATED, WIRE_RULES, is_text, refuse

_RECENT: Final = 256
_ITEM: Final = b'"polybus.item.v1"'
_REQUEST, _RESPONSE = Kind.REQUEST, Kind.RESPONSE


class _Answering(msgspec.Struct):
    reqid: str | None = None


_answering: Final = msgspec.json.Decoder(_Answering).decode
_event: Final = msgspec.json.Decoder(UsualEvent).decode
_any: Final = msgspec.json.Decoder().decode
_batch: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class JsonEventReader:
    def __init__(self, envelope: Envelope, limits: Limits) -> None:
        self._envelope = envelope
        self._recent: dict[str | None, tuple[str, str, Kind]] = {}
        self._limits = limits
        self._max_frame = limits.message

    def read(self, frame: bytes) -> EventMessage:
        if len(frame) <= self._max_frame:
            # All members are plain values, so nothing can be nested; the decoder checks the text.
            try:
                event = _event(frame)
            except (ValueError, RecursionError):
                return self._read_slowly(frame)
            # Inline for speed: a call costs as much as two of these tests, a keyword or default as much as one.
            id, type, source, sink, raw = event.id, event.type, event.source, event.sink, event.data_base64
            # One hash of a new text instead of two if the sink's last event had the same source.
            recent = self._recent.get(sink)
            if recent is not None and recent[0] == source and recent[1] == type:
                kind: Kind | None = recent[2]
            else:
                kind = self._kind_of(type, source, sink)
            schema = event.dataschema
            if kind is None or is_id(id) is None or (schema is not None and not known_schema(schema)):
                return self._read_slowly(frame)
            if event.token is not None and not is_text(event.token):
                return self._read_slowly(frame)
            format: BodyFormat = ANY
            if raw is not None:
                if event.datacontenttype == OCTET_STREAM:
                    format = OCTETS
                if (schema is None) if format is OCTETS else not (check_any(raw) if schema is None else is_packed(raw)):
                    return self._read_slowly(frame)
            ttl, reqid = event.ttl, event.reqid
            if reqid is not None and is_id(reqid) is None:
                return self._read_slowly(frame)
            if kind is _REQUEST:
                priority = event.priority
                if ttl and priority is not None and priority >= "CS4":
                    return EventMessage(_REQUEST, sink or "", id, raw, format, ttl / 1000, event)
            elif kind is _RESPONSE:
                if reqid is not None and not (raw and raw.startswith(STATUS_URLS, 2)):
                    return EventMessage(_RESPONSE, "", reqid, raw, format, None, event)
            else:
                seconds = ttl / 1000 if ttl else None
                return EventMessage(kind, source, None, raw, format, seconds, event)
        return self._read_slowly(frame)

    def _kind_of(self, type: str, source: str, sink: str | None) -> Kind | None:
        kind = self._envelope.addresses.get((type, source, sink)) or self._envelope.look(type, source, sink)
        if kind is not None:
            remember(self._recent, sink, (source, type, kind), _RECENT)
        return kind

    def split(self, frame: bytes) -> list[bytes]:
        try:
            self._check(frame)
            parts = _batch(frame)
        except (ValueError, RecursionError, EncodeError) as error:
            raise WIRE_RULES.refuse_json(error, kind="an event") from error
        if len(parts) > events.BATCH:
            raise refuse(f"a batch of {len(parts)} events: the limit is {events.BATCH}", "too_large")
        return [bytes(part) for part in parts]

    def _check(self, frame: bytes) -> None:
        if len(frame) > self._limits.message:
            raise WIRE_RULES.refuse_size(len(frame), self._limits.message)
        check_json(frame, self._limits.depth + 2)

    def _read_slowly(self, frame: bytes) -> EventMessage:
        try:
            self._check(frame)
            if _ITEM in frame[:128] and (item := events.read_json_item(frame)) is not None:
                return item
            if frame.startswith(b"["):
                raise refuse("an event must be a JSON object: an array is a batch", "bad_json")
            return self._envelope.examined(*self.parts(frame))
        except RemoteProtocolError as error:
            error.frame = events.shown(frame)
            raise
        except (ValueError, RecursionError, EncodeError) as error:
            refused = WIRE_RULES.refuse_json(error, kind="an event")
            refused.frame = events.shown(frame)
            raise refused from error

    def answers(self, frame: bytes) -> str | None:
        return _answering(frame).reqid

    def parts(self, frame: bytes) -> tuple[dict[str, Any], bytes | None, BodyFormat]:
        value = _any(frame)
        if not isinstance(value, dict):
            raise refuse(f"an event must be a JSON object, not {type(value).__name__}", "bad_json")
        if value.get("data") is not None and value.get("data_base64") is not None:
            raise refuse("both data and data_base64 (CloudEvents 1.0.2, JSON format, 3.1.1)", "ambiguous")
        try:
            return self._parts_of(value)
        except RemoteProtocolError as error:
            raise self._envelope.told(error, value) from error.__cause__

    def _parts_of(self, value: dict[str, Any]) -> tuple[dict[str, Any], bytes | None, BodyFormat]:
        if TOLERATED in value:
            raise refuse(f"{TOLERATED!r} is not the name of an attribute: a to z and digits", "invalid_attribute")
        data, encoded = value.pop("data", None), value.pop("data_base64", None)
        content = value.get("datacontenttype")
        format = events.format_of(content if isinstance(content, str) else None)
        raw = None
        if encoded is not None:
            raw = events.from_text(events.from_base64(encoded), format, self._limits.depth)
        elif data is not None:
            raw = events.from_text(events.from_json(data, format, self._envelope.leniency), format, self._limits.depth)
            if events.is_misplaced(data, format):
                value[TOLERATED] = [events.MISPLACED_DATA]
        hashed = value.get("hash")
        if isinstance(hashed, str):
            value["hash"] = events.hash_of(hashed, self._envelope.leniency)
        return value, raw, format


_encode: Final = msgspec.json.Encoder().encode
_base64: Final = binascii.b2a_base64
_ANY_DATA: Final = b',"datacontenttype":"%b","data_base64":"' % events.PROTOBUF.encode()
_OCTET_DATA: Final = b',"datacontenttype":"%b"' % OCTET_STREAM.encode()


class JsonEventWriter:
    def __init__(self, schema: str) -> None:
        self._octets = _OCTET_DATA + b',"dataschema":%b,"data_base64":"' % _encode(schema)
        self.head: Final = lru_cache(1024)(_head)
        """A function ``head(type, source, sink, priority, more)`` that writes the part shared by many events."""

    def write(
        self, head: bytes, id: str, ttl: int | None, reqid: str | None, extra: Extra, raw: bytes | None, format: BodyFormat
    ) -> bytes:
        """Write one event. `id` and `reqid` must not need escapes."""
        if ttl and extra is None and raw is not None and format is ANY:  # the most frequent case
            if reqid is not None:
                start = b'%b%b","ttl":%d,"reqid":"%b"' % (head, id.encode(), ttl, reqid.encode())
                return b'%b%b%b"}' % (start, _ANY_DATA, _base64(raw, newline=False))
            return b"".join((head, id.encode(), _middle(ttl), _base64(raw, newline=False), b'"}'))
        parts = [head, id.encode(), b'"']
        if ttl:
            parts.append(b',"ttl":%d' % ttl)
        if reqid is not None:
            parts += (b',"reqid":"', reqid.encode(), b'"')
        if extra:
            parts += (b",", _encode(extra)[1:-1])  # bytes become base64
        if raw is None:
            parts.append(b"}")
        else:
            begin = _ANY_DATA if format is ANY else self._octets
            if extra and format is not ANY and "dataschema" in extra:
                begin = _OCTET_DATA + b',"data_base64":"'
            parts += (begin, _base64(raw, newline=False), b'"}')
        return b"".join(parts)

    @staticmethod
    def item(head: bytes, id: str, raw: bytes, format: BodyFormat) -> bytes:
        if format is JSON:
            return b'%b%b","data":%b}' % (head, id.encode(), raw)
        return b'%b%b","data_base64":"%b"}' % (head, id.encode(), _base64(raw, newline=False))

    @staticmethod
    def batch(frames: Sequence[bytes]) -> bytes:
        return b"[%b]" % b",".join(frames)


@lru_cache(1024)
def _middle(ttl: int) -> bytes:
    """Write the part between id and data. Results are cached, because most programs use few deadlines."""
    return b'","ttl":%d%b' % (ttl, _ANY_DATA)


def _head(type: str, source: str, sink: str | None, priority: str | None, more: Pairs = ()) -> bytes:
    members = {"specversion": "1.0", "type": type, "source": source, "sink": sink, "priority": priority, **dict(more)}
    return _encode({name: value for name, value in members.items() if value is not None})[:-1] + b',"id":"'
