"""Protocol-specific parts of recording and decoding, with one module per protocol."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from ...message import Message
from . import csb, jrep, nats, ubre, up, uprotocol
from .shared import plain_event

EventMapper: TypeAlias = Callable[[Message], list[Any]]
"""A function that returns the event fields for a message."""

_WITHOUT_BODY: Final[Mapping[str, Callable[[bytes, Mapping[str, Any], bool], bytes]]] = {
    "ubre": ubre.without_body,
    "csb": csb.without_body,
    "jrep": jrep.without_body,
    "nats": nats.without_body,
    "up": up.without_body,
    "uprotocol": uprotocol.without_body,
}
BLANK: Final[Mapping[str, Callable[[bytes], bytes]]] = {"csb": csb.blank, "nats": nats.blank, "up": up.blank}
"""Functions that blank a protocol's secrets that have no secret names."""
SUSPECT: Final[Mapping[str, str]] = {"nats": nats.SUSPECT, "up": up.SUSPECT}
"""Expressions that find suspicious frames, in addition to secret names."""
_EVENTS: Final[Mapping[str, EventMapper]] = {
    "jrep": jrep.event,
    "nats": nats.event,
    "up": up.event,
    "uprotocol": uprotocol.event,
}


def mapper_for(protocol: str, names: Mapping[int, str]) -> EventMapper:
    """Return a protocol's mapper, which uses the names of CSB's actions. For UBRE and plugins, return the default mapper."""
    return partial(csb.event, names) if protocol == "csb" else _EVENTS.get(protocol, plain_event)


def headers_only(protocol: str, options: str, frame: bytes, *, cut: bool = False) -> bytes:
    """Return the frame without bodies, or empty bytes for a plugin or if the frame cannot be read."""
    strip = _WITHOUT_BODY.get(protocol)
    if strip is None:
        return b""
    try:
        return strip(frame, json.loads(options) if options else {}, cut)
    except (ValueError, RecursionError, struct.error, IndexError, TypeError):
        return b""
