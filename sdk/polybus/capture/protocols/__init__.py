"""The frames of each protocol as recording and decoding see them: a module for each."""

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
"""A function that makes the fields of an event of a message."""

_WITHOUT_BODY: Final[Mapping[str, Callable[[bytes, Mapping[str, Any], bool], bytes]]] = {
    "ubre": ubre.without_body,
    "csb": csb.without_body,
    "jrep": jrep.without_body,
    "nats": nats.without_body,
    "up": up.without_body,
    "uprotocol": uprotocol.without_body,
}
BLANK: Final[Mapping[str, Callable[[bytes], bytes]]] = {"csb": csb.blank, "nats": nats.blank, "up": up.blank}
"""Functions that blank the secrets of a protocol that are not seen by their names."""
SUSPECT: Final[Mapping[str, str]] = {"nats": nats.SUSPECT, "up": up.SUSPECT}
"""Expressions for what makes a frame worth a look, besides names."""
_EVENTS: Final[Mapping[str, EventMapper]] = {
    "jrep": jrep.event,
    "nats": nats.event,
    "up": up.event,
    "uprotocol": uprotocol.event,
}


def mapper_for(protocol: str, names: Mapping[int, str]) -> EventMapper:
    """The mapper of a protocol, with the names of CSB's actions; for UBRE and plugins of the fields that all protocols have."""
    return partial(csb.event, names) if protocol == "csb" else _EVENTS.get(protocol, plain_event)


def headers_only(protocol: str, options: str, frame: bytes, *, cut: bool = False) -> bytes:
    """The frame without bodies; empty where that cannot be done (it is no frame of the protocol, or that of a plugin).

    One that was `cut` off by who recorded it is read as well, where the cut is in a body.
    """
    strip = _WITHOUT_BODY.get(protocol)
    if strip is None:
        return b""
    try:
        return strip(frame, json.loads(options) if options else {}, cut)
    except (ValueError, RecursionError, struct.error, IndexError, TypeError):
        return b""
