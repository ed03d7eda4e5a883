"""Creates tables, metrics and a report from recorded traffic. Requires ``pip install 'polybus[analyse]'`` but no Java."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..plugins.tools import lazy_names

if TYPE_CHECKING:
    from .correlation import MatchTimeouts
    from .engine import DuckEngine, Engine, open_tables
    from .ingest import RunCounts
    from .pipeline import Done, Pipeline, check
    from .ranges import nanoseconds
    from .report.journeys import journeys
    from .report.names import Names

__all__ = ["Done", "DuckEngine", "Engine", "MatchTimeouts", "Pipeline", "RunCounts", "check", "nanoseconds"]
__all__ += ["Names", "journeys", "open_tables"]

__getattr__: Callable[[str], Any] = lazy_names(
    __name__,
    {
        ".engine": ("DuckEngine", "Engine", "open_tables"),
        ".ingest": ("RunCounts",),
        ".ranges": ("nanoseconds",),
        ".pipeline": ("Done", "Pipeline", "check"),
        ".report.journeys": ("journeys",),
        ".report.names": ("Names",),
        ".correlation": ("MatchTimeouts",),
    },
    ("duckdb", "deltalake", "jinja2", "pyarrow", "numpy"),
    "the pipeline needs {}: pip install 'polybus[analyse]'",
)
