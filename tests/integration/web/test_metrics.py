"""``/metrics`` in an application, which each of its workers answers for all."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.testclient import TestClient

from polybus import Bus
from polybus.fastapi import attach, metrics_endpoint
from tests.integration.processes.test_workers import server_is_there  # noqa: F401  # for all tests here
from tests.support import BOUND

from .test_workers import said, serving

RECEIVED = "polybus_messages_received_total"
APP = """
from fastapi import FastAPI
from polybus.fastapi import attach, metrics_endpoint
from tests.integration.processes.crew import make_bus

app, bus = FastAPI(), make_bus()
attach(app, bus)
app.add_route("/metrics", metrics_endpoint(bus))
"""


@pytest.mark.parametrize(
    ("make", "how"), [(FastAPI, "add_route"), (FastAPI, "get"), (FastAPI, "add_api_route"), (Starlette, "add_route")]
)
def test_an_application_shows_the_metrics_of_its_bus_however_the_endpoint_is_added(make: Any, how: str) -> None:
    app, bus = make(), Bus()
    attach(app, bus)
    if how == "get":
        app.get("/metrics")(metrics_endpoint(bus))
    else:
        getattr(app, how)("/metrics", metrics_endpoint(bus))
    with TestClient(app) as client:
        answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert RECEIVED.removesuffix("_total") in {family.name for family in text_string_to_metric_families(answer.text)}


def test_only_a_bus_has_metrics() -> None:
    with pytest.raises(TypeError, match=r"metrics_endpoint\(bus\)"):
        metrics_endpoint(FastAPI())  # type: ignore[arg-type]


def test_of_several_workers_each_answers_for_all(tmp_path: Path) -> None:
    def nodes(url: str) -> frozenset[str]:
        answer = httpx.get(f"{url}/metrics", timeout=BOUND)
        samples = [one for family in text_string_to_metric_families(answer.text) for one in family.samples]
        return frozenset(one.labels["node"] for one in samples if one.name == RECEIVED)

    with serving(tmp_path, "port=0", app=APP) as process:
        url = said(process)
        seen: list[frozenset[str]] = []
        while len(seen) < 10:  # in a row; a worker may not have heard yet that the other one is there
            found = nodes(url)
            seen = [*seen, found] if len(found) == 2 else []
        assert len({*seen}) == 1
