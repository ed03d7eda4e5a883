"""Logs of Delta Lake beside the tables of results: its readers open these as they are, without a manifest.

A log names the files of a table, as the manifests do, and follows them: what a run that was killed has not written there the
next one does. Source: the Delta transaction log protocol, "Actions" and "Schema Serialization Format"; readers of version 1,
writers of version 2.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa

from .manifest import TABLES, Output
from .partitions import BY_DATE, EMPTY
from .storage import Storage
from .tables import SCHEMAS

LOG: Final = "_delta_log"
_TYPES: Final[Mapping[pa.DataType, Any]] = MappingProxyType(
    {
        pa.string(): "string",
        pa.int64(): "long",
        pa.int32(): "integer",
        pa.int8(): "byte",
        pa.float64(): "double",
        pa.binary(): "binary",
        pa.date32(): "date",
        pa.timestamp("us", tz="UTC"): "timestamp",
        pa.list_(pa.string()): {"type": "array", "elementType": "string", "containsNull": True},
    }
)


def is_kept(storage: Storage) -> bool:
    """True where there are logs: once begun, they follow each run."""
    return any(_commits(storage, table) for table in TABLES)


def keep(output: Output) -> None:
    """Write what the logs do not say yet.

    Raises:
        OSError: They cannot be written.
    """
    for table in TABLES:
        commits = _commits(output.storage, table)
        actions = [] if commits else _begin(table)
        actions += _changes(output.storage, table, output.files(table), _named(output.storage, commits))
        if actions:
            number = int(commits[-1].rpartition("/")[2].partition(".")[0]) + 1 if commits else 0
            lines = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)
            output.storage.write(f"{table}/{LOG}/{number:020d}.json", lines.encode())


def _commits(storage: Storage, table: str) -> list[str]:
    return [name for name in storage.files(f"{table}/{LOG}") if name.endswith(".json")]


def _named(storage: Storage, commits: Sequence[str]) -> set[str]:
    """The paths of the files that a log names."""
    found = set[str]()
    for action in (json.loads(line) for name in commits for line in storage.read(name).splitlines()):
        if "add" in action:
            found.add(action["add"]["path"])
        elif "remove" in action:
            found.discard(action["remove"]["path"])
    return found


def _begin(table: str) -> list[dict[str, Any]]:
    """The first actions of a log."""
    fields = [
        {
            "name": field.name,
            "type": _TYPES[field.type],
            "nullable": True,
            "metadata": {"comment": field.metadata[b"doc"].decode()},
        }
        for field in SCHEMAS[table]
    ]
    about = {
        "id": str(uuid.uuid4()),
        "name": table,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": BY_DATE,
        "configuration": {},
    }
    return [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": about}]


def _changes(storage: Storage, table: str, files: Sequence[str], named: set[str]) -> Iterator[dict[str, Any]]:
    """The actions after which the log names these files, and no others."""
    paths = {quote(name.removeprefix(f"{table}/"), safe="/="): name for name in files}
    for path in sorted(paths.keys() - named):
        name = paths[path]
        info = storage.filesystem.get_file_info(storage.inside(name))
        parts = (folder.partition("=") for folder in name.split("/")[1:-1])
        yield {
            "add": {
                "path": path,
                "partitionValues": {column: None if value == EMPTY else unquote(value) for column, _, value in parts},
                "size": info.size,
                "modificationTime": info.mtime_ns // 1_000_000,
                "dataChange": True,
                "stats": json.dumps({"numRecords": storage.rows(name)}),
            }
        }
    for path in sorted(named - paths.keys()):
        yield {"remove": {"path": path, "dataChange": True}}
