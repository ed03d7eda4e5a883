"""Filters that Spark hands down, as a window in time and as conditions of Arrow."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import attrs
from pyspark.sql import datasource as ds

from polybus.analysis.ranges import ReadWindow, together

from ...capture.store.compute import pc

_COMPARED: Final[Mapping[type, Callable[[Any, Any], Any]]] = MappingProxyType(
    {
        ds.EqualTo: operator.eq,
        ds.GreaterThan: operator.gt,
        ds.GreaterThanOrEqual: operator.ge,
        ds.LessThan: operator.lt,
        ds.LessThanOrEqual: operator.le,
    }
)
_PLAIN: Final = (str, int, float, bytes)


def conditions(filters: Iterable[ds.Filter]) -> Any:
    """The conditions of filters that Arrow can apply, as one; None where it can apply none."""
    return together(map(_condition, filters))


def _condition(given: ds.Filter) -> Any:
    """A filter as an expression; None where it is of another kind, or about a part of a column, or of values of other types."""
    column: Sequence[str] = getattr(given, "attribute", ())
    if len(column) != 1:
        return None
    field, value = pc.field(column[0]), getattr(given, "value", None)
    if isinstance(given, ds.IsNotNull):
        return field.is_valid()
    if isinstance(given, ds.IsNull):
        return field.is_null()
    if isinstance(given, ds.In):
        return field.isin(list(value)) if value and all(isinstance(one, _PLAIN) for one in value) else None
    compared = _COMPARED.get(type(given))
    return compared(field, value) if compared is not None and isinstance(value, _PLAIN) else None


def narrowed(window: ReadWindow, given: ds.Filter) -> ReadWindow:
    """A window within the one before, by a filter on the connection or on the time."""
    column, value = getattr(given, "attribute", ()), getattr(given, "value", None)
    if column == ("conn_id",) and isinstance(given, ds.EqualTo):
        return attrs.evolve(window, connection=value) if window.connection is None and isinstance(value, str) else window
    if column in (("time_ns",), ("ts_ns",)) and isinstance(value, int):
        if isinstance(given, (ds.GreaterThan, ds.GreaterThanOrEqual)):
            return attrs.evolve(window, start_ns=max(value, window.start_ns or 0))
        if isinstance(given, (ds.LessThan, ds.LessThanOrEqual)):
            end = value + 1
            return attrs.evolve(window, end_ns=end if window.end_ns is None else min(end, window.end_ns))
    return window
