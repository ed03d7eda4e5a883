"""Decoding of many frames at a time, of a protocol whose frames hold everything in numbers at fixed places.

`batch_reader_for` is the one entry, all else is private to this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from ....limits import Limits
from ..event_columns import ColumnarEvents
from .csb import read_csb

__all__ = ["BatchReader", "batch_reader_for"]

BatchReader: TypeAlias = Callable[[pa.Array, Limits], ColumnarEvents | None]
"""Reads the usual ones among frames (without nulls), with the same result as the codec; None where it can read none."""


def batch_reader_for(protocol: str, codec: Any, names: Mapping[int, str]) -> BatchReader | None:
    """The reader of a protocol, given its codec and the names of its actions; None where frames are read one by one."""
    return (lambda frames, limits: read_csb(frames, names, codec.wrapped, limits)) if protocol == "csb" else None
