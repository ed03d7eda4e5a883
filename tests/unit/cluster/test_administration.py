"""Stores and dead letters as those see them who keep a cluster, over the engine in memory and over real servers."""

import math
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from attrs import evolve

from polybus import Bus, Context, Limits, LocalProtocolError, Store, connect
from polybus.body import JSON
from polybus.cluster.durable.administration import Administration
from polybus.cluster.durable.dead_letters import DeadLetter
from polybus.message import Kind, Message
from polybus.plugins.extensions import core_of
from tests.support import BOUND, eventually
from tests.unit.answering import noting, publish_each
from tests.unit.cluster.handlers import failing

from .test_durable import SOON, WORK, all_done, jetstream, node, state


async def letters(administration: Administration, durable: str = "") -> list[Any]:
    return [letter async for letter in administration.letters(durable)]


async def until_letters(administration: Administration, count: int = 1) -> list[Any]:
    with anyio.fail_after(BOUND):
        while len(found := await letters(administration)) < count:
            await anyio.lowlevel.checkpoint()
    return found


async def test_names_are_found_however_many_an_engine_gives_at_once(engine: Any, name: str) -> None:
    async with node(engine, WORK, name=name) as bus:
        stream, asking = f"{name}-work", jetstream(bus)
        names = {f"C{number}" for number in range(1100)}

        async def add(some: list[str]) -> None:
            for one in some:
                config = {"durable_name": one, "ack_policy": "explicit", "mem_storage": True}
                await asking.ask(f"CONSUMER.DURABLE.CREATE.{stream}.{one}", {"stream_name": stream, "config": config})

        async with anyio.create_task_group() as tasks:
            for place in range(20):
                tasks.start_soon(add, sorted(names)[place::20])
        assert {*await asking.consumers(stream)} == names


async def test_dead_letters_are_listed_tried_again_and_dropped(engine: Any, name: str) -> None:
    bus = node(engine, WORK, name=name)
    handled, repaired = list[tuple[str, int, Any]](), False

    @bus.on("work.hard", durable="billing", retry=SOON)
    async def bill(number: int, ctx: Context) -> None:
        if not repaired:
            raise ValueError("no bank")
        handled.append(("billing", ctx.attempt, ctx.message.id))

    @bus.on("work.>", durable="mail", retry=SOON)
    async def mail(number: int) -> None:
        if not repaired:
            raise OSError("no post")
        handled.append(("mail", number, ""))

    heard = noting(bus, "work.hard")
    async with bus:
        administration = Administration.of(bus)
        assert await letters(administration) == []
        for number in range(2):
            await bus.publish("work.hard", number, headers={"x-shop": "7"}, id=f"id{number}")
        found = await until_letters(administration, 4)
        assert sorted({(one.durable, one.subject, one.attempts, one.body, one.headers["x-shop"]) for one in found}) == [
            (durable, "work.hard", 3, str(number).encode(), "7") for durable in ("billing", "mail") for number in (0, 1)
        ]
        deaths = {"billing": "bill failed: ValueError: no bank", "mail": "mail failed: OSError: no post"}
        assert all(one.death.endswith(deaths[one.durable]) for one in found)
        assert all(len(one.error_id) == 8 and one.origin.startswith(f"{name}-work ") for one in found)
        assert [one.durable for one in await letters(administration, "billing")] == ["billing", "billing"]
        assert await administration.counts() == {"billing": 2, "mail": 2}
        assert await administration.counts("mail") == {"mail": 2}
        await administration.check("billing")
        with pytest.raises(LocalProtocolError, match="has no durable handler 'biling': did you mean 'billing'"):
            await administration.check("biling")
        with pytest.raises(LocalProtocolError, match="has no durable handler 'audit'; it has 'billing', 'mail'"):
            await administration.check("audit")
        repaired = True
        first = next(one for one in found if one.durable == "billing" and one.body == b"0")
        assert await administration.letter(first.number) == first
        await administration.retry(first)
        await eventually(lambda: handled)
        await all_done(bus, f"{name}-work", "mail")
        assert (handled, heard) == ([("billing", 1, "id0")], [0, 1])  # under the id that its handler saw first
        await administration.retry(first)  # as after a crash before it was removed: it is stored once
        await all_done(bus, f"{name}-work", "billing")
        assert len(handled) == 1
        with pytest.raises(LocalProtocolError, match=f"has no dead letter {first.number}"):
            await administration.letter(first.number)
        for letter in await letters(administration):
            await administration.drop(letter)
        assert await letters(administration) == []


