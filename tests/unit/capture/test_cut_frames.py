"""Frames that the recorder has cut: the message is there, its body is not."""

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from polybus import Bus, NotFound, connect
from polybus.analysis.engine import exchanges
from polybus.analysis.ranges import ReadWindow
from polybus.capture import Capture
from polybus.capture.decoding import decode
from polybus.capture.schema import FLAG_TRUNCATED

from .folders import events_in, rows_in
from .rows import batch, row
from .wires import Variant, options_text, variant

KEPT = 600
"""Bytes of a frame; what stands before the body takes less."""
LARGE = {"note": "y" * KEPT, "list": [{"n": number} for number in range(KEPT)], "password": "hunter2" * KEPT}
MADE = [variant(protocol, conn) for protocol in Variant.BY_PROTOCOL for conn in range(4)]
ALL = {f"{one.protocol} {options_text(one)}": one for one in MADE}


@pytest.mark.parametrize(
    ("url", "subject", "bodies"),
    [
        *((f"{name}+tcp://127.0.0.1:0", "blob.put", True) for name in ("ubre", "csb", "jrep")),
        ("ubre+tcp://127.0.0.1:0", "blob.put", False),
        ("ubre+tcp://127.0.0.1:0?format=binary", "blob.put", True),
        ("uprotocol+tcp://127.0.0.1:0", "//v/body/1/rpc.Put", True),
        *(("uprotocol+tcp://127.0.0.1:0?format=protobuf", "//v/body/1/rpc.Put", bodies) for bodies in (True, False)),
        ("up+tcp://127.0.0.1:0", "//device1/10AB/3/7", True),
    ],
)
async def test_an_exchange_whose_bodies_are_cut_is_an_exchange(url: str, subject: str, bodies: bool, tmp_path: Path) -> None:
    server = Bus()

    @server.handle(subject)
    async def put(body: dict[str, Any]) -> dict[str, Any]:
        if "bad" in body:
            raise NotFound("z" * 2 * KEPT)
        return LARGE if "small" in body else {}

    async with server.serve(url) as listener, connect(listener.url) as client:
        recording: Any = client.record(tmp_path, bodies=bodies)
        recorder = recording.recorder
        recorder._settings = evolve(recorder._settings, frame_bytes=KEPT)
        recorder._waiting._longest = KEPT
        async with recording:
            await client.request(subject, LARGE)
            await client.request(subject, {"small": 1})
            with pytest.raises(NotFound):
                await client.request(subject, {"bad": 1})
    rows = [row for row in rows_in(tmp_path) if row["frame"]]
    assert sum(row["flags"] & FLAG_TRUNCATED for row in rows) >= 2
    assert not any(b"hunter2" in row["frame"] for row in rows)
    found = [one for part in exchanges(Capture(tmp_path), ReadWindow(), 30.0) for one in part.to_pylist()]
    wanted = {"subject": subject, "match_quality": "unique", "attempts": 1, "duplicates": 0}
    ours = sorted((one for one in found if one["subject"] == subject), key=lambda one: one["request_seq"])
    assert [{name: one[name] for name in wanted} for one in ours] == [wanted] * 3
    assert [one["outcome"] for one in ours] == ["ok", "ok", "error"]
    cut = [event for event in events_in(tmp_path) if event["flags"] & FLAG_TRUNCATED]
    assert not any(b"yy" in event["data"] or b"zz" in event["data"] for event in cut if event["data"])


def _said(frames: list[bytes], wire: Variant, flags: int) -> list[list[Any]]:
    usual = {"protocol": wire.protocol, "options": options_text(wire), "flags": flags}
    made = decode(batch(*(row(number, frame=frame, **usual) for number, frame in enumerate(frames))))
    assert {one["reason"] for one in made.quarantine.to_pylist()} <= {"truncated"}
    said: list[list[Any]] = [[] for _ in frames]
    for event in made.events.to_pylist():
        said[event["seq"]].append([event[name] for name in ("kind", "subject", "correlation_id", "client")])
    return said


@pytest.mark.parametrize("name", ALL)
def test_a_frame_cut_anywhere_says_the_same_or_nothing(name: str) -> None:
    wire = ALL[name]
    frames = [wire.request(1, 2, 3, max(wire.ttls)), wire.response(1, 2, 3), wire.error(2, 3), wire.publish(1, 3)]
    found = []
    for frame, whole in zip(frames, _said(frames, wire, 0), strict=True):
        found += _said([frame[:size] for size in range(len(frame))], wire, FLAG_TRUNCATED)
        assert all(one in (whole, []) for one in found[-len(frame) :]), frame
    assert any(found)


SPEC = '{"dialect":"spec"}'


@pytest.mark.parametrize(
    ("frame", "options", "subjects"),
    [
        (b'{"request":"a-1","body":{"subject":"a.b","data":["x",{"y":"zz', SPEC, ["a.b"]),
        (b'{"request":"a.b","body":{"subject":"of a mail","data":["x",{"y":"zz', "{}", []),
        (b'{"request":"a.b","body":{"subject":"of a ma', SPEC, []),
        *((b'{"request":"a.b",' + rest, SPEC, []) for rest in (b'"body":"half of a te', b'"body":[1,2', b'"headers":{"a":"b')),
        (b'[{"ToSubject":"a","Value":1},{"ToSubject":"b","ReplyTo":"c","Value":{"x":[1,2', "{}", ["a", "b"]),
        (b'[{"ToSubject":"a","Value":1},{"ToSubject":"b","ReplyTo":"c', "{}", ["a"]),
        (b"PUB a.b _INBOX.a.1 5000\r\nhell", "{}", ["a.b"]),
        (b"HPUB a.b _INBOX.a.1 22 5000\r\nNATS/1.0\r\nX-A: bcd\r\n\r\nhel", "{}", ["a.b"]),
        (b"MSG a.b 1 _INBOX.a.1 5000\r\nhell", "{}", ["a.b"]),
        (b'{"a":{"a":' + b'{"a":' * 800 + b'"' + b"y" * 100_000, "{}", []),
        *((frame, "{}", []) for frame in (b"[" * 5000, b'{"a":' * 5000, b'{"a":1,' * 5000, b"{", b"")),
    ],
)
def test_what_is_left_of_odd_frames_is_read_as_far_as_it_goes(frame: bytes, options: str, subjects: list[str]) -> None:
    protocol = {b"{": "ubre", b"[": "jrep"}.get(frame[:1], "nats")
    made = decode(batch(row(0, frame=frame, protocol=protocol, options=options, flags=FLAG_TRUNCATED)))
    assert [event["subject"] for event in made.events.to_pylist()] == subjects
    assert {one["reason"] for one in made.quarantine.to_pylist()} <= {"truncated"}
