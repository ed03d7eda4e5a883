"""Set-up of Python workers of Spark, once for each process."""

from __future__ import annotations

import gc
from functools import cache

from pyspark import TaskContext


def settle() -> None:
    """Take what has been imported by now out of the sight of the garbage collector, where this is a worker.

    PySpark's daemon calls `gc.collect` after each task (4.3, ``pyspark/daemon.py``). With all our modules that is 40 ms of the
    processor, measured: as much as it takes to decode 100,000 frames of CSB.
    """
    if TaskContext.get() is not None:
        _freeze()


@cache
def _freeze() -> None:
    gc.collect()  # what is garbage already shall not stay for ever
    gc.freeze()
