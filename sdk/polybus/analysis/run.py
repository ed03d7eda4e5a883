"""One run of the pipeline: what is new goes through decode and correlation into the tables, and a manifest says so."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import attrs
import pyarrow as pa

from polybus.capture.errors import CaptureError
from polybus.capture.schema import EVENTS
from polybus.capture.schema import ORPHANS as ORPHAN_ROWS
from polybus.capture.store.reader import Capture
from polybus.capture.store.segments import Stretch

from .._validation import counted
from . import delta
from .correlation import (
    CARRIED,
    EXCHANGES_BY_PART,
    FINAL,
    FOLDED,
    OPEN,
    ORPHANS,
    TURNS,
    closes_of,
    exchanges_of,
    fold,
    orphans_of,
    turns_of,
)
from .engine import Engine
from .holes import Holes, joined
from .ingest import SAMPLES, IngestResult
from .manifest import STAGING, STATE, Manifest, Output, RunCounts, run_prefix
from .partitions import BY_DATE
from .ranges import ReadPosition, ReadWindow, is_written, plan, reach
from .storage import Storage, absolute
from .timeouts import MatchTimeouts
from .watermarks import Watermarks

Progress = Callable[[str], None]
_NAMED: Final = 5
"""Connections that an error names."""


class Written(NamedTuple):
    """A file of a table."""

    name: str
    rows: int
    part: str


@attrs.define(slots=False)
class PipelineStep:
    """One run over what is new."""

    _engine: Engine
    capture: str
    out: str
    _window: ReadWindow
    _timeouts: MatchTimeouts
    _strict: bool
    _delta: bool
    _progress: Progress

    def __attrs_post_init__(self) -> None:
        self._capture = Capture(self.capture)
        # As other machines, and later runs from elsewhere, would call it.
        self._path = absolute(self.capture)
        self.storage: Storage = Storage(self.out)
        self._settings = {**attrs.asdict(self._timeouts), **attrs.asdict(self._window)}
        self.output: Output = Output(self.storage)
        self.output.check(self._path, self._settings)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For as long as this run writes: the next one waits, and goes on where this one has stopped.

        Raises:
            CaptureError: The folder holds the results of another capture by now, or made with other settings.
        """
        with self.storage.alone(lambda: self._progress("wait")):
            self.output = Output(self.storage)
            self.output.check(self._path, self._settings)
            self.output.clean()
            self._keep_logs()
            yield

    def advance(self, until: ReadPosition | None = None, *, settle: bool = False) -> RunCounts:
        """Take what lies between the last run and a place, or the end of what is there; nothing where that was done before.

        Raises:
            CaptureError: Nothing more is to come (`settle`), and a recorder still writes; there is no such connection.
        """
        last = self.output.last
        start = self._begin(last)
        end = reach(self._capture, start, over=settle) if until is None else until
        torn = self._torn() if settle else IngestResult()
        if end <= start and not (settle and self.output.provisional) and not (torn.lost and last is None):
            return RunCounts()
        run, token = last.run + 1 if last is not None else 1, uuid.uuid4().hex[:12]
        # Where no lock can be held, a run that comes too late must not write over the files of another one.
        prefix, staging = f"{run_prefix(run)}{token}-", f"{STAGING}/{token}"
        self._progress("decode")
        taken = [self._gone(start), *self._decode(start, end, staging), torn]
        self._check(taken)
        moved = self._move_in(prefix, taken)
        before = Watermarks(last.ends, last.seen) if last is not None else Watermarks()
        clocks = before.later(Watermarks(done.ends, done.seen) for done in taken)
        counts = sum(taken, RunCounts())
        if last is None and not counts.frames:
            self._check_connection()
        events = self._engine.read(self.storage, "events", moved.get("events", []), EVENTS)
        holes = joined((Holes(**done.holes) for done in taken), (done.ends for done in taken), before.ends)
        ended = set(clocks.ends) if settle else _ended(taken)
        now = clocks.table(all_read=self._is_all(end), ended=ended, holes=holes)
        folded = self._fold(staging, events, last.state if last is not None else None, now)
        exchanges = self._exchanges(prefix, staging, folded, moved)
        orphans = self._orphans(prefix, staging, folded, events, moved)
        counts.exchanges = sum(file.rows for file in exchanges if file.part == FINAL)
        counts.orphans = sum(file.rows for file in orphans)
        still_open = [file for file in exchanges if file.part == OPEN]
        state, names = self._carry(prefix, folded)
        clocks = clocks.only(names)
        self.output.commit(
            Manifest(
                run=run,
                capture=self._path,
                settings=self._settings,
                start=start,
                end=end,
                counts=counts,
                open_exchanges=sum(file.rows for file in still_open),
                ends=clocks.ends,
                added=moved,
                provisional=[file.name for file in still_open],
                state=state,
                gaps=[row for done in taken for row in done.gap_rows][:SAMPLES],
                losses=[row for done in taken for row in done.losses][:SAMPLES],
                seen=clocks.seen,
                recording=self._recording(end),
            )
        )
        self._keep_logs()
        self._forget(last, staging)
        return counts

    def _keep_logs(self) -> None:
        if self.output.last is not None and (self._delta or delta.is_kept(self.storage)):
            delta.keep(self.output)

    def _begin(self, last: Manifest | None) -> ReadPosition:
        """The place at which the last run has stopped.

        Raises:
            CaptureError: There is another capture now in the place of that one.
        """
        if last is None:
            return ReadPosition(self._capture.segments()[0].number)
        now = self._recording(last.end)
        if now != last.recording and None not in (now, last.recording):
            raise CaptureError(
                f"{self._path} is not the capture any more that was analysed into {self.storage.inside('')}: its segment "
                f"{last.end.segment} is of the recording {now}, and was of {last.recording}; analyse into a new folder"
            )
        return last.end

    def _recording(self, place: ReadPosition) -> str | None:
        """The recording of the segment of a place; None where it is gone, or does not say."""
        for segment in self._capture.segments(complete=False):
            if segment.number == place.segment:
                return self._capture.reader(segment).schema_metadata().get("capture_id")
        return None

    def _gone(self, start: ReadPosition) -> IngestResult:
        """Segments that retention has removed since the last run, before they could be read; the frames are not counted."""
        numbers = range(start.segment + 1, self._capture.segments()[0].number)
        losses = [{"segment": number, **attrs.asdict(Stretch(0, 0, 0))} for number in numbers[:SAMPLES]]
        return IngestResult(lost=len(numbers), losses=losses)

    def _torn(self) -> IngestResult:
        """The end of the newest segment, where a recorder was killed in the middle of a batch: of that no more comes.

        Raises:
            CaptureError: A recorder is not gone.
        """
        segments = self._capture.segments()
        for segment in segments:
            if is_written(self._capture, segment):
                raise CaptureError(
                    f"{segment.path} is still written, so its recording is not over: settle it when the recorder has ended"
                )
        torn = [stretch for stretch in self._capture.reader(segments[-1]).all_damage() if stretch.torn]
        losses = [{"segment": segments[-1].number, **attrs.asdict(stretch)} for stretch in torn]
        return IngestResult(lost=len(losses), losses=losses)

    def _check_connection(self) -> None:
        """
        Raises:
            CaptureError: The one that is asked for is in no frame.
        """
        wanted, known = self._window.connection, dict[str, None]()
        if wanted is None:
            return
        for batch in self._capture.batches(columns=["conn_id"]):
            known |= dict.fromkeys(batch.rows.column("conn_id").to_pylist())
        if wanted not in known:
            some = ", ".join(name for name in list(known)[:_NAMED] if name)
            raise CaptureError(f"{self._path} has no connection {wanted!r}; it has {len(known)}, such as {some or 'none'}")

    def _is_all(self, end: ReadPosition) -> bool:
        """True for a place that is the end of all that is there, also of segments that other recorders write."""
        last = self._capture.segments(complete=False)[-1]
        return end.segment == last.number and reach(self._capture, end) == end

    def _carry(self, prefix: str, folded: str) -> tuple[str | None, set[str]]:
        """Turns for the next run, None where there are none; and the recordings that they belong to."""
        files = [(part, name) for part in CARRIED for name in self.storage.files(f"{folded}/part={part}")]
        state, names = f"{STATE}/{prefix[:-1]}", set[str]()
        for part, name in files:
            if name.endswith(".parquet"):
                names |= self.storage.values(name, "capture_id")
                # Spark gives the files of a task the same name in each part.
                self.storage.move(name, f"{state}/{part}-{name.rpartition('/')[2]}")
        return (state if files else None), names

    def _forget(self, last: Manifest | None, staging: str) -> None:
        """Remove the files that the new manifest has replaced."""
        replaced = [*last.provisional, last.state] if last is not None else []
        for name in (*replaced, staging):
            if name is not None:
                self.storage.remove(name)

    # -- decode ----------------------------------------------------------------------------------------------------------

    def _decode(self, start: ReadPosition, end: ReadPosition, staging: str) -> list[IngestResult]:
        ranges = plan(self._capture, start, end)
        if not ranges:
            return []
        taken = self._engine.take(self._path, absolute(self.out), f"{staging}/taken", ranges, self._window)
        for done in taken:
            if done.frames != done.rowed + done.quarantined + done.empty:
                raise CaptureError(
                    f"{self._path}: {done.frames} frames went in, and {done.rowed} with rows + {done.quarantined} quarantined "
                    f"+ {done.empty} empty came out: this is a defect of polybus, please report it"
                )
        return taken

    def _check(self, taken: list[IngestResult]) -> None:
        """
        Raises:
            CaptureError: Not all could be read, and all is wanted.
        """
        lost = [loss for done in taken for loss in done.losses]
        if self._strict and lost:
            raise CaptureError(
                f"{self._path}: {counted(sum(done.lost for done in taken), 'stretch')} cannot be read, the first in segment "
                f"{lost[0]['segment']} at byte {lost[0]['offset']}: `polybus capture verify` names them all; without --strict "
                "they are counted and passed by"
            )

    def _move_in(self, prefix: str, taken: list[IngestResult]) -> dict[str, list[str]]:
        """The files of the tasks that Spark has accepted, into the tables."""
        moved: dict[str, list[str]] = {}
        for number, done in enumerate(taken):
            for place, staged in done.files:
                name = f"{place}/{prefix}{number:06d}.parquet"
                self.storage.move(staged, name)
                moved.setdefault(place.partition("/")[0], []).append(name)
        return moved

    # -- correlate -------------------------------------------------------------------------------------------------------

    def _fold(self, staging: str, events: Any, before: str | None, clocks: pa.Table) -> str:
        """Fold the turns, with those that the last run left open; the folder of the result, by what is over and what is not."""
        self._progress("correlate")
        turns = [turns_of(self._engine, events, self._timeouts)]
        if before is not None:
            turns.append(self._engine.read(self.storage, before, self.storage.files(before), TURNS))
        folder = f"{staging}/folded"
        closes = closes_of(self._engine, events)
        folded = fold(self._engine, turns, self._timeouts, self._engine.hand(clocks), closes)
        self._engine.write(folded, self.storage, folder, FOLDED, ["part"])
        return folder

    def _exchanges(self, prefix: str, staging: str, folded: str, moved: dict[str, list[str]]) -> list[Written]:
        """The exchanges that are over go to the table for good; those which are not are given back."""
        self._progress("exchanges")
        table, written = self._read_folded(folded, (FINAL, OPEN)), []
        if table is not None:
            made, staged = exchanges_of(self._engine, table, "part"), f"{staging}/exchanges"
            self._engine.write(made, self.storage, staged, EXCHANGES_BY_PART, ["part", *BY_DATE])
            written = self._place(staged, "exchanges", prefix)
        moved["exchanges"] = [file.name for file in written if file.part == FINAL]
        return written

    def _orphans(self, prefix: str, staging: str, folded: str, events: Any, moved: dict[str, list[str]]) -> list[Written]:
        self._progress("orphans")
        lost, staged = self._read_folded(folded, ORPHANS), f"{staging}/orphans"
        if lost is None:
            return []
        # Those that were carried over are no event of this run: each is in the table once.
        self._engine.write(orphans_of(self._engine, events, lost), self.storage, staged, ORPHAN_ROWS, BY_DATE)
        written = self._place(staged, "orphans", prefix)
        moved["orphans"] = [file.name for file in written]
        return written

    def _read_folded(self, folder: str, parts: Sequence[str]) -> Any:
        """Some parts, None where there is nothing in them. By their folders: so Spark knows how few the orphans are, and does
        not sort all events for their sake."""
        files = [name for part in parts for name in self.storage.files(f"{folder}/part={part}") if name.endswith(".parquet")]
        return self._engine.read(self.storage, folder, files, FOLDED) if files else None

    def _place(self, staged: str, table: str, prefix: str) -> list[Written]:
        """The files of a staged table in their places."""
        written = []
        files = (name for name in self.storage.files(staged) if name.endswith(".parquet"))
        for number, name in enumerate(files):
            *folders, _ = name.removeprefix(staged + "/").split("/")
            part = folders.pop(0).partition("=")[2] if folders[0].startswith("part=") else ""
            place = f"{table}/{'/'.join(folders)}/{prefix}{part or 'all'}-{number:06d}.parquet"
            written.append(Written(place, self.storage.rows(name), part))
            self.storage.move(name, place)
        return written


def _ended(taken: list[IngestResult]) -> set[str]:
    """The recordings that say that they are over, and of which nothing follows."""
    names = set[str]()
    for done in taken:
        names = names.difference(done.ends).union(done.ended)
    return names
