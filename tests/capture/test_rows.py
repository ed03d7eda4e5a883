"""From what links wrote down to a batch: every row says whose it is, however often connections come, go and alternate."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from polybus.capture.rows import Batches, Columns
from polybus.capture.schema import FLAG_GAP_BEFORE, FRAMES
from polybus.capture.taps import End, Gap


def _connection(number: int) -> list[End]:
    out = End(0, f"c-{number}", f"10.0.0.{number}", ("ubre", "csb")[number % 2], "tcp", ("t",) * (number % 3), "{}", number % 2)
    incoming = out.saying(out.options)
    incoming.direction = 1
    return [out, incoming, out.saying('{"link":{"state":"open"}}')]


ENDS = [end for number in range(40) for end in _connection(number)]
SOME = st.lists(st.sampled_from([*range(6)]), min_size=1, max_size=20)
MANY = st.lists(st.sampled_from([*range(len(ENDS))]), min_size=1, max_size=120)


@given(st.lists(SOME | MANY, min_size=1, max_size=8), st.booleans())
def test_rows_of_batch_after_batch_say_whose_they_are(batches: list[list[int]], gaps: bool) -> None:
    maker = Batches("20260101T000000-abcdef01")
    seq = 0
    for number, places in enumerate(batches):
        ends = [ENDS[place] for place in places]
        if gaps and number % 2:
            ends.insert(0, Gap("dropped", 7))
        deadlines: list[Any] = [(None, 5, (6, None, 7))[place % 3] if place % 5 == 0 else None for place in range(len(ends))]
        rows = Columns(
            ends, [100 + place for place in range(len(ends))], [b"%d" % place for place in range(len(ends))], deadlines
        )
        batch = maker.make(rows, pa.array(rows.frames, pa.binary()), None, seq, 1_000)
        assert batch.schema.equals(FRAMES)
        batch.validate(full=True)
        for place, (row, end) in enumerate(zip(batch.to_pylist(), ends, strict=True)):
            one = deadlines[place]
            assert row == {
                "capture_id": "20260101T000000-abcdef01",
                "seq": seq + place,
                "ts_ns": 1_100 + place,
                "mono_ns": 100 + place,
                "direction": end.direction,
                "conn_id": end.conn_id,
                "peer": end.peer,
                "protocol": end.protocol,
                "transport": end.transport,
                "tunnel": list(end.tunnel),
                "frame": b"%d" % place,
                "options": end.options,
                "role": end.role,
                "deadlines_ns": [] if one is None else [one] if isinstance(one, int) else list(one),
                "flags": end.flags,
            }
            assert (row["flags"] == FLAG_GAP_BEFORE) == isinstance(end, Gap)
        seq += len(ends)


def test_what_is_remembered_of_connections_is_bounded() -> None:
    maker = Batches("c")
    for number in range(200):
        ends = [End(0, f"{number}-{place}") for place in range(30)]
        maker.make(Columns(ends, [0] * 30, [b""] * 30, [None] * 30), pa.array([b""] * 30), None, 0, 0)
        assert len(maker._ends.places) <= 90
