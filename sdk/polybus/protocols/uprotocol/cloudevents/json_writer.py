"""Writes the JSON format of CloudEvents 1.0.2, with the data as the document wants them (3 Formats, Table 6)."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from ....body import JSON, BodyFormat
from ..._protobuf.any_body import ANY
from ..events import Attributes, Extra, Head
from ..rules.payloads import OCTET_STREAM, PROTOBUF

_encode: Final = msgspec.json.Encoder().encode
_base64: Final = binascii.b2a_base64
_ANY_DATA: Final = b',"datacontenttype":"%b","data_base64":"' % PROTOBUF.encode()
_OCTET_DATA: Final = b',"datacontenttype":"%b"' % OCTET_STREAM.encode()


class JsonEventWriter:
    """Makes JSON events: bytes put together, nothing decoded."""

    def __init__(self, schema: str) -> None:
        self._octets = _OCTET_DATA + b',"dataschema":%b,"data_base64":"' % _encode(schema)
        self.head: Head = lru_cache(1024)(_head)
        """``head(type, source, sink, priority, more)``: what is the same in many events."""

    def write(
        self, head: bytes, id: str, ttl: int | None, reqid: str | None, extra: Extra, raw: bytes | None, format: BodyFormat
    ) -> bytes:
        """One event. Texts are known to need no more than JSON's own escapes; `id` and `reqid` none."""
        if ttl and extra is None and raw is not None and format is ANY:  # most of what is written
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
        """An item of bytes or of a JSON document; see `rules.items`."""
        if format is JSON:
            return b'%b%b","data":%b}' % (head, id.encode(), raw)
        return b'%b%b","data_base64":"%b"}' % (head, id.encode(), _base64(raw, newline=False))

    @staticmethod
    def batch(frames: Sequence[bytes]) -> bytes:
        """Several events as one (CloudEvents 1.0.2, JSON batch format)."""
        return b"[%b]" % b",".join(frames)


@lru_cache(1024)
def _middle(ttl: int) -> bytes:
    """Part between an id and data. Few programs have more than a few deadlines; what is left of one is another."""
    return b'","ttl":%d%b' % (ttl, _ANY_DATA)


def _head(type: str, source: str, sink: str | None, priority: str | None, more: Attributes = ()) -> bytes:
    members = {"specversion": "1.0", "type": type, "source": source, "sink": sink, "priority": priority, **dict(more)}
    return _encode({name: value for name, value in members.items() if value is not None})[:-1] + b',"id":"'