async def test_stores_are_listed_shown_made_and_removed(engine: Any, name: str) -> None:
    bus = node(engine, WORK, name=name)
    bus.on("work.done", durable="billing")(lambda number: None)
    async with bus:
        administration = Administration.of(bus)
        await bus.publish("work.done", 1)
        await bus.publish("work.other", 1)
        await all_done(bus, f"{name}-work", "billing")
        await administration.add(Store("more", "more.*", "others.>", max_age=3600))
        found = await administration.stores()
        assert [(one.name, one.patterns, one.publications) for one in found] == [
            ("dead", (f"{name}.dead.>",), 0),
            ("more", ("more.*", "others.>"), 0),
            ("work", ("work.>",), 2),
        ]
        assert (await administration.store("work")).durables == {"billing": (0, 0)}
        with pytest.raises(LocalProtocolError, match=f"the cluster '{name}' has no store 'none'"):
            await administration.store("none")
        await administration.remove("more")
        with pytest.raises(LocalProtocolError, match="has no store 'more'"):
            await administration.remove("more")
        assert [one.name for one in await administration.stores()] == ["dead", "work"]


async def test_a_bus_alone_has_no_stores_to_look_at() -> None:
    async with Bus() as bus:
        with pytest.raises(LocalProtocolError, match="a bus without a cluster has no stores"):
            Administration.of(bus)


async def test_the_store_of_another_cluster_that_is_called_alike_is_not_shown_and_not_removed(engine: Any) -> None:
    other = node(engine, Store("orders", "orders.>"), name="shop-eu")
    async with other, node(engine, name="shop") as bus:
        administration = Administration.of(bus)
        for act in (administration.store, administration.remove):
            with pytest.raises(LocalProtocolError, match="the stream 'shop-eu-orders' belongs to another cluster"):
                await act("eu-orders")
            with pytest.raises(LocalProtocolError, match="the name is not valid"):
                await act("a b")
        assert (await Administration.of(other).store("orders")).name == "orders"
        with pytest.raises(LocalProtocolError, match="instead of the dead letters shop-eu.dead.>"):
            async with node(engine, Store("eu-dead", "dead.>"), name="shop"):
                worker = node(engine, name="shop-eu")
                worker.on("orders.>", durable="billing")(lambda body: None)
                async with worker:
                    raise AssertionError


async def test_what_is_no_dead_letter_is_listed_and_dropped_like_one(engine: Any, name: str) -> None:
    bus = node(engine, WORK, name=name)
    failing(bus, "work.hard")
    async with bus, connect(engine.url) as foreign:
        await foreign.publish(f"{name}.dead.billing.%iabc", 1)  # a number that is none
        await bus.publish("work.hard", 7)
        administration = Administration.of(bus)
        [fault] = [letter for letter in await until_letters(administration, 2) if letter.fault]
        with pytest.raises(LocalProtocolError, match="or unreadable"):
            await administration.retry(fault)
        await administration.drop(fault)
        assert [letter.body for letter in await letters(administration) if letter.attempts] == [b"7"]


async def test_a_publication_that_bears_the_words_of_a_letter_leads_to_nothing_of_others(engine: Any, name: str) -> None:
    bus, body = node(engine, WORK, name=name), b'"mine"'
    failing(bus, "work.hard")
    async with bus, connect(engine.url) as foreign:
        await foreign.publish(f"{name}.dead.billing", "of somebody else")
        (server,) = foreign.peers
        sham = {"Polybus-Whole": "1", "polybus-left-out": "body", "Polybus-Attempts": "many", "x-shop": "7"}
        message = Message(Kind.PUBLISH, f"{name}.p.work.hard", None, body, JSON, sham)
        core_of(server).link.publish(message, core_of(server), math.inf)
        administration = Administration.of(bus)
        (letter,) = await until_letters(administration)
        assert (letter.whole, letter.left_out, letter.attempts, letter.body) == (0, "", 1, body)
        assert letter.headers == {"x-shop": "7"}
        await administration.drop(letter)
        assert (await state(bus, f"{name}-dead"))["messages"] == 1


