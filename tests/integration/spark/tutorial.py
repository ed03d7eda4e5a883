"""The capture of the tutorial, and its command to analyse it, in a separate process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import attrs

from tests.integration.documentation.test_programs import Program, programs

from .support import QUICK

DOCS: Final = Path(__file__).parents[3] / "docs"

_LOOKING: Final = """
import os, signal, sys
from pathlib import Path
from polybus.cli.app import run
from polybus.analysis import Pipeline

take = Pipeline.run

def look(self, *given, **options):
    done = take(self, *given, **options)
    options = self._engine._spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    print([one for one in options if one in ("-XX:TieredStopAtLevel=1", "-Dmine=1", "-Dmine=2")])
    folder = Path(self._engine._spark.conf.get("spark.python.unix.domain.socket.dir"))
    print(folder, oct(folder.stat().st_mode), any(file.is_socket() for file in folder.iterdir()), flush=True)
    return done

Pipeline.run = look
done = run(sys.argv[1:])
print(done, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
"""The command, which looks at its session when the pipeline has run, and is killed at its end."""


@attrs.frozen
class Tutorial:
    folder: Path
    ended: subprocess.CompletedProcess[str]


def programs_of(page: str) -> list[Program]:
    return programs((DOCS / page).read_text())


def play(folder: Path) -> Tutorial:
    """Record as the tutorial does, and analyse it: `captures` and `analysed` are in the folder then."""
    recording = next(program for program in programs_of("tutorial/what-happened.md") if program.file_name == "recorded.py")
    (folder / "recorded.py").write_text(recording.text)
    subprocess.run([sys.executable, "recorded.py"], cwd=folder, check=True, timeout=60)
    quick = "".join(f"{name} {value}\n" for name, value in QUICK.items() if name.startswith("spark.sql."))
    (folder / "spark-defaults.conf").write_text(f"spark.driver.defaultJavaOptions -Dmine=2\n{quick}")
    submit = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Dmine=1"
    environment = {**os.environ, "SPARK_CONF_DIR": str(folder), "SPARK_SUBMIT_OPTS": submit}
    command = [sys.executable, "-c", _LOOKING, "analyse", "captures", "--out", "analysed", "--engine", "spark", "--json"]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=800, check=False)
    return Tutorial(folder, ended)
