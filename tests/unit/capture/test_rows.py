"""From what links wrote down to a batch: every row says whose it is, however often connections come, go and alternate."""

from typing import Any

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from polybus.capture.record.writer import Rows
from polybus.capture.rows import FLAG_GAP_BEFORE, Gap, RowHeader, Ttl
from polybus.capture.schema import FRAMES


def _connection(number: int) -> list[RowHeader]:
    protocol, tunnel = ("ubre", "csb")[number % 2], ("t",) * (number % 3)
    out = RowHeader(0, f"c-{number}", f"10.0.0.{number}", protocol, "tcp", tunnel, "{}", number % 2)
    return [out, evolve(out, direction=1), evolve(out, options='{"link":{"state":"open"}}')]


ENDS = [end for number in range(40) for end in _connection(number)]
SOME = st.lists(st.sampled_from([*range(6)]), min_size=1, max_size=20)
MANY = st.lists(st.sampled_from([*range(len(ENDS))]), min_size=1, max_size=120)


def _deadlines(time: int, given: Ttl) -> list[int | None]:
    ttls = given if isinstance(given, tuple) else () if given is None else (given,)
    return [None if ttl is None else time + int(min(ttl, 1e9) * 1e9) for ttl in ttls]


@given(SOME | MANY, st.booleans(), st.sampled_from([0, 2, 4]))
def test_rows_of_a_batch_say_whose_they_are(places: list[int], gaps: bool, kinds: int) -> None:
    ends = [Gap("dropped", 7)] * gaps + [ENDS[place] for place in places]
    flat: list[Any] = []
    expected = []
    for place, end in enumerate(ends):
        frame = None if isinstance(end, Gap) else b"%d" % place
        ttl = (None, 5.5, (6.0, None, 0.0), 1e300)[place % kinds] if kinds and place % 5 < 4 else None
        flat += [end, 100 + place, frame, ttl]
        expected.append((end, 100 + place, frame, ttl))
    rows = Rows(flat)
    batch = rows.batch("20260101T000000-abcdef01", 7, 1_000, rows.frames, None)
    assert batch.schema.equals(FRAMES)
    batch.validate(full=True)
    for place, (row, (end, time, frame, ttl)) in enumerate(zip(batch.to_pylist(), expected, strict=True)):
        same = ("direction", "conn_id", "peer", "protocol", "transport", "options", "role", "flags")
        assert row == {
            **{"capture_id": "20260101T000000-abcdef01", "seq": 7 + place, "ts_ns": 1_000 + time, "mono_ns": time},
            **{"tunnel": list(end.tunnel), "frame": frame, "deadlines_ns": _deadlines(time, ttl)},
            **{name: getattr(end, name) for name in same},
        }
        assert (row["flags"] == FLAG_GAP_BEFORE) == isinstance(end, Gap)
