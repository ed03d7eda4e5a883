"""Frames to events and quarantine."""

import gc
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from polybus.capture.decoding import BYTES_AT_ONCE, ROWS_AT_ONCE, Decoded, decode, decoded, frame_columns, joined
from polybus.capture.schema import EVENTS, FLAG_GAP_BEFORE, FLAG_REDACTED, FLAG_TRUNCATED, QUARANTINE
from tests.vectors import up_vectors as vectors

from .generator import PROTOCOLS, Traffic, traffic
from .rows import batch, row, run

UBRE_BINARY = '{"format": "binary"}'


def _accounted(found: Decoded) -> bool:
    good = len({event["seq"] for event in found.events.to_pylist()})
    return bool(found.frames == good + found.quarantine.num_rows + found.empty)


CSB_ASKS = bytes.fromhex("1200000700010001") + b'{"a":1}'
UUID = "01890f5e-7b2c-8000-b18d-3c2ad1f2f4f5"
ASKER, GET = "//v/cabin/1/rpc.response", "//v/body/1/rpc.Get"
UP_ID, UP_ASKER = "018bcfe5-687b-7001-8010-101010101a1a", "//device1/403AB/3/0"
UP_FAILED = bytes.fromhex(
    "0a530a120902707b68e5cf8b01111a1a10101010108010031a100a076465766963653210cd011804200b220f0a0764657669"
    "63653110ab87101803280540054a120901707b68e5cf8b01111a1a10101010108060021206080512026e6f"
)


@pytest.mark.parametrize(
    ("protocol", "frame", "given", "columns"),
    [
        (
            *("ubre", b'{"request":"user.get","id":"x1","body":{"a":1},"ttl":500}', {"deadlines_ns": [77]}),
            {
                **{"id": "c/7/0", "type": "ubre.request", "kind": "request", "subject": "user.get", "correlation_id": "x1"},
                **{"data": b'{"a":1}', "datacontenttype": "application/json", "ttl_ms": 500, "deadline_ns": 77, "code": None},
                **{"client": "", "time_ns": 1_700_000_000_000_000_000, "nbytes": 57},
            },
        ),
        (
            *("ubre", b'{"fail":"x1","body":"not there","code":5}', {"direction": 1}),
            {
                **{"kind": "response", "code": 5, "code_name": "NOT_FOUND", "data": b'{"text":"not there"}'},
                **{"source": "127.0.0.1:9000"},
            },
        ),
        ("ubre", b"P\0\1\0\0\0\1a1", {"options": None}, {"subject": "a"}),
        ("csb", CSB_ASKS, {}, {"subject": "0x00010001", "correlation_id": "000700010001"}),
        ("csb", CSB_ASKS, {"options": '{"actions": {"user.login": 65537}}'}, {"subject": "user.login"}),
        (
            *("csb", bytes.fromhex("00000005 2200000700010001") + b"1", {"options": '{"side": "broker-server"}'}),
            {"kind": "response", "client": "5", "correlation_id": "000700010001", "code": 0},
        ),
        (
            "uprotocol",
            b'{"specversion":"1.0","id":"%b","source":"%b","sink":"%b","type":"req.v1","priority":"CS4","ttl":%d}'
            % (UUID.encode(), ASKER.encode(), GET.encode(), 2**32 - 1),
            {},
            {
                **{"id": UUID, "correlation_id": UUID, "source": ASKER, "subject": GET, "reply_to": ASKER},
                **{"priority": "CS4", "ttl_ms": 2**32 - 1},
            },
        ),
        (
            *("up", vectors.REQUEST, {}),
            {
                **{"id": UP_ID, "correlation_id": UP_ID, "source": UP_ASKER, "subject": "//device2/CD/4/B"},
                **{"reply_to": UP_ASKER, "priority": "CS4", "ttl_ms": 2000, "data": b'{"p":50}'},
            },
        ),
        (
            *("up", UP_FAILED, {}),
            {
                **{"kind": "response", "correlation_id": UP_ID, "code": 5, "ttl_ms": None},
                **{"subject": "//device2/CD/4/B", "source": "//device2/CD/4/B"},
            },
        ),
    ],
    ids=["request", "failure", "any form", "numbered", "named", "to a client of a broker", "uprotocol", "up", "failure of up"],
)
def test_a_frame_is_an_event_with_these_columns(
    protocol: str, frame: bytes, given: dict[str, Any], columns: dict[str, Any]
) -> None:
    (event,) = decode(batch(row(7, protocol=protocol, frame=frame, **given))).events.to_pylist()
    assert {name: event[name] for name in columns} == columns
    if event["ttl_ms"] is not None:
        assert (event["expires_at"] - event["time"]).total_seconds() == event["ttl_ms"] / 1000


