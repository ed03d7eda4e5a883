"""Counters of a broker, their snapshot, and their text for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field, frozen


@define(eq=False)
class BrokerCounters:
    """Counters of a running broker; never reset."""

    to_servers: int = 0
    to_clients: int = 0
    clients_total: int = 0
    servers_total: int = 0
    turned_away: int = 0
    slow_clients: int = 0
    dropped: dict[str, int] = field(factory=dict)

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


@frozen(kw_only=True)
class BrokerStats:
    """A snapshot of a broker: `Broker.stats()`.

    Attributes:
        sockets: Connections of servers.
        servers: Their ids, with the number of clients of each; sockets without an id are together under ``""``.
        clients: Clients that are connected and assigned.
        leaving: Clients whose connections are being closed.
        resting: Numbers that are kept out of use.
        held: Clients that are not read from because their server is slow.
        to_servers: Frames handed on to servers.
        to_clients: Frames handed on to clients.
        clients_total: Clients that have ever been let in.
        servers_total: Sockets of servers that have ever been let in.
        turned_away: Clients that found no server.
        slow_clients: Clients that were closed because they did not read.
        dropped: Frames that went nowhere, by reason: ``truncated``, ``unknown_kind``, ``forbidden_kind``, ``unknown_client``,
            ``not_your_client``, ``late``, ``too_large``, ``refused``.
    """

    sockets: int
    servers: Mapping[str, int]
    clients: int
    leaving: int
    resting: int
    held: int
    to_servers: int
    to_clients: int
    clients_total: int
    servers_total: int
    turned_away: int
    slow_clients: int
    dropped: Mapping[str, int]


_GAUGES = ("sockets", "clients", "leaving", "resting", "held")
_COUNTERS = ("to_servers", "to_clients", "clients_total", "servers_total", "turned_away", "slow_clients")


def prometheus_text(stats: BrokerStats) -> str:
    """The snapshot in the text format of Prometheus, version 0.0.4."""
    lines: list[str] = []
    for kind, names in (("gauge", _GAUGES), ("counter", _COUNTERS)):
        for name in names:
            shown = name if kind == "gauge" or name.endswith("_total") else f"{name}_total"
            lines += [f"# TYPE polybus_broker_{shown} {kind}", f"polybus_broker_{shown} {getattr(stats, name)}"]
    lines.append("# TYPE polybus_broker_server_clients gauge")
    lines += [f'polybus_broker_server_clients{{server="{_label(name)}"}} {count}' for name, count in stats.servers.items()]
    lines.append("# TYPE polybus_broker_dropped_total counter")
    lines += [f'polybus_broker_dropped_total{{reason="{_label(name)}"}} {count}' for name, count in stats.dropped.items()]
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
