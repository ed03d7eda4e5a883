"""Prometheus metrics for a bus, using ``prometheus-client``.

`collector` exports `Bus.stats` without any cost per message. `Durations` is a middleware that times handlers. `scrape` renders
a ``/metrics`` page for all cluster nodes on this machine.
"""

from __future__ import annotations

import inspect
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import accumulate
from math import inf, isfinite
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from attrs import define, field, fields

if find_spec("prometheus_client") is None:
    raise ImportError("polybus.prometheus needs prometheus-client: pip install 'polybus[prometheus]'")

from prometheus_client import REGISTRY, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.samples import Sample

from . import Bus, CallNext, Context
from .errors import LocalProtocolError
from .integrations import call_in_loop, host_of, is_entered, mesh_of, middleware_of
from .message import Kind, Message
from .outcomes import kind_of, told_code
from .plugins.tools import check_given, shown
from .stats import DurableStats, Stats

if TYPE_CHECKING:
    from .broker.events import BrokerStats

__all__ = ["BusCollector", "Durations", "collector", "scrape"]

_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.M)


def help_texts(kind: type) -> dict[str, str]:
    """Return the attribute descriptions in a class's docstring, or an empty dict if Python runs without docstrings."""
    found = _ATTRIBUTE.findall(inspect.getdoc(kind) or "")
    return {name: re.sub(r"\s+", " ", text) for name, text in found}


def families(
    kind: type, names: Mapping[str, str], snapshots: Sequence[Any] = (), labels: Sequence[str] = ()
) -> Iterator[Metric]:
    """Return a counter (``_total``) or gauge for each named attribute, with the value of each snapshot.

    `labels` are attributes of the snapshots. An attribute without a value, which is None, is left out.
    """
    texts = help_texts(kind)
    for attribute, name in names.items():
        make: Callable[..., Any] = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = make(name, texts.get(attribute, attribute), labels=labels)
        for one in snapshots:
            if (value := getattr(one, attribute)) is not None:
                family.add_metric([getattr(one, label) for label in labels], value)
        yield family


BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_DURATION: Final = "polybus_handler_duration_seconds", "Duration of handlers in seconds, by registered subject."
_OUTCOMES: Final = "polybus_handler_outcomes_total", "Calls of handlers, by the code that the caller received."


@define(eq=False)
class Tally:
    counts: list[int]
    """Number of calls per bucket. The last bucket counts calls that took longer than every bound."""
    seconds: float = 0.0
    outcomes: dict[str, int] = field(factory=dict)


