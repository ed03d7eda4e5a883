"""Runs the analysis pipeline on Spark to create tables, metrics and a report from recorded traffic.

Requires ``pip install 'polybus[spark]'``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..plugins.tools import lazy_names

if TYPE_CHECKING:
    from ..analysis.pipeline import Done, check
    from ..analysis.ranges import nanoseconds
    from .engine import SparkEngine, load
    from .pipeline import Pipeline
    from .session import SparkUnavailable, check_java, start_session
    from .source import BusDataSource, scan

__all__ = ["BusDataSource", "Done", "Pipeline", "SparkEngine", "SparkUnavailable", "check", "check_java", "load"]
__all__ += ["nanoseconds", "scan", "start_session"]

__getattr__: Callable[[str], Any] = lazy_names(
    __name__,
    {
        "..analysis.ranges": ("nanoseconds",),
        "..analysis.pipeline": ("Done", "check"),
        ".engine": ("SparkEngine", "load"),
        ".pipeline": ("Pipeline",),
        ".session": ("SparkUnavailable", "check_java", "start_session"),
        ".source": ("BusDataSource", "scan"),
    },
    ("pyspark", "py4j", "pyarrow", "pandas", "numpy"),
    "the pipeline needs {}: pip install 'polybus[spark]'",
)
