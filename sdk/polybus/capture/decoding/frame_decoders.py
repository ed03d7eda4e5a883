"""Decoders of the frames of connections, by protocol and options."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from attrs import evolve, frozen

from ...errors import RemoteProtocolError
from ...limits import Limits
from ...message import Message
from ...plugins import Codec
from ...plugins.registry import find_protocol, find_reader
from .event_mapping import EventMapper, mapper_for
from .quick import QuickReader, quick_reader_for

LIMITS: Final = Limits(message=1 << 30)
"""A frame that has passed a link was within its limits; only the depth protects the decoder itself."""
MARK: Final = "link"
"""The member of the options by which a row without a frame marks the begin or the end of its connection."""


@frozen(eq=False)
class FrameDecoder:
    """Decodes the frames of some connections."""

    decode: Callable[[bytes], Sequence[Message | RemoteProtocolError]]
    mapper: EventMapper
    names: Mapping[int, str]
    """Of the actions of CSB."""
    options: str
    quick: QuickReader | None = None


@lru_cache(maxsize=256)
def decoder_for(protocol: str, options: str, limits: Limits = LIMITS) -> FrameDecoder:
    """The decoder for a protocol with the options that a row has; where it has none, the one that reads the most."""

    names: dict[int, str] = {}
    mapper = mapper_for(protocol)
    try:
        given = json.loads(options) if options else None
        if given is not None and not isinstance(given, dict):
            raise ValueError(f"the options are no object: {options:.80}")
        chosen = dict(given or {})
        chosen.pop(MARK, None)
        actions = chosen.pop("actions", None)
        find = find_reader if given is None else find_protocol
        adapter: Any = find(protocol, {name: str(value) for name, value in chosen.items()})
        if actions:
            adapter = evolve(adapter, actions=actions)
            names = {number: name for name, number in adapter.actions}
        codec: Codec = adapter.codec(limits)
    except (ValueError, TypeError, RecursionError) as error:
        problem = str(error) or type(error).__name__

        def unknown(frame: bytes) -> Sequence[Message]:
            raise RemoteProtocolError(problem, reason="unknown_protocol")

        return FrameDecoder(unknown, mapper, names, options)
    return FrameDecoder(codec.decode, mapper, names, options, quick_reader_for(protocol, adapter, codec, names, limits))
