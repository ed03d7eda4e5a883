"""Text of ``/metrics`` for all nodes of a cluster on this machine, and for a broker."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import define
from prometheus_client import REGISTRY, CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.samples import Sample

from .. import Bus
from ..integrations import host_of, is_entered, mesh_of
from ..plugins.tools import check_given
from .bus_collector import BusCollector, families, help_texts

if TYPE_CHECKING:
    from ..broker.events import BrokerStats

_NODE: Final = "node"
_FAMILY: Final = re.compile(r"^# HELP ", re.M)
"""Start of a family: labels and help texts cannot match, because their line breaks are escaped."""
_STATES: Final = ("ready", "not ready", "starts", "silent", "ended")
_NODES: Final = "polybus_nodes", "Nodes of the cluster on this machine, by whether they are in this text."

_OF_BROKER: Final = {
    "sockets": "polybus_broker_sockets",
    "clients": "polybus_broker_clients",
    "leaving": "polybus_broker_leaving",
    "resting": "polybus_broker_resting",
    "held": "polybus_broker_held",
    "to_servers": "polybus_broker_to_servers_total",
    "to_clients": "polybus_broker_to_clients_total",
    "clients_total": "polybus_broker_clients_accepted_total",
    "servers_total": "polybus_broker_servers_accepted_total",
    "turned_away": "polybus_broker_turned_away_total",
    "slow_clients": "polybus_broker_slow_clients_total",
}


async def scrape(bus: Bus) -> str:
    """Render the metrics of a bus, and of the program's collectors in `prometheus_client.REGISTRY`, as text.

    With a cluster: of all its nodes on this machine, each with its name (host and process) in the label ``node``. A node that
    does not answer within a second is left out, and counted in ``polybus_nodes``.

    The text has Prometheus's format 0.0.4: ``text/plain; version=0.0.4``.

    Raises:
        TypeError: `bus` is not a bus.
        LocalProtocolError: It runs in another event loop.
    """
    check_given(bus, Bus, "bus", "scrape(bus)")
    cluster = mesh_of(bus)
    if not is_entered(bus) or cluster is None or cluster.peer is None:
        return node_text(bus, None)
    _ = host_of(bus)  # raises in another event loop
    name, others = await cluster.metrics()
    texts = [node_text(bus, name), *(text for text in others.values() if text is not None)]
    return joined([*texts, text_of([_nodes(len(texts), len(others) + 1 - len(texts))])])


def node_text(bus: Bus, node: str | None) -> str:
    """Metrics of this process, labelled with the name of the node if there is one."""
    registry = CollectorRegistry()
    registry.register(BusCollector(bus))
    ours = list(registry.collect())
    known = {family.name for family in ours}
    # The program may have registered a collector of this bus, but a family may occur only once.
    rest = [family for family in REGISTRY.collect() if family.name not in known]
    return text_of(_labelled([*ours, *rest], node))


def _nodes(answered: int, silent: int) -> Metric:
    family = GaugeMetricFamily(*_NODES, labels=("state",))
    family.add_metric(["answered"], answered)
    family.add_metric(["silent"], silent)
    return family


def with_workers(text: str, states: Mapping[str, str], restarts: int) -> str:
    """Add the metrics of the parent process: number of workers by state, and number of restarts."""
    workers = GaugeMetricFamily("polybus_workers", "Workers of this program, by state.", labels=("state",))
    for state in _STATES:
        workers.add_metric([state], [*states.values()].count(state))
    again = CounterMetricFamily("polybus_worker_restarts_total", "Workers that were started in place of one that had ended.")
    again.add_metric([], restarts)
    return joined([text, text_of([workers, again])])


def broker_text(stats: BrokerStats) -> str:
    """Render a broker's statistics in Prometheus's format 0.0.4."""
    texts = help_texts(type(stats))
    servers = GaugeMetricFamily("polybus_broker_server_clients", texts.get("servers", "servers"), labels=("server",))
    for server, count in stats.servers.items():
        servers.add_metric([server], count)
    dropped = CounterMetricFamily("polybus_broker_dropped_total", texts.get("dropped", "dropped"), labels=("reason",))
    for reason, count in stats.dropped.items():
        dropped.add_metric([reason], count)
    return text_of([*families(type(stats), _OF_BROKER, stats), servers, dropped])


def joined(texts: Iterable[str]) -> str:
    """Merge texts: the lines of a family stand together, under the help of the first."""
    blocks: dict[str, list[str]] = {}
    for text in texts:
        for block in _FAMILY.split(text)[1:]:
            head, kind, lines = [*block.split("\n", 2), "", ""][:3]
            name = head.partition(" ")[0]
            blocks.setdefault(name, [f"# HELP {head}\n{kind}\n"]).append(lines)
    return "".join(line for lines in blocks.values() for line in lines)


@define
class _Families:
    """Existing families as a collector."""

    _families: list[Metric]

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def text_of(families: list[Metric]) -> str:
    """Render families as text."""
    made: Any = _Families(families)
    return generate_latest(made).decode()


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
