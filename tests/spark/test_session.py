"""How the session talks to its Python workers."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from polybus.spark.session import sockets

pytestmark = pytest.mark.spark

_WITH_A_CHILD = """
import os, sys
from polybus.spark.session import sockets
folder = sockets()["spark.python.unix.domain.socket.dir"]
if not os.fork():
    sys.exit()
os.wait()
print(os.path.isdir(folder))
"""


def test_python_workers_are_reached_by_sockets_that_only_this_user_may_use(spark: SparkSession) -> None:
    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()  # now there is a worker
    folder = Path(spark.conf.get("spark.python.unix.domain.socket.dir") or "")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert any(file.is_socket() for file in folder.iterdir())


def test_where_the_name_of_such_a_socket_would_be_too_long_spark_uses_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/" + "x" * 60)
    assert sockets.__wrapped__() == {}


def test_the_folder_of_sockets_goes_with_its_process_and_not_with_a_child_of_it() -> None:
    command = [sys.executable, "-c", _WITH_A_CHILD]
    with tempfile.TemporaryDirectory() as folder:  # pytest's own has a long name
        environment = {**os.environ, "TMPDIR": folder}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert (ran.stdout, ran.stderr, ran.returncode) == ("True\n", "", 0)
        assert not list(Path(folder).iterdir())
