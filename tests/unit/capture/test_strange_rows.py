"""Captures come from elsewhere too: a row may say anything that its columns can hold, and nothing stumbles over it."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from polybus.capture import Capture, decode, export, info, recover, replay, verify
from polybus.capture.schema import FLAG_GAP_BEFORE
from polybus.cli.app import run

from .folders import write_segment
from .rows import batch, row

OPTIONS = (
    None, "", "[", "[" * 100_000, "null", "1", "[]",
    '"x"', '{"link":1}', '{"link":{}}', '{"format":"nope"}', '{"format":{"a":1}}',
    '{"actions":5}', '{"actions":{"a":"b"}}', '{"actions":[["a",1]]}', '{"side":"broker-server"}', '{"a":"\\ud800"}',
    '{"link":{"state":"open","who":"\\ud800"}}', '{"link":{"state":"close","code":"\\ud800","who":5}}',
    '{"gap":1}', '{"gap":"x","frames":"y"}', '{"gap":"x","frames":1e999}', '{"gap":[1],"frames":1}',
)  # fmt: skip
COLUMNS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("ts_ns", "mono_ns", "seq"), (None, -(2**63), 2**63 - 1)),
    **{"direction": (None, -5, 7), "role": (None, 9), "flags": (None, -1, 2**31 - 1), "capture_id": (None, "")},
    **{"deadlines_ns": (None, [None], [2**63 - 1]), "tunnel": (None, [None]), "conn_id": (None,), "peer": (None,)},
}
PROTOCOLS = ("ubre", "csb", "nope", None)
FRAMES = (b'{"publish":"n","body":1}', b"", None)
FLAGS = (0, FLAG_GAP_BEFORE, None)


def strange_rows() -> list[dict[str, Any]]:
    product = itertools.product
    said = [*product(OPTIONS, PROTOCOLS, FRAMES[:1], (0,)), *product(OPTIONS, PROTOCOLS[:1], FRAMES, FLAGS)]
    said += product(OPTIONS[:1], PROTOCOLS, FRAMES, FLAGS)
    rows = [dict(zip(("options", "protocol", "frame", "flags"), values, strict=True)) for values in said]
    return rows + [{name: value} for name, values in COLUMNS.items() for value in values]


def strange_capture(folder: Path) -> Path:
    """A capture of strange rows, of requests and responses at strange moments, and of one row without a time."""
    rows = [{**row(number), **strange} for number, strange in enumerate(strange_rows())]
    said = (b'{"request":"a","id":"%d","ttl":5}', b'{"success":"%d"}')
    moments = (None, -(2**63), 2**63 - 1, 1000)
    asked = [
        row(number, frame=frame % (number % 3), ts_ns=at, mono_ns=at, deadlines_ns=[due], direction=number % 2)
        for number, (at, due, frame) in enumerate(itertools.product(moments, moments, said))
    ]
    for number, part in enumerate((rows, asked, [{**row(0), "ts_ns": None, "mono_ns": None}])):
        write_segment(folder, batch(*part), number=number)
    return folder


def test_every_row_is_an_event_in_quarantine_empty_or_a_gap() -> None:
    for strange in strange_rows():
        one = {**row(0), **strange}
        decoded = decode(batch(one))
        gap = one["frame"] is None and one["flags"] is not None and one["flags"] & FLAG_GAP_BEFORE
        assert decoded.frames == (0 if gap else 1)
        assert decoded.frames == bool(decoded.events.num_rows) + decoded.quarantine.num_rows + decoded.empty


NOTHING: dict[str, Any] = dict.fromkeys(row(0))
ALONE: dict[str, list[dict[str, Any]]] = {
    "nothing": [NOTHING],
    "no recording": [row(0, capture_id=None)],
    "a deadline of no event": [row(0, frame=b"x", deadlines_ns=[1])],
    "the last numbers": [{**row(0), "seq": 2**63 - 1}],
}


@pytest.mark.parametrize("rows", ALONE.values(), ids=ALONE)
def test_every_tool_takes_a_batch_of_one_strange_row(
    rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = Capture(write_segment(tmp_path / "strange", batch(*rows)).parent)
    assert decode(batch(*rows)).frames == 1
    for name in ("info", "verify", "decode"):
        assert run(["capture", name, capture.path]) == 0
    assert run(["capture", "recover", capture.path, str(tmp_path / "recovered")]) == 0
    assert verify(Capture(tmp_path / "recovered")).frames == 1


async def test_every_tool_takes_a_capture_of_strange_rows(tmp_path: Path) -> None:
    rows = [{**row(number), **strange} for number, strange in enumerate(strange_rows())]
    capture = Capture(write_segment(tmp_path / "strange", batch(*rows)).parent)
    assert info(capture).gaps.keys() <= {"x", "unknown"}
    assert verify(capture).frames == len(rows)
    assert recover(capture.path, tmp_path / "recovered").frames == len(rows)
    assert all(export(capture, tmp_path / table, format="jsonl", table=table) for table in ("frames", "events", "quarantine"))
    report = await replay(capture, "ubre+tcp://127.0.0.1:1", dry_run=True)
    assert report.said["publish"]


async def test_times_that_are_missing_are_told(tmp_path: Path) -> None:
    rows = row(0), row(1, ts_ns=None), row(2, mono_ns=None)
    capture = Capture(write_segment(tmp_path / "strange", batch(*rows)).parent)
    report = await replay(capture, "ubre+tcp://127.0.0.1:1", dry_run=True)
    assert (report.said["publish"], report.skipped["unreadable"]) == (1, 2)
