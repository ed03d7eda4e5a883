"""Collector of a bus: its stats, with their docstrings as help texts, and the durations of its handlers by subject."""

from __future__ import annotations

import inspect
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf, isfinite
from time import perf_counter
from typing import Any, Final, TypeAlias

from attrs import define, field
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from .. import Bus, CallNext, Context
from ..errors import LocalProtocolError
from ..integrations import call_in_loop, middleware_of
from ..message import Kind, Message
from ..outcomes import kind_of, told_code
from ..plugins.tools import check_given, shown
from ..stats import DurableStats, Stats

Family: TypeAlias = "type[CounterMetricFamily] | type[GaugeMetricFamily]"

_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.M)


def help_texts(kind: type) -> dict[str, str]:
    """Attribute descriptions of a class's docstring; empty if Python runs without docstrings."""
    found = _ATTRIBUTE.findall(inspect.getdoc(kind) or "")
    return {name: re.sub(r"\s+", " ", text) for name, text in found}


def families(kind: type, names: Mapping[str, str], snapshot: Any = None) -> Iterator[Metric]:
    """Metric family for each named attribute of a snapshot: a counter if its name ends in ``_total``, else a gauge.

    Empty without a snapshot, for a registry that asks only for the names.
    """
    texts = help_texts(kind)
    for attribute, name in names.items():
        make: Callable[[str, str], Any] = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = make(name, texts.get(attribute, attribute))
        if snapshot is not None:
            family.add_metric([], getattr(snapshot, attribute))
        yield family


BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_DURATION: Final = "polybus_handler_duration_seconds", "Seconds that handlers took, by the subject they are registered for."
_OUTCOMES: Final = "polybus_handler_outcomes_total", "Ends of handlers, by the code that their asker was told."


@define(eq=False)
class Tally:
    """Calls of one handler."""

    kind: Kind
    counts: list[int]
    """Calls by bucket; the last one is above all bounds."""
    seconds: float = 0.0
    outcomes: dict[str, int] = field(factory=dict)


class Durations:
    """Middleware that times handlers and counts their outcomes: ``bus.use(Durations())``.

    `collector` then exports ``polybus_handler_duration_seconds`` and ``polybus_handler_outcomes_total``. Their labels are the
    kind of call (``request``, ``notify``, ``publish``, ``stream``, ``channel``) and the subject or pattern of the handler,
    for bridged messages the source of the route. Subjects of messages are never labels, so peers cannot add any. For streams
    and channels the duration covers the whole conversation.

    Args:
        buckets: Upper bounds of the histogram, in seconds; infinity at the end is optional.

    Raises:
        TypeError: `buckets` are not numbers.
        ValueError: They do not rise from above 0, or are empty.
    """

    def __init__(self, buckets: Sequence[float] = BUCKETS) -> None:
        try:
            bounds = [bound + 0.0 for bound in buckets]
        except TypeError:
            raise TypeError(f"Durations(buckets={shown(buckets)}): seconds, for example (0.01, 0.1, 1)") from None
        if bounds[-1:] == [inf]:  # as in `prometheus_client.Histogram.DEFAULT_BUCKETS`: implied
            bounds.pop()
        if not bounds or not all(map(isfinite, bounds)) or bounds != sorted(set(bounds)) or bounds[0] <= 0:
            raise ValueError(f"Durations(buckets={shown(buckets)}): one or more that rise, above 0, for example (0.01, 0.1, 1)")
        self._bounds = bounds
        self._labels = [*map(str, bounds), "+Inf"]
        self._tallies: dict[tuple[str, str | int], Tally] = {}
        """By kind and registered subject: bounded by the number of handlers and routes."""
        self._recent: dict[str | int, Tally] = {}
        """Tally of the last call by registered subject, which usually has one kind."""

    async def __call__(self, message: Message, ctx: Context, call_next: CallNext) -> Any:
        pattern, kind = ctx.pattern, message.kind
        tally = self._recent.get(pattern)
        if tally is None or tally.kind is not kind:
            tally = self._tally(message, pattern)
        outcome = "OK"
        began = perf_counter()
        try:
            return await call_next(message)
        except BaseException as error:
            outcome = told_code(error, kind).name
            raise
        finally:
            took = perf_counter() - began
            tally.counts[bisect_left(self._bounds, took)] += 1
            tally.seconds += took
            outcomes = tally.outcomes
            outcomes[outcome] = outcomes.get(outcome, 0) + 1

    def _tally(self, message: Message, pattern: str | int) -> Tally:
        kind = kind_of(message)
        tally = self._tallies.get((kind, pattern))
        if tally is None:
            tally = self._tallies[kind, pattern] = Tally(message.kind, [0] * len(self._labels))
        if message.kind is not Kind.OPEN:  # stream or channel
            self._recent[pattern] = tally
        return tally

    def describe(self) -> Iterator[Metric]:
        """The families without values."""
        yield HistogramMetricFamily(*_DURATION, labels=("kind", "subject"))
        yield CounterMetricFamily(*_OUTCOMES, labels=("kind", "subject", "code"))

    def collect(self) -> Iterator[Metric]:
        """The families with current values."""
        durations = HistogramMetricFamily(*_DURATION, labels=("kind", "subject"))
        outcomes = CounterMetricFamily(*_OUTCOMES, labels=("kind", "subject", "code"))
        for (kind, pattern), tally in list(self._tallies.items()):
            labels = [kind, str(pattern)]
            buckets = list(zip(self._labels, accumulate(tally.counts), strict=True))
            durations.add_metric(labels, buckets, tally.seconds)
            for outcome, count in list(tally.outcomes.items()):
                outcomes.add_metric([*labels, outcome], count)
        yield durations
        yield outcomes


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
"""Seconds for the event loop of a bus to answer another thread."""


