"""Runs the analysis pipeline on Spark. Requires ``pip install 'polybus[spark]'``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..plugins.tools import lazy_names

if TYPE_CHECKING:
    from ..analysis.pipeline import Done, check
    from ..analysis.ranges import nanoseconds
    from .engine import Pipeline, SparkEngine, load
    from .session import SparkUnavailable, check_java, start_session
    from .source import BusDataSource, scan

__all__ = ["BusDataSource", "Done", "Pipeline", "SparkEngine", "SparkUnavailable", "check", "check_java", "load"]
__all__ += ["nanoseconds", "scan", "start_session"]

__getattr__: Callable[[str], Any] = lazy_names(
    __name__,
    {
        "..analysis.ranges": ("nanoseconds",),
        "..analysis.pipeline": ("Done", "check"),
        ".engine": ("Pipeline", "SparkEngine", "load"),
        ".session": ("SparkUnavailable", "check_java", "start_session"),
        ".source": ("BusDataSource", "scan"),
    },
    ("pyspark", "py4j", "pyarrow", "pandas", "numpy"),
    "the pipeline needs {}: pip install 'polybus[spark]'",
)
