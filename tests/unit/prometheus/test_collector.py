"""The collector of a bus, read by the library's own parser."""

import random
import string
import threading
from collections.abc import AsyncIterator
from math import inf
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from attrs import fields
from prometheus_client import CollectorRegistry, Histogram, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from polybus import Bus, Channel, LocalProtocolError, NotFound, RequestError
from polybus.prometheus import Durations, collector, help_texts
from polybus.stats import DurableStats, Stats
from polybus.testing import pair
from tests.support import eventually
from tests.unit.answering import answering

pytestmark = pytest.mark.native

BY_SUBJECT = "polybus_handler_duration_seconds"
OUTCOMES = "polybus_handler_outcomes"


def registry_of(bus: Bus) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector(bus))
    return registry


def families_of(bus: Bus) -> dict[str, Metric]:
    text = generate_latest(registry_of(bus)).decode()
    found = list(text_string_to_metric_families(text))
    assert len({family.name for family in found}) == len(found)
    return {family.name: family for family in found}


def value(bus: Bus, name: str, **labels: str) -> float | None:
    return registry_of(bus).get_sample_value(name, labels)


def test_each_count_of_the_stats_is_a_metric_with_the_text_of_its_docstring() -> None:
    bus = Bus()
    found = families_of(bus)
    counted, of_durables = help_texts(Stats), help_texts(DurableStats)
    assert set(counted) == {field.name for field in fields(Stats)}
    assert set(of_durables) == {field.name for field in fields(DurableStats)}
    labels = {counted.pop("durables"), of_durables.pop("durable"), of_durables.pop("store")}
    texts = {**counted, **{f"durable {name}": text for name, text in of_durables.items()}}
    assert labels.isdisjoint(texts.values())
    documentation = [family.documentation for family in found.values()]
    assert [text for text in texts.values() if text not in documentation] == []
    gauges = {name for name, family in found.items() if family.type == "gauge"}
    names = (
        *("ready", "links", "peers", "requests_pending", "requests_running", "requests_waiting", "messages_queued"),
        *("publications_unread", "store_available", "store_pending", "store_unacknowledged", "store_redelivered"),
        "dead_letters",
    )
    assert gauges == {f"polybus_{name}" for name in names}
    counters = [sample.name for family in found.values() if family.type == "counter" for sample in family.samples]
    assert counters
    assert all(name.endswith("_total") for name in counters)


async def test_a_scrape_shows_what_the_bus_has_counted_and_no_times_unless_the_bus_is_told_to() -> None:
    bus = answering()

    @bus.handle("fail")
    async def fail(body: Any) -> None:
        raise ZeroDivisionError

    async with pair(bus) as client:
        for _ in range(3):
            await client.request("echo", [1, 2])
        with pytest.raises(RequestError):
            await client.request("fail")
        stats = bus.stats()
        assert value(bus, "polybus_messages_received_total") == stats.received > 3
        assert value(bus, "polybus_messages_sent_total") == stats.sent > 3
        assert value(bus, "polybus_handlers_failed_total") == 1
        assert value(bus, "polybus_peers") == 1
    assert value(bus, "polybus_peers") == 0
    assert not any(BY_SUBJECT in name for name in families_of(bus))


def counts_of(bus: Bus) -> dict[tuple[str, str], float]:
    """Calls of handlers that have ended, by kind and subject."""
    samples = families_of(bus)[BY_SUBJECT].samples
    return {(s.labels["kind"], s.labels["subject"]): s.value for s in samples if s.name.endswith("_count")}


def timed_bus() -> Bus:
    bus = Bus()
    bus.use(Durations((0.5, 60)))

    @bus.handle("async")
    async def an_async_one(body: Any) -> int:
        return 1

    @bus.handle("thread")
    def one_in_a_thread(body: Any) -> int:
        return 1

    @bus.handle("inline", inline=True)
    def an_inline_one(body: Any) -> int:
        return 1

    @bus.handle("stream")
    async def a_stream(body: Any) -> AsyncIterator[int]:
        yield 1
        yield 2

    @bus.handle("channel")
    async def a_channel(channel: Channel[int, int]) -> None:
        async for number in channel:
            await channel.send(number)

    @bus.on("news.{day}")
    async def on_news(day: str, body: Any) -> None:
        if body == "bad":
            raise ZeroDivisionError

    @bus.handle("refuse")
    async def refuse(body: str) -> None:
        if body == "not found":
            raise NotFound("nowhere")
        if body == "in a group":
            raise ExceptionGroup("of a task group", [NotFound("nowhere")])
        if body == "of another":
            await bus.peers[0].request("nothing")
        raise ZeroDivisionError

    @bus.handle("endless")
    async def endless(body: Any) -> AsyncIterator[int]:
        while True:
            yield 1

    return bus


async def test_each_style_of_handler_is_timed_under_its_registered_subject() -> None:
    bus = timed_bus()
    async with pair(bus) as client:
        for subject in ("async", "thread", "inline"):
            await client.request(subject, 1)
        await client.notify("async", 1)
        async with client.stream("stream", 1) as items:
            assert [item async for item in items] == [1, 2]
        async with client.channel("channel") as channel:
            await channel.send(1)
            assert await anext(channel) == 1
            await channel.send_eof()
            assert [item async for item in channel] == []
        await client.publish("news.monday", "good")
        once = [
            ("request", "thread"),
            ("request", "inline"),
            ("stream", "stream"),
            ("channel", "channel"),
            ("publish", "news.{day}"),
        ]
        expected = {**dict.fromkeys(once, 1), ("request", "async"): 2}  # UBRE has no notifications: they come as requests
        await eventually(lambda: counts_of(bus) == expected)
        for kind, subject in expected:
            assert value(bus, f"{BY_SUBJECT}_bucket", kind=kind, subject=subject, le="+Inf") == expected[kind, subject]
            assert value(bus, f"{BY_SUBJECT}_bucket", kind=kind, subject=subject, le="60.0") == expected[kind, subject]
            seconds = value(bus, f"{BY_SUBJECT}_sum", kind=kind, subject=subject)
            assert seconds is not None
            assert 0 < seconds < 60


