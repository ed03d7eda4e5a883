"""The engine of the pipeline: whatever runs its SQL. Its tables are its own affair, and are handed back to it only."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from .ingest import IngestResult
    from .ranges import Range, ReadWindow
    from .storage import Storage


class Engine(Protocol):
    """Runs what `polybus.analysis` has as SQL, and decodes ranges of captures."""

    at_once: int
    """Number of queries worth asking at the same time."""

    def take(self, capture: str, out: str, staging: str, ranges: Sequence[Range], window: ReadWindow) -> list[IngestResult]:
        """Decode ranges of a capture into files of the staging folder."""
        ...

    def read(self, storage: Storage, folder: str, files: Sequence[str], schema: pa.Schema) -> Any:
        """Parquet files of a folder, whose names hold values of columns, as a table."""
        ...

    def hand(self, rows: pa.Table) -> Any:
        """Some rows as a table."""
        ...

    def sql(self, text: str, **tables: Any) -> Any:
        """The answer of a query, in which the names of tables stand in braces, as a table."""
        ...

    def kept(self, table: Any) -> AbstractContextManager[Any]:
        """A table as it is now, worked out once for several queries."""
        ...

    def rows(self, table: Any) -> pa.Table:
        """The rows of a table."""
        ...

    def write(self, table: Any, storage: Storage, folder: str, schema: pa.Schema, parts: Sequence[str]) -> None:
        """Write a table as Parquet beneath a folder, by the columns `parts`."""
        ...