async def test_letters_that_come_while_they_are_listed_are_for_the_next_time(engine: Any, name: str) -> None:
    bus = node(engine, WORK, name=name)
    failing(bus, "work.hard")
    async with bus:
        administration = Administration.of(bus)
        await publish_each(bus, "work.hard", [b"", b""])
        await until_letters(administration, 2)
        with anyio.fail_after(20):
            tried = []
            async with aclosing(administration.letters()) as found:
                async for letter in found:
                    tried.append(letter.number)
                    await administration.retry(letter)
                    while (await state(bus, f"{name}-dead"))["last_seq"] < 2 + len(tried):  # it dies again
                        await anyio.lowlevel.checkpoint()
        assert tried == [1, 2]
        assert [one.octets for one in await letters(administration)] == [True, True]  # still bytes, though empty


async def test_a_letter_is_not_stored_again_for_a_handler_that_is_gone(engine: Any, name: str) -> None:
    bus = node(engine, WORK, name=name)
    failing(bus, "work.hard")
    async with bus:
        administration = Administration.of(bus)
        await bus.publish("work.hard", 1)
        [letter] = await until_letters(administration)
        for durable, subject in (("gone", "work.hard"), ("billing", "work.easy")):
            with pytest.raises(LocalProtocolError, match=f"no durable handler '{durable}' for '{subject}'"):
                await administration.retry(evolve(letter, durable=durable, subject=subject))
        with pytest.raises(LocalProtocolError, match="dead letter 1: there is no store for 'elsewhere' any more"):
            await administration.retry(evolve(letter, subject="elsewhere"))
        assert await letters(administration) == [letter]


async def test_a_publication_that_is_gone_from_its_place_cannot_be_tried_again(engine: Any, name: str) -> None:
    bus = node(engine, WORK, name=name)
    bus.on("work.x", durable="billing")(lambda body: None)
    async with bus:
        letter = DeadLetter(7, "", "billing", "work.x", 1, "", "", f"{name}-work 99", {}, b"", octets=True, left_out="body")
        with pytest.raises(
            LocalProtocolError, match=f"has no body, and the publication is no longer stored at '{name}-work 99'"
        ):
            await Administration.of(bus).retry(letter)
        await bus.publish("work.other", 1)
        with pytest.raises(LocalProtocolError, match=f"is no longer stored at '{name}-work 1'"):
            await Administration.of(bus).retry(evolve(letter, origin=f"{name}-work 1"))


async def test_what_a_worker_cannot_read_dies_with_its_body_and_is_kept_whole(engine: Any, name: str) -> None:
    bus = node(engine, Store("work", "work.>", work=True), name=name, limits=Limits(headers=64 << 10))
    small, large = node(engine, name=name), node(engine, name=name, limits=Limits(headers=64 << 10))
    handled: list[tuple[int, Any, Any]] = []

    async def bill(number: int, ctx: Context) -> None:
        handled.append((number, ctx.message.id, (ctx.message.headers or {}).get("x")))

    for worker in (small, large):
        worker.on("work.*", durable="billing")(bill)
    long = "7" * 20_000
    async with bus:
        administration = Administration.of(bus)
        async with small:
            await bus.publish("work.hard", 1, headers={"x": long, "y": "8"}, id="order-1")
            [letter] = await until_letters(administration)
            await all_done(bus, f"{name}-work", "billing")
        assert (letter.body, letter.headers, letter.left_out, letter.id) == (b"1", {"y": "8"}, "headers", "order-1")
        assert "cannot be read" in letter.death
        with pytest.raises(LocalProtocolError, match="has no dead letter 1"):
            await administration.letter(letter.whole)
        assert (await administration.store("work")).publications == 0
        async with large:
            await administration.retry(letter)
            await eventually(lambda: handled)
        assert (await administration.store("dead")).publications == 0
    assert handled == [(1, "order-1", long)]
