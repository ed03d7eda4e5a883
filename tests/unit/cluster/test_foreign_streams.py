"""Streams of others over a link to their NATS network: read by durable handlers, subscriptions and replays; published to.

The tests over real servers are these, too: `integration/interop/test_foreign_streams.py`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import (
    AmbiguousRoute,
    Bus,
    Context,
    Disconnected,
    LocalProtocolError,
    NoHandler,
    Peer,
    QueueFull,
    Retry,
    Unsupported,
    connect,
)
from polybus.cluster.durable import delivery
from polybus.cluster.durable.foreign import letters_of
from polybus.events import DeadLettered
from polybus.plugins.extensions import party_of
from polybus.testing import NatsEngine
from tests.refusal import refused
from tests.support import BOUND, bounded, eventually
from tests.unit.cluster.handlers import failing, noting

pytestmark = pytest.mark.anyio

SOON = Retry(attempts=3, backoff=(0.01, 0.02))


@asynccontextmanager
async def owner(engine: Any, name: str, **config: Any) -> AsyncIterator[Peer]:
    """A link of the owners of a stream, which they have made."""
    async with Bus().connect(engine.url) as link:
        made = {"name": name.upper(), "subjects": [f"{name}.>"], "retention": "limits", "storage": "file", **config}
        await ask(link, f"STREAM.CREATE.{name.upper()}", made)
        yield link


async def ask(link: Peer, word: str, members: dict[str, Any] | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = await link.request(f"$JS.API.{word}", members, timeout=20)
    assert "error" not in answer, answer
    return answer


async def consumer(link: Peer, name: str, durable: str) -> dict[str, Any]:
    return await ask(link, f"CONSUMER.INFO.{name.upper()}.{durable}")


async def all_done(link: Peer, name: str, durable: str) -> None:
    with anyio.fail_after(20):
        while True:
            found = await consumer(link, name, durable)
            if (found["num_ack_pending"], found["num_pending"]) == (0, 0):
                return


async def messages(link: Peer, name: str) -> int:
    state: dict[str, Any] = (await ask(link, f"STREAM.INFO.{name.upper()}"))["state"]
    return int(state["messages"])


# -- handlers --------------------------------------------------------------------------------------------------------------


@bounded
async def test_a_durable_handler_reads_a_stream_of_others_from_its_beginning(engine: Any, name: str) -> None:
    handled: list[tuple[str, Any, int, str]] = []
    bus = Bus()

    @bus.on(f"{name}.{{kind}}", durable="billing")
    async def bill(order: dict[str, int], kind: str, context: Context) -> None:
        assert context.peer is bus.peers[0]
        handled.append((kind, order, context.attempt, str(context.message.id)))

    async with owner(engine, name) as theirs:
        await theirs.publish(f"{name}.placed", {"n": 1}, headers={"x-shop": "7"})
        async with connect(engine.url, bus=bus):
            await theirs.publish(f"{name}.paid", {"n": 2}, id="two")
            await all_done(theirs, name, "billing")
        assert await messages(theirs, name) == 2
    assert handled == [("placed", {"n": 1}, 1, f"{name.upper()}.1"), ("paid", {"n": 2}, 1, "two")]


@bounded
async def test_what_no_attempt_can_deal_with_is_ended_and_told_and_stays_in_their_stream(
    engine: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[tuple[int, int]] = []
    bus = Bus()

    @bus.on(f"{name}.*", durable="billing", retry=SOON)
    async def bill(number: int, context: Context) -> None:
        attempts.append((number, context.attempt))
        raise RuntimeError("the bank does not answer")

    caplog.set_level(logging.ERROR)
    async with owner(engine, name) as theirs, connect(engine.url, bus=bus):
        events = bus.events()
        await theirs.publish(f"{name}.placed", 1, id="one")
        await theirs.publish(f"{name}.placed", "no number", id="two")
        told = [event async for event in _first(events, 2)]
        await all_done(theirs, name, "billing")
        assert await messages(theirs, name) == 2
    assert sorted(attempts) == [(1, 1), (1, 2), (1, 3)]
    misfit, failed = sorted(event.reason for event in told)
    assert misfit.startswith("durable billing: it does not fit")
    assert failed.endswith("bill failed: RuntimeError: the bank does not answer")
    assert f"without dead_letters= no letter is kept: it was 1 of {name.upper()}" in caplog.text
    assert f"without dead_letters= no letter is kept: it was 2 of {name.upper()}" in caplog.text


@bounded
async def test_a_dead_letter_is_kept_where_a_stream_for_them_is_named(engine: Any, name: str) -> None:
    bus = Bus()
    failing(bus, f"{name}.*")

    url = f"{engine.url}?dead_letters=dead.{name}"
    async with owner(engine, name) as theirs:
        await refused(
            connect(url, bus=bus), LocalProtocolError, match=f"dead_letters='dead.{name}': no stream of this NATS network keeps"
        )
        members = {"name": f"DEAD{name}", "subjects": [f"dead.{name}.>"], "retention": "limits", "storage": "file"}
        await ask(theirs, f"STREAM.CREATE.DEAD{name}", members)
        await theirs.publish(f"{name}.placed", 7, id="seven", headers={"x-shop": "7"})
        async with (
            connect(url, bus=bus),
            theirs.subscribe(f"dead.{name}.>", start="all") as letters,
        ):
            letter = await letters.receive(timeout=20)
            await all_done(theirs, name, "billing")
        assert (letter.subject, letter.body) == (f"dead.{name}.billing.{name}.placed", 7)
        headers = dict(letter.headers or {})
        assert "bill failed: RuntimeError" in headers["Polybus-Death"]
        known = {key: headers[key] for key in ("Polybus-Origin", "Polybus-Attempts", "Polybus-Id", "x-shop")}
        assert known == {
            "Polybus-Origin": f"{name.upper()} 1",
            "Polybus-Attempts": "1",
            "Polybus-Id": "seven",
            "x-shop": "7",
        }
        async with Bus().connect(url) as link:
            await refused(
                link.subscribe("dead.>", durable="audit"),
                LocalProtocolError,
                match="a failed dead letter would cause another one",
            )


@bounded
async def test_letters_in_a_stream_of_others_are_looked_at_tried_again_and_dropped(engine: Any, name: str) -> None:
    bus, broken = Bus(), [True]
    handled: list[tuple[str, int, str]] = []

    @bus.on(f"{name}.*", durable="billing", retry=Retry(attempts=1))
    async def bill(number: int, context: Context) -> None:
        if broken[0]:
            raise RuntimeError("the bank does not answer")
        handled.append(("billing", number, str(context.message.id)))

    @bus.on(f"{name}.*", durable="shipping")
    async def ship(number: int) -> None:
        handled.append(("shipping", number, ""))

    @bus.on(f"{name}.*")
    async def hear(number: int) -> None:
        handled.append(("hear", number, ""))

    url = f"{engine.url}?dead_letters=dead.{name}"
    members = {"name": f"DEAD{name}", "subjects": [f"dead.{name}.>", f"else.{name}"], "retention": "limits", "storage": "file"}
    async with owner(engine, name) as theirs:
        await ask(theirs, f"STREAM.CREATE.DEAD{name}", members)
        await theirs.publish(f"else.{name}", 0, id="0")
        async with connect(url, bus=bus), connect(url) as looks:
            events = bus.events()
            for number in (1, 2):
                await theirs.publish(f"{name}.placed", number, id=f"order-{number}", headers={"x-shop": "7"})
            async for _ in _first(events, 2):
                pass
            letters = await letters_of(looks)
            found = [letter async for letter in letters.letters()]
            assert [(one.durable, one.subject, one.body, one.headers) for one in found] == [
                ("billing", f"{name}.placed", body, {"x-shop": "7"}) for body in (b"1", b"2")
            ]
            assert "bill failed: RuntimeError" in found[0].death
            with pytest.raises(LocalProtocolError, match=f"the stream 'DEAD{name}' has no dead letter 1"):
                await letters.letter(1)  # it is another message of that stream
            broken[0] = False
            await letters.retry(found[0])
            await letters.drop(found[1])
            await eventually(lambda: ("billing", 1, "order-1") in handled)
            await theirs.publish(f"{name}.placed", 3, id="order-3")
            await eventually(lambda: {("shipping", 3, ""), ("hear", 3, "")} <= {*handled})
            await all_done(theirs, name, "shipping")
            assert [letter async for letter in letters.letters()] == []
            assert await messages(theirs, name) == 4
    assert sorted(one for one in handled if one[0] != "billing") == [
        (who, number, "") for who in ("hear", "shipping") for number in (1, 2, 3)
    ]


@bounded
async def test_a_dead_letter_that_had_no_room_tells_why_it_is_one_when_it_has(
    engine: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "_AGAIN", 0.01)
    bus = Bus()
    failing(bus, f"{name}.*")

    members = {"name": f"DEAD{name}", "subjects": [f"dead.{name}.>"], "retention": "limits", "storage": "file"}
    async with owner(engine, name) as theirs:
        await ask(theirs, f"STREAM.CREATE.DEAD{name}", {**members, "max_msgs": 1, "discard": "new"})
        await theirs.publish(f"dead.{name}.other", 1, id="1")
        await theirs.publish(f"{name}.placed", 7, id="seven")
        async with connect(f"{engine.url}?dead_letters=dead.{name}", bus=bus):
            await eventually(lambda: caplog.text.count("the letter cannot be stored, so the publication is redelivered") > 1)
            await ask(theirs, f"STREAM.DELETE.DEAD{name}")
            await ask(theirs, f"STREAM.CREATE.DEAD{name}", members)
            async with theirs.subscribe(f"dead.{name}.>", start="all") as letters:
                headers = dict((await letters.receive(timeout=20)).headers or {})
    assert "bill failed: RuntimeError" in headers["Polybus-Death"]
    assert headers["Polybus-Error-Id"] in caplog.text


async def _first(events: Any, count: int) -> AsyncIterator[DeadLettered]:
    async for event in events:
        if isinstance(event, DeadLettered):
            yield event
            count -= 1
            if not count:
                return


@bounded
async def test_of_a_link_that_is_left_alone_the_handlers_end_and_the_bus_goes_on(engine: Any, name: str) -> None:
    bus = Bus()
    handled = noting(bus, f"{name}.>", durable="billing")

    async with owner(engine, name) as theirs, connect(engine.url, bus=bus), bus.serve(f"ubre+memory://{name}"):
        await theirs.publish(f"{name}.placed", 0, id="0")
        await all_done(theirs, name, "billing")
        link = bus.peers[0]
        await link.aclose()
        await eventually(lambda: not bus.peers)
        await theirs.publish(f"{name}.placed", 1, id="1")
        async with bus.connect(engine.url):  # the handler is read for by another link
            await all_done(theirs, name, "billing")
    assert handled == [0, 1]


@bounded
async def test_handlers_begin_when_the_lifespan_that_has_opened_their_link_is_ready(engine: Any, name: str) -> None:
    handled: list[Any] = []

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[str]:
        async with bus.connect(engine.url):
            async with owner(engine, f"{name}x") as other:
                await other.publish(f"{name}x.placed", 1, id="1")
            yield "the database"

    bus = Bus(lifespan=lifespan)

    @bus.on(f"{name}.>", durable="billing")
    async def bill(number: int) -> None:
        handled.append(bus.state)

    async with owner(engine, name) as theirs:
        await theirs.publish(f"{name}.placed", 1, id="1")
        async with bus:
            await all_done(theirs, name, "billing")
    assert handled == ["the database"]


# -- subscriptions ---------------------------------------------------------------------------------------------------------


@bounded
async def test_a_durable_subscription_settles_each_publication_of_a_stream(engine: Any, name: str) -> None:
    read: list[tuple[Any, int | None]] = []
    async with owner(engine, name) as theirs, Bus().connect(engine.url) as link:
        for number in range(3):
            await theirs.publish(f"{name}.placed", number, id=str(number))
        async with link.subscribe(f"{name}.>", durable="audit", returns=int, queue=3) as orders:
            for _ in range(4):
                message = await orders.receive(timeout=20)
                read.append((message.body, message.attempt))
                if message.body == 1 and message.attempt == 1:
                    message.retry(delay=0.01)
                elif message.body == 2:
                    message.reject("it is unknown")
                else:
                    message.ack()
        await all_done(theirs, name, "audit")
    assert read == [(0, 1), (1, 1), (2, 1), (1, 2)]


@bounded
async def test_a_replay_reads_a_stream_and_leaves_nothing_there(engine: Any, name: str) -> None:
    async with owner(engine, name) as theirs, connect(engine.url) as bus:
        for number in range(3):
            await theirs.publish(f"{name}.placed", number, id=str(number))
        async with bus.subscribe(f"{name}.>", start=2) as orders:
            assert [(await orders.receive(timeout=20)).body for _ in range(2)] == [1, 2]
            await theirs.publish(f"{name}.placed", 3, id="3")
            message = await orders.receive(timeout=20)
            assert message.body == 3
            with pytest.raises(LocalProtocolError, match="is only read"):
                message.ack()
        with anyio.fail_after(20):
            while (await ask(theirs, f"CONSUMER.NAMES.{name.upper()}")).get("consumers"):
                pass


@bounded
async def test_a_subscription_at_a_stream_ends_with_its_link(engine: Any, name: str) -> None:
    bus = Bus()
    async with owner(engine, name), bus, bus.serve(f"ubre+memory://{name}"):
        async with bus.connect(engine.url) as link:
            pass
        async with bus.connect(engine.url) as link, link.subscribe(f"{name}.>", start="all") as orders:
            await link.aclose()
            with pytest.raises(Disconnected):
                await orders.receive(timeout=20)
        await refused(link.subscribe(f"{name}.>", durable="audit"), Disconnected)


# -- publications ------------------------------------------------------------------------------------------------------------


@bounded
async def test_a_publication_with_an_id_is_stored_once_when_it_returns(engine: Any, name: str) -> None:
    bus = Bus()
    heard = noting(bus, f"{name}.*")

    async with owner(engine, name) as theirs, connect(engine.url, bus=bus):
        for number in (1, 2):
            await bus.publish(f"{name}.placed", 7, id="seven", headers={"x-shop": "7"})
            assert await messages(theirs, name) == 1
            await eventually(lambda: len(heard) == number)  # noqa: B023  # waited for here
        stored = await ask(theirs, f"STREAM.MSG.GET.{name.upper()}", {"seq": 1})
        assert stored["message"]["subject"] == f"{name}.placed"
        assert heard == [7, 7]
        with pytest.raises(LocalProtocolError, match="already has id='seven' for"):
            await bus.publish(f"{name}.paid", 7, id="seven")


@bounded
async def test_a_stream_that_takes_no_more_says_whose_limit_that_is(engine: Any, name: str) -> None:
    members = {"name": f"FULL{name}", "subjects": [f"full.{name}"], "retention": "limits", "storage": "file"}
    async with owner(engine, name) as theirs:
        await ask(theirs, f"STREAM.CREATE.FULL{name}", {**members, "max_msgs": 1, "discard": "new"})
        await theirs.publish(f"full.{name}", 1, id="1")
        with pytest.raises(QueueFull, match="the stream has reached a limit set by its owner, or its server"):
            await theirs.publish(f"full.{name}", 2, id="2")


@bounded
async def test_an_id_without_a_stream_is_one_clear_error(engine: Any, name: str) -> None:
    page, bus = Bus(), Bus()
    async with (
        owner(engine, name) as theirs,
        bus.serve(f"ubre+memory://{name}"),
        connect(f"ubre+memory://{name}", bus=page) as to_bus,
    ):
        with pytest.raises(LocalProtocolError, match=r"'nobody' is not stored: no stream of this NATS network keeps it"):
            await theirs.publish("nobody", 1, id="1", timeout=2 * BOUND)  # said at once, as the server knows
        with pytest.raises(LocalProtocolError, match=r"the header 'Nats-TTL' is an instruction for the engine"):
            await theirs.publish(f"{name}.placed", 1, id="1", headers={"Nats-TTL": "1"})
        with pytest.raises(LocalProtocolError, match=r"only a store uses an id"):
            await to_bus.publish("news", 1, id="1")
        with pytest.raises(Unsupported, match="7 is a number"):
            await theirs.publish(7, 1, id="1", timeout=20)
        (peer,) = bus.peers
        with pytest.raises(Unsupported, match="a link of ubre has no stores"):
            await peer.publish("news", 1, id="1")
        await refused(peer.subscribe("news", durable="audit"), Unsupported, match="a link of ubre has no stores")


# -- mistakes ----------------------------------------------------------------------------------------------------------------


@bounded
async def test_a_pattern_that_no_stream_keeps_is_one_clear_error(engine: Any, name: str) -> None:
    bus = Bus()
    bus.on("elsewhere.>", durable="billing")(lambda number: None)

    async with owner(engine, name, subjects=[f"{name}.placed.*"]) as theirs:
        text = r"stored publications of 'elsewhere.>': no store keeps it. Ask the owner for a stream with that subject"
        await refused(connect(engine.url, bus=bus), LocalProtocolError, match=text)
        await refused(theirs.subscribe("elsewhere.>", start="all"), LocalProtocolError, match=text)
        await refused(
            theirs.subscribe(f"{name}.>", durable="audit"),
            LocalProtocolError,
            match=f"the store {name.upper()} keeps only a part of it",
        )


@bounded
async def test_a_consumer_of_theirs_that_differs_is_named_with_what_differs_and_stays_as_it_is(engine: Any, name: str) -> None:
    bus = Bus()
    bus.on(f"{name}.>", durable="billing")(lambda number: None)
    made = {"durable_name": "billing", "ack_policy": "explicit", "ack_wait": 5_000_000_000, "filter_subject": f"{name}.>"}
    async with owner(engine, name) as theirs:
        await ask(theirs, f"CONSUMER.DURABLE.CREATE.{name.upper()}.billing", {"stream_name": name.upper(), "config": made})
        await refused(
            connect(engine.url, bus=bus), LocalProtocolError, match="exists already and has another ack_wait: 5 s, not 30 s"
        )
        assert (await consumer(theirs, name, "billing"))["config"]["ack_wait"] == made["ack_wait"]


@bounded
async def test_two_links_are_told_apart_by_what_they_serve(engine: Any, name: str) -> None:
    bus = Bus()
    async with (
        owner(engine, name) as theirs,
        NatsEngine() as elsewhere,
        bus.connect(elsewhere.url),
        bus.connect(engine.url, serves=[f"{name}.>"]),
    ):
        for wants in (bus.subscribe("other.>", durable="audit"), bus.subscribe("other.>", start="all")):
            await refused(
                wants, AmbiguousRoute, match=r"several links could have a stream of 'other.>' .*: connect with serves="
            )
        with pytest.raises(AmbiguousRoute):
            await bus.publish("other.placed", 1, id="1")
        async with bus.subscribe(f"{name}.>", start="all") as orders:
            await bus.publish(f"{name}.placed", 1, id="1")
            assert (await orders.receive(timeout=20)).body == 1
            assert await messages(theirs, name) == 1


@bounded
async def test_a_handler_is_read_for_by_the_link_that_serves_its_pattern(
    engine: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()
    handled = noting(bus, f"{name}.>", durable="billing")

    async with owner(engine, name) as theirs:
        await theirs.publish(f"{name}.placed", 1, id="1")
        async with connect(engine.url, bus=bus, serves=["other.>"]):
            assert f"no link reads its durable publications yet: {engine.url} has serves=" in caplog.text
            assert not handled
            async with bus.connect(engine.url, serves=[f"{name}.>"]):
                await all_done(theirs, name, "billing")
    assert handled == [1]


@bounded
async def test_one_durable_name_has_a_handler_at_each_of_two_links(engine: Any, name: str) -> None:
    handled = set[str]()
    bus = Bus()

    @bus.on(f"{name}.>", durable="billing")
    async def bill(number: int) -> None:
        handled.add("bill")

    @bus.on(f"more{name}.>", durable="billing")
    async def bill_more(number: int) -> None:
        handled.add("bill_more")

    async with owner(engine, name) as theirs, NatsEngine() as elsewhere, owner(elsewhere, f"more{name}") as others:
        await theirs.publish(f"{name}.placed", 1, id="1")
        await others.publish(f"more{name}.placed", 1, id="1")
        async with (
            connect(engine.url, bus=bus, serves=[f"{name}.>"]),
            bus.connect(elsewhere.url, serves=[f"more{name}.>"]),
        ):
            await all_done(theirs, name, "billing")
            await all_done(others, f"more{name}", "billing")
    assert handled == {"bill", "bill_more"}


@bounded
async def test_a_stream_for_a_part_of_the_dead_letters_is_refused(engine: Any, name: str) -> None:
    bus = Bus()
    bus.on(f"{name}.placed", durable="billing")(lambda number: None)

    async with owner(engine, name, subjects=[f"{name}.placed", f"{name}.dead.audit.>"]):
        await refused(
            connect(f"{engine.url}?dead_letters={name}.dead", bus=bus),
            LocalProtocolError,
            match=rf"dead_letters='{name}.dead': no stream .* keeps all of '{name}.dead.>'",
        )


@bounded
async def test_of_a_link_that_is_gone_nothing_is_kept(engine: Any, name: str) -> None:
    async with Bus() as bus, owner(engine, name):
        async with bus.connect(engine.url) as gone:
            pass
        for _ in range(2):
            await refused(gone.subscribe(f"{name}.>", start="all"), Disconnected)
            assert party_of(gone).link.reader is None


async def test_a_server_that_keeps_nothing_says_so() -> None:
    bus = Bus()
    bus.on("orders.>", durable="billing")(lambda number: None)

    async with NatsEngine(keeps=False) as engine:
        await refused(
            connect(engine.url, bus=bus),
            LocalProtocolError,
            match=r"this NATS server has no JetStream for this user: durable=, start= and id= need it",
        )
        async with connect(engine.url) as link:
            with pytest.raises(NoHandler):
                await link.request("orders.placed", 1)


async def test_a_pattern_without_a_form_on_this_wire_is_refused(engine: Any, name: str) -> None:
    async with owner(engine, name) as theirs:
        wrong: list[tuple[Any, type[Exception]]] = [
            (7, Unsupported),
            ("/4210/*/8000", Unsupported),
            ("a b", LocalProtocolError),
        ]
        for pattern, error in wrong:
            await refused(theirs.subscribe(pattern, durable="audit"), error)
