"""The pipeline: tables, metrics and a report out of recorded traffic. Needs ``pip install 'polybus[analyse]'``, and no Java.

`polybus.spark` runs the same on Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .duck import DuckEngine, open_tables
    from .engine import Engine
    from .manifest import RunCounts
    from .moments import nanoseconds
    from .pipeline import Done, Pipeline, check
    from .report.asking import journeys
    from .report.names import Names
    from .timeouts import MatchTimeouts

__all__ = ["Done", "DuckEngine", "Engine", "MatchTimeouts", "Pipeline", "RunCounts", "check", "nanoseconds"]
__all__ += ["Names", "journeys", "open_tables"]

__getattr__: Callable[[str], Any] = lazy_names(
    __name__,
    {
        ".duck": ("DuckEngine", "open_tables"),
        ".engine": ("Engine",),
        ".manifest": ("RunCounts",),
        ".moments": ("nanoseconds",),
        ".pipeline": ("Done", "Pipeline", "check"),
        ".report.asking": ("journeys",),
        ".report.names": ("Names",),
        ".timeouts": ("MatchTimeouts",),
    },
    ("duckdb", "pyarrow", "matplotlib", "numpy"),
    "the pipeline needs {}: pip install 'polybus[analyse]'",
)