class BusCollector:
    """Exports the metrics of one bus: for `prometheus_client.CollectorRegistry.register`.

    Any thread may collect, as `prometheus_client.start_http_server` does: the event loop of the bus answers.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def describe(self) -> Iterator[Metric]:
        """The families without values."""
        yield from families(Stats, _NAMES)
        yield from _of_durables(())
        yield from Durations().describe()

    def collect(self) -> Iterator[Metric]:
        """The families with current values.

        Raises:
            LocalProtocolError: The bus runs in another thread, and its event loop did not answer within a second.
        """
        stats = self._stats()
        yield from families(Stats, _NAMES, stats)
        yield from _of_durables(stats.durables)
        if (durations := next((one for one in middleware_of(self._bus) if isinstance(one, Durations)), None)) is not None:
            yield from durations.collect()  # only one: a family occurs once in a text

    def _stats(self) -> Stats:
        try:
            return call_in_loop(self._bus, self._bus.stats, _PATIENCE)
        except TimeoutError:
            raise LocalProtocolError(
                f"the event loop of the bus has not answered within {_PATIENCE:g} s: something blocks it; see the warnings of "
                "the logger polybus.handlers"
            ) from None


def _of_durables(durables: Iterable[DurableStats]) -> Iterator[Metric]:
    """Families of durable handlers, labelled with handler and store."""
    texts = help_texts(DurableStats)
    for attribute, name in _OF_DURABLES.items():
        family = GaugeMetricFamily(name, texts.get(attribute, attribute), labels=("durable", "store"))
        for one in durables:
            if (value := getattr(one, attribute)) is not None:
                family.add_metric([one.durable, one.store], value)
        yield family


def collector(bus: Bus) -> BusCollector:
    """Create the collector of a bus: ``REGISTRY.register(collector(bus))``.

    It reads `Bus.stats` on demand, and costs nothing in between; with ``bus.use(Durations())`` it also exports the durations
    of handlers.

    Raises:
        TypeError: `bus` is not a bus.
    """
    check_given(bus, Bus, "bus", "collector(bus)")
    return BusCollector(bus)
