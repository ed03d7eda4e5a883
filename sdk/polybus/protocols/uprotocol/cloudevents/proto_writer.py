"""Writes the protobuf format of CloudEvents 1.0.2 (``io.cloudevents.v1.CloudEvent``), with the data as the document wants them.

By hand, because what is the same in many events is then written once; a test compares with the generated class.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from ....body import BodyFormat
from ..._protobuf.any_body import ANY
from ..._protobuf.wire import field, length, varint
from ..events import Attributes, Extra, Head
from ..rules.checks import MAX_INTEGER
from ..rules.payloads import OCTET_STREAM

# Fields of CloudEvent and of CloudEventAttributeValue.
_ID, _SOURCE, _VERSION, _TYPE, _ATTRIBUTE, _BINARY, _PROTO = b"\n", b"\x12", b"\x1a", b'"', b"*", b"2", b"B"
_CE_BOOLEAN, _CE_INTEGER, _CE_STRING, _CE_BYTES, _CE_URI_REF, _CE_TIMESTAMP = b"\x08", b"\x10", b"\x1a", b'"', b"2", b":"
_NO_DATA: Final = _BINARY + length(b"")
"""Without any field of data, `UCloudEvent.get_payload` of up-python raises."""
_REFERENCES: Final = frozenset({"sink", "dataschema"})


class ProtoWriter:
    """Makes protobuf events.

    Args:
        schema: ``dataschema`` of bytes.
        old: As up-python 1.5 reads them: data in ``binary_data`` always, even where there are none; addresses as ``ce_string``.
    """

    def __init__(self, schema: str, old: bool) -> None:
        self._old = old
        self._data = _BINARY if old else _PROTO
        self._octets = self._attribute("datacontenttype", OCTET_STREAM)
        self._octets_and_schema = self._octets + self._attribute("dataschema", schema)
        # ``ce_integer`` has 31 bits and a sign, the document's ttl 32 bits and none.
        self._ttl = lru_cache(1024)(lambda ttl: self._attribute("ttl", min(ttl, MAX_INTEGER)))
        self.head: Head = lru_cache(1024)(self._head)
        """``head(type, source, sink, priority, more)``: what is the same in many events."""

    def write(
        self, head: bytes, id: str, ttl: int | None, reqid: str | None, extra: Extra, raw: bytes | None, format: BodyFormat
    ) -> bytes:
        """One event."""
        parts = [_ID, length(name := id.encode()), name, head]
        if raw is not None and format is not ANY:  # before what differs from event to event
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
            parts += (self._data if format is ANY else _BINARY, length(raw), raw)
        elif self._old:
            parts.append(_NO_DATA)
        return b"".join(parts)

    @staticmethod
    def item(head: bytes, id: str, raw: bytes, format: BodyFormat) -> bytes:
        """An item of bytes, which all formats are here; see `rules.items`."""
        return b"".join((_ID, length(name := id.encode()), name, head, _BINARY, length(raw), raw))

    @staticmethod
    def batch(frames: Sequence[bytes]) -> bytes:
        """Several events as one ``CloudEventBatch``."""
        return b"".join(field(b"\n", frame) for frame in frames)

    def _head(self, type: str, source: str, sink: str | None, priority: str | None, more: Attributes = ()) -> bytes:
        head = field(_SOURCE, source.encode()) + field(_VERSION, b"1.0") + field(_TYPE, type.encode())
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
        return field(_ATTRIBUTE, field(b"\n", name.encode()) + field(b"\x12", inner))


def _timestamp(text: str) -> bytes | None:
    """A ``google.protobuf.Timestamp`` (CloudEvents 1.0.2, protobuf format, 2.1); None where the text is no time."""
    from google.protobuf.timestamp_pb2 import Timestamp

    moment = Timestamp()
    try:
        moment.FromJsonString(text)
    except ValueError:
        return None
    return moment.SerializeToString()
