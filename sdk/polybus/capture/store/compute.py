"""Functions of Arrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute

pc: Any = pyarrow.compute
"""Made when it is imported: no type checker knows its functions."""


def bytes_of(values: Any) -> tuple[Any, memoryview]:
    """The begins of some binary values and the end of the last one (int32), and the bytes of all."""
    _, offsets, data = values.buffers()
    edges = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return edges, memoryview(b"" if data is None else data)
