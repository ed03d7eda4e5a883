"""The numbers of CSB (document CSB, "Common Message Structure" and "Message structure with broker").

The document does not define the values of most kinds and encodings, so they are taken from its reference code.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from ...message import Kind

HEADER: Final = struct.Struct(">BBHI")  # Kind and encoding (four bits each), result, message id, action id
HEADER_SIZE: Final = HEADER.size
CLIENT: Final = struct.Struct(">I")  # Client number before each frame between a broker and a server
NUMBER: Final = struct.Struct(">I")
IDS: Final = 0x10000

# Kinds.
REQUEST: Final = 0x1
RESPONSE: Final = 0x2
CONNECTED: Final = 0xD
CLOSED: Final = 0xE
CLOSE: Final = 0xF
CONTROL_WORDS: Final[Mapping[int, str]] = {CONNECTED: "connected", CLOSED: "closed", CLOSE: "close"}
KIND_WORDS: Final[Mapping[int, str]] = {REQUEST: "request", RESPONSE: "response", **CONTROL_WORDS}

# Encodings.
BINARY: Final = 0
STRING: Final = 1
JSON: Final = 2
URLENCODED: Final = 3
BASE64: Final = 4
ENCODINGS: Final = {"binary": BINARY, "string": STRING, "json": JSON, "urlencoded": URLENCODED, "base64": BASE64}

# Polybus actions; applications use lower numbers. Any peer may use the first five, only polybus peers the others.
FIRST_RESERVED: Final = 0xFFFF0000
HELLO: Final = 0xFFFF0000
SUBSCRIBE: Final = 0xFFFF0001
UNSUBSCRIBE: Final = 0xFFFF0002
PUBLISH: Final = 0xFFFF0003
REQUEST_NAMED: Final = 0xFFFF0004
REQUEST_MORE: Final = 0xFFFF0005
PUBLISH_MORE: Final = 0xFFFF0006  # A publication with headers. It and the following actions get no answer.
OPEN: Final = 0xFFFF0007
CANCEL: Final = 0xFFFF0008
ITEM: Final = 0xFFFF0009
CREDIT: Final = 0xFFFF000A
END: Final = 0xFFFF000B
DEADLINE: Final = 0xFFFF000C
CHANNEL_KINDS: Final[Mapping[int, Kind]] = {ITEM: Kind.ITEM, CREDIT: Kind.CREDIT, END: Kind.END}
REQUESTS: Final = frozenset((REQUEST_NAMED, REQUEST_MORE))  # Actions for handlers
UNANSWERED: Final = frozenset((PUBLISH_MORE, CANCEL, ITEM, CREDIT, END, DEADLINE))
WITH_SUBJECT: Final = frozenset((SUBSCRIBE, UNSUBSCRIBE, PUBLISH, REQUEST_NAMED))
"""The payload of these actions begins with a two-byte length and a subject."""
WITH_MORE: Final = frozenset((REQUEST_MORE, PUBLISH_MORE, OPEN))
"""The payload of these begins with two-byte lengths of subject and extras, a four-byte ttl, the subject and the extras."""
_WITHOUT_BODY: Final = (CANCEL, CREDIT, DEADLINE)
NUMBERED: Final = 0xFFFF  # In place of a subject's length: the subject is an action number of four bytes
NO_TTL: Final = 0xFFFFFFFF


def start_of_body(frame: bytes, at: int, action: int) -> int:
    if action in WITH_SUBJECT or action in WITH_MORE:
        size, more = int.from_bytes(frame[at : at + 2]), int.from_bytes(frame[at + 2 : at + 4])
        end = at + (4 if size == NUMBERED else size)
        return end + 8 + more if action in WITH_MORE else end + 2
    return len(frame) if action in _WITHOUT_BODY else at
