"""The exchanges of a capture at once, for a task that reads it: by DuckDB, whatever engine has started that task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import pyarrow as pa

from polybus.capture.schema import EVENTS, EXCHANGES
from polybus.capture.store.reader import Capture

from .correlation import exchanges_of, fold, turns_of
from .duck import DuckEngine
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
    clocks = Watermarks()
    with DuckEngine(memory=MEMORY, threads=1) as engine:
        events = pa.RecordBatchReader.from_batches(
            pa.schema([EVENTS.field(name) for name in _NEEDED]), _read(capture, window, clocks)
        )
        # Once all of them have been read it is known how far each recording goes.
        with engine.kept(turns_of(engine, engine.hand(events), timeouts)) as turns:
            over = engine.hand(clocks.table(all_read=True, ended=clocks.ends))
            found = exchanges_of(engine, fold(engine, [turns], timeouts, over))
            asked = engine.sql(f"select * from {{found}} where request_time_ns < {asked_before}", found=found)
            yield from engine.batches(asked, EXCHANGES)


def _read(capture: Capture, window: ReadWindow, clocks: Watermarks) -> Iterator[pa.RecordBatch]:
    """The events, and in `clocks` the last moments of each recording."""
    for piece in plan(capture, ReadPosition()):
        for events in RangeReader(capture.path, piece).table("events", _NEEDED, window, None):
            clocks.note(events)
            yield events
