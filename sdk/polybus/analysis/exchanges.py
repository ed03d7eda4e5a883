"""The exchanges of a capture at once, for a task that reads it: by DuckDB, whatever engine has started that task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import pyarrow as pa

from polybus.capture.schema import EVENTS, EXCHANGES
from polybus.capture.store.reader import Capture

from ..capture.store.compute import pc
from .correlation import closes_of, exchanges_of, fold, turns_of
from .duck import DuckEngine
from .holes import Holes, joined
from .range_reader import RangeReader
from .ranges import LAST_NS, ReadPosition, ReadWindow, plan
from .timeouts import MatchTimeouts
from .watermarks import Watermarks

MEMORY: Final = "1GB"
"""So much a task may take; the rest lies on the disk meanwhile."""
_NEEDED: Final = (
    "capture_id conn_id client direction protocol subject correlation_id seq sub kind time_ns mono_ns deadline_ns ttl_ms data "
    "source peer code code_name stored store store_seq durable attempt reason"
).split()
_EVENTS: Final = pa.schema([EVENTS.field(name) for name in _NEEDED])


def exchanges(capture: Capture, window: ReadWindow, timeout: float) -> Iterator[pa.RecordBatch]:
    """The exchanges of a capture that were asked within a window, in no order.

    Raises:
        CaptureError: A segment is missing.
        ValueError: The timeout is not above zero.
    """
    timeouts = MatchTimeouts(timeout)
    asked_before = LAST_NS if window.end_ns is None else window.end_ns
    if window.end_ns is not None:  # an answer may come later, or the id again
        window = attrs.evolve(window, end_ns=min(window.end_ns + timeouts.horizon_ns, LAST_NS))
    reading = _Reading()
    with DuckEngine(memory=MEMORY, threads=1) as engine:
        events = pa.RecordBatchReader.from_batches(_EVENTS, reading.events(capture, window))
        # Once all of them have been read it is known how far each recording goes, and where it has holes.
        with engine.kept(turns_of(engine, engine.hand(events), timeouts)) as turns:
            closes = closes_of(engine, engine.hand(pa.Table.from_batches(reading.closes, _EVENTS)))
            found = exchanges_of(engine, fold(engine, [turns], timeouts, engine.hand(reading.clocks()), closes))
            asked = engine.sql(f"select * from {{found}} where request_time_ns < {asked_before}", found=found)
            yield from engine.batches(asked, EXCHANGES)


@attrs.define
class _Reading:
    """The events of a capture while they are read once, and what is to be known of all of them."""

    closes: list[pa.RecordBatch] = attrs.Factory(list)
    _watermarks: Watermarks = attrs.Factory(Watermarks)
    _holes: Holes = attrs.Factory(Holes)

    def events(self, capture: Capture, window: ReadWindow) -> Iterator[pa.RecordBatch]:
        for piece in plan(capture, ReadPosition()):
            for events in RangeReader(capture.path, piece, self._holes).table("events", _NEEDED, window, None):
                self._watermarks.note(events)
                self._holes.note(events)
                self.closes.append(events.filter(pc.equal(events.column("kind"), "close")))
                yield events

    def clocks(self) -> pa.Table:
        ends = self._watermarks.ends
        return self._watermarks.table(all_read=True, ended=ends, holes=joined([self._holes], [ends], {}))
