"""The data pipeline on Spark: tables, metrics and a report out of recorded traffic. Needs ``pip install 'polybus[spark]'``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._util.lazy_names import lazy_names

if TYPE_CHECKING:
    from ..analysis.moments import nanoseconds
    from ..analysis.pipeline import Done, check
    from .correlation import Correlated, correlate
    from .pipeline import Pipeline
    from .session import SparkUnavailable, check_java, start_session
    from .source.data_source import BusDataSource
    from .source.scan import scan
    from .tables import load

__all__ = ["BusDataSource", "Correlated", "Done", "Pipeline", "SparkUnavailable", "check", "check_java"]
__all__ += ["correlate", "load", "nanoseconds", "scan", "start_session"]

__getattr__: Callable[[str], Any] = lazy_names(
    __name__,
    {
        "..analysis.moments": ("nanoseconds",),
        "..analysis.pipeline": ("Done", "check"),
        ".correlation": ("Correlated", "correlate"),
        ".pipeline": ("Pipeline",),
        ".session": ("SparkUnavailable", "check_java", "start_session"),
        ".source.data_source": ("BusDataSource",),
        ".source.scan": ("scan",),
        ".tables": ("load",),
    },
    ("pyspark", "py4j", "pyarrow", "pandas", "matplotlib", "numpy"),
    "the pipeline needs {}: pip install 'polybus[spark]'",
)
