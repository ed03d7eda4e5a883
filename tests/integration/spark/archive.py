"""Archive of the classes that Spark loads in tests: a JVM that begins with it needs a third less time.

``python -m tests.integration.spark.archive .venv/spark-classes.jsa`` writes it, `make test` hands it to each JVM.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from polybus.spark import Pipeline, start_session
from tests.unit.capture.generator import traffic

from .support import QUICK


def write(archive: Path) -> None:
    """Run the pipeline once, in a JVM that archives its classes when it ends."""
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={archive} -Xlog:disable"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        spark = start_session("local[2]", settings=QUICK)
        Pipeline(spark).run(traffic(100).write(folder / "capture"), folder / "out")
        spark.stop()
        gateway: Any = spark.sparkContext._gateway
        jvm = gateway.proc
        jvm.stdin.close()
        jvm.wait()


if __name__ == "__main__":
    write(Path(sys.argv[1]).absolute())
