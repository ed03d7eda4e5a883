"""Results of a capture, stored in a folder with four Parquet tables and a log of the files that belong to them.

The folder is a Delta Lake table. A run writes new files and commits all of them together with its counts and end position.
Files that are not in the log belong to a killed run, and the next run removes them. Each message is therefore in the tables
exactly once. Each table may have its own log for Delta Lake readers, which follows the folder's log.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self
from urllib.parse import unquote

import attrs
import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from polybus.capture.errors import CaptureError
from polybus.capture.schema import EVENTS, EXCHANGES, ORPHANS, QUARANTINE
from polybus.capture.store.filesystems import AnyPath

from .ingest import RunCounts
from .ranges import ReadPosition
from .storage import BY_DATE, ROWS_AT_ONCE, PartitionWriter, TableStorage, rows_of, values_of

LOG: Final = "_delta_log"
STAGING: Final = "_staging"
STATE: Final = "_state"
TABLES: Final = {"events": EVENTS, "quarantine": QUARANTINE, "exchanges": EXCHANGES, "orphans": ORPHANS}
SMALL: Final = ROWS_AT_ONCE
"""A file with fewer rows counts as small. It has one row group."""
MANY_SMALL: Final = 16
"""Minimum number of small files in a folder to merge them into one."""
_OURS: Final = re.compile(r"run-(\d{6})-")
_FILE: Final = re.compile(rf"(?:{'|'.join(TABLES)})(?:/[^/=]+=[^/]*)*/run-\d{{6,}}-[^/]+\.parquet")
_STATE_FOLDER: Final = re.compile(rf"{STATE}/run-\d{{6,}}(?:-[^/]+)?")
"""Names that a log may contain. Files named in a log are read and removed."""
_VERSION: Final = 4
_NOTE: Final = "polybus"
_PARTS: Final = ("table", "provisional")
_FILES: Final = pa.schema([("table", pa.string()), ("provisional", pa.bool_()), ("capture_id", pa.string())])
_SETTINGS: Final = {"delta.deletedFileRetentionDuration": "interval 10000 weeks"}
"""Settings that make `VACUUM` ignore other files in the folder, such as the report."""


def run_prefix(run: int) -> str:
    return f"run-{run:06d}-"


@attrs.frozen
class ResultFile:
    name: str
    rows: int
    provisional: bool = False
    """True if the next run replaces this file."""

    @property
    def table(self) -> str:
        return self.name.partition("/")[0]


@attrs.frozen
class ResultsState:
    capture: str
    settings: dict[str, Any]
    """Settings that affect the rows. Later runs must use the same settings."""
    end: ReadPosition
    counts: RunCounts
    """Row counts of all runs. Exchanges are counted only if they are final."""
    ends: dict[str, int]
    """Last moment of each recording that has open turns, in ns on its monotonic clock."""
    seen: dict[str, int]
    """Last moment of each recording on the wall clock, in ns since 1970 (UTC)."""
    folder: str | None
    gaps: list[dict[str, Any]]
    losses: list[dict[str, Any]]
    recording: str | None
    """Recording of the segment at `end`, which shows whether another capture has replaced this one, or `None`."""
    after: dict[str, int] = attrs.Factory(dict)
    """The number after the last frame of each recording with open turns. Older polybus versions did not store it."""

    @classmethod
    def before_all(cls) -> Self:
        """Return the state before the first run."""
        return cls("", {}, ReadPosition(), RunCounts(), {}, {}, None, [], [], None)


class Output:
    """The results folder. Raises `CaptureError` if it has other contents, another version's results, or corrupt data."""

    def __init__(self, storage: TableStorage) -> None:
        self.storage = storage
        names = storage.names()
        if "_manifest" in names:
            raise CaptureError(f"{storage.inside('')} was written by an older polybus: analyse into a new folder")
        if names and LOG not in names and not set(names) <= {STAGING, STATE, "_checkpoint", *TABLES}:
            raise CaptureError(
                f"{storage.inside('')} contains files that polybus analyse did not write ({', '.join(names[:3])}, ...): "
                "choose another folder, or a new one"
            )
        self.last: ResultsState = ResultsState.before_all()
        """State after the most recent run."""
        self._files: list[ResultFile] = []
        try:
            self._log = _Log(storage, "")
            if self._log.runs:
                self.last = _state_of(self._log.note())
                self._files = [_checked(name, row) for name, row in self._log.files.items()]
        except CaptureError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
            raise CaptureError(f"the log of the results is corrupt: analyse into a new folder ({error!r:.200})") from error

        self.runs: int = self._log.runs

    @classmethod
    def of(cls, out: AnyPath) -> Self:
        """Open a results folder. Raises `CaptureError` if it does not contain results."""
        output = cls(TableStorage(out))
        if not output.runs:
            raise CaptureError(f"{os.fspath(out)} has no results: create them with `polybus analyse` or Pipeline.run")
        return output

    @property
    def counts(self) -> RunCounts:
        return self.last.counts + RunCounts(exchanges=self.provisional)

    @property
    def provisional(self) -> int:
        return sum(file.rows for file in self._files if file.provisional)

    def named(self, table: str) -> list[ResultFile]:
        return [file for file in self._files if file.table == table]

    def files(self, table: str) -> list[str]:
        """Return the file names of a table. Raises `CaptureError` if a file is too large when unpacked."""
        names = [file.name for file in self.named(table)]
        for name in names:
            self.storage.check(name)
        return names

    def check(self, capture: str, settings: dict[str, Any]) -> None:
        """Raise `CaptureError` if the folder has results of another capture or with other settings."""
        last, here = self.last, self.storage.inside("")
        if not self.runs:
            return
        if last.capture != capture:
            raise CaptureError(f"{here} has the results of {last.capture}: choose another folder")
        for name, value in settings.items():
            before = last.settings.get(name)
            if before != value:
                raise CaptureError(f"{here} has results with {name} {before}, not {value}: use {before}, or a new folder")

    def clean(self) -> None:
        for table in TABLES:
            for name in set(self.storage.files(table)).difference(file.name for file in self.named(table)):
                if _OURS.match(name.rpartition("/")[2].lstrip(".")):
                    self.storage.remove(name)
        self.storage.remove(STAGING)
        for folder in {name.rpartition("/")[0] for name in self.storage.files(STATE)} - {self.last.folder}:
            self.storage.remove(folder)

    def commit(self, state: ResultsState, added: Sequence[ResultFile], merged: Iterable[str] = ()) -> list[str]:
        """Commit a run, and return the files that it removed. Raises `CaptureError` if another run was first."""
        replaced, made = [*merged, *(file.name for file in self._files if file.provisional)], {}
        for file in added:
            parts: dict[str, str | None] = {"table": file.table, "provisional": str(file.provisional).lower()}
            made[file.name] = file.rows, parts
        self._log.change(_FILES, made, replaced, {"version": _VERSION, **msgspec.to_builtins(state)})
        return replaced


