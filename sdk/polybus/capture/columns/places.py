"""Places of the columns of a capture: a folder for each table, and in it a file for each segment."""

from __future__ import annotations

from typing import Final

TABLES: Final = ("quarantine", "events")
"""In the order in which the files of a segment appear; where the last one is there, all are."""


def columns_path(folder: str, table: str, segment: int) -> str:
    """The file of a table of a segment."""
    return f"{folder}/{table}/segment-{segment:08d}.parquet"
