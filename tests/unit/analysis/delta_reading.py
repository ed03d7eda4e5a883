"""Results read by a Delta Lake library, compared with the log of the folder."""

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from polybus.analysis import open_tables
from polybus.analysis.results import TABLES

KEYS = {"events": ("seq", "sub"), "quarantine": ("seq",), "exchanges": ("request_seq",), "orphans": ("seq",)}


def same_by_delta(out: Path) -> None:
    ours = open_tables(out)
    for table, schema in TABLES.items():
        names, order = schema.names, [(name, "ascending") for name in KEYS[table]]
        listed = ", ".join(f'"{name}"' for name in names)
        wanted = ours.sql(f"select {listed} from {table}").to_arrow_table().cast(schema)
        found = pa.table(DeltaTable(out / table).to_pyarrow_table().select(names)).cast(wanted.schema)
        assert found.sort_by(order).to_pylist() == wanted.sort_by(order).to_pylist(), table
