"""The collector of a bus: its stats, and the durations of its handlers where these are measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from .._core.bus.bus import Bus, parts_of
from .._validation import check_given
from ..errors import LocalProtocolError
from ..stats import DurableStats, Stats
from .durations import Durations
from .families import families, help_texts

_NAMES: Final = {
    "links": "polybus_links",
    "peers": "polybus_peers",
    "pending": "polybus_requests_pending",
    "running": "polybus_requests_running",
    "waiting": "polybus_requests_waiting",
    "queued": "polybus_messages_queued",
    "unread": "polybus_publications_unread",
    "sent": "polybus_messages_sent_total",
    "received": "polybus_messages_received_total",
    "dropped": "polybus_messages_dropped_total",
    "late": "polybus_answers_late_total",
    "malformed": "polybus_messages_malformed_total",
    "refused": "polybus_requests_refused_total",
    "failed": "polybus_handlers_failed_total",
    "reconnects": "polybus_link_reconnects_total",
}
_OF_DURABLES: Final = {
    "pending": "polybus_store_pending",
    "given": "polybus_store_given",
    "redelivered": "polybus_store_redelivered",
    "dead_letters": "polybus_dead_letters",
}
_PATIENCE: Final = 1.0
"""Seconds in which the event loop of a bus answers another thread."""


class BusCollector:
    """Gives the metrics of one bus: for `prometheus_client.CollectorRegistry.register`.

    It may be asked from any thread, as `prometheus_client.start_http_server` does: the event loop of the bus then answers.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def describe(self) -> Iterator[Metric]:
        """Give the families without their values."""
        yield from families(Stats, _NAMES)
        yield from _of_durables(())
        yield from Durations().describe()

    def collect(self) -> Iterator[Metric]:
        """Give the families with their values now.

        Raises:
            LocalProtocolError: The bus runs in another thread, whose event loop has not answered within a second.
        """
        stats = self._stats()
        yield from families(Stats, _NAMES, stats)
        yield from _of_durables(stats.durables)
        middleware = parts_of(self._bus).services.executor.middleware
        if (durations := next((one for one in middleware if isinstance(one, Durations)), None)) is not None:
            yield from durations.collect()  # of one: a family stands in a text once

    def _stats(self) -> Stats:
        runtime = parts_of(self._bus).services.runtime
        if runtime is None or runtime.loop.is_here():
            return self._bus.stats()
        answer: Future[Stats] = Future()
        try:
            runtime.loop.call_from_thread(lambda: answer.set_result(self._bus.stats()))
        except RuntimeError:  # it is over
            return self._bus.stats()
        try:
            return answer.result(_PATIENCE)
        except TimeoutError:
            raise LocalProtocolError(
                f"the event loop of the bus has not answered within {_PATIENCE:g} s: something blocks it; see the warnings of "
                "the logger polybus.handlers"
            ) from None


def _of_durables(durables: Iterable[DurableStats]) -> Iterator[Metric]:
    """Make the families of durable handlers, each with the name of the handler and of its store."""
    texts = help_texts(DurableStats)
    for attribute, name in _OF_DURABLES.items():
        family = GaugeMetricFamily(name, texts.get(attribute, attribute), labels=("durable", "store"))
        for one in durables:
            if (value := getattr(one, attribute)) is not None:
                family.add_metric([one.durable, one.store], value)
        yield family


def collector(bus: Bus) -> BusCollector:
    """Make the collector of a bus: ``REGISTRY.register(collector(bus))``.

    It reads `Bus.stats` when it is asked, and costs nothing in between; with ``bus.use(Durations())`` it shows the durations of
    handlers too.

    Raises:
        TypeError: `bus` is no bus.
    """
    check_given(bus, Bus, "bus", "collector(bus)")
    return BusCollector(bus)