def merge_small(output: Output, prefix: str, staging: str) -> dict[ResultFile, list[str]]:
    """Merge the small files in folders that have many. Returns the new files with the names of the old files."""
    storage, crowded, merged = output.storage, dict[str, list[str]](), dict[ResultFile, list[str]]()
    for file in (file for table in TABLES for file in output.named(table)):
        if not file.provisional and file.rows < SMALL:
            crowded.setdefault(file.name.rpartition("/")[0], []).append(file.name)
    writer = PartitionWriter(storage, f"{staging}/merged")
    for folder, names in crowded.items():
        if len(names) >= MANY_SMALL:
            table = folder.partition("/")[0]
            schema = pa.schema([field for field in TABLES[table] if field.name not in BY_DATE])
            for name in names:
                storage.check(name)
            for rows in rows_of(storage, table, names, schema).to_batches():
                writer.add(folder, rows, ())
    writer.close()
    for folder, staged, count in writer.files:
        file = ResultFile(f"{folder}/{prefix}merged.parquet", count)
        storage.move(staged, file.name)
        merged[file] = crowded[folder]
    return merged


def keep_logs(output: Output, *, begin: bool) -> None:
    """Bring the tables' logs up to date. If `begin` is set, create missing logs."""
    logs = {table: _Log(output.storage, table) for table in TABLES}
    if not begin and not any(log.runs for log in logs.values()):
        return
    for table, log in logs.items():
        rows = {file.name.removeprefix(f"{table}/"): file.rows for file in output.named(table)}
        added, replaced = rows.keys() - log.files.keys(), log.files.keys() - rows.keys()
        if added or replaced or not log.runs:
            log.change(TABLES[table], {name: (rows[name], values_of(name)) for name in sorted(added)}, sorted(replaced))


