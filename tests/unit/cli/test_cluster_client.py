"""publish, request and subscribe at a cluster: a command is a node of it, as long as it lasts."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from anyio.from_thread import start_blocking_portal

from polybus import Bus, Cluster, Store
from polybus.cli.app import run
from polybus.testing import NatsEngine
from tests.support import free_port
from tests.unit.cli.support import one_line, publishing
from tests.unit.cluster.in_a_thread import TOKEN, RunningCluster, running_cluster

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with running_cluster() as running:
        yield running


def test_a_publication_reaches_the_clients_of_all_workers(cluster: RunningCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["publish", cluster.url, "news.today", '{"title": "Night build"}']) == 0
    assert cluster.next_heard(2) == [(key, "news.today", {"title": "Night build"}) for key in ("ann", "bob")]
    assert capsys.readouterr() == ("", "")


def test_a_request_is_answered_by_whatever_worker_handles_it(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for subject, body, answer in (
        ("thumbnail.make", '"cat"', "cat.small"),
        ("name.one", "null", "one"),
        ("name.two", "null", "two"),
    ):
        assert run(["request", cluster.url, subject, body]) == 0
        assert json.loads(capsys.readouterr().out) == answer


def test_a_user_is_asked_and_told_at_whatever_worker(cluster: RunningCluster, capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("ann", "bob"):
        assert run(["request", cluster.url, "payment.confirm", '{"sum": 12}', "--user", key]) == 0
        assert json.loads(capsys.readouterr().out) == {"by": key, "ok": True}
    assert run(["publish", cluster.url, "build.done", "true", "--user", "bob"]) == 0
    assert cluster.next_heard(1) == [("bob", "build.done", True)]


def test_a_publication_to_a_store_is_stored_when_the_command_ends_or_its_refusal_is_status_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = Store("s", "s.>", max_bytes=700)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(NatsEngine("tcp://127.0.0.1:0")) as engine:
        shop = f"{engine.url}/shop"
        with portal.wrap_async_context_manager(Bus(cluster=Cluster(shop, stores=[store]))):
            pass
        for url, subject in ((shop, "s.x"), (engine.url, "shop.p.s.x")):  # by a link it is a stream of others
            assert run(["publish", url, subject, json.dumps("x" * 100)]) == 0
            status, text = one_line(capsys, "publish", url, subject, json.dumps("x" * 900))
            assert status == 1
            assert "is not stored: the NATS server says: maximum bytes exceeded" in text
            assert run(["publish", url, "other.x", json.dumps("x" * 900)]) == 0
        assert run(["store", "list", shop]) == 0
        assert "s: s.>; 2 publications" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["request", "publish"])
def test_a_user_who_is_not_there_is_status_1(command: str, cluster: RunningCluster, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = one_line(capsys, command, cluster.url, "build.done", "1", "--user", "cid")
    assert status == 1
    assert text == "the user 'cid' is not connected to any node of the cluster: is this the key that authenticate returned?"


def test_auto_is_the_cluster_of_the_environment(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYBUS_CLUSTER", cluster.url)
    assert run(["request", "auto", "name.two"]) == 0
    assert json.loads(capsys.readouterr().out) == "two"
    monkeypatch.delenv("POLYBUS_CLUSTER")
    assert one_line(capsys, "publish", "auto", "news.today") == (
        2,
        "auto reads POLYBUS_CLUSTER, which is not set: set it, or give a URL",
    )


def test_subscribe_hears_what_any_node_publishes(cluster: RunningCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with publishing(Bus(cluster=cluster.url), "build.log"):
        assert run(["subscribe", cluster.url, "build.*", "--json", "--count", "2"]) == 0
    out, err = capsys.readouterr()
    assert ([json.loads(line)["body"] for line in out.splitlines()], err) == ([{"n": 1}] * 2, "")


def test_without_a_name_it_is_any_nats_server_and_knows_no_users(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    native = cluster.url.removesuffix("/shop")
    status, text = one_line(capsys, "request", native, "name.one")
    assert status == 1
    assert "name.one" in text
    status, text = one_line(capsys, "request", native, "name.one", "--user", "ann")
    assert status == 2
    assert "--user needs a cluster: its URL is nats+tcp://host/name" in text


def test_what_a_cluster_cannot_use_is_status_2(cluster: RunningCluster, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = one_line(capsys, "publish", cluster.url, "news.today", "--header", "authorization: Bearer x")
    assert (status, "TOKEN@host" in text) == (2, True)
    status, text = one_line(capsys, "publish", cluster.url + "%20x", "news.today")
    assert (status, "letters, digits" in text) == (2, True)


@pytest.mark.parametrize("url", ["nats+tcp://127.0.0.1:9/shop", "ubre+tcp://127.0.0.1:9"])
def test_an_authority_for_a_wire_without_tls_is_status_2(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    status, text = one_line(capsys, "publish", url, "news.today", "1", "--ca", str(tmp_path / "ca.pem"))
    assert status == 2
    assert "--ca FILE" in text
    assert "plain" in text or "not encrypted" in text


def test_an_engine_that_is_not_there_or_does_not_know_us_is_status_1(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = one_line(capsys, "publish", f"nats+tcp://127.0.0.1:{free_port()}/shop", "news.today")
    assert status == 1
    assert text.strip().endswith("is the NATS server of the cluster running? --wait S goes on trying")
    assert text.count("--wait") == 1
    status, text = one_line(capsys, "publish", cluster.url.replace(TOKEN, "guessed"), "news.today")
    assert status == 1
    assert "Authorization Violation" in text
    assert "TOKEN@ or USER:PASSWORD@ before the host" in text
    assert "guessed" not in text
