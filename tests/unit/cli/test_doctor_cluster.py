"""polybus doctor at a cluster, in front of an engine that is what each test makes of it."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from polybus import Bus, Cluster, Context, Retry, Store, connect
from polybus.events import DeadLettered
from polybus.testing import NatsEngine
from tests.support import free_port
from tests.unit.cli.support import Cli, serving
from tests.unit.cluster.in_a_thread import TOKEN, RunningCluster

pytestmark = pytest.mark.native
JETSTREAM_OFF = (
    "polybus: jetstream: off: only Store and durable= require it; start nats-server with -js, or with "
    "jetstream { store_dir: ... }; or enable it for the account\n"
)


class ToldEngine(NatsEngine):
    told: dict[str, Any] = {}

    @property
    def info(self) -> dict[str, Any]:
        return {**super().info, **self.told}


@contextmanager
def engine(jetstream: Any = None, **told: Any) -> Iterator[str]:
    """The URL of the cluster ``shop``, in which one worker runs, at such a server; and what its JetStream answers."""
    account = Bus()

    @account.handle("$JS.API.INFO")
    async def answer() -> Any:
        return jetstream

    @asynccontextmanager
    async def running() -> AsyncIterator[str]:
        server = ToldEngine("tcp://127.0.0.1:0", keeps=False)
        server.told = told
        async with server, AsyncExitStack() as stack:
            if told.get("headers", True):
                await stack.enter_async_context(Bus(cluster=server.url + "/shop"))
            if jetstream is not None:
                await stack.enter_async_context(connect(server.url, bus=account))
            yield server.url + "/shop"

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(running()) as url:
        yield url


def examined(cli: Cli, status: int, url: str, *options: str) -> tuple[dict[str, dict[str, Any]], str]:
    """Steps by name of an examination with this status, and what is said on stderr."""
    out, err = cli.both(status, "doctor", url, "--json", *options)
    return {step["name"]: step for step in json.loads(out)["steps"]}, err


def test_every_step_of_a_cluster_that_is_well(cli: Cli) -> None:
    with engine(jetstream={"streams": 2, "consumers": 3}) as url:
        steps, err = examined(cli, 0, url)
    assert err == ""
    assert list(steps) == ["resolve", "connect", "open", "handshake", "server", "jetstream", "nodes", "stores", "request"]
    assert {step["outcome"] for step in steps.values()} == {"ok"}
    assert steps["server"]["detail"] == "nats-server 2.10.25, messages up to 1048576 bytes"
    assert steps["jetstream"]["detail"] == "2 streams, 3 consumers"
    assert steps["nodes"]["detail"].startswith("1: ")
    assert "no handler, as expected" in steps["request"]["detail"]


def test_nodes_and_a_handler_at_one_of_them(cluster: RunningCluster, cli: Cli) -> None:
    steps, err = examined(cli, 0, cluster.url, "--subject", "thumbnail.make", "--body", '"cat"')
    assert err == JETSTREAM_OFF
    assert steps["nodes"]["detail"].startswith("2: ")
    assert steps["nodes"]["detail"].count("1 client") == 2
    assert steps["request"]["detail"].startswith("thumbnail.make: answered with 'cat.small'")
    assert "no node of the cluster handles this" in cli.err(1, "doctor", cluster.url, "--subject", "nobody.does")


def test_without_jetstream_it_is_said_what_needs_it_and_how_to_have_it(cli: Cli) -> None:
    refusal = {"error": {"code": 503, "err_code": 10039, "description": "jetstream not enabled for account"}}
    with engine(jetstream=refusal) as url:
        steps, err = examined(cli, 0, url)
    assert steps["jetstream"]["outcome"] == "doubtful"
    assert steps["jetstream"]["detail"].startswith(
        "off (jetstream not enabled for account): only Store and durable= require it"
    )
    assert "start nats-server with -js" in err


def test_a_token_that_is_wrong_is_said_where_it_belongs(cluster: RunningCluster, cli: Cli) -> None:
    steps, err = examined(cli, 1, cluster.url.replace(TOKEN, "guessed"))
    assert (steps["handshake"]["outcome"], steps["server"]["outcome"]) == ("failed", "not reached")
    assert "Authorization Violation" in err
    assert "TOKEN@ or USER:PASSWORD@ before the host" in err


def test_no_secret_of_a_url_is_shown(cluster: RunningCluster, cli: Cli) -> None:
    out, err = cli.both(0, "doctor", cluster.url, "--json")
    assert json.loads(out)["url"].startswith("nats+tcp://***@127.0.0.1:")
    assert TOKEN not in out + err


@pytest.mark.parametrize(
    ("told", "status", "outcome", "says"),
    [
        (
            {"version": "2.1.9", "headers": False},
            1,
            "failed",
            "nats-server 2.1.9, without headers: a cluster requires 2.2 or newer",
        ),
        ({"version": "2.9.9"}, 0, "doubtful", "nats-server 2.9.9: polybus is tested with 2.9.10 and newer"),
        ({"version": "2.10.0-beta.1"}, 0, "ok", "nats-server 2.10.0-beta.1, messages up to 1048576 bytes"),
        ({"version": "next"}, 0, "ok", "nats-server next, messages up to 1048576 bytes"),
        ({"version": 7}, 0, "ok", "nats-server of an unknown version, messages up to 1048576 bytes"),
    ],
)
def test_a_version_that_is_too_old_is_named(told: dict[str, Any], status: int, outcome: str, says: str, cli: Cli) -> None:
    with engine(**told) as url:
        steps, err = examined(cli, status, url)
    assert (steps["server"]["outcome"], steps["server"]["detail"]) == (outcome, says)
    assert ("apt install nats-server" in err) is (outcome != "ok")


def test_another_name_is_another_cluster(cluster: RunningCluster, cli: Cli) -> None:
    steps, err = examined(cli, 0, cluster.url + "ping")
    assert steps["nodes"]["outcome"] == "doubtful"
    assert "there is no other node in the cluster 'shopping'" in err
    assert "its path is the name of the cluster" in err


def test_an_address_where_no_engine_is_says_so_at_its_step(cli: Cli) -> None:
    steps, err = examined(cli, 1, f"nats+tcp://127.0.0.1:{free_port()}/shop")
    assert steps["connect"]["outcome"] == "failed"
    assert "start the server, or correct host and port" in err
    steps, err = examined(cli, 1, "nats+tcp://no-such-host.invalid/shop")
    assert steps["resolve"]["outcome"] == "failed"
    assert "--header" in cli.err(2, "doctor", "nats+tcp://127.0.0.1:1/shop", "--header", "a: b")


def test_a_server_of_another_kind_is_taken_for_a_wrong_port(cli: Cli) -> None:
    with serving() as url:
        steps, err = examined(cli, 1, url.replace("ubre", "nats") + "/shop", "--timeout", "0.5")
    assert steps["handshake"]["outcome"] == "failed"
    assert "is this the client port (4222 by default)" in err


@contextmanager
def shop(*, handled: bool, letters: bool = False, fails: bool = False) -> Iterator[str]:
    """The URL of a cluster with a store, a durable handler that is at its end, late or failing, and perhaps a dead letter."""

    @asynccontextmanager
    async def running() -> AsyncIterator[str]:
        async with NatsEngine("tcp://127.0.0.1:0") as server, anyio.create_task_group() as group:
            bus = Bus(cluster=Cluster(server.url + "/shop", stores=[Store("orders", "orders.>")]))
            twice = anyio.Event()

            @bus.on("orders.>", durable="billing", retry=Retry(attempts=1 + fails, backoff=(0.0, 60.0)))
            async def bill(number: int, ctx: Context) -> None:
                if fails:
                    if ctx.attempt == 2:
                        twice.set()
                        await anyio.sleep_forever()
                    raise ValueError("no bank")
                if number < 0:
                    raise ValueError("no bank")
                if not handled:
                    await anyio.sleep_forever()

            async def publish() -> None:
                while True:
                    await bus.publish("orders.x", 1)
                    await anyio.sleep(0.05)

            async with bus:
                if letters:
                    events = bus.events()
                    await bus.publish("orders.bad", -1)
                    await anext(event async for event in events if isinstance(event, DeadLettered))
                if fails:
                    await bus.publish("orders.x", 1)
                    await twice.wait()
                if not handled:
                    for _ in range(3):
                        await bus.publish("orders.x", 1)
                    group.start_soon(publish)
                yield server.url + "/shop"
                group.cancel_scope.cancel()

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(running()) as url:
        yield url


@pytest.mark.parametrize(
    ("options", "outcome", "said"),
    [
        ({"handled": True, "letters": False}, "ok", r"billing, 0 waiting$"),
        ({"handled": True, "letters": True}, "doubtful", r"1 dead letter of billing$"),
        ({"handled": True, "fails": True}, "doubtful", r"1 publication of billing .* more than once but not processed yet$"),
        ({"handled": False, "letters": False}, "doubtful", r"the backlog of billing is growing: \d+, then \d+ a moment later$"),
    ],
    ids=["well", "dead letters", "fails at each attempt", "a backlog that grows"],
)
def test_dead_letters_and_a_growing_backlog_are_doubtful(cli: Cli, options: dict[str, bool], outcome: str, said: str) -> None:
    with shop(**options) as url:
        steps, err = examined(cli, 0, url)
    assert steps["stores"]["outcome"] == outcome
    assert re.match(said, steps["stores"]["detail"])
    assert ("polybus: stores: " in err) is (outcome == "doubtful")
    assert steps["jetstream"]["detail"] == "2 streams, 1 consumer"