def test_a_payload_of_jrep_has_a_row_for_each_message() -> None:
    frame = b'[{"ToSubject":"s","ReplyTo":"s:1:RespondTo:RPC","Value":1},{"ToSubject":"s:1:RespondTo:RPC","Value":2}]'
    events = decode(batch(row(0, protocol="jrep", frame=frame))).events.to_pylist()
    found = [(event["sub"], event["kind"], event["correlation_id"], event["nbytes"]) for event in events]
    assert found == [(0, "request", "s:1", len(frame)), (1, "response", "s:1", 0)]


def test_an_empty_payload_is_counted_as_such() -> None:
    found = decode(batch(row(0, protocol="jrep", frame=b"[]"), row(1, protocol="jrep", frame=b"")))
    assert (found.empty, found.frames, found.events.num_rows, found.quarantine.num_rows) == (2, 2, 0, 0)


@pytest.mark.parametrize(
    ("protocol", "options", "frame", "reason"),
    [
        ("ubre", "{}", b'{"publish":"a","body":' + b"[" * 200 + b"]" * 200 + b"}", "too_deep"),
        ("ubre", "{}", b'{"request":"a","id":""}', "bad_field"),
        ("ubre", UBRE_BINARY, b"P\0\1\0\0\0\1a12", "bad_length"),
        ("ubre", UBRE_BINARY, b"P\0\1\0\0\0\0\xff", "bad_text"),
        ("csb", '{"side": "broker-server"}', b"\x12", "short_frame"),
        ("csb", "{}", bytes.fromhex("1400000700010001") + b"?", "bad_encoding"),
        ("nope", "{}", b"x", "unknown_protocol"),
        ("ubre", '{"format": "morse"}', b"x", "unknown_protocol"),
    ],
)
def test_what_cannot_be_read_says_why(protocol: str, options: str, frame: bytes, reason: str) -> None:
    found = decode(batch(row(7, protocol=protocol, frame=frame, options=options)))
    assert found.events.num_rows == 0
    (refused,) = found.quarantine.to_pylist()
    assert (refused["reason"], refused["raw"], refused["seq"]) == (reason, frame, 7), refused["detail"]


@pytest.mark.parametrize(("flag", "reason"), [(FLAG_TRUNCATED, "truncated"), (FLAG_REDACTED, "redacted")])
def test_what_the_recorder_has_cut_is_no_fault_of_the_frame(flag: int, reason: str) -> None:
    found = decode(batch(row(0, frame=b'{"publi', flags=flag)))
    assert found.quarantine.column("reason").to_pylist() == [reason]


def test_a_bad_message_among_good_ones_costs_no_frame() -> None:
    found = decode(batch(row(0, protocol="jrep", frame=b'[{"Value":1},{"ToSubject":"s","Value":2}]')))
    assert (found.events.num_rows, found.quarantine.num_rows, found.refused) == (1, 0, 1)
    assert _accounted(found)


def test_a_gap_is_no_frame_and_the_end_of_a_connection_is_an_event() -> None:
    over = '{"link": {"state": "close", "code": 1001, "reason": "bye"}}'
    found = decode(batch(row(0, frame=None, flags=FLAG_GAP_BEFORE), row(1, frame=None, options=over)))
    (event,) = found.events.to_pylist()
    assert (event["kind"], event["code_name"], event["nbytes"]) == ("close", "1001", 0)
    assert found.frames == 1
    assert _accounted(found)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_columns_that_are_wanted_are_made_of_no_others_than_those_that_are_named(protocol: str) -> None:
    rows = traffic(400, protocols=(protocol,)).table.combine_chunks().to_batches()[0]
    whole = decode(rows)
    for names in (["kind", "seq"], ["deadline_ns", "id", "client"], EVENTS.names[::-1], *([name] for name in EVENTS.names)):
        some = decode(rows.select(frame_columns(names)), columns=names)
        assert some.events.schema.names == names
        assert some.events.equals(whole.events.select(names)), names
        assert some[2:] == whole[2:]
        refused = ["protocol", "reason", "raw"]
        assert some.quarantine.select(refused).equals(whole.quarantine.select(refused))
        assert some.quarantine.schema.equals(QUARANTINE)
    with pytest.raises(KeyError):
        decode(rows, columns=["colour"])


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
