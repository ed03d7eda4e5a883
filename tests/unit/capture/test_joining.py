"""How many rows are decoded together."""

import gc

import pyarrow as pa
import pytest

from polybus.capture.decoding import BYTES_AT_ONCE, ROWS_AT_ONCE, decoded, joined

from .rows import run


def test_batches_are_joined_up_to_a_number_of_rows_and_lose_none() -> None:
    batches = [run(first, 500) if first % 1500 else run(first, 0) for first in range(0, 60_000, 500)]
    larger = list(joined(batches, ROWS_AT_ONCE, BYTES_AT_ONCE))
    assert all(ROWS_AT_ONCE <= batch.num_rows < ROWS_AT_ONCE + 500 for batch in larger[:-1])
    assert pa.Table.from_batches(larger)["seq"].equals(pa.Table.from_batches(batches)["seq"])
    assert list(joined([], ROWS_AT_ONCE, BYTES_AT_ONCE)) == list(joined([run(0, 0)], ROWS_AT_ONCE, BYTES_AT_ONCE)) == []


def test_large_frames_are_not_joined_beyond_a_number_of_bytes() -> None:
    batches = [run(number, 1, frame=bytes(5 << 20)) for number in range(8)]
    assert [batch.num_rows for batch in joined(batches, ROWS_AT_ONCE, BYTES_AT_ONCE)] == [4, 4]
    assert all(batch.nbytes < BYTES_AT_ONCE + (6 << 20) for batch in joined(batches, ROWS_AT_ONCE, BYTES_AT_ONCE))


def test_python_collects_its_garbage_again_afterwards() -> None:
    was_enabled = []
    for made in decoded(run(first, 10) for first in range(3)):
        was_enabled.append(gc.isenabled())
        assert made.events.num_rows == 30
    assert was_enabled == [True]
    with pytest.raises(KeyError):
        list(decoded([run(0, 1).drop_columns(["flags"])]))
    assert gc.isenabled()
