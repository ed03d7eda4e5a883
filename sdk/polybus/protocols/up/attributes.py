"""The attributes of a message."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

from msgspec import Struct

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
USUAL_PRIORITY: Final = 2
"""CS1, also the meaning of 0. The number on the wire is the class's number plus one."""
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
    """Parse an id with hyphens. May raise `ValueError`."""
    try:
        found = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        found = b""
    if uuid_text(found) != text.lower() or not is_v7(found):
        raise ValueError(f"{text[:60]!r} is no UUID of version 7: it has the form 018bcfe5-687b-7000-8010-101010101a1a")
    return found


def is_v7(id: bytes) -> bool:
    """True if an id is a UUID of version 7 (RFC 9562)."""
    return len(id) == 16 and id[6] >> 4 == 7 and id[8] >> 6 == 2


def id_ms(id: bytes) -> int:
    return int.from_bytes(id[:6], "big")
