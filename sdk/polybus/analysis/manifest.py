"""Manifests of the results: one file a run, and the last of them is the truth about the tables.

A run writes files of its own, puts them in their places and then writes its manifest. Files that no manifest names belong to a
run that was killed; the next one removes them. So each message is in the tables once, whatever happens to whoever writes them.
"""

from __future__ import annotations

import json
import os
import re
from itertools import chain
from typing import Any, Final, Self

import attrs

from polybus.capture.errors import CaptureError
from polybus.capture.store.filesystems import AnyPath

from .ranges import ReadPosition
from .storage import Storage

FOLDER: Final = "_manifest"
STAGING: Final = "_staging"
STATE: Final = "_state"
TABLES: Final = ("events", "quarantine", "exchanges", "orphans")
_OURS: Final = re.compile(r"run-(\d{6})-")
_FILE: Final = re.compile(rf"(?:{'|'.join(TABLES)})(?:/[^/=]+=[^/]*)*/run-\d{{6,}}-[^/]+\.parquet")
_STATE_FOLDER: Final = re.compile(rf"{STATE}/run-\d{{6,}}(?:-[^/]+)?")
"""Names that a manifest may have: what it names is read, and removed."""
_VERSION: Final = 3


def run_prefix(run: int) -> str:
    """With what the names of a run's files begin."""
    return f"run-{run:06d}-"


@attrs.define
class RunCounts:
    """Numbers of a run, or of all runs.

    ``frames`` is `rowed` (frames with at least one good row) + `quarantined` + `empty`; that is checked in every run.
    """

    frames: int = 0
    rowed: int = 0
    quarantined: int = 0
    empty: int = 0
    events: int = 0
    refused: int = 0
    """Messages that could not be read, of frames that hold others that could."""
    exchanges: int = 0
    orphans: int = 0
    gaps: int = 0
    """Gap rows: where the recorder dropped something."""
    lost: int = 0
    """Stretches of segments that could not be read any more."""

    def __add__(self, other: RunCounts) -> RunCounts:
        mine, theirs = attrs.asdict(self), attrs.asdict(other)
        return RunCounts(**{name: mine[name] + theirs[name] for name in mine})


