"""From what links wrote down to a batch: every row says whose it is, however often connections come, go and alternate."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from polybus.capture.record.packing import HEAD, Packed, Packer, joined, size_of_body, unpacked
from polybus.capture.rows import FLAG_GAP_BEFORE, Gap, RowHeader, Ttl
from polybus.capture.schema import FRAMES
from polybus.capture.writer.batches import Batches, frames_of


def _connection(number: int) -> list[RowHeader]:
    out = RowHeader(
        0, f"c-{number}", f"10.0.0.{number}", ("ubre", "csb")[number % 2], "tcp", ("t",) * (number % 3), "{}", number % 2
    )
    return [out, evolve(out, direction=1), evolve(out, options='{"link":{"state":"open"}}')]


ENDS = [end for number in range(40) for end in _connection(number)]
SOME = st.lists(st.sampled_from([*range(6)]), min_size=1, max_size=20)
MANY = st.lists(st.sampled_from([*range(len(ENDS))]), min_size=1, max_size=120)


def _sent(packed: Packed) -> Packed:
    """What the process that writes gets of it."""
    shipment = packed.shipment()
    head = HEAD.unpack(shipment[: HEAD.size])
    assert size_of_body(head) == len(shipment) - HEAD.size
    return unpacked(head, memoryview(bytearray(shipment[HEAD.size :])))


def _deadlines(time: int, given: Ttl) -> list[int | None]:
    ttls = given if isinstance(given, tuple) else () if given is None else (given,)
    return [None if ttl is None else time + int(min(ttl, 1e9) * 1e9) for ttl in ttls]


SHIPMENTS = st.lists(st.lists(SOME | MANY, min_size=1, max_size=3), min_size=1, max_size=5)


@given(SHIPMENTS, st.booleans(), st.booleans(), st.sampled_from([2, 4]))
def test_rows_of_batch_after_batch_say_whose_they_are(
    shipments: list[list[list[int]]], gaps: bool, apart: bool, kinds: int
) -> None:
    packer, maker = Packer(), Batches("20260101T000000-abcdef01")
    seq = 0
    for number, parts in enumerate(shipments):
        some, expected = [], []
        for places in parts:
            ends = [ENDS[place] for place in places]
            if gaps and number % 2:
                ends.insert(0, Gap("dropped", 7))
            rows: list[Any] = []
            for place, end in enumerate(ends):
                frame = None if isinstance(end, Gap) else b"%d" % place
                ttl = (None, 5.5, (6.0, None, 0.0), 1e300)[place % kinds] if number % 2 and place % 5 == 0 else None
                rows += [end, 100 + place, frame, ttl]
                expected.append((end, 100 + place, frame, ttl))
            packed = packer.pack(rows)
            some.append(_sent(packed) if apart else packed)
        packed = joined(some)
        maker.meet(packed)
        batch = maker.make(packed, frames_of(packed), None, seq, 1_000)
        assert batch.schema.equals(FRAMES)
        batch.validate(full=True)
        for place, (row, (end, time, frame, ttl)) in enumerate(zip(batch.to_pylist(), expected, strict=True)):
            assert row == {
                "capture_id": "20260101T000000-abcdef01",
                "seq": seq + place,
                "ts_ns": 1_000 + time,
                "mono_ns": time,
                "direction": end.direction,
                "conn_id": end.conn_id,
                "peer": end.peer,
                "protocol": end.protocol,
                "transport": end.transport,
                "tunnel": list(end.tunnel),
                "frame": frame,
                "options": end.options,
                "role": end.role,
                "deadlines_ns": _deadlines(time, ttl),
                "flags": end.flags,
            }
            assert (row["flags"] == FLAG_GAP_BEFORE) == isinstance(end, Gap)
        seq += len(expected)


def test_what_is_remembered_of_connections_is_bounded() -> None:
    packer, maker = Packer(), Batches("c")
    for number in range(300):
        packed = packer.pack([field for place in range(30) for field in (RowHeader(0, f"{number}-{place}"), 0, b"", None)])
        known = maker.meet(packed)
        batch = maker.make(packed, frames_of(packed), None, 0, 0)
        assert batch.column("conn_id").to_pylist() == [f"{number}-{place}" for place in range(30)]
        assert len(known) <= 4096
        assert len(maker._shown.numbers) <= 90
    assert len(packer._numbers) <= 4096
