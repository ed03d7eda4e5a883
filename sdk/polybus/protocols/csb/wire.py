"""The numbers of CSB (document CSB, "Common Message Structure" and "Message structure with broker").

The document names kinds and encodings without giving most of their values; those here are the ones of its reference code.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from ...message import Kind

HEADER: Final = struct.Struct(">BBHI")
"""Kind and encoding (four bits each), result, message id, action id."""
HEADER_SIZE: Final = HEADER.size
CLIENT: Final = struct.Struct(">I")
"""Between a broker and a server the number of the client stands in front."""
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

# Actions of ours; applications have those below. Up to 4 any peer may use them, the others only our own buses.
FIRST_RESERVED: Final = 0xFFFF0000
HELLO: Final = 0xFFFF0000
SUBSCRIBE: Final = 0xFFFF0001
UNSUBSCRIBE: Final = 0xFFFF0002
PUBLISH: Final = 0xFFFF0003
REQUEST_NAMED: Final = 0xFFFF0004
REQUEST_MORE: Final = 0xFFFF0005
"""A request with a deadline or headers."""
PUBLISH_MORE: Final = 0xFFFF0006
"""A publication with headers. Never answered, as all that follow."""
OPEN: Final = 0xFFFF0007
CANCEL: Final = 0xFFFF0008
ITEM: Final = 0xFFFF0009
CREDIT: Final = 0xFFFF000A
END: Final = 0xFFFF000B
DEADLINE: Final = 0xFFFF000C
"""Behind a request to a peer that is not known yet."""
CHANNEL_KINDS: Final[Mapping[int, Kind]] = {ITEM: Kind.ITEM, CREDIT: Kind.CREDIT, END: Kind.END}
REQUESTS: Final = frozenset((REQUEST_NAMED, REQUEST_MORE))
"""Actions that a handler answers."""
UNANSWERED: Final = frozenset((PUBLISH_MORE, CANCEL, ITEM, CREDIT, END, DEADLINE))
