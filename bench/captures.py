"""Cost of the pipeline as captures grow: ``python -m bench.captures FRAMES ENGINE...``.

Writes a capture of varied traffic of all protocols, and analyses it with each engine in processes of its own: ``duckdb``, a
master of Spark such as ``local[2]``, or ``standalone``: a master and two workers on loopback, and a job for ``spark-submit``.
Prints wall time and processor time of all processes, which includes their start, and beside each run the group-bys of
`bench.metrics` over its results. The engines must count the same.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.unit.capture.generator import traffic

from .metrics import plain

_ROOT = Path(__file__).parents[1]
_SCRIPTS = Path(sys.executable).parent
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: processes whose parent has ended become ours, so that their processor time is counted."""
_PATIENCE = 120


def main(frames: int, engines: list[str]) -> None:
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        capture, counted = Path(folder, "capture"), dict[str, object]()
        # In a process of its own, so that its memory is free before the measurement.
        subprocess.run([sys.executable, "-m", __spec__.name, str(frames), str(capture)], check=True, cwd=_ROOT)
        size = sum(file.stat().st_size for file in capture.iterdir())
        print(f"{frames:,} frames, {size / 2**20:.1f} MiB", flush=True)
        for number, engine in enumerate(engines):
            results = Path(folder, f"results-{number}")
            load, clock, processor = os.getloadavg()[0], time.perf_counter(), _processor()
            analyse(engine, capture, results)
            clock, processor = time.perf_counter() - clock, _processor() - processor
            begin = time.process_time()
            plain(str(results))
            native = time.process_time() - begin
            metrics = json.loads((results / "metrics.json").read_text())
            counted[engine] = metrics["counts"], metrics["totals"]
            print(
                f"{engine}: {clock:.0f} s, {processor:.0f} s of the processor, load {load:.0f} to {os.getloadavg()[0]:.0f}; "
                f"native group-bys {native:.1f} s of the processor; {metrics['counts']}",
                flush=True,
            )
    assert all(one == counted[engines[0]] for one in counted.values()), counted


def analyse(engine: str, capture: Path, results: Path) -> None:
    """Run the pipeline to its end."""
    command = [sys.executable, "-m", "polybus", "analyse", str(capture), "--out", str(results), "--json"]
    with ExitStack() as stack:
        if engine == "standalone":
            options = ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false"]
            master = stack.enter_context(_cluster(results.parent))
            job = [str(_ROOT / "examples" / "analyse_job.py"), str(capture), str(results)]
            command = [str(_SCRIPTS / "spark-submit"), "--master", master, *options, *job]
        elif engine == "duckdb":
            command += ["--engine", "duckdb"]
        else:
            command += ["--engine", "spark", "--master", engine]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def _cluster(folder: Path) -> Iterator[str]:
    """Run a master and two workers, each with one core and 2 GiB; yields the master's address."""
    started, log = list[subprocess.Popen[bytes]](), folder / "master.log"

    def start(name: str, *arguments: str, log: Path) -> None:
        command = [str(_SCRIPTS / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--webui-port", "0"]
        with log.open("wb") as file:
            started.append(subprocess.Popen([*command, *arguments], stdout=file, stderr=file))

    try:
        start("master.Master", "--port", "0", log=log)
        address, end = None, time.monotonic() + _PATIENCE
        while address is None and time.monotonic() < end:
            time.sleep(0.2)
            address = re.search(r"Starting Spark master at (\S+)", log.read_text())
        assert address is not None, log.read_text()
        for number in (1, 2):
            work = ["--cores", "1", "--memory", "2g", "--work-dir", str(folder / "work")]
            start("worker.Worker", *work, address[1], log=folder / f"worker-{number}.log")
        yield address[1]
    finally:
        for process in started[::-1]:
            process.terminate()
        for process in started:
            process.wait(_PATIENCE)


def _processor() -> float:
    """Wait for all processes, and return the processor time that they have used, s."""
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    if len(sys.argv) == 3 and os.sep in sys.argv[2]:
        traffic(int(sys.argv[1]), alike=False, connections=5).write(Path(sys.argv[2]), rows=4096)
    else:
        main(int(sys.argv[1]), sys.argv[2:])
