"""Decoding of small batches as large ones: used by a task of Spark for its range, and by an export for the whole."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from .decoder import Decoded, decode

ROWS_AT_ONCE: Final = 32_768
"""So many rows, or a few more, are decoded together. Half as many take 2 to 15 % longer, and twice as many save no more."""
BYTES_AT_ONCE: Final = 16 << 20
"""No more batches are joined when there are so many bytes."""


def decoded(batches: Iterable[pa.RecordBatch], columns: Sequence[str] | None = None) -> Iterator[Decoded]:
    """Decodes batches of frames, joined to larger ones; of the events some columns, or all."""
    for rows in joined(batches, ROWS_AT_ONCE, BYTES_AT_ONCE):
        with _collection_paused():
            made = decode(rows, columns=columns)
        yield made


def joined(batches: Iterable[pa.RecordBatch], most_rows: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches, none of them empty, of so many rows or bytes and one batch more."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= most_rows or size >= most_bytes:
            yield pa.concat_batches(waiting)
            waiting.clear()
            rows = size = 0
    if waiting:
        yield pa.concat_batches(waiting)


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Pauses the search for cycles: decoding makes none, and hundreds of thousands of objects that would be searched."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
