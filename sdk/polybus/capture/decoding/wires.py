"""How the frames of some connections are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
from attrs import frozen

from ...errors import RemoteProtocolError
from ...limits import Limits
from ...message import Message
from ...plugins import Codec
from ...plugins.registry import find_protocol, find_reader
from .event_columns import Part
from .event_mapping import Reading, Row, reading_for
from .vectorized.csb import read_csb
from .vectorized.numpy_bytes import Bytes
from .vectorized.slots import Cut
from .vectorized.slots_json import cut_jrep, cut_ubre_binary, cut_ubre_json
from .vectorized.slots_uprotocol import cut_uprotocol_json, cut_uprotocol_protobuf
from .vectorized.templates import Alike

__all__ = ["LIMITS", "MARK", "Wire", "wire_of"]

LIMITS: Final = Limits(message=1 << 30)
"""What has passed a link was within its limits; only the depth protects the decoder itself."""
MARK: Final = "link"
"""The member of the options by which a row without a frame says what became of its connection."""


ReadMany: TypeAlias = Callable[[pa.Array, Limits], Part | None]


@frozen(eq=False)
class Wire:
    """How the frames of some connections are read."""

    decode: Callable[[bytes], Sequence[Message | RemoteProtocolError]]
    reading: Reading
    protocol: str
    options: str
    codec: Codec | None = None
    many: Sequence[ReadMany] = ()
    """What reads the usual ones among many frames at once; each gets what those before it have left."""


@lru_cache(maxsize=256)
def wire_of(protocol: str, options: str, limits: Limits = LIMITS) -> Wire:
    """What reads the frames of a protocol with the options that a row has; where it has none, what reads the most."""

    def unknown(frame: bytes) -> Sequence[Message]:
        raise RemoteProtocolError(problem, reason="unknown_protocol")

    names: dict[int, str] = {}
    problem = ""
    adapter: Any = None
    codec: Codec | None = None
    try:
        given = json.loads(options) if options else None
        if given is not None and not isinstance(given, dict):
            raise ValueError(f"the options are no object: {options:.80}")
        chosen = dict(given or {})
        chosen.pop(MARK, None)
        actions = chosen.pop("actions", None)
        find = find_reader if given is None else find_protocol
        adapter = find(protocol, {name: str(value) for name, value in chosen.items()})
        if actions:
            from attrs import evolve

            adapter = evolve(adapter, actions=actions)
            names = {number: name for name, number in adapter.actions}
        codec = adapter.codec(limits)
    except (ValueError, TypeError, RecursionError) as error:
        problem = str(error) or type(error).__name__
    reads = unknown if codec is None else codec.decode
    reading = reading_for(protocol, names)
    return Wire(reads, reading, protocol, options, codec, _many(protocol, adapter, codec, reading, names))


def _many(protocol: str, adapter: Any, codec: Any, reading: Reading, names: Mapping[int, str]) -> Sequence[ReadMany]:
    if codec is None:
        return ()
    if protocol == "csb":
        return (lambda frames, limits: read_csb(frames, names, codec.wrapped, limits),)
    return [Alike(cut, partial(_judged, codec, reading)).read for cut in _cuts(protocol, adapter, codec)]


def _cuts(protocol: str, adapter: Any, codec: Any) -> Sequence[Callable[[Bytes, Limits], Cut | None]]:
    if protocol == "ubre":
        json_, binary = "text" in codec.reads, "binary" in codec.reads and adapter.body == "json"
        return [cut for cut, there in ((cut_ubre_json, json_), (cut_ubre_binary, binary)) if there]
    if protocol == "jrep" and adapter.types != "strict":
        return (cut_jrep,)
    if protocol == "uprotocol":
        return (cut_uprotocol_json if codec.writes == "text" else cut_uprotocol_protobuf,)
    return ()


def _judged(codec: Any, reading: Reading, frame: bytes) -> Row | None:
    """What a frame with one message says."""
    try:
        messages = codec.decode(frame)
    except RemoteProtocolError:
        return None
    return Row(*reading(messages[0])) if len(messages) == 1 and isinstance(messages[0], Message) else None