class _Log:
    """The Delta Lake log of a results folder or of a table in it. Raises `CaptureError` if the log is corrupt."""

    def __init__(self, storage: TableStorage, folder: str) -> None:
        self._storage, self._folder = storage, folder
        self._place, self._options = storage.for_delta(folder)
        self._table: DeltaTable | None = None
        self.runs = 0
        self.files: dict[str, dict[str, Any]] = {}
        """Log entries of the current files, by name."""
        if storage.local and re.search("%[0-9a-fA-F]{2}", self._place):
            raise CaptureError(f"{self._place}: deltalake does not find folders with %.. in their names: choose another one")
        for name in storage.files(f"{folder}/{LOG}".lstrip("/")):
            if name.endswith(".parquet"):
                storage.check(name)
        with _plainly("the log of the results is corrupt: analyse into a new folder"):
            if DeltaTable.is_deltatable(self._place, self._options):
                self._table = DeltaTable(self._place, storage_options=self._options)
                self.runs = self._table.version() + 1
                files = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
                self.files = {unquote(row["path"]): row for row in files}

    def note(self) -> Any:
        name = f"{self._folder}/{LOG}/{self.runs - 1:020d}.json".removeprefix("/")
        actions = map(json.loads, self._storage.read(name).splitlines())
        return next(action["commitInfo"][_NOTE] for action in actions if "commitInfo" in action)

    def change(
        self,
        schema: pa.Schema,
        added: dict[str, tuple[int, dict[str, str | None]]],
        removed: Sequence[str],
        note: dict[str, Any] | None = None,
    ) -> None:
        """Commit new files with their rows and partition values. Raises `CaptureError` if another run was first."""
        storage = self._storage
        infos = storage.filesystem.get_file_info([storage.inside(f"{self._folder}/{name}".lstrip("/")) for name in added])
        adds = [
            AddAction(name, info.size, parts, info.mtime_ns // 1_000_000, True, json.dumps({"numRecords": rows}))
            for info, (name, (rows, parts)) in zip(infos, added.items(), strict=True)
        ]
        removes = [RemoveAction(name, True, time.time_ns() // 1_000_000) for name in removed]
        given: dict[str, Any] = {
            "schema": Schema.from_arrow(_described(schema)),
            "partition_by": list(_PARTS if not self._folder else BY_DATE),
            "commit_properties": CommitProperties({_NOTE: note} if note else None, max_commit_retries=0),
            # Readers find a table's files by patterns, too, which would match a checkpoint in Parquet.
            "post_commithook_properties": PostCommitHookProperties(create_checkpoint=not self._folder),
        }
        with _plainly(f"{self._place}: another run has written here at the same time; run again"):
            if self._table is not None:
                self._table.create_write_transaction([*adds, *removes], "append", **given)
            else:
                given |= {"name": self._folder or "results", "configuration": _SETTINGS, "storage_options": self._options}
                create_table_with_add_actions(self._place, add_actions=adds, **given)


def _checked(name: str, row: dict[str, Any]) -> ResultFile:
    if _FILE.fullmatch(name) is None:
        raise ValueError(f"{name!r:.200} is not a table file")
    return ResultFile(name, int(row["num_records"]), row["partition.provisional"])


def _described(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_metadata({"comment": (field.metadata or {}).get(b"doc", b"")}) for field in schema])


def _state_of(note: dict[str, Any]) -> ResultsState:
    """Parse a commit's note. Raises `CaptureError` if it is from another version, and other errors if it is corrupt."""
    if (version := note.pop("version")) != _VERSION:
        raise CaptureError(
            f"the results have version {version!r:.40}, and this polybus writes version {_VERSION}: analyse into a new folder"
        )
    state = msgspec.convert(note, ResultsState)
    if state.folder is not None and _STATE_FOLDER.fullmatch(state.folder) is None:
        raise ValueError(f"{state.folder!r:.200} is not a run folder")
    return state


@contextmanager
def _plainly(said: str) -> Iterator[None]:
    """Convert the library's coloured, multi-line errors to a single line."""
    try:
        yield
    except (OSError, DeltaError) as error:
        plain = " ".join(re.sub(r"\x1b\[[\d;]*m|↳", "", str(error)).split())
        if isinstance(error, OSError):
            raise OSError(f"deltalake, which keeps the log of the results: {plain}") from error
        raise CaptureError(f"{said} ({plain:.300})") from error
