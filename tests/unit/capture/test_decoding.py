"""Frames to events and quarantine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.capture.decoding.decoder import Decoded, decode
from polybus.capture.decoding.event_columns import frame_columns
from polybus.capture.schema import EVENTS, FLAG_GAP_BEFORE, FLAG_REDACTED, FLAG_TRUNCATED, QUARANTINE, QUARANTINE_REASONS

from .generator import PROTOCOLS, traffic
from .rows import batch, read_alike, row

UBRE_BINARY = '{"format": "binary"}'


def _event(protocol: str, frame: bytes, **given: Any) -> dict[str, Any]:
    (event,) = decode(batch(row(7, protocol=protocol, frame=frame, **given))).events.to_pylist()
    return event  # type: ignore[no-any-return]


def _accounted(found: Decoded) -> bool:
    good = len({event["seq"] for event in found.events.to_pylist()})
    return bool(found.frames == good + found.quarantine.num_rows + found.empty)


def test_a_request_of_ubre() -> None:
    event = _event("ubre", b'{"request":"user.get","id":"x1","body":{"a":1},"ttl":500}', deadlines_ns=[77])
    assert event["id"] == "c/7/0"
    assert event["type"] == "ubre.request"
    assert (event["kind"], event["subject"], event["correlation_id"]) == ("request", "user.get", "x1")
    assert (event["data"], event["datacontenttype"]) == (b'{"a":1}', "application/json")
    assert (event["ttl_ms"], event["deadline_ns"], event["code"], event["client"]) == (500, 77, None, "")
    assert (event["expires_at"] - event["time"]).total_seconds() == 0.5
    assert event["time_ns"] == 1_700_000_000_000_000_000
    assert event["nbytes"] == 57


def test_a_failure_has_its_code_and_its_text() -> None:
    event = _event("ubre", b'{"fail":"x1","body":"not there","code":5}', direction=1)
    assert (event["kind"], event["code"], event["code_name"]) == ("response", 5, "NOT_FOUND")
    assert event["data"] == b'{"text":"not there"}'
    assert event["source"] == "127.0.0.1:9000"


def test_actions_of_csb_have_their_names_where_these_are_known() -> None:
    frame = bytes.fromhex("1200000700010001") + b'{"a":1}'
    assert _event("csb", frame)["subject"] == "0x00010001"
    assert _event("csb", frame, options='{"actions": {"user.login": 65537}}')["subject"] == "user.login"
    assert _event("csb", frame)["correlation_id"] == "000700010001"


def test_a_response_of_csb_is_known_by_id_and_action_and_client() -> None:
    options = '{"side": "broker-server"}'
    event = _event("csb", bytes.fromhex("00000005 2200000700010001") + b"1", options=options)
    assert (event["kind"], event["client"], event["correlation_id"], event["code"]) == ("response", "5", "000700010001", 0)


def test_a_payload_of_jrep_has_a_row_for_each_message() -> None:
    frame = b'[{"ToSubject":"s","ReplyTo":"s:1:RespondTo:RPC","Value":1},{"ToSubject":"s:1:RespondTo:RPC","Value":2}]'
    found = decode(batch(row(0, protocol="jrep", frame=frame)))
    events = found.events.to_pylist()
    assert [(event["sub"], event["kind"], event["correlation_id"]) for event in events] == [
        (0, "request", "s:1"),
        (1, "response", "s:1"),
    ]
    assert [event["nbytes"] for event in events] == [len(frame), 0]


def test_an_empty_payload_is_counted_as_such() -> None:
    found = decode(batch(row(0, protocol="jrep", frame=b"[]"), row(1, protocol="jrep", frame=b"")))
    assert (found.empty, found.frames, found.events.num_rows, found.quarantine.num_rows) == (2, 2, 0, 0)


def test_an_event_of_uprotocol_keeps_its_own_id_and_source() -> None:
    frame = (
        b'{"specversion":"1.0","id":"01890f5e-7b2c-8000-b18d-3c2ad1f2f4f5","source":"//v/cabin/1/rpc.response",'
        b'"sink":"//v/body/1/rpc.Get","type":"req.v1","priority":"CS4","ttl":1000}'
    )
    event = _event("uprotocol", frame)
    assert event["id"] == event["correlation_id"] == "01890f5e-7b2c-8000-b18d-3c2ad1f2f4f5"
    assert (event["source"], event["subject"]) == ("//v/cabin/1/rpc.response", "//v/body/1/rpc.Get")
    assert (event["reply_to"], event["priority"], event["ttl_ms"]) == ("//v/cabin/1/rpc.response", "CS4", 1000)


@pytest.mark.parametrize("ttl", [2**31, 2**32 - 1])
def test_a_ttl_of_32_bits_is_a_column_and_a_time(ttl: int) -> None:
    frame = (
        b'{"specversion":"1.0","id":"01890f5e-7b2c-8000-b18d-3c2ad1f2f4f5","source":"//v/body/1/door.front#Door",'
        b'"type":"pub.v1","ttl":%d}' % ttl
    )
    for number in (1, 100):  # read one by one, and together
        events = decode(batch(*(row(n, protocol="uprotocol", frame=frame) for n in range(number)))).events.to_pylist()
        assert {event["ttl_ms"] for event in events} == {ttl}
        assert {(event["expires_at"] - event["time"]).total_seconds() for event in events} == {ttl / 1000}


@pytest.mark.parametrize(
    ("protocol", "options", "frame", "reason"),
    [
        ("ubre", "{}", b"nonsense", "bad_json"),
        ("ubre", "{}", b'{"x":1}', "unknown_type"),
        ("ubre", "{}", b'{"publish":"a","body":' + b"[" * 200 + b"]" * 200 + b"}", "too_deep"),
        ("ubre", "{}", b'{"publish":"a\xff"}', "bad_text"),
        ("ubre", "{}", b'{"request":"a","id":""}', "bad_field"),
        ("ubre", UBRE_BINARY, b"P\0", "short_frame"),
        ("ubre", UBRE_BINARY, b"P\0\1\0\0\0\5a12", "bad_length"),
        ("ubre", UBRE_BINARY, b"P\0\1\0\0\0\1a12", "bad_length"),
        ("ubre", UBRE_BINARY, b"z\0\1\0\0\0\0a", "unknown_type"),
        ("ubre", UBRE_BINARY, b"P\0\1\0\0\0\0\xff", "bad_text"),
        ("ubre", UBRE_BINARY, b"P\0\1\0\0\0\1a{", "bad_json"),
        ("csb", "{}", b"\x12", "short_frame"),
        ("csb", '{"side": "broker-server"}', b"\x12", "short_frame"),
        ("csb", "{}", bytes.fromhex("3200000700010001"), "bad_kind"),
        ("csb", "{}", bytes.fromhex("1900000700010001"), "bad_encoding"),
        ("csb", "{}", bytes.fromhex("1201000700010001"), "bad_code"),
        ("csb", "{}", bytes.fromhex("1200000700010001") + b"{", "bad_json"),
        ("csb", "{}", bytes.fromhex("1100000700010001") + b"\xff", "bad_text"),
        ("csb", "{}", bytes.fromhex("1400000700010001") + b"?", "bad_encoding"),
        ("jrep", "{}", b"{", "bad_json"),
        ("jrep", "{}", b"[1]", "not_array"),
        ("jrep", "{}", b'[{"Value":1}]', "missing_field"),
        ("uprotocol", "{}", b"x", "bad_json"),
        ("uprotocol", "{}", b"{}", "missing_field"),
        ("uprotocol", '{"format": "protobuf"}', b"\xff\xff", "bad_protobuf"),
        ("nope", "{}", b"x", "unknown_protocol"),
        ("ubre", '{"format": "morse"}', b"x", "unknown_protocol"),
    ],
)
def test_what_cannot_be_read_says_why(protocol: str, options: str, frame: bytes, reason: str) -> None:
    found = decode(batch(row(7, protocol=protocol, frame=frame, options=options)))
    assert found.events.num_rows == 0
    (refused,) = found.quarantine.to_pylist()
    assert refused["reason"] == reason, refused["detail"]
    assert refused["raw"] == frame
    assert refused["seq"] == 7


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


def test_frames_without_options_are_read_as_widely_as_can_be() -> None:
    assert _event("ubre", b"P\0\1\0\0\0\1a1", options=None)["subject"] == "a"


_FRAMES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b'{"publish":"a"}', b"[]", b'[{"ToSubject":"s"}]', bytes.fromhex("1200000700010001"), b"P\0\1\0\0\0\1a1"]),
)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ubre", "csb", "jrep", "uprotocol", "x"]),
            st.sampled_from(["{}", UBRE_BINARY, None, "[", '{"side": "broker-server"}']),
            _FRAMES,
        ),
        max_size=8,
    )
)
def test_any_bytes_are_events_or_quarantine_or_empty(frames: list[tuple[str, str | None, bytes]]) -> None:
    rows = [row(seq, protocol=p, options=options, frame=frame) for seq, (p, options, frame) in enumerate(frames)]
    found = decode(batch(*rows))
    assert found.events.schema.equals(EVENTS)
    assert found.quarantine.schema.equals(QUARANTINE)
    found.events.validate(full=True)
    assert set(found.quarantine.column("reason").to_pylist()) <= set(QUARANTINE_REASONS)
    assert found.frames == len(frames)
    assert _accounted(found)


# -- many frames at once -------------------------------------------------------------------------------------------------


def _same(rows: list[dict[str, Any]]) -> None:
    read_alike(batch(*rows))


def _same_of_many(protocol: str, frames: list[bytes], options: str | None = "{}") -> None:
    """Each frame twice: what is there once is not read together with others."""
    _same([row(seq, protocol=protocol, frame=frame, options=options) for seq, frame in enumerate(frames * 2)])


_BODY = st.sampled_from(
    [b"", b"1", b'{"a":1}', b"{", b"\xff", '"ö"'.encode(), b"[" * 150 + b"]" * 150, b'"' + b"x" * 400 + b'"']
)
_HEADS = st.tuples(
    st.sampled_from([0x10, 0x11, 0x12, 0x13, 0x14, 0x19, 0x20, 0x22, 0x2A, 0x32, 0xD2, 0xF0]),
    st.sampled_from([0, 0, 0, 1, 0xC9]),
    st.integers(0, 0xFFFF),
    st.sampled_from([0, 1, 0x10001, 0xFFFEFFFF, 0xFFFF0000, 0xFFFF0004, 0xFFFF0005, 0xFFFF0009, 0xFFFFFFFF]),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(_HEADS, _BODY, st.booleans()), min_size=16, max_size=24), st.sampled_from(["{}", "named", "broker"]))
def test_frames_of_csb_are_read_together_as_they_are_one_by_one(frames: list[Any], how: str) -> None:
    options = {"{}": "{}", "named": '{"actions": {"one": 65537}}', "broker": '{"side": "broker-server"}'}[how]
    rows = []
    for seq, ((first, result, number, action), body, cut) in enumerate(frames):
        frame = bytes((first, result)) + number.to_bytes(2) + action.to_bytes(4) + body
        if how == "broker":
            frame = b"\xff\0\0\7" + frame
        rows.append(row(seq, protocol="csb", options=options, frame=frame[:7] if cut and seq % 3 == 0 else frame))
    _same(rows)


_NAMES = st.one_of(
    st.sampled_from(
        [b"", b"a", b"7\0user.get", b"7\0", b"\0a", b"7\0a\0{}", b'7\0a\0{"ttl":5}', b"\xc3\xb6", b"a\nb", b"x" * 300]
    ),
    st.binary(max_size=6),
)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(b"RsPPfISUCOKEz"), _NAMES, _BODY, st.integers(0, 9)), min_size=16, max_size=24),
    st.sampled_from([UBRE_BINARY, '{"format": "binary", "body": "raw"}']),
)
def test_binary_frames_of_ubre_are_read_together_as_they_are_one_by_one(frames: list[Any], options: str) -> None:
    made = []
    for letter, name, body, wrong in frames:
        size = 0xFFFFFFFF if wrong == 1 else len(body) + (wrong == 2)
        frame = bytes((letter,)) + len(name).to_bytes(2) + size.to_bytes(4) + name + body
        made.append(frame[:5] if wrong == 3 else frame)
    _same_of_many("ubre", made, options)


_MORE = st.tuples(
    st.sampled_from([0xFFFF0005, 0xFFFF0006]),
    st.sampled_from([b"", b"a", b"news.\xc3\xb6", b"\xff", b"a\nb", b"x" * 2000]),
    st.sampled_from([None, None, 0, 3, 0xFFFE, 0xFFFF]),
    st.sampled_from([b"", b"", b"", b"{}", b'{"headers":{"a":"b"}}', b"["]),
    st.sampled_from([0, 9, 0xFFFFFFFE, 0xFFFFFFFF]),
    st.sampled_from([0x10, 0x11, 0x12, 0x19, 0x22, 0x32]),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(_MORE, _BODY, st.integers(0, 30)), min_size=16, max_size=24), st.booleans())
def test_what_csb_says_by_name_is_read_together_as_it_is_one_by_one(frames: list[Any], broker: bool) -> None:
    rows = []
    for seq, ((action, name, size, extras, ttl, first), body, cut) in enumerate(frames):
        more = (len(name) if size is None else size).to_bytes(2) + len(extras).to_bytes(2) + ttl.to_bytes(4)
        frame = bytes((first, 0)) + seq.to_bytes(2) + action.to_bytes(4) + more + name + extras + body
        frame = frame[: 8 + cut] if cut < 12 else frame
        if broker:
            frame = b"\xff\0\0\7" + frame
        rows.append(row(seq, protocol="csb", options='{"side": "broker-server"}' if broker else "{}", frame=frame))
    _same(rows)


_TEXTS = st.sampled_from([
    '""', '"a"', '"Zählung"', '"s:1:RespondTo:RPC"', '":RespondTo:RPC"', '":1:RespondTo:RPC"', '"s:1:Errors:RPC"', '"local:a"',
    '"ServerBus"', '"a\\u0000"', '"a\\u00e4"', '"' + "x" * 2000 + '"', "1", "null", "{}",
])  # fmt: skip
_VALUES = st.sampled_from([
    "1", "null", '"x"', "[]", '{"a":1}', '{"^EncodedType":"java.lang.Long","^NumVal":"5"}', '[{"^EncodedType":"x"}]', "1e999",
    '{"\\u005eEncodedType":"a"}', "{", "nan", "[" * 150 + "]" * 150, "[" * 300 + "]" * 300, '"ö"', '{"code":5}',
])  # fmt: skip
_TTLS = st.sampled_from(["0", "5", "250", "-1", "2147483648", "1e3", "9223372036854775808", '"5"', "true"])


def _members(names: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Objects of some of these members, in any order."""
    members = [st.tuples(st.just(name), values) for name, values in names.items()]
    chosen = st.lists(st.one_of(members), max_size=5, unique_by=lambda member: member[0])
    return chosen.map(lambda pairs: ("{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}").encode())


