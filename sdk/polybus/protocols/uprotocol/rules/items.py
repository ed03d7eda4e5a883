"""Items of bytes and JSON documents, as tunnels send them: events with no more attributes than CloudEvents asks for.

``id`` is the id of the open, a slash and a number that makes it unique; there is no ``reqid``, content type or schema. In the
JSON format a document stands in ``data`` as it is, bytes in ``data_base64``; in the protobuf format both are ``binary_data``.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from ....body import JSON, OCTETS, BodyFormat
from ....message import Kind
from ..cloudevents.envelope import USUAL_ID
from ..events import EventMessage, UsualEvent

ITEM: Final = "polybus.item.v1"
item_id: Final = re.compile(f"({USUAL_ID})/[0-9a-f]{{1,16}}").fullmatch
"""True if an id is one, its first group the id of the open."""


class _Item(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    specversion: Literal["1.0"]
    type: Literal["polybus.item.v1"]
    source: str
    id: str
    data: msgspec.Raw = msgspec.Raw()
    data_base64: bytes | None = None


_decode: Final = msgspec.json.Decoder(_Item).decode


def _message(id: str, source: str, raw: bytes, format: BodyFormat) -> EventMessage | None:
    found = item_id(id)
    if found is None or not source:
        return None
    event = UsualEvent("1.0", id, source, ITEM)  # type: ignore[arg-type]  # of ours
    message = EventMessage(Kind.ITEM, "", found[1], raw, format, None, event)
    message.checked = None  # cut out, and not read: a number in it may be larger than any that a reader takes
    return message


def read_json_item(frame: bytes) -> EventMessage | None:
    """The message of an event that was checked as JSON; None where it is no such item."""
    try:
        item = _decode(frame)
    except (ValueError, RecursionError):
        return None
    data = bytes(item.data)
    if item.data_base64 is not None:
        return None if data else _message(item.id, item.source, item.data_base64, OCTETS)
    return _message(item.id, item.source, data, JSON) if data[:1] in (b"{", b"[") else None


def read_proto_item(attributes: dict[str, object], raw: bytes | None) -> EventMessage | None:
    """The message of what an event holds; None where it is no such item."""
    if raw is None or attributes.keys() != {"id", "source", "type"}:
        return None
    return _message(str(attributes["id"]), str(attributes["source"]), raw, OCTETS)
