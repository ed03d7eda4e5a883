"""Where results stand: who writes, and what Spark calls the places."""

import copy
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from polybus.analysis.results import LOG, Output, ResultFile
from polybus.analysis.storage import PartitionWriter, TableStorage
from polybus.capture import CaptureError
from polybus.capture.columns.sizes import check_groups
from tests.unit.capture.generator import traffic

from .days import analyse


def test_who_comes_second_waits_until_the_first_is_done(tmp_path: Path) -> None:
    waits, done = threading.Event(), []

    def second() -> None:
        with TableStorage(tmp_path / "out").alone(waits.set):
            done.append("second")

    thread = threading.Thread(target=second)
    with TableStorage(tmp_path / "out").alone(lambda: done.append("nobody is there")):
        thread.start()
        assert waits.wait(30)
        done.append("first")
    thread.join(30)
    assert done == ["first", "second"]


def test_files_of_results_are_checked_without_being_read(tmp_path: Path) -> None:
    """Ids and bodies that are all different, of which a dictionary would have to be compared with the rows."""
    rows = [
        {"capture_id": "a", "seq": n, "correlation_id": f"{n:040}", "data": b"%0200d" % n, "date": None} for n in range(20_000)
    ]
    writer = PartitionWriter(TableStorage(tmp_path), "events")
    writer.add("", pa.RecordBatch.from_pylist(rows), ["date"])
    writer.close()
    place = str(tmp_path / writer.files[0][1])
    assert check_groups(pafs.LocalFileSystem(), place, pq.read_metadata(place), [0]) == []


def test_a_place_has_the_name_that_spark_knows(tmp_path: Path) -> None:
    here = TableStorage(tmp_path / "out [1]")
    assert here.for_spark("events") == f"file://{tmp_path}/out [1]/events"
    assert here.to_read("events") == f"file://{tmp_path}/out \\[1\\]/events"
    assert TableStorage(f"file://{tmp_path}/out").for_spark("") == f"file://{tmp_path}/out"
    for scheme in ("s3", "s3a"):
        there = TableStorage(f"{scheme}://bucket/folder/?region=nowhere")
        assert there.for_spark("events") == "s3a://bucket/folder/events"
        assert there.inside("events") == "bucket/folder/events"
    near = TableStorage("s3a://ann:se%2Fcret@bucket/folder?scheme=http&endpoint_override=127.0.0.1:9000&region=here")
    options = {"AWS_REGION": "here", "AWS_ALLOW_HTTP": "true", "AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}
    options |= {"AWS_ACCESS_KEY_ID": "ann", "AWS_SECRET_ACCESS_KEY": "se/cret"}
    assert near.for_delta("events") == ("s3a://bucket/folder/events", options)


def test_a_place_that_is_none_is_said_in_a_line() -> None:
    for place, said in [("gopher://127.0.0.1:1/x", "Unrecognized filesystem type"), ("hdfs://127.0.0.1:1/x", "HADOOP_HOME")]:
        with pytest.raises(CaptureError, match=said) as caught:
            TableStorage(place)
        assert len(str(caught.value)) < 400


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("results")
    analyse(traffic(50).write(folder / "capture"), folder / "out")
    [commit] = (folder / "out" / LOG).iterdir()
    return [json.loads(line) for line in commit.read_text().splitlines()]


def _logged(out: Path, text: bytes | list[dict[str, Any]]) -> Output:
    place = out / LOG / f"{0:020d}.json"
    place.parent.mkdir(parents=True)
    place.write_bytes(text if isinstance(text, bytes) else "\n".join(map(json.dumps, text)).encode())
    return Output(TableStorage(out))


@pytest.mark.parametrize(
    "change",
    [
        lambda log: b'{"commitInfo": {',
        lambda log: b"[]",
        lambda log: b"\xff",
        lambda log: log[1:],
        lambda log: [{"commitInfo": {}}, *log[1:]],
    ],
)
def test_a_log_that_cannot_be_read_is_refused(
    change: Callable[[list[dict[str, Any]]], Any], log: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert _logged(tmp_path / "good", log).named("events")
    with pytest.raises(CaptureError, match="the .*results.*is corrupt.*: analyse into a new folder"):
        _logged(tmp_path / "out", change(copy.deepcopy(log)))


@pytest.mark.parametrize(
    ("line", "given"),
    [
        *(("commitInfo", given) for given in ({"version": 0}, {"end": {"segment": "x"}}, {"counts": {"frames": "many"}})),
        *(("commitInfo", {"folder": folder}) for folder in ("../photos", "_state", "_state/run-000001/../..")),
        *(("add", {"path": path}) for path in ("../../photos", "/photos", "file:///photos", "events")),
        *(("add", {"path": f"events/{up}/run-000001-a.parquet"}) for up in ("../..", "date=1/%2E%2E/%2E%2E")),
        ("add", {"path": "_delta_log/run-000001-a.parquet"}),
    ],
)
def test_a_log_that_names_anything_but_results_is_refused(
    line: str, given: dict[str, Any], log: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Results are handed on with captures, and what a log names is read, and removed by the next run."""
    said = copy.deepcopy(log)
    changed = next(one[line] for one in said if line in one)
    (changed["polybus"] if line == "commitInfo" else changed).update(given)
    why = " have version 0, and this polybus writes version 4" if "version" in given else "is corrupt"
    with pytest.raises(CaptureError, match=f"the .*results.*{why}.*: analyse into a new folder"):
        _logged(tmp_path / "out", said)


def test_of_two_runs_that_hold_no_lock_one_is_refused_and_nothing_of_it_counts(
    log: list[dict[str, Any]], tmp_path: Path
) -> None:
    first, second = _logged(tmp_path / "out", log), Output(TableStorage(tmp_path / "out"))
    state, before = first.last, [one.name for one in first.named("exchanges")]
    file = ResultFile("exchanges/run-000002-a.parquet", 1, provisional=True)
    (tmp_path / "out" / "exchanges").mkdir()
    (tmp_path / "out" / file.name).write_bytes(b"")
    replaced = first.commit(state, [file])
    with pytest.raises(CaptureError, match="another run has written here at the same time; run again"):
        second.commit(state, [ResultFile("exchanges/run-000002-a.parquet", 7)])
    now = Output(TableStorage(tmp_path / "out"))
    assert (now.runs, now.counts.exchanges - state.counts.exchanges) == (2, 1)
    assert sorted(one.name for one in now.named("exchanges")) == sorted({*before, file.name}.difference(replaced))


def test_results_of_an_older_version_are_refused_and_what_to_do_is_said(tmp_path: Path) -> None:
    (tmp_path / "_manifest").mkdir()
    with pytest.raises(CaptureError, match="was written by an older polybus: analyse into a new folder"):
        Output(TableStorage(tmp_path))
    with pytest.raises(CaptureError, match="does not find folders with %.. in their names: choose another one"):
        Output(TableStorage(tmp_path / "100%41"))


@pytest.mark.parametrize("path", ["../x", "events/../../x", "/x", ".."])
def test_no_place_leads_out_of_a_storage(path: str, tmp_path: Path) -> None:
    storage = TableStorage(tmp_path / "out")
    for use in (storage.read, storage.remove, storage.files, storage.for_spark, storage.to_read):
        with pytest.raises(CaptureError, match="is outside the results folder"):
            use(path)
