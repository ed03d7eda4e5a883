"""publish, request and subscribe at a cluster: a command is a node of it, as long as it lasts."""

import json
from pathlib import Path

import pytest
import trustme
from anyio.from_thread import start_blocking_portal

from polybus import Bus, Cluster, Store
from polybus.cli.app import run
from polybus.testing import NatsEngine
from tests.support import free_port
from tests.unit.cli.support import Cli, publishing
from tests.unit.cluster.in_a_thread import TOKEN, RunningCluster

pytestmark = pytest.mark.native


def test_a_publication_reaches_the_clients_of_all_workers(cluster: RunningCluster, cli: Cli) -> None:
    assert cli.both(0, "publish", cluster.url, "news.today", '{"title": "Night build"}') == ("", "")
    assert cluster.next_heard(2) == [(key, "news.today", {"title": "Night build"}) for key in ("ann", "bob")]


def test_a_request_is_answered_by_whatever_worker_handles_it(cluster: RunningCluster, cli: Cli) -> None:
    for subject, body, answer in (("thumbnail.make", '"cat"', "cat.small"), ("name.one", "1", "one"), ("name.two", "1", "two")):
        assert cli.json("request", cluster.url, subject, body) == answer


def test_a_user_is_asked_and_told_at_whatever_worker(cluster: RunningCluster, cli: Cli) -> None:
    for key in ("ann", "bob"):
        assert cli.json("request", cluster.url, "payment.confirm", '{"sum": 12}', "--user", key) == {"by": key, "ok": True}
    assert run(["publish", cluster.url, "build.done", "true", "--user", "bob"]) == 0
    assert cluster.next_heard(1) == [("bob", "build.done", True)]


def test_a_publication_to_a_store_is_stored_when_the_command_ends_or_its_refusal_is_status_1(cli: Cli) -> None:
    store = Store("s", "s.>", max_bytes=700)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(NatsEngine("tcp://127.0.0.1:0")) as engine:
        shop = f"{engine.url}/shop"
        with portal.wrap_async_context_manager(Bus(cluster=Cluster(shop, stores=[store]))):
            pass
        for url, subject in ((shop, "s.x"), (engine.url, "shop.p.s.x")):  # by a link it is a stream of others
            assert run(["publish", url, subject, json.dumps("x" * 100)]) == 0
            for limit in ((), ("--timeout", "0")):
                text = cli.line(1, "publish", url, subject, json.dumps("x" * 900), *limit)
                assert "is not stored: the NATS server says: maximum bytes exceeded" in text
            assert run(["publish", url, "other.x", json.dumps("x" * 900)]) == 0
        assert "s: s.>; 2 publications" in cli.out("store", "list", shop)


@pytest.mark.parametrize("command", ["request", "publish"])
def test_a_user_who_is_not_there_is_status_1(command: str, cluster: RunningCluster, cli: Cli) -> None:
    text = cli.line(1, command, cluster.url, "build.done", "1", "--user", "cid")
    assert text == "the user 'cid' is not connected to any node of the cluster: is this the key that authenticate returned?"


def test_auto_is_the_cluster_of_the_environment(cluster: RunningCluster, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYBUS_CLUSTER", cluster.url)
    assert cli.json("request", "auto", "name.two") == "two"
    monkeypatch.delenv("POLYBUS_CLUSTER")
    told = "auto uses POLYBUS_CLUSTER, which is not set: set it, or give a URL"
    assert cli.line(2, "publish", "auto", "news.today") == told


def test_subscribe_hears_what_any_node_publishes(cluster: RunningCluster, cli: Cli) -> None:
    with publishing(Bus(cluster=cluster.url), "build.log"):
        out, err = cli.both(0, "subscribe", cluster.url, "build.*", "--json", "--count", "2")
    assert ([json.loads(line)["body"] for line in out.splitlines()], err) == ([{"n": 1}] * 2, "")


def test_without_a_name_it_is_any_nats_server_and_knows_no_users(cluster: RunningCluster, cli: Cli) -> None:
    native = cluster.url.removesuffix("/shop")
    assert "name.one" in cli.line(1, "request", native, "name.one")
    text = cli.line(2, "request", native, "name.one", "--user", "ann")
    assert "--user requires a cluster: use nats+tcp://host/name" in text


def test_what_a_cluster_cannot_use_is_status_2(cluster: RunningCluster, cli: Cli) -> None:
    assert "TOKEN@host" in cli.line(2, "publish", cluster.url, "news.today", "--header", "authorization: Bearer x")
    assert "letters, digits" in cli.line(2, "publish", cluster.url + "%20x", "news.today")


@pytest.mark.parametrize("url", ["nats+tcp://127.0.0.1:9/shop", "ubre+tcp://127.0.0.1:9"])
def test_an_authority_for_a_wire_without_tls_is_status_2(url: str, tmp_path: Path, cli: Cli) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    text = cli.line(2, "publish", url, "news.today", "1", "--ca", str(tmp_path / "ca.pem"))
    assert "--ca FILE" in text
    assert "plain" in text or "not encrypted" in text


def test_an_engine_that_is_not_there_or_does_not_know_us_is_status_1(cluster: RunningCluster, cli: Cli) -> None:
    text = cli.line(1, "publish", f"nats+tcp://127.0.0.1:{free_port()}/shop", "news.today")
    assert text.strip().endswith("is the NATS server of the cluster running? --wait S keeps trying")
    assert text.count("--wait") == 1
    text = cli.line(1, "publish", cluster.url.replace(TOKEN, "guessed"), "news.today")
    assert "Authorization Violation" in text
    assert "TOKEN@ or USER:PASSWORD@ before the host" in text
    assert "guessed" not in text
