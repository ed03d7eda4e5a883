"""The correlation by Spark and the one for a single task give the same exchanges, whatever the events are."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from polybus.capture.schema import EXCHANGES
from polybus.spark.stages import matching
from polybus.spark.stages.correlation import correlate
from polybus.spark.stages.matching import Matcher, MatchTimeouts

from .stories import Story, table

pytestmark = pytest.mark.spark

TIMEOUTS = MatchTimeouts(30.0, 100.0)
STEPS = [0, 0, 0.001, 1, 1, 10, 500, 29_999, 30_000, 30_001, 59_999, 100_000, 100_001, 300_000]
"""Milliseconds between two events: at, before and after what the timeouts and times to live below make a difference for."""
RECORDINGS = 200


def _recording(seed: int) -> Story:
    """Some events: few ids, so that they come round, on few connections, in both directions, some of them in one frame."""
    chance = random.Random(seed)
    story, at, seq, sub = Story(f"recording {seed}"), 0.0, 0, 0
    ids = ["1", "2", "3"][: chance.randint(1, 3)]
    for _ in range(chance.randint(1, 40)):
        if chance.random() < 0.2:
            sub += 1
        else:
            at, seq, sub = at + chance.choice(STEPS), seq + chance.randint(1, 3), 0
        columns: dict[str, Any] = {
            "seq": seq,
            "sub": sub,
            "conn_id": chance.choice(["a", "a", "a", "b"]),
            "client": chance.choice(["", "", "", "7", None]),
            "protocol": chance.choice(["ubre", "ubre", "ubre", "csb"]),
            "correlation_id": chance.choice([*ids, *ids, *ids, None]),
            "direction": chance.choice([0, 1]),
            "subject": chance.choice(["user.get", "user.get", "user.set", None]),
            "data": chance.choice([b"?", b"?", b"!", b"", None]),
        }
        kind = chance.choice(["request", "request", "request", "response", "response", "response", "publish"])
        if kind == "request":
            wait = chance.choice([None, None, 0, 1, 30_000, 30_001, 100_001, 2**53])
            left = chance.choice([None, None, None, -1, 0, 30_000_000_000, 100_000_000_001])
            columns |= {"ttl_ms": wait, "deadline_ns": None if left is None else round(at * 1_000_000) + left}
        elif kind == "response":
            code = chance.choice([0, 0, 5, 13])
            columns |= {"code": code, "code_name": str(code)}
        story.add(kind, at, **columns)
    return story


def _by_request(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["capture_id"], row["request_seq"], row["direction"], str(row)))


def test_both_correlations_give_the_same_exchanges_to_the_row(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "SWEEP", 20)  # exchanges are given out while others are open
    recordings = [_recording(seed) for seed in range(RECORDINGS)]
    matcher, rows = Matcher(TIMEOUTS), list[dict[str, Any]]()
    for recording in recordings:
        for batch in table(recording).to_batches(max_chunksize=7):
            matcher.take(batch)
            rows += matcher.over()
    rows += matcher.over(all_of_it=True)
    found = _by_request([dict.fromkeys(EXCHANGES.names) | row for row in rows])
    wanted = _by_request(correlate(spark.createDataFrame(table(*recordings)), TIMEOUTS).exchanges.toArrow().to_pylist())
    for row in (*found, *wanted):
        row["request_time"] = None  # the one is a number, the other a time
    for one, other in zip(found, wanted, strict=True):
        assert one == other, f"recording {one['capture_id']}"
    assert len({row["outcome"] for row in found}) == 6
    assert len({row["match_quality"] for row in found}) == 3
