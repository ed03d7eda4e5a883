"""Rows of a capture, for tests."""

from typing import Any

import pyarrow as pa

from polybus.capture.schema import FRAMES

_USUAL: dict[str, Any] = {
    **{"capture_id": "c", "ts_ns": 1_700_000_000_000_000_000, "mono_ns": 1000, "direction": 0, "conn_id": "c-1"},
    **{"peer": "127.0.0.1:9000", "protocol": "ubre", "transport": "tcp", "tunnel": [], "frame": b'{"publish":"news"}'},
    **{"options": "{}", "role": 0, "deadlines_ns": None, "flags": 0},
}


def row(seq: int, **given: Any) -> dict[str, Any]:
    return {**_USUAL, "seq": seq, **given}


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=FRAMES)


def run(first: int, count: int, **given: Any) -> pa.RecordBatch:
    return batch(*(row(first + number, **given) for number in range(count)))
