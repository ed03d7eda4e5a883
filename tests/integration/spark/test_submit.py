"""The pipeline as a job on a cluster: a master and two workers, each with a JVM and Python of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from polybus.analysis.results import Output
from polybus.analysis.storage import TableStorage
from tests.unit.capture.generator import traffic

from .support import QUICK

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]


def test_a_job_runs_through_spark_submit_on_two_workers(tmp_path: Path) -> None:
    made = traffic(4000)
    capture = made.write(tmp_path / "capture", rows=100, segment_batches=10)
    options = f"{QUICK['spark.driver.extraJavaOptions']} {os.environ.get('SPARK_SUBMIT_OPTS', '')}"
    settings = {**QUICK, "spark.executor.extraJavaOptions": options, "spark.ui.enabled": "false"}
    settings |= dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), "127.0.0.1")
    submit = Path(sys.executable).with_name("spark-submit")
    command = [str(submit), "--master", "local-cluster[2,1,1024]"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command += [str(ROOT / "examples" / "analyse_job.py"), str(capture), str(tmp_path / "out")]
    places = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_WORKER_DIR": str(tmp_path)}
    done = subprocess.run(command, env=os.environ | places, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{made.frames} frames, {made.exchanges.num_rows} exchanges: " in done.stdout
    counts = Output(TableStorage(tmp_path / "out")).counts
    assert (counts.frames, counts.exchanges) == (made.frames, made.exchanges.num_rows)
    assert (tmp_path / "out" / "report.html").exists()
