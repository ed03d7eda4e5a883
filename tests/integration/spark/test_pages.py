"""The programs of the pages about Spark run: in this process, which has a session, over the capture that the tutorial makes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from polybus.cli.app import run
from tests.house.test_docs import Program, programs

pytestmark = pytest.mark.spark

DOCS = Path(__file__).parents[3] / "docs"
OURS = "run by tests/integration/spark"


def _programs(page: str) -> list[Program]:
    return programs((DOCS / page).read_text())


def test_the_programs_about_spark_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tutorial = _programs("tutorial/what-happened.md")
    recording = next(program for program in tutorial if program.file_name == "recorded.py")
    Path("recorded.py").write_text(recording.text)
    subprocess.run([sys.executable, "recorded.py"], check=True, timeout=60)
    assert run(["analyse", "captures", "--out", "analysed"]) == 0
    said = capsys.readouterr().out
    assert '"ok":13' in said
    assert '"frames":32' in said
    assert '"exchanges":15' in said
    assert '"provisional":0' in said
    page = (DOCS / "tutorial/what-happened.md").read_text()
    assert "32 frames: 32 messages" in page
    assert "\n15 exchanges: 13 ok, 2 error\n" in page
    printed = []
    for program in [*tutorial, *_programs("how-to/spark.md")]:
        if program.info.endswith(OURS):
            # Workers stay in the folder in which the session was started.
            text = program.text.replace('load("captures")', f"load({str(tmp_path / 'captures')!r})")
            # Yesterday was today, for whoever asks tomorrow; and the day before, should it be midnight now.
            text = text.replace("timedelta(days=1)", "timedelta(days=2)")
            text = text.replace("datetime.now(UTC)", "(datetime.now(UTC) + timedelta(days=1))")
            exec(compile(text, program.file_name, "exec"), {})
            printed.append(capsys.readouterr().out)
    by_outcome, slow, errors, counted = printed
    assert by_outcome.count("tank.get") == 2
    latencies = [float(found) for found in re.findall(r"\|tank\.get\|\s*([0-9.]+)", slow)]
    assert sum(latency >= 200 for latency in latencies) == 3, "those that waited for 200 ms; a busy machine adds to them"
    assert latencies == sorted(latencies, reverse=True)
    assert errors.count("NOT_FOUND") == 2
    assert "32 frames, 0 late" in counted


def test_the_job_of_the_page_is_the_example() -> None:
    [job] = [program for program in _programs("how-to/spark.md") if "spark-submit" in program.info]
    example = (DOCS.parent / "examples" / "analyse_job.py").read_text()
    assert example.partition("\n\n")[2] == job.text
