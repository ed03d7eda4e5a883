"""The tables of a capture, by name."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from polybus.capture.schema import EVENTS, EXCHANGES, FRAMES, ORPHANS, QUARANTINE

_PLACES: Final = pa.schema([("segment", pa.int64()), ("batch", pa.int64()), ("offset", pa.int64())])
"""The progress of a stream, for `Pipeline.stream`: a row a batch."""
SCHEMAS: Final = {
    "events": EVENTS,
    "quarantine": QUARANTINE,
    "exchanges": EXCHANGES,
    "orphans": ORPHANS,
    "raw": FRAMES,
    "places": _PLACES,
}
"""Schemas by the name of the table."""


def arrow_schema(table: str, columns: list[str] | None = None) -> pa.Schema:
    """The columns of a table, or some of them in that order.

    Raises:
        ValueError: There is no such table or no such column.
    """
    schema = SCHEMAS.get(table)
    if schema is None:
        raise ValueError(f"there is no table {table!r}; there are {', '.join(SCHEMAS)}")
    if columns is None:
        return schema
    unknown = [name for name in columns if name not in schema.names]
    if unknown:
        raise ValueError(f"{table} has no column {unknown[0]!r}; it has {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in columns])