@attrs.frozen
class Manifest:
    """State of the output after a run."""

    run: int
    """Its number, from 1."""
    capture: str
    """Of what."""
    settings: dict[str, Any]
    """Settings that the rows depend on: later runs must ask for the same."""
    start: ReadPosition
    """Place at which it began to read."""
    end: ReadPosition
    """Place at which it stopped."""
    counts: RunCounts
    """Rows that it added; of exchanges those that nothing can change any more."""
    open_exchanges: int
    """Number of rows besides: those that what is recorded later may still change."""
    ends: dict[str, int]
    """The last moment of each recording of which something is left open, ns on its monotonic clock."""
    added: dict[str, list[str]]
    """Its files, by table."""
    provisional: list[str]
    """Files of exchanges which the next run replaces."""
    state: str | None
    """The folder of what it leaves open."""
    gaps: list[dict[str, Any]]
    """The first of its gap rows."""
    losses: list[dict[str, Any]]
    """The first of the stretches that it could not read."""
    seen: dict[str, int] = attrs.Factory(dict)
    """The same moments as `ends` on the wall clock, ns since 1970 UTC."""
    recording: str | None = None
    """That of the segment at `end`, None where it is not known: another capture may come in the place of this."""

    def to_json(self) -> bytes:
        """As it stands in its file."""
        return json.dumps({"version": _VERSION, **attrs.asdict(self)}, indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """From its file.

        Raises:
            CaptureError: It is of another version, or damaged.
        """
        try:
            given = json.loads(text)
            version = given.pop("version")
            if version == _VERSION:
                given["start"], given["end"] = ReadPosition(**given["start"]), ReadPosition(**given["end"])
                given["counts"] = RunCounts(**given["counts"])
                made = cls(**given)
                made.check()
                return made
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CaptureError(f"a manifest of the results is damaged ({error!r}): analyse into a new folder") from error
        raise CaptureError(
            f"the results have version {version!r:.40}, and this polybus makes version {_VERSION}: analyse into a new folder"
        )

    def check(self) -> None:
        """Check that it names files of results alone: who hands results on may have written anything.

        Raises:
            ValueError, TypeError: It does not.
        """
        if self.run < 1:  # or it is no number
            raise ValueError(f"{self.run} is no number of a run")
        for name in (*chain.from_iterable(self.added.values()), *self.provisional):
            if _FILE.fullmatch(name) is None:
                raise ValueError(f"{name!r:.200} is no file of a table")
        if self.state is not None and _STATE_FOLDER.fullmatch(self.state) is None:
            raise ValueError(f"{self.state!r:.200} is no folder of a run")


class Output:
    """The folder of results.

    Raises:
        CaptureError: There is something else in it.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        names = storage.names()
        if names and FOLDER not in names and not set(names) <= {STAGING, STATE, "_checkpoint", *TABLES}:
            raise CaptureError(
                f"{storage.inside('')} is not empty, and what is in it was not made from a capture "
                f"({', '.join(names[:3])}, ...): name a folder with results of polybus analyse, or a new one"
            )
        files = (name for name in storage.files(FOLDER) if name.endswith(".json"))
        self.manifests: list[Manifest] = [Manifest.from_json(storage.read(name)) for name in files]

    @classmethod
    def of(cls, out: AnyPath) -> Self:
        """A folder in which there are results.

        Raises:
            CaptureError: There are none, or there is something else.
        """
        output = cls(Storage(out))
        if output.last is None:
            raise CaptureError(f"{os.fspath(out)} holds no results: `polybus analyse` makes them, or Pipeline.run")
        return output

    @property
    def last(self) -> Manifest | None:
        """That of the newest run."""
        return self.manifests[-1] if self.manifests else None

    @property
    def counts(self) -> RunCounts:
        """Of all runs."""
        total = sum((manifest.counts for manifest in self.manifests), RunCounts())
        total.exchanges += self.provisional
        return total

    @property
    def provisional(self) -> int:
        """Number of exchanges that the next run may replace."""
        return self.last.open_exchanges if self.last is not None else 0

    def files(self, table: str) -> list[str]:
        """The files that make up a table, relative to the folder."""
        files = [name for manifest in self.manifests for name in manifest.added.get(table, [])]
        if table == "exchanges" and self.last is not None:
            files += self.last.provisional
        return files

    def check(self, capture: str, settings: dict[str, Any]) -> None:
        """Check that the next run may go on here.

        Raises:
            CaptureError: The folder holds the results of another capture, or made with other settings.
        """
        last, here = self.last, self.storage.inside("")
        if last is None:
            return
        if last.capture != capture:
            raise CaptureError(f"{here} holds the results of {last.capture}: choose another folder")
        for name, value in settings.items():
            before = last.settings.get(name)
            if before != value:
                again = "use that again, or analyse into a new folder"
                raise CaptureError(f"{here} was made with {name} {before}, not {value}: {again}")

    def clean(self) -> None:
        """Remove what a killed run has left."""
        for table in TABLES:
            for name in set(self.storage.files(table)).difference(self.files(table)):
                if _OURS.match(name.rpartition("/")[2].lstrip(".")):
                    self.storage.remove(name)
        self.storage.remove(STAGING)
        kept = self.last.state if self.last is not None else None
        for folder in {name.rpartition("/")[0] for name in self.storage.files(STATE)} - {kept}:
            self.storage.remove(folder)

    def commit(self, manifest: Manifest) -> None:
        """The run is done.

        Raises:
            CaptureError: Another one was faster.
        """
        name = f"{FOLDER}/{run_prefix(manifest.run)[:-1]}.json"
        if name in self.storage.files(FOLDER):
            raise CaptureError(f"{self.storage.inside('')}: another run has written here at the same time; run again")
        self.storage.write(name, manifest.to_json())
        self.manifests.append(manifest)
