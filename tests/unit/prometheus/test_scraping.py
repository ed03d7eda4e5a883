"""One text for all nodes of a cluster on this machine, read by the library's own parser."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client import REGISTRY, Counter, Metric
from prometheus_client.parser import text_string_to_metric_families

from polybus import Bus
from polybus.cluster.backbone import Backbone
from polybus.prometheus import Durations, collector, joined, node_text, scrape, text_of, with_workers
from polybus.testing import NatsEngine, cluster
from polybus.testing.nats_engine import met
from tests.loops import virtual_time  # noqa: F401

pytestmark = pytest.mark.native

RECEIVED = "polybus_messages_received_total"


@pytest.fixture
async def engine() -> AsyncIterator[NatsEngine]:
    async with NatsEngine() as engine:
        yield engine


def read(text: str) -> dict[str, Metric]:
    """The families of a text, in which each stands once, and no series twice."""
    found = list(text_string_to_metric_families(text))
    assert len({family.name for family in found}) == len(found)
    series = [(sample.name, tuple(sorted(sample.labels.items()))) for family in found for sample in family.samples]
    assert len(set(series)) == len(series)
    return {family.name: family for family in found}


def by_label(text: str, name: str, label: str) -> dict[str | None, float]:
    samples = [sample for family in read(text).values() for sample in family.samples if sample.name == name]
    return {sample.labels.get(label): sample.value for sample in samples}


@contextmanager
def counted(name: str) -> Iterator[Counter]:
    """A counter of the program's own."""
    counter = Counter(name, "Orders.", ["node"])
    try:
        yield counter
    finally:
        REGISTRY.unregister(counter)


async def test_a_bus_that_is_alone_has_no_label_of_a_node() -> None:
    for bus in (Bus(), Bus(cluster="auto")):
        assert by_label(await scrape(bus), RECEIVED, "node") == {None: 0}
        async with bus:
            assert by_label(await scrape(bus), RECEIVED, "node") == {None: 0}


async def test_metrics_of_the_program_are_in_the_text_too_and_its_own_collector_of_the_bus_is_not_there_twice() -> None:
    bus = Bus()
    ours = collector(bus)
    REGISTRY.register(ours)
    try:
        with counted("orders") as orders:
            orders.labels("kitchen").inc(3)
            assert by_label(await scrape(bus), "orders_total", "node") == {"kitchen": 3}
            found = read(node_text(bus, "here:1"))["orders"].samples
            total = next(sample for sample in found if sample.name == "orders_total")
            assert total.labels == {"node": "here:1", "exported_node": "kitchen"}
    finally:
        REGISTRY.unregister(ours)


async def test_one_scrape_answers_for_all_nodes(engine: NatsEngine) -> None:
    buses = [Bus(cluster=engine.url) for _ in range(3)]
    for number, bus in enumerate(buses):
        bus.use(Durations())

        @bus.handle(f"who.{number}")
        async def who(body: None) -> int:
            return 1

    async with cluster(*buses, url=engine.url):
        assert await buses[0].request("who.2") == 1
        for bus in buses:
            text = await scrape(bus)
            received = by_label(text, RECEIVED, "node")
            assert len(received) == 3
            assert all(name is not None and re.fullmatch(r".+:\d+( #[23])?", name) for name in received)
            assert by_label(text, "polybus_nodes", "state") == {"answered": 3, "silent": 0}
            handled = read(text)["polybus_handler_outcomes"].samples
            assert [(sample.labels["subject"], sample.value) for sample in handled] == [("who.2", 1)]


async def test_nodes_of_other_machines_are_not_asked(engine: NatsEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Bus(cluster=engine.url), Bus(cluster=engine.url)
    with monkeypatch.context() as patch:
        patch.setattr("platform.node", lambda: "elsewhere")
        await there.__aenter__()
    try:
        async with here:
            await met(here, there)
            assert len(by_label(await scrape(here), RECEIVED, "node")) == 1
    finally:
        await there.__aexit__(None, None, None)


async def test_a_node_that_is_silent_for_a_second_is_left_out(engine: NatsEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = (Bus(cluster=engine.url) for _ in range(3))
    async with cluster(one, two, three, url=engine.url):
        answer = Backbone.answer
        silent: Any = lambda self, *given: None if self._parts.services.bus is two else answer(self, *given)  # noqa: E731
        monkeypatch.setattr(Backbone, "answer", silent)
        text = await scrape(one)
        assert len(by_label(text, RECEIVED, "node")) == 2
        assert by_label(text, "polybus_nodes", "state") == {"answered": 2, "silent": 1}


async def test_a_node_whose_metrics_cannot_be_made_costs_no_link(engine: NatsEngine, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        raise ZeroDivisionError("a collector of the application's own")

    one, two = Bus(cluster=engine.url), Bus(cluster=engine.url)
    async with cluster(one, two, url=engine.url):
        real, two.stats = two.stats, broken  # type: ignore[method-assign]
        text = await scrape(one)
        assert by_label(text, "polybus_nodes", "state") == {"answered": 1, "silent": 1}
        two.stats = real  # type: ignore[method-assign]
        assert by_label(await scrape(one), "polybus_nodes", "state") == {"answered": 2, "silent": 0}
        assert (await one.nodes()).complete
    assert "cannot be sent to another one: a collector of the application's own" in caplog.text


@pytest.mark.parametrize("answer", [b"no zlib", {"a": 1}, 7, None, b"", b"x\x9c\x03"])
async def test_an_answer_without_text_is_left_out(engine: NatsEngine, monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    monkeypatch.setattr("zlib.compress", lambda *_: answer)
    one, two = Bus(cluster=engine.url), Bus(cluster=engine.url)
    async with cluster(one, two, url=engine.url):
        assert len(by_label(await scrape(one), RECEIVED, "node")) == 1


async def test_a_scrape_belongs_to_the_event_loop_of_its_bus() -> None:
    with pytest.raises(TypeError, match=r"scrape\(bus\)"):
        await scrape("bus")  # type: ignore[arg-type]


def test_texts_are_joined_family_by_family() -> None:
    first = '# HELP a A.\n# TYPE a gauge\na{n="1"} 1\n# HELP b B.\n# TYPE b gauge\nb 1\n'
    second = '# HELP a Another.\n# TYPE a gauge\na{n="2"} 2\n# HELP c C.\n# TYPE c gauge\n'
    assert joined([first, second, "", "no text of metrics"]) == (
        '# HELP a A.\n# TYPE a gauge\na{n="1"} 1\na{n="2"} 2\n# HELP b B.\n# TYPE b gauge\nb 1\n# HELP c C.\n# TYPE c gauge\n'
    )


def test_texts_are_joined_whatever_stands_in_their_labels() -> None:
    odd = Counter("odd", "As in # HELP odd.", ["of"], registry=None)
    odd.labels("# HELP odd_total x\n# HELP y\r\u2028# HELP z").inc()
    text = text_of(list(odd.collect()))
    families = {family.name: family for family in text_string_to_metric_families(joined([text, text]))}
    assert [sample.value for sample in families["odd"].samples if sample.name == "odd_total"] == [1, 1]
    assert families["odd"].documentation == "As in # HELP odd."


def test_the_process_that_starts_workers_adds_their_states_and_its_restarts() -> None:
    text = with_workers("", {"worker 1": "ready", "worker 2": "ready", "worker 3": "silent"}, 5)
    states = by_label(text, "polybus_workers", "state")
    assert states == {"ready": 2, "not ready": 0, "starts": 0, "silent": 1, "ended": 0}
    assert by_label(text, "polybus_worker_restarts_total", "state") == {None: 5}
