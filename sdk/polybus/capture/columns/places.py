"""Places of the columns of a capture: a folder for each table, and in it a file for each segment."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from ..schema import EVENTS, QUARANTINE

TABLES: Final = MappingProxyType({"quarantine": QUARANTINE, "events": EVENTS})
"""Their columns, in the order in which the files of a segment appear; where the last one is there, all are."""


def columns_path(folder: str, table: str, segment: int) -> str:
    """The file of a table of a segment."""
    return f"{folder}/{table}/segment-{segment:08d}.parquet"
