"""`polybus store` and `polybus dead` at real NATS servers."""

import json
from typing import Any

import anyio
import pytest

from polybus import Bus, Cluster, Retry, connect
from polybus.events import DeadLettered
from tests.support import BOUND, free_port, next_event

from .conftest import Run
from .nats_servers import NatsServer, nats_server


async def die(url: str, size: int = 0) -> None:
    """Have one publication die, with a body of so many bytes more."""
    bus = Bus(cluster=Cluster(url))

    @bus.on("orders.placed", durable="billing", retry=Retry(attempts=1))
    async def bill(order: dict[str, Any]) -> None:
        raise ValueError("no bank")

    async with bus:
        events = bus.events()
        body = {"n": 1, "more": "x" * size} if size else {"n": 1}
        await bus.publish("orders.placed", body, headers={"x-shop": "7"})
        await next_event(events, DeadLettered)


def test_stores_and_dead_letters_from_the_shell(keeping: NatsServer, run: Run) -> None:
    url = f"{keeping.url}/shop"
    assert run("store", "list", url) == (0, "no stores\n", "")
    assert run("store", "add", url, "orders", "orders.>", "bills.*", "--max-age", "7d") == (0, "", "")
    assert run("dead", "list", url) == (0, "no dead letters\n", "")
    anyio.run(die, url)
    status, out, _ = run("store", "list", url)
    assert status == 0
    assert out.splitlines()[1].startswith("orders: orders.>, bills.*; 1 publication, ")
    assert out.splitlines()[1].endswith("; 1 durable handler")
    [shown] = [json.loads(line) for line in run("store", "show", url, "orders", "--json")[1].splitlines()]
    assert shown["max_age"] == 604800.0
    assert shown["durables"] == {"billing": {"pending": 0, "unacknowledged": 0, "redelivered": 0}}
    assert "kept for 7 days; replicas 1\n  billing: 0 pending, 0 unacknowledged" in run("store", "show", url, "orders")[1]
    trim = ("store", "trim", url, "orders")
    assert run(*trim)[0] == 2
    assert run(*trim, "--yes") == (0, "1 publication removed\n", "")
    _, out, _ = run("dead", "list", url)
    assert "  billing  orders.placed  1 attempt: die.<locals>.bill failed: ValueError: no bank [" in out
    [letter] = [json.loads(line) for line in run("dead", "list", url, "--json")[1].splitlines()]
    number = str(letter["number"])
    assert 'header x-shop: 7\nbody: {"n":1}\n' in run("dead", "show", url, number)[1]
    assert "death: die.<locals>.bill failed: ValueError: no bank\n" in run("dead", "show", url, number)[1]
    assert run("dead", "retry", url, number) == (0, "1 dead letter stored again\n", "")
    assert run("dead", "list", url, "--durable", "billing") == (0, "no dead letters\n", "")
    assert run("dead", "drop", url, "--all", "--yes") == (0, "0 dead letters dropped\n", "")
    removed = ("store", "remove", url, "orders", "--durable", "billing")
    assert run(*removed)[0] == 2
    assert run(*removed, "--yes") == (0, "", "")
    assert "has no durable handler 'billing': it has none" in run(*removed, "--yes")[2]
    assert "has no durable handler, so it is unknown" in run(*trim, "--yes")[2]
    assert run("store", "remove", url, "orders", "--yes") == (0, "", "")


async def handle(url: str, durable: str, publications: range, most: int) -> list[int]:
    """Publish these, and give what a durable handler has dealt with once it has had so many."""
    seen: list[int] = []
    all_seen = anyio.Event()
    bus = Bus(cluster=Cluster(url))

    @bus.on("orders.>", durable=durable)
    async def take(n: int) -> None:
        seen.append(n)
        if len(seen) == most:
            all_seen.set()

    with anyio.fail_after(BOUND):
        async with bus:
            for n in publications:
                await bus.publish("orders.placed", n)
            await all_seen.wait()
    return sorted(seen)