async def test_of_one_subject_requests_and_notifications_are_told_apart() -> None:
    bus = Bus()
    bus.use(Durations())
    done = 0

    @bus.handle("x")
    async def x() -> None:
        nonlocal done
        done += 1

    async with pair(bus, protocol="jrep") as client:
        for _ in range(2):
            await client.request("x")
            await client.notify("x")
            await client.request("x")
        await eventually(lambda: done == 6)
    assert counts_of(bus) == {("request", "x"): 4, ("notify", "x"): 2}


async def test_outcomes_are_counted_by_the_code_that_the_asker_is_told() -> None:
    bus = timed_bus()
    async with pair(bus) as client:
        await client.request("async", 1)
        told = []
        for body in ("not found", "in a group", "of another", "other", 5):
            with pytest.raises(RequestError) as caught:
                await client.request("refuse", body)
            told.append(caught.value.code.name)
        assert told == ["NOT_FOUND", "NOT_FOUND", "INTERNAL", "INTERNAL", "INVALID_ARGUMENT"]
        await client.publish("news.monday", "bad")
        await eventually(lambda: bus.stats().failed == 3)
        async with client.stream("endless", 1) as items:
            await anext(items)
        await eventually(lambda: counts_of(bus).get(("stream", "endless")))
    found = {(s.labels["subject"], s.labels["code"]): s.value for s in families_of(bus)[OUTCOMES].samples}
    assert (found["async", "OK"], found["endless", "CANCELLED"], found["news.{day}", "INTERNAL"]) == (1, 1, 1)
    assert (found["refuse", "NOT_FOUND"], found["refuse", "INTERNAL"]) == (2, 2)
    assert found["refuse", "INVALID_ARGUMENT"] == 1  # what does not fit never reaches the function


async def test_random_subjects_make_no_more_series() -> None:
    bus = timed_bus()
    chance = random.Random(19)
    async with pair(bus) as client:
        await client.publish("news.monday", "good")
        await eventually(lambda: value(bus, f"{BY_SUBJECT}_count", kind="publish", subject="news.{day}") == 1)
        before = sum(len(family.samples) for family in families_of(bus).values())
        for _ in range(300):
            word = "".join(chance.choices(string.ascii_letters, k=12))
            await client.publish(f"news.{word}", "good")
            with pytest.raises(RequestError):
                await client.request(f"{word}.get", 1)
        await eventually(lambda: value(bus, f"{BY_SUBJECT}_count", kind="publish", subject="news.{day}") == 301)
        assert sum(len(family.samples) for family in families_of(bus).values()) == before


@pytest.mark.parametrize("buckets", [(), (1, 1), (2, 1), (float("nan"),), (inf,), (inf, inf), (1, inf, 2), (0, 1), (-1, 1)])
def test_buckets_that_do_not_rise_are_refused(buckets: Any) -> None:
    with pytest.raises(ValueError, match="ascending"):
        Durations(buckets)


@pytest.mark.parametrize("buckets", [["fast"], "123"])
def test_buckets_are_numbers(buckets: Any) -> None:
    with pytest.raises(TypeError, match="seconds, for example"):
        Durations(buckets)


def buckets_of(bus: Bus) -> list[Any]:
    text = generate_latest(registry_of(bus)).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return [sample for sample in samples if sample.name == "polybus_handler_duration_seconds_bucket"]


@pytest.mark.parametrize("buckets", [Histogram.DEFAULT_BUCKETS, (0.1, inf)])
async def test_buckets_may_end_as_those_of_prometheus_do_and_of_several_durations_the_first_is_shown(buckets: Any) -> None:
    bus = answering()
    bus.use(Durations(buckets))
    bus.use(Durations((2, 3)))
    async with pair(bus) as client:
        await client.request("echo")
    assert [sample.labels["le"] for sample in buckets_of(bus)][-2:] == [str(buckets[-2]), "+Inf"]
    assert len(buckets_of(bus)) == len(buckets)


async def test_another_thread_may_ask_while_the_bus_runs() -> None:
    bus = timed_bus()
    async with pair(bus) as client:
        await client.request("async", 1)
        text = await anyio.to_thread.run_sync(lambda: generate_latest(registry_of(bus)).decode())
    assert "polybus_peers 1.0" in text


async def test_another_thread_is_told_when_the_event_loop_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.prometheus._PATIENCE", 0.02)
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            list(collector(bus).collect())
        except BaseException as error:
            failures.append(error)

    bus = Bus()
    async with bus:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(10)  # in the event loop
    assert isinstance(failures[0], LocalProtocolError)
    assert "something blocks it" in str(failures[0])


def test_no_bus_is_an_error_at_once() -> None:
    with pytest.raises(TypeError, match=r"bus=None must be Bus, not NoneType; for example collector\(bus\)"):
        collector(None)  # type: ignore[arg-type]
