"""Traffic with known truth: requests, losses, lateness, duplicates, further attempts, orphans, junk.

``traffic(1_000_000)`` returns a table of frames in the schema of a capture, and the expected results of a pipeline.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from attrs import define, field, frozen

from polybus.capture.schema import DIRECTION_IN, DIRECTION_OUT, FLAG_GAP_BEFORE, FRAMES

from .folders import open_segment
from .wires import Variant, options_text, variant

PROTOCOLS = Variant.BY_PROTOCOL
NS = 1_000_000_000
EPOCH_NS = 1_700_000_000 * NS
MONO_NS = 5_000 * NS
TIMEOUT_NS = 30 * NS
"""After this an answer is late where a request says nothing itself."""
_PAUSE_NS = 120 * NS
"""Between the bulk and the last requests, some of which stay open."""

OK, ERROR, LOST, LATE, TWICE, AGAIN = range(6)
FATES = (0.935, 0.02, 0.015, 0.01, 0.01, 0.01)

EXCHANGES = pa.schema(
    [
        *((name, pa.string()) for name in ("protocol", "conn_id", "client")),
        *(("direction", pa.int8()), ("subject", pa.string()), ("correlation_id", pa.string())),
        *((name, pa.int64()) for name in ("request_seq", "response_seq", "latency_ns")),
        *(("outcome", pa.string()), ("code", pa.int32()), ("attempts", pa.int32()), ("duplicates", pa.int32())),
    ]
)
"""The truth of exchanges."""


@frozen
class Traffic:
    """Frames, and what they are: reasons by seq, the frames of answers to nothing, and events by protocol and kind."""

    table: pa.Table
    exchanges: pa.Table
    quarantine: dict[int, str]
    orphans: list[int]
    empty: int
    gaps: int
    events: dict[tuple[str, str], int] = field(factory=dict)

    @property
    def frames(self) -> int:
        return int(self.table.num_rows) - self.gaps

    def batches(self, rows: int = 1024) -> Iterator[pa.RecordBatch]:
        yield from self.table.to_batches(max_chunksize=rows)

    def write(self, folder: Path, *, rows: int = 1024, segment_batches: int = 256, sealed: bool = True) -> Path:
        """Write a capture; the last segment stays open if it is not `sealed`."""
        batches, recording = list(self.batches(rows)), str(self.table["capture_id"][0])
        for number, first in enumerate(range(0, len(batches), segment_batches)):
            writer = open_segment(folder, *batches[first : first + segment_batches], number=number, recording=recording)
            if sealed or first + segment_batches < len(batches):
                writer.seal()
            else:
                writer.close()
        return folder


@define
class _Frames:
    """What is collected before it is put in order, of so many ns of traffic."""

    rng: np.random.Generator
    duration: int
    frames: list[bytes | None] = field(factory=list)
    times: list[np.ndarray[Any, Any]] = field(factory=list)
    conns: list[np.ndarray[Any, Any]] = field(factory=list)
    directions: list[np.ndarray[Any, Any]] = field(factory=list)
    deadlines: list[np.ndarray[Any, Any]] = field(factory=list)
    events: Counter[tuple[str, str]] = field(factory=Counter)

    def add(self, frames: list[Any], times: Any, conn: int, directions: Any, deadlines: Any = None) -> int:
        first, count = len(self.frames), len(frames)
        self.frames += frames
        self.times.append(np.asarray(times, np.int64))
        self.conns.append(np.full(count, conn, np.int64))
        self.directions.append(np.broadcast_to(np.asarray(directions, np.int8), count))
        self.deadlines.append(np.zeros(count, np.int64) if deadlines is None else np.asarray(deadlines, np.int64))
        return first

    def anywhen(self, count: int) -> Any:
        return self.rng.integers(0, self.duration, count)


@frozen(eq=False)
class _Conn:
    number: int
    id: str
    role: int
    variant: Variant


def traffic(
    frames: int,
    *,
    seed: int = 8,
    protocols: tuple[str, ...] = PROTOCOLS,
    connections: int = 4,
    rate: float = 20_000.0,
    gaps: int = 2,
    capture_id: str = "20231114T221320-cafe",
    alike: bool = True,
) -> Traffic:
    """About so many frames, the same for the same seed.

    Args:
        connections: Of each protocol.
        rate: Frames a second, while there is traffic.
        gaps: How many rows say that frames are missing.
        alike: True for frames that differ in an id and a number only, False for such as applications make.
    """
    conns = [
        _Conn(number, f"{capture_id[-4:]}-{number}", number % 3 % 2, variant(protocol, index, alike=alike))
        for number, (protocol, index) in enumerate((p, i) for p in protocols for i in range(connections))
    ]
    made = _Frames(np.random.default_rng(seed), int(frames / rate * NS))
    each = frames / len(conns)
    truth: list[dict[str, Any]] = []
    junk: list[tuple[int, str]] = []
    orphans: list[int] = []
    empty = 0
    for conn in conns:
        wanted = max(8, int(each * 0.212))
        truth += [_requests(made, conn, way, wanted) for way in (DIRECTION_OUT, DIRECTION_IN)]
        _publications(made, conn, int(each * 0.14))
        orphans += _orphans(made, conn, max(1, int(each * 0.001)))
        junk += _junk(made, conn, max(len(conn.variant.junk), int(each * 0.002)))
        if conn.variant.empty is not None:
            count = max(1, int(each * 0.001))
            made.add([conn.variant.empty] * count, made.anywhen(count), conn.number, DIRECTION_IN)
            empty += count
    first = made.add([None] * gaps, made.anywhen(gaps), 0, DIRECTION_OUT)
    return _sorted(made, conns, capture_id, truth, junk, orphans, empty, range(first, first + gaps))


def _requests(made: _Frames, conn: _Conn, direction: int, count: int) -> dict[str, Any]:
    """Requests of one side of a connection and all that follows from them; columns of the truth, with unsorted numbers."""
    variant, rng, duration = conn.variant, made.rng, made.duration
    last = max(4, count // 100)  # after the pause
    times = np.sort(made.anywhen(count))
    times[-last:] = np.sort(rng.integers(duration + _PAUSE_NS, duration + _PAUSE_NS + 50_000_000, last))
    subjects = np.minimum(rng.zipf(1.6, count) - 1, len(variant.subjects) - 1)
    ttls = np.asarray(variant.ttls)[rng.integers(0, len(variant.ttls), count)]
    allowances = np.where(ttls > 0, ttls * 1_000_000, TIMEOUT_NS)
    fates = rng.choice(6, count, p=FATES)
    fates[-last:] = np.where(np.arange(last) % 2 == 0, OK, LOST)
    fates[0:3] = (LOST, LATE, AGAIN)
    latencies = np.minimum((rng.lognormal(0, 0.6, count) * 2_000_000).astype(np.int64), 39_000_000)
    latencies = np.where(fates == LATE, (allowances * rng.uniform(1.2, 2.5, count)).astype(np.int64), latencies)
    latencies = np.where(fates == AGAIN, 40_000_000 + latencies, latencies)
    deadlines = np.where((ttls > 0) & (conn.role == 0) & (direction == DIRECTION_OUT), MONO_NS + times + allowances, 0)

    who, ttl = subjects.tolist(), ttls.tolist()
    asked = [variant.request(n, n, who[n], ttl[n]) for n in range(count)]
    first = made.add(asked, times, conn.number, direction, deadlines)
    again = np.flatnonzero(fates == AGAIN)
    made.add([asked[n] for n in again.tolist()], times[again] + 20_000_000, conn.number, direction, deadlines[again])
    answered = np.flatnonzero(fates != LOST)
    failed = fates == ERROR
    answers = [variant.error(n, who[n]) if failed[n] else variant.response(n, n, who[n]) for n in answered.tolist()]
    first_answer = made.add(answers, (times + latencies)[answered], conn.number, 1 - direction)
    twice = np.flatnonzero(fates == TWICE)
    more = [variant.response(n, n, who[n]) for n in twice.tolist()]
    made.add(more, (times + latencies)[twice] + 1_000_000, conn.number, 1 - direction)
    made.events[variant.protocol, "request"] += count + len(again)
    made.events[variant.protocol, "response"] += len(answered) + len(twice)
    response = np.full(count, -1, np.int64)
    response[answered] = first_answer + np.arange(len(answered))
    return {
        **{"conn": conn, "direction": direction, "times": times, "subjects": subjects, "response": response, "fates": fates},
        **{"request": first + np.arange(count), "latency": latencies, "allowance": allowances, "said": ttls > 0},
        "keys": [variant.key(n, s) for n, s in enumerate(who)],
    }


def _publications(made: _Frames, conn: _Conn, count: int) -> None:
    subjects = made.rng.integers(0, len(conn.variant.subjects), count).tolist()
    frames = [conn.variant.publish(n, s) for n, s in enumerate(subjects)]
    made.add(frames, made.anywhen(count), conn.number, made.rng.integers(0, 2, count))
    made.events[conn.variant.protocol, "publish"] += count


def _orphans(made: _Frames, conn: _Conn, count: int) -> list[int]:
    """Answers to what was asked before the recording began: at its begin, under ids that come much later or never."""
    frames = [conn.variant.response(n, 65_000 + n, len(conn.variant.subjects) - 1) for n in range(count)]
    first = made.add(frames, -1 - np.arange(count), conn.number, DIRECTION_IN)
    made.events[conn.variant.protocol, "response"] += count
    return list(range(first, first + count))


def _junk(made: _Frames, conn: _Conn, count: int) -> list[tuple[int, str]]:
    kinds = conn.variant.junk
    chosen = [kinds[index % len(kinds)] for index in range(count)]
    first = made.add([frame for frame, _ in chosen], made.anywhen(count), conn.number, made.rng.integers(0, 2, count))
    return [(first + index, reason) for index, (_, reason) in enumerate(chosen)]


def _sorted(
    made: _Frames, conns: list[_Conn], capture_id: str, truth: list[dict[str, Any]], junk: list[tuple[int, str]],
    orphans: list[int], empty: int, gaps: range,
) -> Traffic:  # fmt: skip
    times = np.concatenate(made.times)
    order = np.argsort(times, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    end = int(times.max())
    table = _table(made, conns, capture_id, times, order, place, gaps)
    said = np.ones(len(order), bool)
    said[place[[number for number, _ in junk]]] = said[place[list(gaps)]] = False
    holes = [int(times[order][:seq][said[:seq]].max(initial=-NS)) for seq in sorted(place[list(gaps)].tolist())]
    exchanges = pa.concat_tables([_exchanges(part, place, end, holes) for part in truth]).sort_by("request_seq")
    quarantine = {int(place[number]): reason for number, reason in junk}
    found = sorted(int(place[number]) for number in orphans)
    return Traffic(table, exchanges, quarantine, found, empty, len(gaps), dict(made.events))


def _table(made: _Frames, conns: list[_Conn], capture_id: str, times: Any, order: Any, place: Any, gaps: range) -> pa.Table:
    count = len(order)
    conn = pa.array(np.concatenate(made.conns)[order])
    flags = np.zeros(count, np.int32)
    flags[place[list(gaps)]] = FLAG_GAP_BEFORE
    options = pa.array([options_text(one.variant) for one in conns]).take(conn)
    if len(gaps):
        options = pc.if_else(pa.array(flags == FLAG_GAP_BEFORE), '{"gap":"dropped","frames":3}', options)
    deadlines = np.concatenate(made.deadlines)[order]
    some = deadlines > 0
    offsets = np.concatenate(([0], np.cumsum(some))).astype(np.int32)
    columns = {
        **{"capture_id": pa.repeat(pa.scalar(capture_id), count), "seq": pa.array(np.arange(count)), "flags": pa.array(flags)},
        **{"ts_ns": pa.array(EPOCH_NS + times[order]), "mono_ns": pa.array(MONO_NS + times[order])},
        "direction": pa.array(np.concatenate(made.directions)[order]),
        "conn_id": pa.array([one.id for one in conns]).take(conn),
        "peer": pa.array([f"127.0.0.1:{9000 + one.number}" for one in conns]).take(conn),
        "protocol": pa.array([one.variant.protocol for one in conns]).take(conn),
        "transport": pa.array(["tcp" if one.number % 2 else "ws" for one in conns]).take(conn),
        "tunnel": pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], pa.string())),
        "frame": pa.array([made.frames[number] for number in order.tolist()], pa.binary()),
        "options": options,
        "role": pa.array(np.asarray([one.role for one in conns], np.int8)).take(conn),
        "deadlines_ns": pa.ListArray.from_arrays(pa.array(offsets), pa.array(deadlines[some])),
    }
    return pa.Table.from_arrays([columns[name] for name in FRAMES.names], schema=FRAMES)


def _exchanges(part: dict[str, Any], place: Any, end: int, holes: list[int]) -> pa.Table:
    """The truth of some requests; the last message before each hole was at one of `holes`."""
    conn, fates = part["conn"], part["fates"]
    count = len(fates)
    waited = end - part["times"] > part["allowance"]
    outcome = np.full(count, "ok", object)
    outcome[fates == ERROR] = "error"
    outcome[fates == LATE] = "late"
    lost = fates == LOST
    code, allowance = conn.variant.error_code, part["allowance"]
    at_deadline = (part["latency"] >= allowance - np.minimum(50_000_000, allowance // 4)) | (~part["said"] & (code == 4))
    excused = (fates == ERROR) & at_deadline & (code in (1, 4))  # says only that the deadline has passed
    outcome[excused] = "timeout"
    outcome[lost] = np.where(waited, np.where(part["said"], "timeout", "unanswered"), "open-at-end")[lost]
    for hole in holes:
        outcome[lost & (part["times"] <= hole) & (hole <= part["times"] + part["allowance"])] = "unseen"
    same = {"protocol": conn.variant.protocol, "conn_id": conn.id, "client": conn.variant.client}
    columns = {
        **{name: pa.repeat(pa.scalar(value), count) for name, value in same.items()},
        "direction": pa.repeat(pa.scalar(part["direction"], pa.int8()), count),
        "subject": pa.array(conn.variant.subjects).take(pa.array(part["subjects"])),
        "correlation_id": pa.array(part["keys"]),
        "request_seq": pa.array(place[part["request"]]),
        "response_seq": pa.array(place[part["response"]], mask=lost),
        "latency_ns": pa.array(part["latency"], mask=lost | excused),
        "outcome": pa.array(outcome.tolist()),
        "code": pa.array(np.where(fates == ERROR, conn.variant.error_code, 0).astype(np.int32), mask=lost | excused),
        "attempts": pa.array(np.where(fates == AGAIN, 2, 1).astype(np.int32)),
        "duplicates": pa.array((fates == TWICE).astype(np.int32)),
    }
    return pa.Table.from_arrays([columns[name] for name in EXCHANGES.names], schema=EXCHANGES)
