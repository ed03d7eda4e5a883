"""What operators see of durable handlers: backlog, attempts and dead letters, in stats and metrics; in virtual time."""

import anyio
import pytest
from attrs import astuple
from prometheus_client import CollectorRegistry

from polybus import Bus, Cluster, Retry, Store
from polybus.cluster.durable.readers import PACE
from polybus.prometheus import collector
from polybus.testing import NatsEngine
from tests.loops import virtual_asyncio  # noqa: F401
from tests.unit.cluster.handlers import failing
from tests.unit.opentelemetry.spans import Traces

WORK = Store("work", "work.>")


def samples(bus: Bus) -> dict[tuple[str, str], float]:
    registry = CollectorRegistry()
    registry.register(collector(bus))
    found = (sample for family in registry.collect() for sample in family.samples)
    return {(one.name, one.labels["durable"]): one.value for one in found if "durable" in one.labels}


async def test_a_bus_shows_backlog_attempts_and_dead_letters_of_each_durable_handler(engine: NatsEngine) -> None:
    bus, held = Bus(cluster=Cluster(engine.url, stores=[WORK])), anyio.Event()

    @bus.on("work.x.*", durable="billing", retry=Retry(attempts=2, backoff=3600), concurrency=2)
    async def bill(number: int) -> None:
        if number < 2:
            raise ValueError(number)
        await held.wait()

    @bus.on("work.>", durable="audit", retry=Retry(attempts=1))
    async def audit(number: int) -> None:
        if number > 2:
            raise ValueError(number)

    async with bus:
        assert bus.stats().durables == ()
        for number in range(6):
            await bus.publish(f"work.x.{number}", number)
        await anyio.sleep(PACE + 1)
        found = {one.durable: astuple(one)[2:] for one in bus.stats().durables}
        # available, pending, unacknowledged, redelivered, dead letters
        assert found == {"billing": (True, 2, 4, 0, 0), "audit": (True, 0, 0, 0, 3)}
        assert samples(bus) == {
            ("polybus_store_available", "billing"): 1,
            ("polybus_store_available", "audit"): 1,
            ("polybus_store_pending", "billing"): 2,
            ("polybus_store_unacknowledged", "billing"): 4,
            ("polybus_store_redelivered", "billing"): 0,
            ("polybus_dead_letters", "billing"): 0,
            ("polybus_store_pending", "audit"): 0,
            ("polybus_store_unacknowledged", "audit"): 0,
            ("polybus_store_redelivered", "audit"): 0,
            ("polybus_dead_letters", "audit"): 3,
        }
        await engine.cut()
        await anyio.sleep(0.01)
        away = {("polybus_store_available", "billing"): 0, ("polybus_store_available", "audit"): 0}
        assert samples(bus) == away, "nothing is shown that may be old"
        await anyio.sleep(2 * PACE)
        assert [one.available for one in bus.stats().durables] == [True, True]
        held.set()
    assert bus.stats().durables == ()


async def test_opentelemetry_has_the_same_figures(engine: NatsEngine) -> None:
    traces = Traces()
    bus = traces.bus(cluster=Cluster(engine.url, stores=[WORK]))
    failing(bus, "work.>")
    async with bus:
        await bus.publish("work.x", 1)
        assert traces.gauges() == {}
        await anyio.sleep(PACE + 1)
        assert traces.gauges() == {
            "polybus.store.available": {"billing": 1},
            "polybus.store.pending": {"billing": 0},
            "polybus.store.unacknowledged": {"billing": 0},
            "polybus.store.redelivered": {"billing": 0},
            "polybus.dead_letters": {"billing": 1},
        }


async def test_what_comes_again_is_counted_and_a_subscription_that_is_durable_too(engine: NatsEngine) -> None:
    async with Bus(cluster=Cluster(engine.url, stores=[WORK])) as bus:
        await bus.publish("work.x", 1)
        async with bus.subscribe("work.>", durable="reader", returns=int) as works:
            (await works.receive(5)).retry(delay=0)
            message = await works.receive(5)
            await anyio.sleep(PACE + 1)
            (found,) = bus.stats().durables
            assert (found.durable, found.pending, found.unacknowledged, found.redelivered) == ("reader", 0, 1, 1)
            message.ack()
        await anyio.sleep(PACE + 1)
        assert bus.stats().durables == ()


async def test_letters_of_too_many_subjects_are_not_counted(engine: NatsEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.cluster.durable.dead_letters._SUBJECTS", 2)
    bus = Bus(cluster=Cluster(engine.url, stores=[WORK]))
    failing(bus, "work.>")
    async with bus:
        for number in range(3):
            await bus.publish(f"work.{number}", number)
        await anyio.sleep(PACE + 1)
        (found,) = bus.stats().durables
        assert (found.pending, found.dead_letters) == (0, None)
        assert ("polybus_dead_letters", "billing") not in samples(bus)
