"""Columns beside segments: they hold what decoding gives, whoever is killed, and are not read where they would not."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.capture import Capture
from polybus.capture.columns import sizes, stamp, writer
from polybus.capture.columns.reader import SegmentColumns
from polybus.capture.columns.stamp import ColumnStamp, decoder_version
from polybus.capture.columns.writer import write_columns
from polybus.capture.decoding import decoded
from polybus.capture.errors import CaptureError
from polybus.capture.rows import Gap
from polybus.capture.schema import EVENTS, QUARANTINE, QUARANTINE_REASONS
from polybus.capture.store.folders import Folder
from polybus.capture.store.segments import segment_name
from tests.vectors import up_vectors as vectors

from .folders import open_segment, write_segment
from .generator import PROTOCOLS, Traffic
from .rows import batch, row, run
from .test_decoding import UP_FAILED
from .wires import options_text, variant

_SCHEMAS = {"events": EVENTS, "quarantine": QUARANTINE}


def _by_columns(folder: Path, table: str) -> pa.Table:
    capture = Capture(folder)
    found = [SegmentColumns.of(capture, segment) for segment in capture.segments()]
    parts = [rows for columns in found if columns is not None for rows in columns.read(table, columns.groups)]
    return pa.Table.from_batches(parts, schema=_SCHEMAS[table]).combine_chunks()


def _by_decoding(folder: Path, table: str) -> pa.Table:
    made = decoded(batch.rows for batch in Capture(folder).batches())
    return pa.Table.from_batches([getattr(one, table) for one in made], schema=_SCHEMAS[table]).combine_chunks()


def _columns_of(folder: Path, segment: int = 0) -> SegmentColumns | None:
    capture = Capture(folder)
    return SegmentColumns.of(capture, capture.segments()[segment])


def _there(folder: Path, segment: int = 0) -> SegmentColumns:
    columns = _columns_of(folder, segment)
    assert columns is not None
    return columns


def _same_as_decoded(folder: Path) -> None:
    for table in _SCHEMAS:
        found = _by_columns(folder, table)
        found.validate(full=True)
        assert found.equals(_by_decoding(folder, table))


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_ROWS_OF_GROUP", 300)


@pytest.mark.usefixtures("small_groups")
def test_columns_hold_what_decoding_gives(folder: Path, made: Traffic) -> None:
    counted: list[int] = []
    done = write_columns(folder, counted.append)
    assert (done.fresh, done.damaged, done.open) == (0, [], 0)
    assert (done.frames, done.events) == (made.frames, sum(made.events.values()))
    assert counted[-1] == made.frames
    assert done.segments == len(Capture(folder).segments()) > 3
    assert done.bytes == sum(path.stat().st_size for path in folder.glob("*/*.parquet"))
    _same_as_decoded(folder)


@pytest.mark.usefixtures("small_groups")
def test_groups_of_rows_say_which_batches_they_hold_and_what_is_to_be_counted(folder: Path, made: Traffic) -> None:
    write_columns(folder)
    capture, sums, samples, most = Capture(folder), Counter[str](), list[Any](), 0
    for place, segment in enumerate(capture.segments()):
        columns = _there(folder, place)
        most = max(most, len(columns.groups))
        assert columns.groups[0].first == 0
        assert [group.after for group in columns.groups[:-1]] == [group.first for group in columns.groups[1:]]
        assert columns.groups[-1].after == max(message.batch for message in capture.reader(segment).messages()) + 1
        for group in columns.groups:
            rows = [one.rows for one in capture.batches((segment.number, group.first), (segment.number, group.after))]
            message = next(one for one in capture.reader(segment).messages() if one.batch == group.first)
            assert message.offset == group.offset
            assert columns.following(group) == next((one for one in columns.groups if one.first == group.after), None)
            made_of = list(decoded(rows))
            events = pa.Table.from_batches([one.events for one in made_of]).combine_chunks()
            assert pa.Table.from_batches(columns.read("events", [group])).combine_chunks().equals(events)
            assert group.frames == sum(one.frames for one in made_of)
            sums.update({name: getattr(group, name) for name in ("frames", "empty", "gaps", "quarantined")})
            samples += group.gap_rows
    assert most > 1
    assert sums == {"frames": made.frames, "empty": made.empty, "gaps": made.gaps, "quarantined": len(made.quarantine)}
    assert [sample["detail"] for sample in samples] == ['{"gap":"dropped","frames":3}'] * 2


@pytest.mark.usefixtures("small_groups")
def test_some_columns_of_some_rows_of_some_groups_are_read(folder: Path) -> None:
    write_columns(folder)
    columns = _there(folder)
    whole = _by_columns(folder, "events").slice(0, sum(group.events for group in columns.groups))
    asked = (pc.field("kind") == "request") & (pc.field("seq") > 100)
    rows = pa.Table.from_batches(columns.read("events", columns.groups, ["subject", "seq"], asked))
    assert rows.to_pylist() == whole.filter(asked).select(["subject", "seq"]).to_pylist() != []
    second = columns.within(columns.groups[1].first, columns.groups[1].after)
    assert second == [columns.groups[1]]
    assert columns.within(columns.groups[1].first + 1, None) == columns.groups[2:]
    assert list(columns.read("events", [])) == []


_FRAMES = st.lists(
    st.tuples(st.sampled_from([*PROTOCOLS, "nats", "up", "mqtt", ""]), st.binary(max_size=40) | st.none(), st.integers(0, 7)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(_FRAMES, st.sampled_from(["{}", "", "{", '{"gap":"x","frames":2}', '{"link":{"state":"open"}}', '{"format":"any"}']))
def test_any_bytes_under_any_name_are_the_same_events_from_columns(
    tmp_path_factory: pytest.TempPathFactory, frames: list[tuple[str, bytes | None, int]], options: str
) -> None:
    folder = tmp_path_factory.mktemp("capture")
    rows = [row(seq, protocol=name, frame=frame, flags=f, options=options) for seq, (name, frame, f) in enumerate(frames)]
    write_segment(folder, batch(*rows[:5]), *([batch(*rows[5:])] if rows[5:] else []))
    assert write_columns(folder).segments == 1
    _same_as_decoded(folder)
    for made in decoded(one.rows for one in Capture(folder).batches()):
        assert made.frames == len(set(made.events["seq"].to_pylist())) + made.quarantine.num_rows + made.empty
        assert set(made.quarantine["reason"].to_pylist()) <= set(QUARANTINE_REASONS)


def test_a_capture_without_rows_has_columns_without_rows(tmp_path: Path) -> None:
    write_segment(tmp_path, ends=True)
    assert write_columns(tmp_path).segments == 1
    assert [(group.first, group.after, group.ended) for group in _there(tmp_path).groups] == [(0, 1, "c")]
    _same_as_decoded(tmp_path)
    assert pq.read_table(tmp_path / "events" / "segment-00000000.parquet").num_rows == 0


def test_what_is_decoded_is_not_decoded_again(folder: Path) -> None:
    first = write_columns(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/*")}
    again = write_columns(folder)
    assert (again.segments, again.fresh, again.frames) == (0, first.segments, 0)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/*")} == before


def test_a_segment_that_is_still_written_has_no_columns_until_it_is_sealed(tmp_path: Path) -> None:
    open_one = open_segment(tmp_path, run(0, 10))
    assert (write_columns(tmp_path).segments, write_columns(tmp_path).open) == (0, 1)
    assert list(tmp_path.glob("*/*.parquet")) == []
    open_one.seal()
    assert write_columns(tmp_path).segments == 1
    _same_as_decoded(tmp_path)


def test_columns_of_another_decoder_are_not_read_and_are_made_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = write_columns(folder).segments
    monkeypatch.setattr(stamp, "_OURS", {name: 2 if name == "jrep" else 1 for name in ("csb", "jrep", "ubre", "uprotocol")})
    assert _columns_of(folder) is None
    assert write_columns(folder).segments == segments
    assert _columns_of(folder) is not None


def test_columns_of_a_plugin_that_is_not_installed_here_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segment(tmp_path, run(0, 3, protocol="mqtt"))
    monkeypatch.setattr(writer, "decoder_version", lambda protocol: "polybus-mqtt 1.0")
    write_columns(tmp_path)
    assert _columns_of(tmp_path) is not None
    monkeypatch.setattr(stamp, "decoder_version", lambda protocol: "polybus-mqtt 1.1")
    assert _columns_of(tmp_path) is None
    assert decoder_version("mqtt") is None
    assert decoder_version("ubre") == "4"


def test_columns_of_another_segment_of_the_same_name_are_not_read(tmp_path: Path) -> None:
    write_segment(tmp_path, run(0, 10, frame=b'{"publish":"old"}'))
    write_columns(tmp_path)
    (tmp_path / segment_name(0, sealed=True)).unlink()
    write_segment(tmp_path, run(0, 10, frame=b'{"publish":"new"}'))
    assert _columns_of(tmp_path) is None
    write_columns(tmp_path)
    assert set(_by_columns(tmp_path, "events")["subject"].to_pylist()) == {"new"}


@pytest.mark.parametrize("damage", ["no stamp", "no Parquet", "one is gone", "of another time"])
def test_files_that_are_not_ours_are_no_columns(tmp_path: Path, damage: str) -> None:
    write_segment(tmp_path, run(0, 10))
    write_columns(tmp_path)
    events, quarantine = (tmp_path / table / "segment-00000000.parquet" for table in ("events", "quarantine"))
    before = quarantine.read_bytes()
    if damage == "no stamp":
        pq.write_table(pq.read_table(events).replace_schema_metadata(None), events)
    elif damage == "no Parquet":
        events.write_bytes(b"PAR1")
    elif damage == "one is gone":
        quarantine.unlink()
    else:
        events.unlink()
        write_columns(tmp_path)
        quarantine.write_bytes(before)
    assert _columns_of(tmp_path) is None
    assert write_columns(tmp_path).segments == 1
    _same_as_decoded(tmp_path)


@pytest.mark.parametrize("text", [b"", b"[]", b'{"format":3}', b'{"format":1}', b'{"format":1,"groups":[{}],"segment":{}}'])
def test_a_stamp_that_is_not_understood_is_none(text: bytes) -> None:
    assert ColumnStamp.from_json(text) is None


def test_columns_are_written_on_this_machine_only() -> None:
    with pytest.raises(CaptureError, match="only be written to a folder on this machine"):
        write_columns("s3://bucket/captures")


@pytest.mark.parametrize("call", ["fsync", "fdopen", "write_table"])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    write_segment(tmp_path, run(0, 10))
    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter if call == "write_table" else os, call, full)
        with pytest.raises(OSError, match="No space"):
            write_columns(tmp_path)
    assert list(tmp_path.glob("*/*")) == []
    assert write_columns(tmp_path).segments == 1


def test_retention_removes_columns_with_their_segment_and_counts_their_bytes(folder: Path) -> None:
    segments = sum(segment.size for segment in Capture(folder).segments())
    count = len(Capture(folder).segments())
    assert Folder(folder, segments, 3600).trim(0) == []
    write_columns(folder)
    (gap,) = Folder(folder, segments, 3600).trim(0)
    assert isinstance(gap, Gap)
    left = [segment.number for segment in Capture(folder).segments()]
    assert 0 < len(left) < count
    for table in _SCHEMAS:
        assert sorted(path.name for path in (folder / table).iterdir()) == [f"segment-{number:08d}.parquet" for number in left]


def test_columns_of_segments_that_are_gone_are_removed(folder: Path) -> None:
    write_columns(folder)
    (folder / segment_name(0, sealed=True)).unlink()
    write_columns(folder)
    assert not list(folder.glob("*/segment-00000000.parquet"))
    assert len(list(folder.glob("events/*"))) == len(Capture(folder).segments())


def test_columns_of_a_segment_that_goes_meanwhile_go_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_segment(tmp_path, run(0, 10))
    path = tmp_path / segment_name(0, sealed=True)

    def removing(protocol: str) -> str:
        path.unlink()
        return "1"

    monkeypatch.setattr(writer, "decoder_version", removing)
    write_columns(tmp_path)
    assert list(tmp_path.glob("*/*")) == []


_DIGESTS = {
    "csb": ("4", "a135a29ebc06a649"),
    "jrep": ("4", "62a213aa2eaa8682"),
    "nats": ("5", "07f4d497eaef79e5"),
    "up": ("5", "4bcbd45b73c11501"),
    "ubre": ("4", "e7275bb363bb2854"),
    "uprotocol": ("4", "277b31e357c31e18"),
}
"""The version of each decoder, and a digest of what it makes of some frames: another digest needs another version."""
_NATS = (
    *(b"PUB a.b r 5\r\nhello\r\n", b"HMSG a 2 20 25\r\nNATS/1.0\r\nA: b1\r\n\r\nhello\r\n", b"SUB a q 3\r\n"),
    *(b"PING\r\n", b"-ERR 'x'\r\n", b"nonsense"),
)
_UP = (vectors.PUBLICATION, vectors.REQUEST, vectors.REQUEST[:40], vectors.PUBLICATION[2:], UP_FAILED)
_BY_HAND = {"nats": _NATS, "up": _UP}


def _spoken(protocol: str) -> Iterator[dict[str, Any]]:
    if protocol in _BY_HAND:
        yield from ({"frame": frame, "options": options} for frame in _BY_HAND[protocol] for options in ("", "{}"))
        return
    for wire in (variant(protocol, conn, alike=alike) for alike in (True, False) for conn in range(4)):
        subjects, ttls = len(wire.subjects), len(wire.ttls)
        for number in range(24):
            subject = number % subjects
            frames = [wire.request(number, number, subject, wire.ttls[number % ttls]), wire.response(number, number, subject)]
            frames += [wire.error(number, subject), wire.publish(number, subject)]
            yield from ({"frame": frame, "options": options_text(wire)} for frame in frames)
        yield from ({"frame": frame, "options": options_text(wire)} for frame, _ in wire.junk)


@pytest.mark.parametrize("protocol", _DIGESTS)
def test_a_decoder_that_makes_other_events_has_another_version(protocol: str) -> None:
    rows = batch(*(row(seq, protocol=protocol, **said) for seq, said in enumerate(_spoken(protocol))))
    digest = hashlib.sha256()
    for made in decoded([rows]):
        for table in (made.events, made.quarantine.drop_columns(["detail"])):
            digest.update(json.dumps(table.to_pylist(), default=str).encode())
    known = (decoder_version(protocol), digest.hexdigest()[:16])
    assert known == _DIGESTS[protocol], "other events are made of frames: give the decoder another number in stamp.py"


@pytest.mark.parametrize("alike", [True, False], ids=["once for all rows", "each its own"])
def test_columns_that_unpack_to_more_than_a_segment_decodes_to_are_refused(
    alike: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [(b"x" if alike else b"%x" % number) * 100_000 for number in range(16)]
    write_segment(tmp_path, batch(*(row(seq, frame=b'{"publish":"n","body":"%s"}' % body) for seq, body in enumerate(bodies))))
    write_columns(tmp_path)
    monkeypatch.setattr(sizes, "MOST_OF_GROUP", 1 << 20)
    columns = _there(tmp_path)
    assert sum(part.num_rows for part in columns.read("events", columns.groups, ["seq"])) == len(bodies)
    with pytest.raises(CaptureError, match="the limit is 1 MiB each, .* remove the decoded"):
        list(columns.read("events", columns.groups))
