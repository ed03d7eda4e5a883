"""The data pipeline on Spark: tables, metrics and a report out of recorded traffic. Needs ``pip install 'polybus[spark]'``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .session import SparkUnavailable as SparkUnavailable
    from .session import check_java as check_java
    from .session import start_session as start_session
    from .source.data_source import BusDataSource as BusDataSource
    from .source.options import nanoseconds as nanoseconds
    from .stages.correlation import Correlated as Correlated
    from .stages.correlation import correlate as correlate
    from .stages.pipeline import Done as Done
    from .stages.pipeline import Pipeline as Pipeline
    from .stages.pipeline import check as check
    from .stages.results import load as load

__all__ = [
    "BusDataSource",
    "Correlated",
    "Done",
    "Pipeline",
    "SparkUnavailable",
    "check",
    "check_java",
    "correlate",
    "load",
    "nanoseconds",
    "start_session",
]

_HOMES = {
    "BusDataSource": "source.data_source",
    "Correlated": "stages.correlation",
    "Done": "stages.pipeline",
    "Pipeline": "stages.pipeline",
    "SparkUnavailable": "session",
    "check": "stages.pipeline",
    "check_java": "session",
    "correlate": "stages.correlation",
    "load": "stages.results",
    "nanoseconds": "source.options",
    "start_session": "session",
}
_NEEDED = ("pyspark", "pyarrow", "pandas", "matplotlib", "numpy")


def __getattr__(name: str) -> Any:
    """Loads what is asked for.

    Raises:
        ImportError: PySpark, or what belongs to it, is not installed.
    """
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        raise ImportError(f"the pipeline needs {error.name}: pip install 'polybus[spark]'", name=error.name) from error