_OF_JREP = _members(
    {"ToSubject": _TEXTS, "ReplyTo": _TEXTS, "ErrorTo": _TEXTS, "Value": _VALUES, "PolybusTtl": _TTLS}
    | {"CommandType": _TEXTS, "PriorityProcessing": st.sampled_from(["0", "1", '"2"']), "PolybusVerb": st.just('"item"')}
    | {"PolybusId": _TEXTS}
)
_TO = st.builds(
    lambda to, more: b'{"ToSubject":"%b",%b' % (to, more[1:]) if more != b"{}" else b'{"ToSubject":"%b"}' % to,
    st.sampled_from([b"s", b"s:1:RespondTo:RPC", b"s:x:Errors:RPC", b"\xc3\xb6", b"\xff", b"local:a"]),
    _members({"ReplyTo": _TEXTS, "ErrorTo": _TEXTS, "Value": _VALUES, "PolybusTtl": _TTLS}),
)
_PAYLOADS = st.lists(st.one_of(_TO, _TO, _TO, _OF_JREP), max_size=3).map(lambda parts: b"[" + b",".join(parts) + b"]")


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.one_of(_TO.map(lambda one: b"[%b]" % one), _PAYLOADS, _FRAMES), min_size=16, max_size=24),
    st.sampled_from(["{}", '{"types": "strict"}', '{"values": "plain"}']),
)
def test_payloads_of_jrep_are_read_together_as_they_are_one_by_one(frames: list[bytes], options: str) -> None:
    _same_of_many("jrep", frames, options)


