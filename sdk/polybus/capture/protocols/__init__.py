"""The frames of each protocol for recording and decoding: one module each."""

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
"""Returns the fields of an event for a message."""

_WITHOUT_BODY: Final[Mapping[str, Callable[[bytes, Mapping[str, Any], bool], bytes]]] = {
    "ubre": ubre.without_body,
    "csb": csb.without_body,
    "jrep": jrep.without_body,
    "nats": nats.without_body,
    "up": up.without_body,
    "uprotocol": uprotocol.without_body,
}
BLANK: Final[Mapping[str, Callable[[bytes], bytes]]] = {"csb": csb.blank, "nats": nats.blank, "up": up.blank}
"""Functions that blank a protocol's secrets without secret names."""
SUSPECT: Final[Mapping[str, str]] = {"nats": nats.SUSPECT, "up": up.SUSPECT}
"""Expressions for suspicious frames, in addition to names."""
_EVENTS: Final[Mapping[str, EventMapper]] = {
    "jrep": jrep.event,
    "nats": nats.event,
    "up": up.event,
    "uprotocol": uprotocol.event,
}


def mapper_for(protocol: str, names: Mapping[int, str]) -> EventMapper:
    """Return the mapper of a protocol, with the names of CSB's actions; a default for UBRE and plugins."""
    return partial(csb.event, names) if protocol == "csb" else _EVENTS.get(protocol, plain_event)


def headers_only(protocol: str, options: str, frame: bytes, *, cut: bool = False) -> bytes:
    """Return the frame without bodies; empty if it cannot be read (also if it was `cut` before the body), or for a plugin."""
    strip = _WITHOUT_BODY.get(protocol)
    if strip is None:
        return b""
    try:
        return strip(frame, json.loads(options) if options else {}, cut)
    except (ValueError, RecursionError, struct.error, IndexError, TypeError):
        return b""