def test_what_is_trimmed_is_what_each_durable_handler_has_dealt_with(keeping: NatsServer, run: Run) -> None:
    url = f"{keeping.url}/shop"
    trim = ("store", "trim", url, "orders", "--yes")
    assert run("store", "add", url, "orders", "orders.>") == (0, "", "")
    assert anyio.run(handle, url, "post", range(2), 2) == [0, 1]
    assert anyio.run(handle, url, "billing", range(2, 6), 6) == [*range(6)]
    assert run(*trim) == (0, "2 publications removed\n", "")
    assert run(*trim) == (0, "0 publications removed\n", "")
    assert anyio.run(handle, url, "post", range(0), 4) == [2, 3, 4, 5]
    assert run(*trim) == (0, "4 publications removed\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["store", "show", "{url}", "none"], "polybus: the cluster 'shop' has no store 'none'"),
        (["store", "remove", "{url}", "none", "--yes"], "polybus: the cluster 'shop' has no store 'none'"),
        (["dead", "show", "{url}", "7"], "polybus: the cluster 'shop' has no dead letter 7"),
        (["dead", "show", "{url}", "0"], "polybus: Invalid value for 'NUMBER': Input should be greater than or equal to 1"),
        (["dead", "list", "nats+tcp://127.0.0.1:1/shop", "--durable", "a.b"], "durable='a.b' must have 1 to 100 letters"),
        (["store", "show", "nats+tcp://127.0.0.1:1/shop", "a b"], "polybus: the store name 'a b' must have 1 to 100 letters"),
        (["dead", "retry", "{url}"], "polybus: give their numbers from polybus dead list, or --all"),
        (["dead", "retry", "{url}", "7", "--durable", "billing"], "give the numbers of the letters, or --all with --durable"),
        (["dead", "drop", "{url}", "7"], "polybus: dropped letters are lost forever: confirm with --yes"),
        (["store", "add", "{url}", "a", "a.>", "--max-age", "week"], "'week': use a number followed by s, m, h or d"),
        (["store", "add", "{url}", "a", "a.>", "--max-bytes", "1X"], "'1X': use a number of bytes, such as 500M or"),
        (["store", "list", "{bare}"], "does not name a cluster: add the name"),
    ],
)
@pytest.mark.parametrize("engine", ["debian"], indirect=True)
def test_what_cannot_be_is_said_in_one_line(engine: NatsServer, run: Run, arguments: list[str], said: str) -> None:
    status, out, err = run(*(argument.format(url=f"{engine.url}/shop", bare=engine.url) for argument in arguments))
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_letter_whose_answer_is_larger_than_usual_limits_is_shown_and_tried_again(keeping: NatsServer, run: Run) -> None:
    url = f"{keeping.url}/shop"
    assert run("store", "add", url, "orders", "orders.>") == (0, "", "")
    anyio.run(die, url, 900 << 10)
    assert "  billing  orders.placed  1 attempt: " in run("dead", "list", url)[1]
    out = run("dead", "show", url, "1")[1]
    characters = len('{"n":1,"more":""}') + (900 << 10)
    assert out.endswith(f"x ... ({characters} characters)\n")
    assert run("dead", "retry", url, "1") == (0, "1 dead letter stored again\n", "")


@pytest.mark.parametrize("keeping", ["wheel"], indirect=True)
def test_one_letter_that_cannot_be_stored_again_keeps_nothing_from_the_others(keeping: NatsServer, run: Run) -> None:
    url = f"{keeping.url}/shop"

    async def foreign() -> None:
        async with connect(keeping.url) as bus:
            for subject in ("shop.dead.billing.%iabc", "shop.dead.billing.%ixyz"):
                await bus.publish(subject, 1)

    assert run("store", "add", url, "orders", "orders.>") == (0, "", "")
    anyio.run(die, url)
    anyio.run(foreign)
    anyio.run(die, url)
    status, out, err = run("dead", "retry", url, "--all")
    assert (status, out) == (2, "2 dead letters stored again\n")
    assert [line.partition(": not a polybus dead letter")[0] for line in err.splitlines()] == [
        "polybus: dead letter 2",
        "polybus: dead letter 3",
    ]
    status, out, err = run("dead", "drop", url, "99", "2", "3", "--yes")
    assert (status, out, err) == (2, "2 dead letters dropped\n", "polybus: the cluster 'shop' has no dead letter 99\n")
    assert run("dead", "list", url) == (0, "no dead letters\n", "")