def test_unusual_payloads_of_jrep_are_left_to_the_codec() -> None:
    subjects = [
        "s",
        "local:s",
        "ServerBus",
        "ClientBus",
        "a\\u0001",
        "s:1:Errors:RPC",
        "s:RPC",
        "",
        "x" * 300,
        "s:2:RespondTo:RPC",
    ]
    values = [
        "[" * 300 + "]" * 300,
        "[" * 150 + "]" * 150,
        '{"^EncodedType":"x"}',
        '{"\\u005eEncodedType":"x"}',
        "1e999",
        '"ö"',
    ]
    more = ["", '"Value":1', '"ReplyTo":"r"', '"ReplyTo":""', '"ReplyTo":"r","ErrorTo":""', '"ReplyTo":"r","PolybusTtl":-1']
    more += ['"PolybusTtl":5', '"ReplyTo":"r","PolybusTtl":4294967296', *(f'"Value":{value}' for value in values)]
    parts = [f'"ToSubject":"{subject}"{"," if rest else ""}{rest}' for subject in subjects for rest in more]
    _same_of_many("jrep", [f"[{{{one}}}]".encode() for one in parts])


_OF_UBRE = st.one_of(
    _members({"request": _TEXTS, "id": _TEXTS, "body": _VALUES, "ttl": _TTLS, "headers": st.sampled_from(['{"a":"b"}', "1"])}),
    _members({"success": _TEXTS, "body": _VALUES, "publish": _TEXTS}),
    _members({"fail": _TEXTS, "body": _VALUES, "code": _TTLS}),
    _members({"item": _TEXTS, "body": _VALUES, "data": st.sampled_from(['""', '"YQ=="', '"?"'])}),
    _members({"request": st.just('"app.get"'), "id": st.just('"7"'), "body": _VALUES, "ttl": _TTLS}),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(_OF_UBRE, _FRAMES), min_size=16, max_size=24), st.sampled_from(["{}", '{"format": "any"}', None]))
