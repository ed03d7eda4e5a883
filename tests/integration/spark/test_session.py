"""How the session of a command talks to its Python workers."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from polybus.spark.session import sockets
from tests.support import until
from tests.unit.capture.generator import traffic

pytestmark = pytest.mark.spark

_LOOKING = """
import os, signal, sys
from pathlib import Path
from polybus.cli.app import run
from polybus.spark import Pipeline

take = Pipeline.run

def look(self, *given, **options):
    done = take(self, *given, **options)
    options = self._spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    print([one for one in options if one in ("-XX:TieredStopAtLevel=1", "-Dmine=1", "-Dmine=2")])
    folder = Path(self._spark.conf.get("spark.python.unix.domain.socket.dir"))
    print(folder, oct(folder.stat().st_mode), any(file.is_socket() for file in folder.iterdir()), flush=True)
    return done

Pipeline.run = look
done = run(sys.argv[1:])
print(done, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

_WITH_A_CHILD = """
import os, sys
from polybus.spark.session import sockets
folder = sockets()["spark.python.unix.domain.socket.dir"]
if not os.fork():
    sys.exit()
os.wait()
print(os.path.isdir(folder))
"""


def test_a_command_reaches_its_workers_by_sockets_that_only_this_user_may_use(tmp_path: Path) -> None:
    made = traffic(200)
    command = ["analyse", str(made.write(tmp_path / "capture")), "--out", str(tmp_path / "out"), "--json"]
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.defaultJavaOptions -Dmine=2\n")
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path), "SPARK_SUBMIT_OPTS": "-Dmine=1"}
    ran = subprocess.run(
        [sys.executable, "-c", _LOOKING, *command], env=environment, capture_output=True, text=True, timeout=800, check=False
    )
    assert (ran.stderr, ran.returncode) == ("", -signal.SIGKILL)
    options, seen, told, done = ran.stdout.splitlines()
    folder, *looks = seen.split()
    assert options == "['-XX:TieredStopAtLevel=1', '-Dmine=1', '-Dmine=2']", "what somebody has set up holds"
    assert looks == ["0o40700", "True"]
    assert (json.loads(told)["total"]["frames"], done) == (made.frames, "0")
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
