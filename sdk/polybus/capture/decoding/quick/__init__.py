"""Fields of usual frames without a message in between, which takes half the time; `quick_reader_for` is the one entry.

Only frames beyond doubt are read here, with the same result as by the codec: the rest is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ....limits import Limits
from .csb import csb_reader
from .jrep import jrep_reader
from .ubre import ubre_reader
from .up import up_reader
from .uprotocol import uprotocol_reader

__all__ = ["QuickReader", "quick_reader_for"]

QuickReader: TypeAlias = Callable[[bytes], list[Any] | None]
"""Gives the fields of the one event of a frame, in the order of `EventFields`; None where the codec has to look at it."""


def quick_reader_for(protocol: str, adapter: Any, codec: Any, names: Mapping[int, str], limits: Limits) -> QuickReader | None:
    """The reader for frames of an adapter and its codec, with the names of CSB's actions; None for the protocol of a plugin."""
    if protocol == "ubre":
        return ubre_reader(codec.reads, adapter.body, limits)
    if protocol == "csb":
        return csb_reader(codec.wrapped, names, limits)
    if protocol == "jrep":
        return jrep_reader(limits) if adapter.types != "strict" else None
    if protocol == "up":
        return up_reader(codec)
    return uprotocol_reader(codec) if protocol == "uprotocol" else None
