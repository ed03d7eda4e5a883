"""Streams of others over real NATS servers: tests of the engine in memory, and what only a server does."""

# ruff: noqa: F401  # the tests of the engine in memory are imported to be found here

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faststream.nats import JStream, PullSub
from nats.js.api import ConsumerConfig

from polybus import (
    Bus,
    Cluster,
    Context,
    DeadlineExceeded,
    Forbidden,
    LocalProtocolError,
    NoHandler,
    Peer,
    Retry,
    Store,
    connect,
)
from polybus.cluster.durable.administration import Administration
from tests.refusal import refused
from tests.support import BOUND, eventually, free_port
from tests.unit.cluster.test_foreign_streams import (
    test_a_dead_letter_is_kept_where_a_stream_for_them_is_named,
    test_a_durable_handler_reads_a_stream_of_others_from_its_beginning,
    test_a_publication_with_an_id_is_stored_once_when_it_returns,
    test_an_id_without_a_stream_is_one_clear_error,
    test_letters_in_a_stream_of_others_are_looked_at_tried_again_and_dropped,
    test_two_links_are_told_apart_by_what_they_serve,
    test_what_no_attempt_can_handle_stays_in_their_stream,
)

from .faststream_peer import NatsBroker, faststream
from .nats_py_peer import nats_py
from .nats_servers import VERSIONS, NatsServer, nats_server

# -- foreign programs on the same stream -----------------------------------------------------------------------------------


