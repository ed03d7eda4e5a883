"""The dashboard of `examples/operate`: by the schema of Grafana's own SDK, and by what a scrape really has."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families

from polybus.prometheus import Durations, node_text, with_workers
from polybus.testing import pair
from tests.unit.answering import answering

from .dashboard import dashboard, expressions, panels_of

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


def test_panels_do_not_overlap_and_stay_within_the_page() -> None:
    places = {panel["id"]: panel["gridPos"] for panel in panels_of(dashboard())}
    assert len(places) == len(panels_of(dashboard())) > 15
    assert all(0 <= place["x"] and place["x"] + place["w"] <= 24 and place["h"] > 0 for place in places.values())
    for one, other in combinations(places.values(), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


def test_each_panel_says_what_it_shows() -> None:
    shown = [panel for panel in panels_of(dashboard()) if panel["type"] != "row"]
    assert all(panel["title"] and panel["description"].endswith(".") for panel in shown)
    assert len({panel["title"] for panel in shown}) == len(shown)


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
