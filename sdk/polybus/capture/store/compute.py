"""Arrow compute functions."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute
"""The `pyarrow.compute` module. Its functions are created at import, so type checkers do not know them."""


DAY_NS: Final = 86_400_000_000_000


def dates_of(times: Any) -> Any:
    return pc.divide(times, DAY_NS).cast(pa.int32()).cast(pa.date32())


def bytes_of(values: Any) -> tuple[Any, memoryview]:
    """Return the offsets of binary values (int32, one more than there are values), and the bytes of the values."""
    _, offsets, data = values.buffers()
    edges = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return edges, memoryview(b"" if data is None else data)
