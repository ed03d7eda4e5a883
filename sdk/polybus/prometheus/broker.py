"""The text of a broker's ``/metrics``."""

from __future__ import annotations

from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ..broker.events import BrokerStats
from .bus_collector import families, help_texts
from .scraping import text_of

_NAMES: Final = {
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


def broker_text(stats: BrokerStats) -> str:
    """Write what a broker has counted as text, in the format 0.0.4 of Prometheus."""
    texts = help_texts(BrokerStats)
    servers = GaugeMetricFamily("polybus_broker_server_clients", texts.get("servers", "servers"), labels=("server",))
    for server, count in stats.servers.items():
        servers.add_metric([server], count)
    dropped = CounterMetricFamily("polybus_broker_dropped_total", texts.get("dropped", "dropped"), labels=("reason",))
    for reason, count in stats.dropped.items():
        dropped.add_metric([reason], count)
    return text_of([*families(BrokerStats, _NAMES, stats), servers, dropped])
