"""The command line at a real NATS server."""

import json
from pathlib import Path

from .conftest import Run
from .nats_servers import certified, nats_server


def with_tls(folder: Path, more: str = "") -> str:
    """The configuration of a server with a certificate for localhost, whose authority is in `ca.pem` of the folder."""
    return f"tls {{ {certified(folder, 'localhost')[1]}\n{more} }}"


def test_doctor_hears_the_server_before_tls(run: Run, tmp_path: Path) -> None:
    with nats_server("debian", with_tls(tmp_path)) as server:
        done = run("doctor", f"nats+tls://localhost:{server.port}", "--ca", str(tmp_path / "ca.pem"))
        assert done.status == 0, done.out + done.err
        assert "TLSv1.3, certificate for localhost" in done.out
    with nats_server("debian") as server:
        done = run("doctor", f"nats+tls://localhost:{server.port}")
        assert done.status == 1
        assert "the server has no TLS" in done.out


def test_commands_at_a_cluster_trust_the_authority_of_ca(run: Run, tmp_path: Path) -> None:
    tls = with_tls(tmp_path)
    trust = ("--ca", str(tmp_path / "ca.pem"))
    with nats_server("wheel", f'{tls}\njetstream {{ store_dir: "{tmp_path / "js"}" }}') as server:
        url = f"nats+tls://localhost:{server.port}/shop"
        for command in (("store", "add", url, "work", "work.>"), ("publish", url, "work.x", "1")):
            done = run(*command, *trust)
            assert (done.status, done.err) == (0, "")
        assert "work: work.>; 1 publication" in run("store", "list", url, *trust).out
        assert run("store", "add", url, "small", "small.>", "--max-bytes", "500", *trust).status == 0
        done = run("publish", url, "small.x", json.dumps("x" * 600), *trust)
        assert (done.status, "maximum bytes exceeded" in done.err) == (1, True)
        assert run("dead", "list", url, *trust).out.startswith("no dead letters")
        done = run("doctor", url, *trust)
        assert done.status == 0, done.out + done.err
        assert "there is no other node in the cluster 'shop'" in done.out
        refused = run("store", "list", url)
        assert refused.status == 1
        assert "certificate is not trusted" in refused.err
        assert "--ca FILE" in refused.err


def test_an_engine_that_wants_client_certificates_gets_that_of_cert_and_key(run: Run, tmp_path: Path) -> None:
    tls = with_tls(tmp_path, f'ca_file: "{tmp_path / "ca.pem"}"\nverify: true')
    trust = ("--ca", str(tmp_path / "ca.pem"))
    shown = (*trust, "--cert", str(tmp_path / "cert.pem"), "--key", str(tmp_path / "key.pem"))
    with nats_server("wheel", f'{tls}\njetstream {{ store_dir: "{tmp_path / "js"}" }}') as server:
        url = f"nats+tls://localhost:{server.port}"
        refused = run("doctor", f"{url}/shop", *trust)
        assert refused.status == 1
        assert "--cert FILE --key FILE" in refused.err
        assert run("dead", "list", f"{url}/shop", *shown).out.startswith("no dead letters")
        for at in (url, f"{url}/shop"):
            assert run("doctor", at, *shown).status == 0


def test_publish_subscribe_and_request_say_that_the_server_does_not_allow_it(run: Run) -> None:
    rights = '{ publish: { deny: ["secret", "shop.p.secret"] }, subscribe: { deny: ["secret"] } }'
    with nats_server("wheel", f'authorization {{ users: [{{ user: "ann", password: "a", permissions: {rights} }}] }}') as one:
        url = one.url.replace("://", "://ann:a@")
        for at in (url, f"{url}/shop"):
            done = run("publish", at, "secret", "1")
            assert (done.status, 'Permissions Violation for Publish to "' in done.err) == (1, True), done
            done = run("publish", at, "open", "1")
            assert (done.status, done.err) == (0, "")
        for command in ("subscribe", "request"):
            done = run(command, url, "secret")
            assert (done.status, "ask the operator of the server for permission" in done.err) == (1, True), done


def test_doctor_names_the_permission_that_a_node_lacks(run: Run) -> None:
    rights = '{ publish: ["shop.>"], subscribe: ["shop.>"] }'
    with nats_server(
        "wheel", f'authorization {{ users: [{{ user: "ann", password: "secret", permissions: {rights} }}] }}'
    ) as one:
        url = one.url.replace("://", "://ann:secret@")
        done = run("doctor", url + "/shop")
        assert done.status == 0, done.err
        assert "this user may not request $JS.API.INFO; allow this user to publish to $JS.API.INFO" in done.err
        done = run("doctor", url + "/store")
        assert done.status == 1
        assert 'Permissions Violation for Subscription to "store.' in done.err
        assert "jetstream: no answer can come, for the NATS server says: Permissions Violation for Subscription" in done.err
        assert "allow this user of the NATS server to publish and to subscribe to store.>" in done.err
        assert "secret" not in done.out + done.err
