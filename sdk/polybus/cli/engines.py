"""The engine of `polybus analyse`: DuckDB for what one machine does soon, Spark for what is large or lies on a cluster."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from typing import Final

from attrs import frozen

from .problems import UsageError

LARGE: Final = 512 << 20
"""Bytes of a capture, about 13 million frames, from which on Spark is taken where it is installed."""
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


class EngineName(StrEnum):
    """What can be asked for."""

    AUTO = "auto"
    DUCKDB = "duckdb"
    SPARK = "spark"


@frozen
class Chosen:
    """An engine, and why it is that one."""

    name: EngineName
    reason: str

    def __str__(self) -> str:
        return f"{self.name}, {self.reason}"


def choose(asked: EngineName, size: int, master: str) -> Chosen:
    """The engine for a capture of `size` bytes; UsageError where one is asked for that cannot be."""
    if asked is EngineName.DUCKDB and master:
        raise UsageError(f"--master {master} says where Spark runs, and --engine duckdb is not Spark: leave one of them out")
    if asked is not EngineName.AUTO:
        return Chosen(asked, "as --engine says")
    if master:
        return Chosen(EngineName.SPARK, "since --master says where it runs")
    spark, duckdb = (find_spec(name) is not None for name in ("pyspark", "duckdb"))
    shown, limit = in_units(size), in_units(LARGE)
    if size < LARGE and duckdb:
        return Chosen(EngineName.DUCKDB, f"for a capture of {shown}; from {limit} on it is spark")
    if size < LARGE:
        return Chosen(EngineName.SPARK, "since duckdb is not installed: pip install 'polybus[analyse]'")
    if spark:
        return Chosen(EngineName.SPARK, f"for a capture of {shown}; below {limit} it is duckdb, which does without Java")
    return Chosen(EngineName.DUCKDB, "since pyspark is not installed: pip install 'polybus[spark]' for what is large")


def capture_size(capture: str) -> int:
    """Bytes of the segments of a capture."""
    from ..capture.store.reader import Capture

    return sum(segment.size for segment in Capture(capture).segments())


def in_units(size: int) -> str:
    """A number of bytes for people: ``3.4 MiB``."""
    power = min(max(size.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{size} bytes" if not power else f"{size / 1024**power:.3g} {_UNITS[power]}"
