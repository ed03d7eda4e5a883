"""Pairs requests with answers as `correlation` does, one event at a time and without Spark: for a task that reads a capture.

What is kept is what the horizon has not passed yet, so memory does not grow with the capture.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

import attrs
import pyarrow as pa

from polybus.capture.schema import EXCHANGES
from polybus.capture.store.reader import Capture

from ..capture.store.compute import pc
from .range_reader import RangeReader
from .ranges import LAST_NS, ReadPosition, ReadWindow, plan
from .timeouts import LONGEST_MS, MatchTimeouts

SWEEP: Final = 100_000
"""Turns after which what is over is given out."""
_NEEDED: Final = (
    "capture_id conn_id client direction protocol subject correlation_id seq kind time_ns mono_ns deadline_ns ttl_ms data "
    "source peer code code_name"
).split()


@attrs.define(eq=False)
class _Exchange:
    row: dict[str, Any]
    allowance: int
    asked: bool
    digest: bytes
    linger: int
    mono: int
    last: int
    quality: str
    allowed: int = 0
    """Of the newest attempt."""
    answers: int = 0
    reused: bool = False


@attrs.frozen
class _Orphan:
    """An answer without a known request: its id is in use."""

    last: int
    linger: int


class Matcher:
    """Takes events in their order and gives exchanges that were asked before `end_ns` (since 1970 UTC)."""

    def __init__(self, timeouts: MatchTimeouts, end_ns: int | None = None) -> None:
        self._end_ns = end_ns
        self._timeout_ns, self._horizon_ns = timeouts.timeout_ns, timeouts.horizon_ns
        self._open: dict[tuple[Any, ...], _Exchange | _Orphan] = {}
        """By key: the newest exchange, or orphan."""
        self._ends: dict[str, int] = {}
        self._done: list[_Exchange] = []
        self._seen = 0

    def take(self, events: pa.RecordBatch) -> None:
        """Some events, in their order."""
        moments = pa.table(events.select(["capture_id", "mono_ns"])).group_by("capture_id")
        for last in moments.aggregate([("mono_ns", "max")]).to_pylist():
            name = last["capture_id"]
            self._ends[name] = max(int(last["mono_ns_max"]), self._ends.get(name, 0))
        kinds = pc.is_in(events.column("kind"), pa.array(["request", "response"]))
        turns = events.filter(pc.and_(kinds, pc.is_valid(events.column("correlation_id")))).select(_NEEDED)
        for event in turns.to_pylist():
            asks = event["kind"] == "request"
            direction = event["direction"] if asks else 1 - event["direction"]
            end = event["capture_id"], event["conn_id"], event["client"] or ""
            key = (*end, direction, event["protocol"], event["correlation_id"])
            (self._ask if asks else self._answer)(key, event)
            self._seen += 1

    def over(self, *, all_of_it: bool = False) -> Iterator[dict[str, Any]]:
        """Rows of the exchanges that nothing can change any more, or of all."""
        if not all_of_it and self._seen < SWEEP:
            return
        self._seen = 0
        for key, found in list(self._open.items()):
            if all_of_it or self._ends[key[0]] - found.last > found.linger:
                del self._open[key]
                if isinstance(found, _Exchange):
                    self._done.append(found)
        done, self._done = self._done, []
        for exchange in done:
            if self._end_ns is None or exchange.row["request_time_ns"] < self._end_ns:
                yield self._finished(exchange)

    def _ask(self, key: tuple[Any, ...], event: dict[str, Any]) -> None:
        mono = event["mono_ns"]
        deadline, ttl = event["deadline_ns"], event["ttl_ms"]
        asked = None if ttl is None else min(ttl, LONGEST_MS) * 1_000_000
        if deadline is not None:
            asked = deadline - mono
        allowance = asked if asked is not None else self._timeout_ns
        linger = max(allowance, self._horizon_ns)
        digest = blake2b(event["data"] or b"", digest_size=8).digest() + (b"" if event["data"] is None else b"+")
        before = self._open.get(key)
        quality = "unique"
        if isinstance(before, _Exchange):
            if mono - before.last <= before.linger:
                same = before.digest == digest and before.row["subject"] == event["subject"]
                if same and not before.answers and mono - before.last <= before.allowed:
                    before.row["attempts"] += 1
                    before.last, before.linger, before.allowed = mono, linger, allowance
                    return
                quality = "reused_id" if before.answers else "ambiguous"
                before.reused = True
            self._done.append(before)
        elif before is not None and mono - before.last <= before.linger:
            quality = "reused_id"
        row = {name: event[name] for name in ("capture_id", "conn_id", "protocol", "subject", "correlation_id", "peer")}
        row |= {
            "direction": event["direction"],
            "request_seq": event["seq"],
            "request_time_ns": event["time_ns"],
            "request_time": event["time_ns"] // 1000,
            "attempts": 1,
            "identity_key": event["client"] or event["source"],
        }
        self._open[key] = _Exchange(row, allowance, asked is not None, digest, linger, mono, mono, quality, allowance)

    def _answer(self, key: tuple[Any, ...], event: dict[str, Any]) -> None:
        mono, before = event["mono_ns"], self._open.get(key)
        if isinstance(before, _Exchange) and mono - before.last <= before.linger:
            if not before.answers:
                before.row |= {"response_seq": event["seq"], "latency_ns": mono - before.mono}
                before.row |= {"code": event["code"], "code_name": event["code_name"]}
            before.answers += 1
            before.last, before.linger = mono, self._horizon_ns
            return
        if isinstance(before, _Exchange):
            self._done.append(before)
        self._open[key] = _Orphan(mono, self._horizon_ns)

    def _finished(self, exchange: _Exchange) -> dict[str, Any]:
        row = exchange.row
        latency = row.get("latency_ns")
        if latency is None:
            waited = exchange.reused or self._ends[row["capture_id"]] - exchange.mono > exchange.allowance
            outcome = "open-at-end" if not waited else "timeout" if exchange.asked else "unanswered"
        else:
            outcome = "late" if latency > exchange.allowance else "error" if row["code"] else "ok"
        doubt = exchange.reused and not exchange.answers
        return row | {
            "outcome": outcome,
            "duplicates": max(exchange.answers - 1, 0),
            "match_quality": "ambiguous" if doubt else exchange.quality,
            "latency_ms": None if latency is None else latency / 1e6,
        }


def exchanges(capture: Capture, window: ReadWindow, timeout: float) -> Iterator[pa.RecordBatch]:
    """The exchanges of a capture that were asked within a window, in no order.

    Raises:
        CaptureError: A segment is missing.
        ValueError: The timeout is not above zero.
    """
    timeouts = MatchTimeouts(timeout)
    matcher = Matcher(timeouts, window.end_ns)
    if window.end_ns is not None:  # an answer may come later, or the id again
        window = attrs.evolve(window, end_ns=min(window.end_ns + timeouts.horizon_ns, LAST_NS))
    for piece in plan(capture, ReadPosition()):
        for events in RangeReader(capture.path, piece).table("events", _NEEDED, window, None):
            matcher.take(events)
            yield from _batches(matcher.over())
    yield from _batches(matcher.over(all_of_it=True))


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    listed = list(rows)
    for start in range(0, len(listed), SWEEP):
        yield pa.RecordBatch.from_pylist(listed[start : start + SWEEP], schema=EXCHANGES)
