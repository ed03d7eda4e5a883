"""Stores and durable handlers where they cannot be: each is one clear error."""

import re
from datetime import timedelta
from typing import Any

import pytest

from polybus import Backoff, Bus, Cluster, LocalProtocolError, Retry, Store
from polybus.cluster.durable.administration import Administration
from polybus.testing import NatsEngine
from tests.refusal import refused

WORK = Store("work", "work.>")


async def bill(number: int) -> None: ...


async def test_an_engine_that_keeps_nothing_says_what_to_start() -> None:
    async with NatsEngine(keeps=False) as engine:
        text = "is not enabled in the cluster's NATS server: start it with nats-server -js -sd FOLDER"
        await refused(Bus(cluster=Cluster(engine.url, stores=[WORK])), LocalProtocolError, match=text)


async def test_durable_handlers_need_a_cluster_and_are_registered_before_entering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYBUS_CLUSTER", raising=False)
    alone, named = Bus(), Bus(cluster="auto")
    for bus in (alone, named):
        bus.on("work.>", durable="billing")(bill)
    for bus in (Bus(cluster=Cluster(stores=[WORK])), named):
        await refused(bus, LocalProtocolError, match=r"none is configured: set POLYBUS_CLUSTER")
    text = r"bill: durable='billing' requires the engine of a cluster.*Bus\(cluster='auto'\)"
    await refused(alone, LocalProtocolError, match=text)
    async with Bus() as bus:
        with pytest.raises(LocalProtocolError, match="bill: register durable='billing' before you enter the bus"):
            bus.on("work.>", durable="billing")(bill)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"durable": 7}, TypeError, "durable=7 must be str, not int; for example durable='billing'"),
        ({"durable": "a.b"}, ValueError, "durable='a.b' must have 1 to 100 letters, digits, '-' and '_'"),
        ({"durable": "b", "group": "g"}, ValueError, "workers with the same durable= already share the work; leave out group="),
        ({"durable": "b", "retry": 3}, TypeError, "retry=3 must be Retry, not int; for example retry=Retry(attempts=5"),
        ({"durable": "b", "ack_wait": 0}, ValueError, "ack_wait=0 must be from 1 to 86400 seconds"),
        ({"durable": "b", "ordered": True, "concurrency": 2}, ValueError, "ordered=True handles one publication at a time"),
        ({"durable": "b", "start": "old"}, ValueError, "start='old' must be 'all', 'new', a timedelta, or the number"),
        ({"durable": "b", "start": 0}, ValueError, "start=0 must be at least 1"),
        ({"durable": "b", "start": timedelta()}, ValueError, "must be longer than 0"),
        ({"durable": "b", "start": 1 << 63}, ValueError, "start=9223372036854775808 must be at most 9223372036854775807"),
        ({"durable": "b", "start": timedelta(days=900_000)}, ValueError, "less than 290 years"),
        ({"durable": "b", "queue": 5}, ValueError, "queue=5 has no effect with durable='b': concurrency= limits how many"),
        ({"durable": "b", "when_full": "block"}, ValueError, "when_full='block' has no effect with durable='b'"),
        ({"durable": "b", "retry": Retry(idempotent=True)}, ValueError, "Retry(idempotent=True) has no effect with durable='b"),
        ({"durable": "b", "retry": Retry(codes=[])}, ValueError, "Retry(codes=...) has no effect with durable='b'"),
        ({"durable": "b", "concurrency": 20_001}, ValueError, "concurrency=20001 must be at most 20000 with durable="),
        ({"durable": "b", "retry": Retry(backoff=1e11)}, ValueError, "backoff=100000000000.0 must be less than 290 years"),
        ({"durable": "b", "retry": Retry(backoff=Backoff(maximum=1e99))}, ValueError, "backoff=1e+99 must be less than 290"),
        ({"retry": Retry()}, ValueError, "requires durable=, for example durable='billing'"),
        ({"ordered": True}, ValueError, "ordered=True requires durable="),
    ],
)
def test_what_a_durable_handler_cannot_be_is_said_at_once(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        Bus(cluster="auto").on("work.>", **options)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Store("a b", "a.>"), ValueError, "the store name 'a b' must have 1 to 100 letters, digits, '-' and '_'"),
        (lambda: Store("dead", "a.>"), ValueError, "this name is reserved for dead letters"),
        (lambda: Store("a"), ValueError, "Store('a'): pass a pattern to store, for example Store('a', 'a.>')"),
        (lambda: Store("a", "a..b"), LocalProtocolError, "pattern 'a..b' has an empty token"),
        (lambda: Store("a", "a.>", max_age=0), ValueError, "max_age=0 must be more than 0 and less than"),
        (lambda: Store("a", "a.>", max_bytes=0), ValueError, "max_bytes=0 must be at least 1"),
        (lambda: Store("a", "a.>", max_age=0.01), ValueError, "max_age=0.01 must be at least 0.1 seconds"),
        (lambda: Store("a", "a.>", replicas=0), ValueError, "replicas=0 must be at least 1"),
        (lambda: Store("a", "a.>", replicas=6), ValueError, "replicas=6 must be at most 5"),
        (lambda: Store("a", "a.>", "a.b"), ValueError, "Store('a'): 'a.>' and 'a.b' have subjects in common"),
        (lambda: Store("a", "a.{x}.b", "*.c.b"), ValueError, "Store('a'): 'a.{x}.b' and '*.c.b' have subjects in common"),
        (lambda: Store("a", 7, 7), ValueError, "Store('a'): 7 and 7 have subjects in common"),
        (lambda: Store("a", "/vehicle/1/2/*"), ValueError, "a pattern of URIs would store all of them: pass each URI in full"),
        (
            lambda: Cluster(stores=[WORK, Store("more", "b", "work.x")]),
            ValueError,
            "stores 'work' and 'more': 'work.>' and 'work",
        ),
        (lambda: Cluster(remember=-1), ValueError, "remember"),
        (lambda: Store("a", "a.>", dedup=0), ValueError, "dedup=0 must be more than 0 and less than"),
        (lambda: Cluster(stores=WORK), TypeError, "must be a list of stores, for example stores=[Store('orders', 'orders.>')]"),
        (lambda: Cluster(stores=["work"]), TypeError, "stores='work' must be Store, not str"),
        (lambda: Cluster(stores=[WORK, WORK]), ValueError, "one Store for each name"),
    ],
)
def test_what_a_store_cannot_be_is_said_where_it_is_made(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        make()


def test_what_does_not_overlap_may_be_in_one_store_and_in_several() -> None:
    stores = [Store("a", "a.*.b", "a.b", "c", 7, 8), Store("b", "a.x.c", "b.>", "/vehicle/1/2/3", "/vehicle/1/2/4")]
    assert Cluster(stores=stores).stores == tuple(stores)


async def test_two_functions_of_one_durable_name_are_named_before_the_engine_makes_anything() -> None:
    async with NatsEngine() as engine:
        bus = Bus(cluster=Cluster(engine.url, stores=[WORK]))
        for function in (bill, lambda number: None):
            bus.on("work.x", durable="billing")(function)
        text = r"durable='billing' is the name of two handlers, bill and .*<lambda>, so publications would be split"
        await refused(bus, LocalProtocolError, match=text)
        async with Bus(cluster=engine.url) as other:
            assert await Administration.of(other).stores() == []