class Durations:
    """Middleware that times handlers and counts their outcomes: ``bus.use(Durations())``

    `collector` then exports ``polybus_handler_duration_seconds`` and ``polybus_handler_outcomes_total``. Both are labelled with
    the kind of call (``request``, ``notify``, ``publish``, ``stream``, ``channel``) and the handler's subject or pattern.
    Bridged messages are labelled with the source of their route. Message subjects are never used as labels, so peers cannot
    create new ones. For streams and channels, the duration covers the whole conversation.

    Args:
        buckets: Upper bounds of the histogram in seconds. A final infinity is optional.

    Raises:
        TypeError: If a bucket is not a number.
        ValueError: If `buckets` is empty, not in ascending order, or has a bound of 0 or less.
    """

    def __init__(self, buckets: Sequence[float] = BUCKETS) -> None:
        try:
            bounds = [bound + 0.0 for bound in buckets]
        except TypeError:
            raise TypeError(f"buckets={shown(buckets)} must be a list of seconds, for example (0.01, 0.1, 1)") from None
        if bounds[-1:] == [inf]:  # implied, but `prometheus_client.Histogram.DEFAULT_BUCKETS` has it
            bounds.pop()
        if not bounds or not all(map(isfinite, bounds)) or bounds != sorted(set(bounds)) or bounds[0] <= 0:
            raise ValueError(
                f"buckets={shown(buckets)} must be one or more ascending numbers above 0, for example (0.01, 0.1, 1)"
            )
        self._bounds = bounds
        self._labels = [*map(str, bounds), "+Inf"]
        self._tallies: dict[tuple[Kind | str, str | int], Tally] = {}
        """Tallies by kind (``stream`` or ``channel`` for `Kind.OPEN`) and registered subject. The number of handlers and routes
        limits their number."""

    async def __call__(self, message: Message, ctx: Context, call_next: CallNext) -> Any:
        kind = message.kind
        key = kind_of(message) if kind is Kind.OPEN else kind, ctx.pattern
        if (tally := self._tallies.get(key)) is None:
            tally = self._tallies[key] = Tally([0] * len(self._labels))
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

    def describe(self) -> Iterator[Metric]:
        """Return the metric families without values."""
        yield HistogramMetricFamily(*_DURATION, labels=("kind", "subject"))
        yield CounterMetricFamily(*_OUTCOMES, labels=("kind", "subject", "code"))

    def collect(self) -> Iterator[Metric]:
        """Return the metric families with current values."""
        durations = HistogramMetricFamily(*_DURATION, labels=("kind", "subject"))
        outcomes = CounterMetricFamily(*_OUTCOMES, labels=("kind", "subject", "code"))
        for (kind, pattern), tally in list(self._tallies.items()):
            labels = [kind.value if isinstance(kind, Kind) else kind, str(pattern)]
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
    "available": "polybus_store_available",
    "pending": "polybus_store_pending",
    "unacknowledged": "polybus_store_unacknowledged",
    "redelivered": "polybus_store_redelivered",
    "dead_letters": "polybus_dead_letters",
}
_DURABLE: Final = ("durable", "store")
_READY: Final = "polybus_ready", "1 if /readyz answers 200, otherwise 0."
_PATIENCE: Final = 1.0
"""Seconds that another thread waits for the bus's event loop."""


class BusCollector:
    """Exports a bus's metrics. Register it with a `prometheus_client.CollectorRegistry`.

    You can collect from any thread, for example the one that `prometheus_client.start_http_server` starts. The values are read
    in the bus's event loop.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def describe(self) -> Iterator[Metric]:
        """Return the metric families without values."""
        yield GaugeMetricFamily(*_READY)
        yield from families(Stats, _NAMES)
        yield from families(DurableStats, _OF_DURABLES, labels=_DURABLE)
        yield from Durations().describe()

    def collect(self) -> Iterator[Metric]:
        """Return the metric families with current values.

        Raises:
            LocalProtocolError: If the bus runs in another thread and its event loop does not respond within a second.
        """
        stats, reason = self._stats()
        yield GaugeMetricFamily(*_READY, value=not reason)
        yield from families(Stats, _NAMES, (stats,))
        yield from families(DurableStats, _OF_DURABLES, stats.durables, _DURABLE)
        if (durations := next((one for one in middleware_of(self._bus) if isinstance(one, Durations)), None)) is not None:
            yield from durations.collect()  # only the first, as a family may occur only once

    def _stats(self) -> tuple[Stats, str]:
        try:
            return call_in_loop(self._bus, lambda: (self._bus.stats(), self._bus.why_not_ready), _PATIENCE)
        except TimeoutError:
            raise LocalProtocolError(
                f"the event loop of the bus has not answered within {_PATIENCE:g} s: something blocks it; see the warnings of "
                "the logger polybus.handlers"
            ) from None


def collector(bus: Bus) -> BusCollector:
    """Create a collector for a bus: ``REGISTRY.register(collector(bus))``

    The collector only reads `Bus.stats` when it is scraped. With ``bus.use(Durations())`` it also exports handler durations.

    Raises:
        TypeError: If `bus` is not a bus.
    """
    check_given(bus, Bus, "bus", "collector(bus)")
    return BusCollector(bus)


# -- the text of a page ------------------------------------------------------------------------------------------------------

_NODE: Final = "node"
_FAMILY: Final = re.compile(r"^# HELP ", re.M)
"""Start of a family. Line breaks in labels and help texts are escaped, so they cannot match."""
_STATES: Final = ("ready", "not ready", "starts", "silent", "ended")
_NODES: Final = "polybus_nodes", "Nodes of the cluster on this machine, by whether they answered."


async def scrape(bus: Bus) -> str:
    """Render the metrics of a bus and of all collectors in `prometheus_client.REGISTRY`.

    In a cluster, the result includes all nodes on this machine. The ``node`` label contains a node's name (host and process). A
    node that does not respond within a second is left out and counted in ``polybus_nodes``. The result is in Prometheus text
    format 0.0.4; its content type is ``text/plain; version=0.0.4``.

    Raises:
        TypeError: If `bus` is not a bus.
        LocalProtocolError: If the bus is in a cluster and runs in another event loop, or if its event loop does not respond
            within a second.
    """
    check_given(bus, Bus, "bus", "scrape(bus)")
    cluster = mesh_of(bus)
    if not is_entered(bus) or cluster is None or cluster.peer is None:
        return node_text(bus, None)
    _ = host_of(bus)  # raises in another event loop
    name, others = await cluster.metrics()
    texts = [node_text(bus, name), *(text for text in others.values() if text is not None)]
    nodes = {"answered": len(texts), "silent": len(others) + 1 - len(texts)}
    return joined([*texts, text_of([_split(GaugeMetricFamily(*_NODES, labels=("state",)), nodes)])])


def node_text(bus: Bus, node: str | None) -> str:
    ours = list(BusCollector(bus).collect())
    known = {family.name for family in ours}
    # The program may have registered a collector of this bus, but a family may occur only once.
    rest = [family for family in REGISTRY.collect() if family.name not in known]
    return text_of(_labelled([*ours, *rest], node))


def _split(family: Any, values: Mapping[str, float]) -> Metric:
    """Add the values of a family by its only label."""
    for label, value in values.items():
        family.add_metric([label], value)
    return cast("Metric", family)


def with_workers(text: str, states: Mapping[str, str], restarts: int) -> str:
    """Add the parent process's metrics: the number of workers by state, and the number of restarts."""
    workers = GaugeMetricFamily("polybus_workers", "Workers of this program, by state.", labels=("state",))
    counts = {state: [*states.values()].count(state) for state in _STATES}
    again = CounterMetricFamily("polybus_worker_restarts_total", "Number of times that a worker was restarted.", restarts)
    return joined([text, text_of([_split(workers, counts), again])])


