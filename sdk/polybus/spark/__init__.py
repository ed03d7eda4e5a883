"""The data pipeline on Spark: tables, metrics and a report from recorded traffic. Needs ``pip install 'polybus[spark]'``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..plugins.tools import lazy_names

if TYPE_CHECKING:
    from ..analysis.pipeline import Done, check
    from ..analysis.ranges import nanoseconds
    from .engine import Correlated, SparkEngine, correlate, load
    from .pipeline import Pipeline
    from .session import SparkUnavailable, check_java, start_session
    from .source import BusDataSource, scan

__all__ = ["BusDataSource", "Correlated", "Done", "Pipeline", "SparkEngine", "SparkUnavailable", "check", "check_java"]
__all__ += ["correlate", "load", "nanoseconds", "scan", "start_session"]

__getattr__: Callable[[str], Any] = lazy_names(
    __name__,
    {
        "..analysis.ranges": ("nanoseconds",),
        "..analysis.pipeline": ("Done", "check"),
        ".engine": ("Correlated", "SparkEngine", "correlate", "load"),
        ".pipeline": ("Pipeline",),
        ".session": ("SparkUnavailable", "check_java", "start_session"),
        ".source": ("BusDataSource", "scan"),
    },
    ("pyspark", "py4j", "pyarrow", "pandas", "numpy"),
    "the pipeline needs {}: pip install 'polybus[spark]'",
)
