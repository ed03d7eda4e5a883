"""Where results stand: who writes, and what Spark calls the places."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from polybus.analysis.manifest import Manifest, RunCounts
from polybus.analysis.ranges import ReadPosition
from polybus.analysis.storage import Storage
from polybus.capture import CaptureError


def test_who_comes_second_waits_until_the_first_is_done(tmp_path: Path) -> None:
    waits, done = threading.Event(), []

    def second() -> None:
        with Storage(tmp_path / "out").alone(waits.set):
            done.append("second")

    thread = threading.Thread(target=second)
    with Storage(tmp_path / "out").alone(lambda: done.append("nobody is there")):
        thread.start()
        assert waits.wait(30)
        done.append("first")
    thread.join(30)
    assert done == ["first", "second"]


def test_whoever_died_keeps_nobody_out(tmp_path: Path) -> None:
    died = f"""
import os
from polybus.analysis.manifest import Manifest
from polybus.analysis.storage import Storage
with Storage({str(tmp_path / "out")!r}).alone(lambda: None):
    os._exit(7)
"""
    assert subprocess.run([sys.executable, "-c", died], check=False, timeout=60).returncode == 7
    with Storage(tmp_path / "out").alone(lambda: pytest.fail("somebody is there")):
        pass


def test_a_place_has_the_name_that_spark_knows(tmp_path: Path) -> None:
    here = Storage(tmp_path / "out [1]")
    assert here.for_spark("events") == f"file://{tmp_path}/out [1]/events"
    assert here.to_read("events") == f"file://{tmp_path}/out \\[1\\]/events"
    assert Storage(f"file://{tmp_path}/out").for_spark("") == f"file://{tmp_path}/out"
    for scheme in ("s3", "s3a"):
        there = Storage(f"{scheme}://bucket/folder/?region=nowhere")
        assert there.for_spark("events") == "s3a://bucket/folder/events"
        assert there.inside("events") == "bucket/folder/events"


def test_a_place_that_is_none_is_said_in_a_line() -> None:
    for place, said in [("gopher://127.0.0.1:1/x", "Unrecognized filesystem type"), ("hdfs://127.0.0.1:1/x", "HADOOP_HOME")]:
        with pytest.raises(CaptureError, match=said) as caught:
            Storage(place)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"version": 3, "run"', "is damaged"),
        (b"[]", "is damaged"),
        (b'{"version": 3, "start": {}, "colour": 1}', "is damaged"),
        (b"\xff", "is damaged"),
        (b'{"version": 0}', "have version 0, and this polybus makes version 3"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_told(text: bytes, said: str) -> None:
    with pytest.raises(CaptureError, match=f"the results .*{said}.*: analyse into a new folder"):
        Manifest.from_json(text)


FILE = "events/date=2026-01-31/protocol=a%2Fb/run-000001-part-0.zstd.parquet"


def _manifest(**given: Any) -> bytes:
    usual: dict[str, Any] = {
        "run": 2, "capture": "c", "settings": {}, "start": ReadPosition(0, 0), "end": ReadPosition(0, 1), "counts": RunCounts(),
        "open_exchanges": 0, "ends": {}, "added": {"events": [FILE]}, "provisional": ["exchanges/run-000001-a.parquet"],
        "state": "_state/run-000001", "gaps": [], "losses": [],
    }  # fmt: skip
    return Manifest(**usual | given).to_json()


@pytest.mark.parametrize(
    "strange",
    [
        {"provisional": ["../../photos"]},
        {"provisional": ["/photos"]},
        {"provisional": ["events"]},
        {"provisional": ["events/../../run-000001-a.parquet"]},
        {"provisional": ["events/date=1/../../../run-000001-a.parquet"]},
        {"provisional": [5]},
        {"added": {"events": ["../other/events/run-000001-a.parquet"]}},
        {"added": {"events": ["_manifest/run-000001.json"]}},
        {"added": ["events"]},
        {"state": "../photos"},
        {"state": "_state"},
        {"state": "_state/run-000001/../.."},
        {"run": "../../x"},
        {"run": -1},
    ],
    ids=json.dumps,
)
def test_a_manifest_names_nothing_but_results(strange: dict[str, Any]) -> None:
    """Results are handed on with captures, and what a manifest names is read, and removed by the next run."""
    assert Manifest.from_json(_manifest()).added == {"events": [FILE]}
    with pytest.raises(CaptureError, match="is damaged"):
        Manifest.from_json(_manifest(**strange))


@pytest.mark.parametrize("path", ["../x", "events/../../x", "/x", ".."])
def test_no_place_leads_out_of_a_storage(path: str, tmp_path: Path) -> None:
    storage = Storage(tmp_path / "out")
    for use in (storage.read, storage.remove, storage.files, storage.for_spark, storage.to_read):
        with pytest.raises(CaptureError, match="leads out of the folder of results"):
            use(path)