@pytest.mark.parametrize("keeping", ["debian"], indirect=True)
def test_a_cluster_that_the_engine_does_not_know_is_told_with_those_that_it_does(keeping: NatsServer, run: Run) -> None:
    url = f"{keeping.url}/shop"
    assert run("store", "add", url, "orders", "orders.>")[0] == 0
    anyio.run(die, url)
    said = "this NATS server has no stores of a cluster 'shpo', only of 'shop'"
    assert run("store", "list", f"{keeping.url}/shpo") == (0, f"no stores: {said}\n", "")
    assert run("dead", "list", f"{keeping.url}/shpo", "--json") == (2, "", f"polybus: {said}\n")
    for command in (["list"], ["retry", "--all"], ["drop", "--all", "--yes"]):
        for at, durable, why in (
            (url, "biling", "the cluster 'shop' has no durable handler 'biling': did you mean 'billing'?"),
            (url, "mail", "the cluster 'shop' has no durable handler 'mail'; it has 'billing'"),
            (f"{keeping.url}/shpo", "billing", said),
            (f"{keeping.url}/shpo", "", said),
        ):
            named = ["--durable", durable] if durable else []
            assert run("dead", command[0], at, *command[1:], *named) == (2, "", f"polybus: {why}\n")


async def die_in_a_stream_of_others(url: str) -> None:
    bus = Bus()

    @bus.on("orders.placed", durable="billing", retry=Retry(attempts=1))
    async def bill(order: dict[str, Any]) -> None:
        raise ValueError("no bank")

    async with connect(url.partition("?")[0]) as theirs:
        for stream, subjects in (("ORDERS", "orders.>"), ("LETTERS", "dead.orders.>")):
            members = {"name": stream, "subjects": [subjects], "retention": "limits", "storage": "file"}
            assert "error" not in await theirs.request(f"$JS.API.STREAM.CREATE.{stream}", members)
    async with connect(url, bus=bus):
        events = bus.events()
        await bus.publish("orders.placed", {"n": 1}, id="order-1")
        await next_event(events, DeadLettered)


def test_dead_letters_of_a_stream_of_others_from_the_shell(keeping: NatsServer, run: Run) -> None:
    url = f"{keeping.url}?dead_letters=dead.orders"
    status, _, err = run("dead", "list", url)
    assert (status, "no stream of this NATS network stores all of 'dead.orders.>'" in err) == (2, True)
    anyio.run(die_in_a_stream_of_others, url)
    assert "  billing  orders.placed  1 attempt: " in run("dead", "list", url)[1]
    shown = run("dead", "show", url, "1")[1]
    assert 'body: {"n":1}' in shown
    assert run("dead", "retry", url, "1") == (0, "1 dead letter stored again\n", "")
    assert run("dead", "drop", url, "--all", "--yes") == (0, "0 dead letters dropped\n", "")
    assert run("dead", "list", url) == (0, "no dead letters\n", "")
    status, _, err = run("store", "list", url)
    assert (status, "does not name a cluster" in err) == (2, True)


@pytest.mark.parametrize("command", [["store", "list"], ["dead", "list"], ["dead", "retry", "--all"]])
def test_an_engine_that_is_not_there_is_told_without_an_option_that_these_commands_lack(command: list[str], run: Run) -> None:
    status, _, err = run(*command, f"nats+tcp://127.0.0.1:{free_port()}/shop")
    assert status == 1
    assert err.endswith("no server listens there; is the NATS server of the cluster running?\n")


def test_a_server_that_keeps_nothing_is_named(run: Run) -> None:
    with nats_server("debian") as server:
        for command in (["store", "list"], ["dead", "list"]):
            status, _, err = run(*command, f"{server.url}/shop")
            assert status == 2
            assert "is not enabled in the cluster's NATS server: start it with" in err
