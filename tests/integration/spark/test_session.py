"""How the session of a command talks to its Python workers."""

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from polybus.spark.engine import settle
from polybus.spark.session import sockets
from tests.support import until

from .tutorial import Tutorial

_WITH_A_CHILD = """
import os, sys
from polybus.spark.session import sockets
folder = sockets()["spark.python.unix.domain.socket.dir"]
if not os.fork():
    sys.exit()
os.wait()
print(os.path.isdir(folder))
"""


def test_a_command_reaches_its_workers_by_sockets_that_only_this_user_may_use(tutorial: Tutorial) -> None:
    assert (tutorial.ended.stderr, tutorial.ended.returncode) == ("", -signal.SIGKILL)
    options, seen, told, done = tutorial.ended.stdout.splitlines()
    folder, *looks = seen.split()
    assert options == "['-XX:TieredStopAtLevel=1', '-Dmine=1', '-Dmine=2']", "what somebody has set up holds"
    assert looks == ["0o40700", "True"]
    assert (json.loads(told)["total"]["frames"], done) == (32, "0")
    until(lambda: not Path(folder).exists())


@pytest.mark.parametrize("folder", ["/" + "x" * 60, "/ö"])
def test_where_such_a_socket_could_not_have_its_name_spark_uses_tcp(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", folder)
    assert sockets.__wrapped__() == {}


def test_the_folder_of_sockets_goes_with_its_process_and_not_with_a_child_of_it() -> None:
    command = [sys.executable, "-c", _WITH_A_CHILD]
    with tempfile.TemporaryDirectory() as folder:  # pytest's own has a long name
        environment = {**os.environ, "TMPDIR": folder}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert (ran.stdout, ran.stderr, ran.returncode) == ("True\n", "", 0)
        assert not list(Path(folder).iterdir())


def test_a_worker_leaves_its_modules_out_of_the_collections_after_each_task(spark: SparkSession) -> None:
    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from polybus.spark.engine import settle

        for batch in batches:
            settle()
            yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()] * batch.num_rows})

    (row,) = spark.range(1).mapInArrow(frozen, "frozen long").collect()
    assert row["frozen"] > 10_000


def test_a_driver_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []  # not the count of what is frozen: that falls when such an object ends
    monkeypatch.setattr("gc.freeze", lambda: called.append("freeze"))
    settle()
    assert called == []
