"""The generator of traffic: its truth is what the decoder finds."""

from collections import Counter

import pyarrow as pa
import pytest

from polybus.capture import decode

from .generator import Traffic, traffic


def _decoded(made: Traffic) -> tuple[pa.Table, pa.Table, int]:
    parts = [decode(batch) for batch in made.batches(5000)]
    events = pa.Table.from_batches([part.events for part in parts])
    quarantine = pa.Table.from_batches([part.quarantine for part in parts])
    return events, quarantine, sum(part.empty for part in parts)


@pytest.mark.parametrize("alike", [True, False])
def test_the_decoder_finds_what_the_generator_has_made(alike: bool) -> None:
    made = traffic(8_000, gaps=3, alike=alike)
    events, quarantine, empty = _decoded(made)
    assert dict(zip(quarantine["seq"].to_pylist(), quarantine["reason"].to_pylist(), strict=True)) == made.quarantine
    kinds = Counter(zip(events["protocol"].to_pylist(), events["kind"].to_pylist(), strict=True))
    assert dict(kinds) == made.events
    assert empty == made.empty > 0
    good = len(set(events["seq"].to_pylist()))
    assert made.frames == good + quarantine.num_rows + empty

    by_seq = {event["seq"]: event for event in events.to_pylist()}
    for truth in made.exchanges.to_pylist():
        request = by_seq[truth["request_seq"]]
        shared = ("protocol", "conn_id", "client", "direction", "subject", "correlation_id")
        assert {name: request[name] for name in shared} == {name: truth[name] for name in shared}
        if truth["response_seq"] is not None:
            response = by_seq[truth["response_seq"]]
            assert (response["kind"], response["correlation_id"]) == ("response", truth["correlation_id"])
            if truth["outcome"] != "timeout":  # else it says only that the deadline has passed
                assert response["mono_ns"] - request["mono_ns"] == truth["latency_ns"]
                assert response["code"] == truth["code"]
            assert response["direction"] == 1 - request["direction"]
