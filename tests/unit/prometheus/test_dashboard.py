"""The dashboard of `examples/operate`: by the schema of Grafana's own SDK, and by what a scrape really has."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families

from polybus.prometheus import Durations, node_text, with_workers
from polybus.testing import pair
from tests.unit.answering import answering

from .dashboard import dashboard, expressions

pytestmark = pytest.mark.native

PAGE = Path(__file__).parents[3] / "docs/how-to/metrics.md"
ALERTS = PAGE.with_name("operate.md")
NAME = re.compile(r"\b(?:polybus|process)_\w+")


def lost(given: Any, kept: Any, path: str = "") -> list[str]:
    """What of a document is not, or not so, in another one."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [found for key in given for found in lost(given[key], kept.get(key, "nothing"), f"{path}/{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return [found for index, one in enumerate(given) for found in lost(one, kept[index], f"{path}/{index}")]
    return [] if given == kept else [path]


def understood(document: Any) -> Any:
    """The same as Grafana's schema has it: a member that it does not know is not there."""
    return json.loads(JSONEncoder().encode(Dashboard.from_json(document)))


def test_each_member_is_one_that_grafana_knows() -> None:
    assert lost(dashboard(), understood(dashboard())) == []


async def test_each_query_names_metrics_that_a_scrape_has() -> None:
    bus = answering()
    bus.use(Durations())
    async with pair(bus) as client:
        await client.request("echo", 1)
        text = with_workers(node_text(bus, "here:1"), {"worker 1": "ready"}, 0)
    known = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    used = {name for query in expressions(dashboard()) for name in NAME.findall(query)}
    told = set(NAME.findall(PAGE.read_text(encoding="utf-8")))
    assert used - known - told == set()
    assert set(NAME.findall(ALERTS.read_text(encoding="utf-8"))) - known - told == set(), "alerts of metrics that are not there"
    assert {name for name in told if name.startswith("polybus_")} - used - known == set(), "metrics of the page without a panel"
    unused = {name for name in known if name.startswith("polybus_")} - used
    assert unused == {"polybus_handler_duration_seconds_count", "polybus_handler_duration_seconds_sum"}


def test_rates_are_of_counters_and_sums_of_gauges() -> None:
    for query in expressions(dashboard()):
        for name in re.findall(r"(?:rate|increase)\((\w+)", query):
            assert name.endswith(("_total", "_bucket")), query
        for name in re.findall(r"(?:sum|max)(?: (?:by|without) \([^)]*\))? ?\(((?:polybus|process)_\w+)", query):
            assert not name.endswith(("_total", "_bucket")), query
