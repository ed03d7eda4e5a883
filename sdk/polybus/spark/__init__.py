"""The data pipeline on Spark: tables, metrics and a report out of recorded traffic. Needs ``pip install 'polybus[spark]'``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .session import SparkUnavailable, check_java, start_session
    from .source.data_source import BusDataSource
    from .source.options import nanoseconds
    from .source.scan import scan
    from .stages.correlation import Correlated, correlate
    from .stages.manifest import load
    from .stages.pipeline import Done, Pipeline, check

__all__ = ["BusDataSource", "Correlated", "Done", "Pipeline", "SparkUnavailable", "check", "check_java"]
__all__ += ["correlate", "load", "nanoseconds", "scan", "start_session"]

__getattr__: Callable[[str], Any] = lazy_names(
    __name__,
    {
        ".session": ("SparkUnavailable", "check_java", "start_session"),
        ".source.data_source": ("BusDataSource",),
        ".source.options": ("nanoseconds",),
        ".source.scan": ("scan",),
        ".stages.correlation": ("Correlated", "correlate"),
        ".stages.manifest": ("load",),
        ".stages.pipeline": ("Done", "Pipeline", "check"),
    },
    ("pyspark", "py4j", "pyarrow", "pandas", "matplotlib", "numpy"),
    "the pipeline needs {}: pip install 'polybus[spark]'",
)
