"""Metrics of a bus for Prometheus, by ``prometheus-client``.

`collector` exports `Bus.stats`, at no cost per message; `Durations` is a middleware that times the handlers; `scrape` renders
a page ``/metrics``, for all nodes of a cluster on this machine.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("prometheus_client") is None:
    raise ImportError("polybus.prometheus needs prometheus-client: pip install 'polybus[prometheus]'")

from .bus_collector import BusCollector, Durations, collector
from .scraping import scrape

__all__ = ["BusCollector", "Durations", "collector", "scrape"]
