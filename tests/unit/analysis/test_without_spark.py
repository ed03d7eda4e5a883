"""`polybus analyse` of what fits one machine: without Java, and without anything of Spark."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polybus.analysis import DuckEngine, MatchTimeouts, Pipeline, open_tables
from polybus.capture import Capture, decode
from polybus.capture.errors import CaptureError
from tests.unit.capture.generator import traffic
from tests.unit.capture.test_strange_rows import strange_capture

from .days import analyse

_BARE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "pandas"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from polybus.cli.app import run
assert run([*sys.argv[1:], "--engine", "spark"]) == 2
sys.exit(run(sys.argv[1:]))
"""


def test_a_command_needs_neither_java_nor_pyspark_nor_pandas_and_says_what_to_install_where_spark_is_asked_for(
    tmp_path: Path,
) -> None:
    (made := traffic(300)).write(tmp_path / "capture")
    (tmp_path / "bin").mkdir()
    environment = {**os.environ, "PATH": str(tmp_path / "bin"), "JAVA_HOME": str(tmp_path / "gone")}
    command = [sys.executable, "-c", _BARE, "analyse", str(tmp_path / "capture"), "--out", str(tmp_path / "out"), "--json"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr.count("\n"), "pip install 'polybus[spark]'" in ended.stderr) == (0, 1, True)
    told = json.loads(ended.stdout)
    assert (told["engine"], told["total"]["frames"]) == ("duckdb", made.frames)
    assert Path(told["report"]).read_text().startswith("<!doctype html>")
    assert open_tables(tmp_path / "out").sql("from exchanges").fetchall()


def test_what_duckdb_puts_aside_goes_with_the_engine_and_not_into_the_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    capture = traffic(3000).write(tmp_path / "capture")
    with DuckEngine(memory="64MB", threads=1) as engine:
        assert [path.name.startswith("polybus-duckdb-") for path in tmp_path.iterdir() if path != capture] == [True]
        done = Pipeline(engine).run(capture, tmp_path / "out")
    assert done.total.exchanges > 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["capture", "out"]


def test_an_engine_removes_what_it_has_spilled_and_nothing_else_of_the_folder_for_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("kept")
    with DuckEngine(spill=str(tmp_path)):
        assert len([*tmp_path.iterdir()]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


_BAR = """
from polybus.analysis import DuckEngine
with DuckEngine(threads=1) as engine:
    print(engine.rows(engine.sql("select current_setting('enable_progress_bar') as bar")).to_pylist())
"""


def test_an_engine_prints_no_progress_bar_in_a_program_that_has_no_file() -> None:
    ended = subprocess.run([sys.executable, "-c", _BAR], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "[{'bar': False}]\n"


def test_an_engine_creates_the_folder_for_what_it_spills(tmp_path: Path) -> None:
    capture = traffic(3000).write(tmp_path / "capture")
    with DuckEngine(memory="64MB", threads=1, spill=str(tmp_path / "new" / "spill")) as engine:
        assert Pipeline(engine).run(capture, tmp_path / "out").total.exchanges > 1000
    assert not [*(tmp_path / "new" / "spill").iterdir()]


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"memory": "much"}, ValueError, "memory='much'"),
        ({"memory": 4}, TypeError, "memory=4 must be str"),
        ({"threads": 0}, ValueError, "threads=0 must be at least 1"),
        ({"threads": "2"}, TypeError, "threads='2' must be an integer"),
        ({"spill": ""}, ValueError, "spill='' must be the path of a folder"),
    ],
)
def test_an_engine_names_the_option_that_is_wrong_and_leaves_no_folder(
    given: dict[str, Any], kind: type[Exception], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(kind, match=text):
        DuckEngine(**given)
    assert not [*tmp_path.iterdir()]


def test_a_folder_without_results_has_no_tables_and_the_next_step_is_said(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="has no results: create them with `polybus analyse`"):
        open_tables(tmp_path)


def test_a_horizon_shorter_than_the_timeout_is_refused() -> None:
    with DuckEngine() as engine, pytest.raises(ValueError, match="shorter than timeout=30"):
        Pipeline(engine, timeout=30, horizon=10)
    assert MatchTimeouts(2.0).horizon == 20


def test_rows_that_may_say_anything_are_in_the_tables_once(tmp_path: Path) -> None:
    capture = strange_capture(tmp_path / "capture")
    done = analyse(capture, tmp_path / "out", report=True)
    truth = [decode(batch.rows) for batch in Capture(capture).batches()]
    assert done.total.events == sum(one.events.num_rows for one in truth)
    assert done.total.quarantined == sum(one.quarantine.num_rows for one in truth)
    tables = open_tables(tmp_path / "out")
    [(events, dated)] = tables.sql("select count(*), count(date) from events").fetchall()
    assert dated < events == done.total.events
    assert Path(done.report).exists()
