"""Streams of others over a link to their NATS network: read by durable handlers, subscriptions and replays; published to.

The tests over real servers are these, too: `integration/interop/test_foreign_streams.py`.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from polybus import Bus, Context, Peer, Retry, connect
from polybus.cluster.durable.foreign import letters_of
from polybus.errors import AmbiguousRoute, Disconnected, LocalProtocolError, Unsupported
from polybus.events import DeadLettered
from polybus.plugins.extensions import core_of
from polybus.testing import NatsEngine
from tests.refusal import refused
from tests.support import BOUND, eventually, next_event
from tests.unit.answering import noting
from tests.unit.cluster.handlers import failing

SOON = Retry(attempts=3, backoff=(0.01, 0.02))


@asynccontextmanager
async def owner(engine: Any, name: str, **config: Any) -> AsyncIterator[Peer]:
    """A link of the owners of a stream, which they have made."""
    async with Bus().connect(engine.url) as link:
        made = {"name": name.upper(), "subjects": [f"{name}.>"], "retention": "limits", "storage": "file", **config}
        await ask(link, f"STREAM.CREATE.{name.upper()}", made)
        yield link


def for_letters(name: str) -> dict[str, Any]:
    return {"name": f"DEAD{name}", "subjects": [f"dead.{name}.>"], "retention": "limits", "storage": "file"}


async def ask(link: Peer, word: str, members: dict[str, Any] | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = await link.request(f"$JS.API.{word}", members, timeout=20)
    assert "error" not in answer, answer
    return answer


async def all_done(link: Peer, name: str, durable: str) -> None:
    async def done() -> bool:
        found = await ask(link, f"CONSUMER.INFO.{name.upper()}.{durable}")
        begun = found["delivered"]["consumer_seq"] > 0  # a server counts what is pending a little after it is stored
        return begun and (found["num_ack_pending"], found["num_pending"]) == (0, 0)

    await eventually(done)


async def messages(link: Peer, name: str) -> int:
    state: dict[str, Any] = (await ask(link, f"STREAM.INFO.{name.upper()}"))["state"]
    return int(state["messages"])


# -- handlers --------------------------------------------------------------------------------------------------------------


async def test_a_durable_handler_reads_a_stream_of_others_from_its_beginning(engine: Any, name: str) -> None:
    handled, bus = list[tuple[str, Any, int, str]](), Bus()

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


async def publish(link: Peer, name: str, *bodies: Any, **options: Any) -> None:
    """Publish to a stream under ids that are the bodies."""
    for body in bodies:
        await link.publish(f"{name}.placed", body, id=str(body), **options)


async def test_what_no_attempt_can_handle_stays_in_their_stream(
    engine: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    attempts, bus = list[tuple[int, int]](), Bus()

    @bus.on(f"{name}.*", durable="billing", retry=SOON)
    async def bill(number: int, context: Context) -> None:
        attempts.append((number, context.attempt))
        raise RuntimeError("the bank does not answer")

    caplog.set_level(logging.ERROR)
    async with owner(engine, name) as theirs, connect(engine.url, bus=bus):
        events = bus.events()
        await publish(theirs, name, 1, "no number")
        told = [await next_event(events, DeadLettered) for _ in range(2)]
        await all_done(theirs, name, "billing")
        assert await messages(theirs, name) == 2
    assert sorted(attempts) == [(1, 1), (1, 2), (1, 3)]
    misfit, failed = sorted(event.reason for event in told)
    assert misfit.startswith("durable billing: invalid body for")
    assert failed.endswith("bill failed: RuntimeError: the bank does not answer")
    assert f"without dead_letters= no letter is stored: it was 1 of {name.upper()}" in caplog.text
    assert f"without dead_letters= no letter is stored: it was 2 of {name.upper()}" in caplog.text


async def test_a_dead_letter_is_kept_where_a_stream_for_them_is_named(engine: Any, name: str) -> None:
    bus, url = Bus(), f"{engine.url}?dead_letters=dead.{name}"
    failing(bus, f"{name}.*")
    async with owner(engine, name) as theirs:
        text = f"dead_letters='dead.{name}': no stream of this NATS network stores"
        await refused(connect(url, bus=bus), LocalProtocolError, match=text)
        await ask(theirs, f"STREAM.CREATE.DEAD{name}", for_letters(name))
        await theirs.publish(f"{name}.placed", 7, id="seven", headers={"x-shop": "7"})
        async with connect(url, bus=bus), theirs.subscribe(f"dead.{name}.>", start="all") as letters:
            letter = await letters.receive(timeout=20)
            await all_done(theirs, name, "billing")
        assert (letter.subject, letter.body) == (f"dead.{name}.billing.{name}.placed", 7)
        headers = dict(letter.headers or {})
        assert "bill failed: RuntimeError" in headers["Polybus-Death"]
        known = {key: headers[key] for key in ("Polybus-Origin", "Polybus-Attempts", "Polybus-Id", "x-shop")}
        assert known == {"Polybus-Origin": f"{name.upper()} 1", "Polybus-Attempts": "1", "Polybus-Id": "seven", "x-shop": "7"}
        async with Bus().connect(url) as link:
            text = "a failed dead letter would cause another one"
            await refused(link.subscribe("dead.>", durable="audit"), LocalProtocolError, match=text)


async def test_letters_in_a_stream_of_others_are_looked_at_tried_again_and_dropped(engine: Any, name: str) -> None:
    bus, broken, url = Bus(), [True], f"{engine.url}?dead_letters=dead.{name}"
    billed: list[tuple[int, str]] = []

    @bus.on(f"{name}.*", durable="billing", retry=Retry(attempts=1))
    async def bill(number: int, context: Context) -> None:
        if broken[0]:
            raise RuntimeError("the bank does not answer")
        billed.append((number, str(context.message.id)))

    shipped, heard = noting(bus, f"{name}.*", durable="shipping"), noting(bus, f"{name}.*")
    async with owner(engine, name) as theirs:
        await ask(theirs, f"STREAM.CREATE.DEAD{name}", {**for_letters(name), "subjects": [f"dead.{name}.>", f"else.{name}"]})
        await theirs.publish(f"else.{name}", 0, id="0")
        async with connect(url, bus=bus), connect(url) as looks:
            events = bus.events()
            await publish(theirs, name, 1, 2, headers={"x-shop": "7"})
            for _ in range(2):
                await next_event(events, DeadLettered)
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
            await eventually(lambda: (1, "1") in billed)
            await publish(theirs, name, 3)
            await eventually(lambda: 3 in shipped and 3 in heard)
            await all_done(theirs, name, "shipping")
            assert [letter async for letter in letters.letters()] == []
            assert await messages(theirs, name) == 4
    assert sorted(shipped) == sorted(heard) == [1, 2, 3]


async def test_of_a_link_that_is_left_alone_the_handlers_end_and_the_bus_goes_on(engine: Any, name: str) -> None:
    bus = Bus()
    handled = noting(bus, f"{name}.>", durable="billing")
    async with owner(engine, name) as theirs, connect(engine.url, bus=bus), bus.serve(f"ubre+memory://{name}"):
        await publish(theirs, name, 0)
        await all_done(theirs, name, "billing")
        await bus.peers[0].aclose()
        await eventually(lambda: not bus.peers)
        await publish(theirs, name, 1)
        async with bus.connect(engine.url):  # the handler is read for by another link
            await all_done(theirs, name, "billing")
    assert handled == [0, 1]


async def test_handlers_begin_when_the_lifespan_that_has_opened_their_link_is_ready(engine: Any, name: str) -> None:
    handled: list[Any] = []

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[str]:
        async with bus.connect(engine.url):
            async with owner(engine, f"{name}x") as other:
                await publish(other, f"{name}x", 1)
            yield "the database"

    bus = Bus(lifespan=lifespan)

    @bus.on(f"{name}.>", durable="billing")
    async def bill(number: int) -> None:
        handled.append(bus.state)

    async with owner(engine, name) as theirs:
        await publish(theirs, name, 1)
        async with bus:
            await all_done(theirs, name, "billing")
    assert handled == ["the database"]


# -- subscriptions ---------------------------------------------------------------------------------------------------------


async def test_a_subscription_at_a_stream_ends_with_its_link(engine: Any, name: str) -> None:
    bus = Bus()
    async with owner(engine, name), bus, bus.serve(f"ubre+memory://{name}"):
        async with bus.connect(engine.url) as link:
            pass
        async with bus.connect(engine.url) as link, link.subscribe(f"{name}.>", start="all") as orders:
            await link.aclose()
            with pytest.raises(Disconnected):
                await orders.receive(timeout=20)
        for gone in (link.subscribe(f"{name}.>", durable="audit"), link.subscribe(f"{name}.>", start="all")):
            await refused(gone, Disconnected)
            assert core_of(link).link.reader is None, "nothing of it is kept"


# -- publications ------------------------------------------------------------------------------------------------------------


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


async def test_an_id_without_a_stream_is_one_clear_error(engine: Any, name: str) -> None:
    page, bus = Bus(), Bus()
    async with (
        owner(engine, name) as theirs,
        bus.serve(f"ubre+memory://{name}"),
        connect(f"ubre+memory://{name}", bus=page) as to_bus,
    ):
        with pytest.raises(
            LocalProtocolError, match=r"'nobody' is not stored: no stream of this NATS network has this subject"
        ):
            await theirs.publish("nobody", 1, id="1", timeout=2 * BOUND)  # said at once, as the server knows
        with pytest.raises(LocalProtocolError, match=r"the header 'Nats-TTL' is an instruction for the engine"):
            await theirs.publish(f"{name}.placed", 1, id="1", headers={"Nats-TTL": "1"})
        with pytest.raises(LocalProtocolError, match=r"id= is only for stores"):
            await to_bus.publish("news", 1, id="1")
        with pytest.raises(Unsupported, match="7 is a number"):
            await theirs.publish(7, 1, id="1", timeout=20)
        (peer,) = bus.peers
        with pytest.raises(Unsupported, match="ubre does not support stores"):
            await peer.publish("news", 1, id="1")
        await refused(peer.subscribe("news", durable="audit"), Unsupported, match="ubre does not support stores")


# -- mistakes ----------------------------------------------------------------------------------------------------------------


async def test_a_pattern_that_no_stream_keeps_or_this_wire_cannot_carry_is_one_clear_error(engine: Any, name: str) -> None:
    bus = Bus()
    bus.on("elsewhere.>", durable="billing")(lambda number: None)
    async with owner(engine, name, subjects=[f"{name}.placed.*"]) as theirs:
        text = r"stored publications of 'elsewhere.>': no store has this subject. Ask the owner for a stream with this subject"
        await refused(connect(engine.url, bus=bus), LocalProtocolError, match=text)
        await refused(theirs.subscribe("elsewhere.>", start="all"), LocalProtocolError, match=text)
        text = f"the store {name.upper()} only has some of these subjects"
        await refused(theirs.subscribe(f"{name}.>", durable="audit"), LocalProtocolError, match=text)
        for pattern, error in ((7, Unsupported), ("/4210/*/8000", Unsupported), ("a b", LocalProtocolError)):
            await refused(theirs.subscribe(pattern, durable="audit"), error)


async def test_two_links_are_told_apart_by_what_they_serve(engine: Any, name: str) -> None:
    bus = Bus()
    async with (
        owner(engine, name) as theirs,
        NatsEngine() as elsewhere,
        bus.connect(elsewhere.url),
        bus.connect(engine.url, serves=[f"{name}.>"]),
    ):
        for wants in (bus.subscribe("other.>", durable="audit"), bus.subscribe("other.>", start="all")):
            await refused(wants, AmbiguousRoute, match=r"several links could have a stream of 'other.>' .*: connect with serve")
        with pytest.raises(AmbiguousRoute):
            await bus.publish("other.placed", 1, id="1")
        async with bus.subscribe(f"{name}.>", start="all") as orders:
            await bus.publish(f"{name}.placed", 1, id="1")
            assert (await orders.receive(timeout=20)).body == 1
            assert await messages(theirs, name) == 1


async def test_the_link_that_serves_a_pattern_reads_for_it(engine: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()
    handled = noting(bus, f"{name}.>", durable="billing")
    async with owner(engine, name) as theirs:
        await publish(theirs, name, 1)
        async with connect(engine.url, bus=bus, serves=["other.>"]):
            assert f"no link reads its durable publications yet: {engine.url} has serves=" in caplog.text
            assert not handled
            async with bus.connect(engine.url, serves=[f"{name}.>"]):
                await all_done(theirs, name, "billing")
    assert handled == [1]
