"""Wrong arguments of `polybus.analysis`: the error names the argument, what it was and what it must be."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from polybus.analysis import DuckEngine, MatchTimeouts, Pipeline, check, journeys, nanoseconds, open_tables
from polybus.capture import CaptureError
from tests.unit.capture.generator import traffic


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"timeout": 0}, ValueError, "timeout=0 must be more than 0 and at most .* seconds"),
        ({"timeout": 1e300}, ValueError, "timeout=1e\\+300 must be more than 0 and at most"),
        ({"timeout": math.inf}, ValueError, "timeout=inf must be a finite number of seconds"),
        ({"timeout": timedelta(seconds=5)}, TypeError, r"timeout=.* pass its total_seconds\(\)"),
        ({"timeout": None}, TypeError, "timeout=None must be a number of seconds"),
        ({"horizon": math.nan}, ValueError, "horizon=nan must be at least 0 seconds"),
        ({"horizon": "300"}, TypeError, "horizon='300' must be a number of seconds"),
    ],
)
def test_time_limits_name_the_limit_that_is_wrong(given: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        MatchTimeouts(**given)


def test_the_horizon_of_the_longest_timeout_is_as_long() -> None:
    longest = MatchTimeouts(100 * 365 * 86400)
    assert longest.timeout <= longest.horizon < 2**63 / 1e9


@pytest.mark.parametrize("engine", [None, "duckdb", DuckEngine], ids=str)
def test_a_pipeline_names_what_is_not_an_engine(engine: Any) -> None:
    with pytest.raises(TypeError, match=r"engine=.* must be an engine, for example DuckEngine\(\)"):
        Pipeline(engine)


_WINDOWS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"start_ns": 1.5}, TypeError, "start_ns=1.5 must be an integer"),
    ({"start_ns": datetime.now(UTC)}, TypeError, "start_ns=.* must be an integer"),
    ({"end_ns": "2026-01-01"}, TypeError, "end_ns='2026-01-01' must be an integer"),
    ({"end_ns": 10**30}, ValueError, "end_ns=1000000000000000000000000000000 must be at most"),
]


@pytest.mark.parametrize(("given", "kind", "text"), [*_WINDOWS, ({"connection": 7}, TypeError, "connection=7 must be str")])
def test_a_window_of_time_names_the_bound_that_is_wrong(
    given: dict[str, Any], kind: type[Exception], text: str, tmp_path: Path
) -> None:
    capture = traffic(3).write(tmp_path / "capture")
    with pytest.raises(kind, match=text):
        check(capture, tmp_path / "out", **given)
    with DuckEngine(threads=1) as engine, pytest.raises(kind, match=text):
        Pipeline(engine).run(capture, tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        *_WINDOWS,
        ({"most": -1}, ValueError, "most=-1 must be at least 0"),
        ({"most": "4"}, TypeError, "most='4' must be an integer"),
        ({"id": 7}, TypeError, "id=7 must be str"),
    ],
)
def test_journeys_name_the_argument_that_is_wrong(
    given: dict[str, Any], kind: type[Exception], text: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=text):
        journeys(tmp_path, **given)


@pytest.mark.parametrize(("path", "kind"), [(None, TypeError), (b"out", TypeError), ("", ValueError), ("out\0", ValueError)])
@pytest.mark.parametrize("call", [open_tables, journeys, lambda out: check("captures", out)])
def test_a_path_of_results_that_names_no_folder_is_refused(
    call: Callable[[Any], object], path: Any, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    traffic(3).write(tmp_path / "captures")
    with pytest.raises(kind, match=r"out=.* must be the path of a folder"):
        call(path)


def test_a_report_of_results_that_do_not_exist_creates_no_folder(tmp_path: Path) -> None:
    with DuckEngine(threads=1) as engine, pytest.raises(CaptureError, match="has no results"):
        Pipeline(engine).report(tmp_path / "capture", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_time_that_is_not_text_is_refused() -> None:
    with pytest.raises(TypeError, match="start=7 must be str, not int; for example start='2026-11-21T08:00:00Z'"):
        nanoseconds(7, "start")  # type: ignore[arg-type]  # the fault