def broker_text(stats: BrokerStats) -> str:
    """Render a broker's statistics in Prometheus text format 0.0.4, with a metric for each attribute."""
    names = {field.name: f"polybus_broker_{field.name}" for field in fields(type(stats))}
    texts = help_texts(type(stats))
    servers, dropped = "server_clients", "frames_dropped_total"
    clients = GaugeMetricFamily(names.pop(servers), texts.get(servers, servers), labels=("server",))
    frames = CounterMetricFamily(names.pop(dropped), texts.get(dropped, dropped), labels=("reason",))
    split = _split(clients, stats.server_clients), _split(frames, stats.frames_dropped_total)
    return text_of([*families(type(stats), names, (stats,)), *split])


def joined(texts: Iterable[str]) -> str:
    """Merge several metrics texts, grouping the lines of each family under the first help text found."""
    blocks: dict[str, list[str]] = {}
    for text in texts:
        for block in _FAMILY.split(text)[1:]:
            head, kind, lines = [*block.split("\n", 2), "", ""][:3]
            name = head.partition(" ")[0]
            blocks.setdefault(name, [f"# HELP {head}\n{kind}\n"]).append(lines)
    return "".join(line for lines in blocks.values() for line in lines)


def text_of(families: list[Metric]) -> str:
    collecting: Any = SimpleNamespace(collect=lambda: families)
    return generate_latest(collecting).decode()


def _labelled(families: list[Metric], node: str | None) -> list[Metric]:
    if node is None:
        return families
    marked = []
    for family in families:
        copy = Metric(family.name, family.documentation, family.type, family.unit)
        copy.samples = [_marked(sample, node) for sample in family.samples]
        marked.append(copy)
    return marked


def _marked(sample: Sample, node: str) -> Sample:
    labels = {**sample.labels, _NODE: node}
    if _NODE in sample.labels:  # as Prometheus does with a target's label of the same name
        labels[f"exported_{_NODE}"] = sample.labels[_NODE]
    return Sample(sample.name, labels, sample.value, sample.timestamp, sample.exemplar)
