"""Families of metrics made of a snapshot of counters: names by Prometheus's conventions, help texts from its docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

Family: TypeAlias = "type[CounterMetricFamily] | type[GaugeMetricFamily]"

_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.M)


def help_texts(kind: type) -> dict[str, str]:
    """Find what the docstring of a class says of its attributes; nothing where Python was told to leave docstrings out."""
    found = _ATTRIBUTE.findall(inspect.getdoc(kind) or "")
    return {name: re.sub(r"\s+", " ", text) for name, text in found}


def families(kind: type, names: Mapping[str, str], snapshot: Any = None) -> Iterator[Metric]:
    """Make a family of each attribute of a snapshot that is named, of those ending in ``_total`` a counter, of others a gauge.

    Without a snapshot they are empty: for a registry that asks only for their names.
    """
    texts = help_texts(kind)
    for attribute, name in names.items():
        make: Callable[[str, str], Any] = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = make(name, texts.get(attribute, attribute))
        if snapshot is not None:
            family.add_metric([], getattr(snapshot, attribute))
        yield family