async def test_nats_py_and_this_bus_publish_to_one_stream_and_read_it(keeping: NatsServer) -> None:
    handled: list[tuple[int, int]] = []
    bus = Bus()

    @bus.on("orders.>", durable="billing", retry=Retry(attempts=2, backoff=0.01))
    async def bill(order: dict[str, int], context: Context) -> None:
        handled.append((order["n"], context.attempt))
        if order["n"] == 3:
            raise RuntimeError("no")

    async with nats_py(keeping.address) as nats:
        jetstream = nats.client.jetstream()
        await nats.run(jetstream.add_stream(name="ORDERS", subjects=["orders.>"]))
        terminated = await nats.run(nats.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.ORDERS.billing"))
        await nats.run(nats.client.flush())
        async with connect(keeping.url, bus=bus):
            await nats.run(jetstream.publish("orders.placed", b'{"n":1}', headers={"Nats-Msg-Id": "one"}))
            await bus.publish("orders.placed", {"n": 1}, id="one")  # the same id: it is there already
            await bus.publish("orders.placed", {"n": 2}, id="two", headers={"x-shop": "7"})
            await nats.run(jetstream.publish("orders.placed", b'{"n":3}'))
            puller = await nats.run(jetstream.pull_subscribe("orders.>", durable="theirs"))
            messages = await nats.run(puller.fetch(3, timeout=20))
            assert [json.loads(message.data) for message in messages] == [{"n": 1}, {"n": 2}, {"n": 3}]
            assert messages[1].headers == {"Nats-Msg-Id": "two", "x-shop": "7"}
            for message in messages:
                await nats.run(message.ack_sync(timeout=20))
            advisory = json.loads((await nats.run(terminated.next_msg(timeout=20))).data)
        info = await nats.run(jetstream.consumer_info("ORDERS", "billing"))
        assert (info.num_pending, info.num_ack_pending) == (0, 0)
        assert info.config.durable_name == "billing"
        with_reason = "bill failed: RuntimeError" in advisory.get("reason", "")
        assert advisory["stream_seq"] == 3
        assert with_reason == (keeping.version >= (2, 10, 4))
    assert sorted(handled) == [(1, 1), (2, 1), (3, 1), (3, 2)]


async def test_a_consumer_that_nats_py_has_made_is_shared_with_it(keeping: NatsServer) -> None:
    handled: list[int] = []
    bus = Bus()

    @bus.on("orders.placed", durable="billing")
    async def bill(order: dict[str, int]) -> None:
        handled.append(order["n"])

    async with nats_py(keeping.address) as nats:
        jetstream = nats.client.jetstream()
        await nats.run(jetstream.add_stream(name="ORDERS", subjects=["orders.>"]))
        made = ConsumerConfig(durable_name="billing", ack_wait=30, max_ack_pending=20_000, max_waiting=512)
        puller = await nats.run(jetstream.pull_subscribe("orders.placed", durable="billing", config=made))
        await nats.run(jetstream.publish("orders.placed", b'{"n":1}'))
        (first,) = await nats.run(puller.fetch(1, timeout=20))
        await nats.run(jetstream.publish("orders.placed", b'{"n":2}'))
        async with connect(keeping.url, bus=bus):
            await eventually(lambda: handled == [2])
            await nats.run(first.nak())
            await eventually(lambda: handled == [2, 1])


# -- outages and permissions -----------------------------------------------------------------------------------------------


async def test_handlers_subscriptions_and_replays_go_on_behind_a_restart_of_the_server(keeping: NatsServer) -> None:
    handled: list[int] = []
    bus = Bus()

    @bus.on("orders.>", durable="billing")
    async def bill(number: int) -> None:
        handled.append(number)

    async with Bus().connect(keeping.url) as theirs:
        stream = {"name": "ORDERS", "subjects": ["orders.>"], "retention": "limits", "storage": "file"}
        assert "error" not in await theirs.request("$JS.API.STREAM.CREATE.ORDERS", stream)
        async with (
            connect(keeping.url, bus=bus),
            bus.subscribe("orders.>", durable="audit", returns=int) as audit,
            bus.subscribe("orders.>", start="all", returns=int) as replay,
        ):
            for number in range(3):
                await theirs.publish("orders.placed", number, id=str(number), timeout=20)
                assert (await replay.receive(timeout=20)).body == number
                while True:  # a server that is killed may have forgotten what it was told last
                    message = await audit.receive(timeout=20)
                    message.ack()
                    if message.body == number:
                        break
                await eventually(lambda: number in handled)  # noqa: B023  # waited for here
                keeping.kill()
                keeping.start()
    assert set(handled) == {0, 1, 2}


RIGHTS = ["$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.ORDERS", "$JS.API.CONSUMER.INFO.ORDERS.*"]
PULL = "$JS.API.CONSUMER.MSG.NEXT.ORDERS.*"
MAKE = "$JS.API.CONSUMER.DURABLE.CREATE.ORDERS.*"
ACK = "$JS.ACK.ORDERS.>"
LETTERS = "$JS.API.STREAM.INFO.LETTERS"
REPLAY = ["$JS.API.CONSUMER.CREATE.ORDERS.>", "$JS.API.CONSUMER.DELETE.ORDERS.*"]


@pytest.fixture(params=VERSIONS)
def restricted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NatsServer]:
    """A server whose owner may do everything, and whose users each lack one right, or none."""
    users = {
        "reader": [*RIGHTS, PULL, ACK],
        "maker": [*RIGHTS, PULL, ACK, MAKE],
        "blind": [PULL, ACK],
        "idle": [*RIGHTS, ACK],
        "mute": [*RIGHTS, PULL],
        "writer": [*RIGHTS, PULL, ACK, MAKE, LETTERS, "dead.orders.>"],
        "lost": [*RIGHTS, PULL, ACK, MAKE, "dead.orders.>"],
        "careless": [*RIGHTS, PULL, ACK, MAKE, LETTERS],
        "replayer": [*RIGHTS[:2], PULL, *REPLAY],
        "publisher": ["orders.>", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.MSG.GET.ORDERS"],
        "poor": ["orders.>"],
    }
    lines = [f"{{user: {who}, password: p, permissions: {{publish: {json.dumps(may)}}}}}" for who, may in users.items()]
    everybody = ", ".join(["{user: owner, password: p}", *lines])
    config = f'jetstream {{ store_dir: "{tmp_path}" }}\nauthorization {{ users: [{everybody}] }}'
    with nats_server(request.param, config) as one:
        yield one


def as_user(server: NatsServer, who: str) -> str:
    return server.url.replace("://", f"://{who}:p@")


async def test_what_a_user_may_not_do_at_a_stream_is_said_with_what_to_allow(
    restricted: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[int] = []

    def worker() -> Bus:
        bus = Bus()

        @bus.on("orders.>", durable="billing")
        async def bill(number: int) -> None:
            handled.append(number)

        return bus

    async with Bus().connect(as_user(restricted, "owner")) as theirs:
        stream = {"name": "ORDERS", "subjects": ["orders.>"], "retention": "limits", "storage": "file"}
        assert "error" not in await theirs.request("$JS.API.STREAM.CREATE.ORDERS", stream)
        for who, refused in (("blind", "STREAM.NAMES"), ("reader", "CONSUMER.DURABLE.CREATE.ORDERS.billing")):
            with pytest.raises(
                Forbidden, match=rf"{refused}.*; to read a stream, a user publishes to \$JS.API.STREAM.NAMES"
            ) as caught:
                async with connect(as_user(restricted, who), bus=worker()):
                    raise AssertionError
            assert "$JS.API.CONSUMER.DURABLE.CREATE.<stream>.*" in str(caught.value)
        async with connect(as_user(restricted, "maker"), bus=worker()):
            await theirs.publish("orders.placed", 1, id="1")
            await eventually(lambda: handled == [1])
        async with connect(as_user(restricted, "reader"), bus=worker()):  # the consumer is there: no right to make it is wanted
            await theirs.publish("orders.placed", 2, id="2")
            await eventually(lambda: handled == [1, 2])
        caplog.set_level(logging.ERROR)
        for who, text in (
            ("idle", "may not pull publications, and takes none"),
            ("mute", "may not acknowledge its publications"),
        ):
            async with connect(as_user(restricted, who), bus=worker()):
                await theirs.publish("orders.placed", 3, id="3")
                await eventually(lambda: text in caplog.text)  # noqa: B023  # waited for here
        assert handled[:2] == [1, 2]


async def make_streams(theirs: Peer) -> None:
    for stream, subjects in (("ORDERS", "orders.>"), ("LETTERS", "dead.orders.>")):
        members = {"name": stream, "subjects": [subjects], "retention": "limits", "storage": "file"}
        assert "error" not in await theirs.request(f"$JS.API.STREAM.CREATE.{stream}", members)


async def test_dead_letters_want_two_rights_more_and_say_which_is_missing(
    restricted: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    def worker() -> Bus:
        bus = Bus()

        @bus.on("orders.>", durable="billing", retry=Retry(attempts=1))
        async def bill(number: int) -> None:
            raise ValueError(number)

        return bus

    def at(who: str) -> str:
        return as_user(restricted, who) + "?dead_letters=dead.orders"

    async with Bus().connect(as_user(restricted, "owner")) as theirs:
        await make_streams(theirs)
        await refused(
            connect(at("lost"), bus=worker()),
            Forbidden,
            match=r"STREAM.INFO.LETTERS.*; to read a stream, a user publishes to .*dead_letters=",
        )
        await theirs.publish("orders.placed", 7, id="7")
        async with connect(at("careless"), bus=worker()):
            await eventually(lambda: "the letter cannot be stored, so the publication is redelivered" in caplog.text)
            assert 'Permissions Violation for Publish to "dead.orders.billing' in caplog.text
        async with theirs.subscribe("dead.orders.>") as letters, connect(at("writer"), bus=worker()):
            letter = await letters.receive(timeout=20)
            assert (letter.subject, letter.body) == ("dead.orders.billing.orders.placed", 7)


async def test_a_replay_wants_to_make_and_to_remove_its_consumer(restricted: NatsServer) -> None:
    async with Bus().connect(as_user(restricted, "owner")) as theirs:
        await make_streams(theirs)
        await theirs.publish("orders.placed", 7, id="7")
        async with connect(as_user(restricted, "replayer")) as bus:
            for pattern in ("orders.placed", "orders.>"):
                async with bus.subscribe(pattern, start="all") as replay:
                    assert (await replay.receive(timeout=20)).body == 7
            await eventually(lambda: consumers(theirs, 0))
        async with connect(as_user(restricted, "maker")) as bus:
            await refused(
                bus.subscribe("orders.placed", start="all"),
                Forbidden,
                match=r"CONSUMER.CREATE.ORDERS.*with start= and no durable= to",
            )


async def consumers(theirs: Peer, count: int) -> bool:
    found: dict[str, Any] = await theirs.request("$JS.API.CONSUMER.NAMES.ORDERS", {})
    return bool(found["total"] == count)


async def test_who_publishes_with_an_id_is_told_more_where_it_may_ask_more(restricted: NatsServer) -> None:
    async with Bus().connect(as_user(restricted, "owner")) as theirs:
        await make_streams(theirs)
        async with connect(as_user(restricted, "publisher")) as bus:
            await bus.publish("orders.placed", 1, id="1")
            with pytest.raises(LocalProtocolError, match="already has id='1' for 'orders.placed'"):
                await bus.publish("orders.paid", 1, id="1")
            assert "error" not in await theirs.request("$JS.API.STREAM.DELETE.ORDERS")
            with pytest.raises(LocalProtocolError, match="no stream of this NATS network has this subject"):
                await bus.publish("orders.placed", 1, id="2", timeout=2 * BOUND)  # said at once
        async with connect(as_user(restricted, "poor")) as bus:
            with pytest.raises(DeadlineExceeded, match="no stream accepted it, so it is not stored"):
                await bus.publish("orders.placed", 1, id="3", timeout=0.5)  # it may not ask, and tries until then


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_another_domain_keeps_is_read_and_published_to_behind_a_leaf_node(version: str, tmp_path: Path) -> None:
    port = free_port()
    hub_config = f'server_name: hub\njetstream {{ store_dir: "{tmp_path / "hub"}", domain: hub }}\n'
    leaf_config = f'server_name: leaf\njetstream {{ store_dir: "{tmp_path / "leaf"}", domain: leaf }}\n'
    with (
        nats_server(version, f'{hub_config}leafnodes {{ listen: "127.0.0.1:{port}" }}') as hub,
        nats_server(version, f'{leaf_config}leafnodes {{ remotes: [{{ url: "nats-leaf://127.0.0.1:{port}" }}] }}') as leaf,
    ):
        bus, shop = Bus(), Bus(cluster=Cluster(f"{leaf.url}/shop?domain=hub", stores=[Store("work", "work.>")]))
        handled: list[tuple[int, int]] = []

        @shop.on("work.>", durable="billing", retry=Retry(attempts=1))
        @bus.on("orders.>", durable="billing", retry=Retry(attempts=2, backoff=0.01))
        async def bill(number: int, context: Context) -> None:
            handled.append((number, context.attempt))
            if context.attempt == 1 and number == 7:
                raise RuntimeError("no")

        async with Bus().connect(hub.url) as theirs, Bus().connect(leaf.url) as near:
            await make_streams(theirs)
            await eventually(lambda: answers(near, "$JS.hub.API.INFO"))
            async with connect(f"{leaf.url}?domain=hub", bus=bus):
                await bus.publish("orders.placed", 7, id="7", timeout=20)
                await eventually(lambda: handled == [(7, 1), (7, 2)])
                async with bus.subscribe("orders.>", start="all") as replay:
                    assert (await replay.receive(timeout=20)).body == 7
            handled.clear()
            async with shop:
                await shop.publish("work.x", 7, timeout=20)
                await eventually(lambda: handled == [(7, 1)])
                administration = Administration.of(shop)
                await eventually(lambda: are_letters(administration, [b"7"]))
            for url, text in ((leaf.url, "no store has"), (f"{leaf.url}?domain=hup", "domain='hup' does not answer")):
                with pytest.raises(LocalProtocolError, match=text):
                    async with connect(url) as link, link.subscribe("orders.>", start="all"):
                        raise AssertionError


async def answers(link: Peer, subject: str) -> bool:
    try:
        return "error" not in await link.request(subject, timeout=5)
    except (NoHandler, DeadlineExceeded):
        return False


async def are_letters(administration: Administration, bodies: list[bytes]) -> bool:
    return [letter.body async for letter in administration.letters()] == bodies


async def test_an_account_without_jetstream_says_so(tmp_path: Path) -> None:
    config = f"""
        jetstream {{ store_dir: "{tmp_path}" }}
        accounts {{
            A: {{ users: [{{user: a, password: p}}] }}
            B: {{ jetstream: enabled, users: [{{user: b, password: p}}] }}
        }}
    """
    for version in VERSIONS:
        with nats_server(version, config) as server:
            async with Bus().connect(as_user(server, "a")) as link:
                await refused(
                    link.subscribe("orders.>", start="all"),
                    LocalProtocolError,
                    match="JetStream is not enabled for this user, .*in the user's account",
                )
