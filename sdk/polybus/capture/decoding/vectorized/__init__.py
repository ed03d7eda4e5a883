"""Decoding of many frames at a time: `batch_readers_for` is the one entry, all else is private to this folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from ....errors import RemoteProtocolError
from ....limits import Limits
from ....message import Message
from ..event_columns import ColumnarEvents
from ..event_mapping import EventFields, EventMapper
from .csb import read_csb
from .slots_json import jrep_slots, ubre_binary_slots, ubre_json_slots
from .slots_uprotocol import uprotocol_json_slots, uprotocol_protobuf_slots
from .templates import TemplateReader

__all__ = ["BatchReader", "batch_readers_for"]

BatchReader: TypeAlias = Callable[[pa.Array, Limits], ColumnarEvents | None]
"""Reads the usual ones among frames (without nulls), with the same result as the codec; None where it can read none."""


def batch_readers_for(
    protocol: str, adapter: Any, codec: Any, mapper: EventMapper, names: Mapping[int, str]
) -> Sequence[BatchReader]:
    """The readers of a protocol; each gets what those before it have left. None for the protocol of a plugin."""

    def decode_one(frame: bytes) -> EventFields | None:
        try:
            messages = codec.decode(frame)
        except RemoteProtocolError:
            return None
        one = len(messages) == 1 and isinstance(messages[0], Message)
        return EventFields(*mapper(messages[0], names)) if one else None

    if protocol == "csb":
        return (lambda frames, limits: read_csb(frames, names, codec.wrapped, limits),)
    if protocol == "ubre":
        json, binary = "text" in codec.reads, "binary" in codec.reads and adapter.body == "json"
        finders = [ubre_json_slots] * json + [ubre_binary_slots] * binary
    elif protocol == "jrep":
        finders = [jrep_slots] * (adapter.types != "strict")
    elif protocol == "uprotocol":
        finders = [uprotocol_json_slots if codec.writes == "text" else uprotocol_protobuf_slots]
    else:
        finders = []
    return [TemplateReader(finder, decode_one).read for finder in finders]