def test_json_frames_of_ubre_are_read_together_as_they_are_one_by_one(frames: list[bytes], options: str | None) -> None:
    _same_of_many("ubre", frames, options)


_UUID = "01890f5e-7b2c-8000-b18d-3c2ad1f2f4f5"
_EVENT: dict[str, Any] = {
    "specversion": "1.0",
    "id": _UUID,
    "source": "//v/cabin/1/rpc.response",
    "sink": "//v/body/1/rpc.Get",
    "type": "req.v1",
    "priority": "CS4",
    "ttl": 1000,
}
_ANSWER = {"source": "//v/body/1/rpc.Get", "sink": "//v/cabin/1/rpc.response", "type": "res.v1", "reqid": _UUID, "ttl": None}
_TOPIC = {"source": "//v/body/1/door#Door", "sink": None, "type": "pub.v1", "ttl": None}
_ANY = "CgNhL2ISAQE="
_CHANGES = st.dictionaries(
    st.sampled_from(["id", "source", "sink", "type", "priority", "ttl", "reqid", "data_base64", "data", "datacontenttype"])
    | st.sampled_from(["dataschema", "token", "plevel", "commstatus", "specversion", "more"]),
    st.sampled_from(
        [None, "", "a", "//v/cabin/1/rpc.response", "//v/body/1/door#Door", "req.v1", "notif.v1", "CS1", "CS9", 0, 5]
    )
    | st.sampled_from(
        [-1, 2**31, _UUID, _UUID.upper(), _ANY, "?", "CgA", "application/octet-stream", "application/json", "1.0"]
    )
    | st.sampled_from([{"@type": "type.googleapis.com/google.protobuf.Empty"}]),
    max_size=2,
)


def _event_of(kind: dict[str, Any], changes: dict[str, Any], data: str | None) -> dict[str, Any]:
    event = {**_EVENT, **kind, "data_base64": data, **changes}
    return {name: value for name, value in event.items() if value is not None}


_JSON_EVENTS = st.builds(_event_of, st.sampled_from([{}, _ANSWER, _TOPIC]), _CHANGES, st.sampled_from([None, _ANY, "", "AAAA"]))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(_JSON_EVENTS, st.lists(_JSON_EVENTS, max_size=2)), min_size=16, max_size=24))
def test_events_of_uprotocol_are_read_together_as_they_are_one_by_one(frames: list[Any]) -> None:
    _same_of_many("uprotocol", [json.dumps(frame).encode() for frame in frames])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_traffic_is_read_together_as_it_is_one_by_one(protocol: str) -> None:
    _same(traffic(600, protocols=(protocol,)).table.to_pylist())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_columns_that_are_wanted_are_the_same_as_among_all(protocol: str) -> None:
    rows = traffic(400, protocols=(protocol,)).table.combine_chunks().to_batches()[0]
    whole = decode(rows)
    for names in (["kind", "seq"], ["deadline_ns", "id", "client"], ["expires_at"], EVENTS.names[::-1]):
        some = decode(rows, columns=names)
        assert some.events.schema.names == names
        assert some.events.equals(whole.events.select(names))
        assert (some.quarantine.equals(whole.quarantine), some[2:]) == (True, whole[2:])
    with pytest.raises(KeyError):
        decode(rows, columns=["colour"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_columns_are_made_of_no_others_of_the_frame_than_those_that_are_named(protocol: str) -> None:
    rows = traffic(400, protocols=(protocol,)).table.combine_chunks().to_batches()[0]
    whole = decode(rows)
    for name in EVENTS.names:
        some = decode(rows.select(frame_columns([name])), columns=[name])
        assert some.events.equals(whole.events.select([name])), name
        assert some.quarantine.select(["protocol", "reason", "raw"]).equals(
            whole.quarantine.select(["protocol", "reason", "raw"])
        )
        assert some.quarantine.schema.equals(QUARANTINE)


def test_gaps_and_other_protocols_in_between_change_nothing() -> None:
    csb = bytes.fromhex("1200000700010001") + b'{"a":1}'
    rows = []
    for seq in range(60):
        if seq % 7 == 0:
            rows.append(row(seq, protocol="csb", frame=None, flags=FLAG_GAP_BEFORE))
        elif seq % 3 == 0:
            rows.append(row(seq, protocol="jrep", frame=b'[{"ToSubject":"a","Value":1},{"ToSubject":"b","Value":2}]'))
        else:
            rows.append(row(seq, protocol="csb", frame=csb, deadlines_ns=[seq]))
    _same(rows)
    part = batch(*rows).slice(13, 40)
    assert decode(part).events.to_pylist() == [
        event for event in decode(batch(*rows)).events.to_pylist() if 13 <= event["seq"] < 53
    ]
