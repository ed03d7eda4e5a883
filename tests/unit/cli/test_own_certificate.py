"""--cert and --key of commands that serve and connect: what they show to both sides, where there is TLS."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from anyio.from_thread import start_blocking_portal

from polybus import Broker, Bus
from polybus.cli.app import run

from .support import APP, next_line, one_line, started

OWN = ("--ca", "ca.pem", "--cert", "cert.pem", "--key", "key.pem")
ROUTES = '[[route]]\nsource = "greet"\ntarget = "greet"\n'


@pytest.fixture
def suspicious(tmp_path: Path) -> ssl.SSLContext:
    """The context of a server that wants certificates of its clients, with the files that OWN names."""
    authority, tls = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own = authority.issue_cert("127.0.0.1")
    own.configure_cert(tls)
    authority.configure_trust(tls)
    tls.verify_mode = ssl.CERT_REQUIRED
    own.private_key_pem.write_to_path(tmp_path / "key.pem")
    own.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "routes.toml").write_text(ROUTES)
    (tmp_path / "app.py").write_text(APP)
    return tls


@pytest.fixture
def servers(suspicious: ssl.SSLContext) -> Iterator[dict[str, str]]:
    """URLs of a bus, and of a broker for its servers, that both want certificates."""
    bus, broker = Bus(), Broker("csb+tcp://127.0.0.1:0", "csb+tls://127.0.0.1:0", tls=suspicious)

    @bus.handle("greet")
    async def greet(name: str) -> str:
        return f"Hello, {name}"

    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(bus.serve("ubre+tls://127.0.0.1:0", tls=suspicious)) as listener,
        portal.wrap_async_context_manager(broker) as made,
    ):
        yield {"bus": listener.url, "broker": made.server_urls[0]}


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("serve app:bus ubre+tls://127.0.0.1:0 ubre+tcp://127.0.0.1:0 {broker}", 3),
        ("bridge ubre+tls://127.0.0.1:0 {bus} --serve left --routes routes.toml", 2),
        ("record {bus} captured --listen ubre+tls://127.0.0.1:0", 1),
    ],
)
def test_a_command_that_serves_and_connects_shows_its_certificate_to_both_sides(
    command: str, lines: int, servers: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(**servers) for word in command.split()]
    with started(*words, *OWN, cwd=tmp_path) as process:
        said = [next_line(process) for _ in range(lines)]
        assert all(said), process.communicate(timeout=60)
        url = said[0].split()[-1]
        assert url.startswith("ubre+tls://")
        assert run(["request", url, "greet", '"Ann"', "--ca", str(tmp_path / "ca.pem")]) == 0
    assert capsys.readouterr().out == '"Hello, Ann"\n'


@pytest.mark.usefixtures("suspicious")
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("serve app:bus ubre+tls://127.0.0.1:0", "--ca is for connections that this command opens"),
        (
            "bridge a b --serve left --serve right --routes routes.toml",
            "--ca is for connections that the bridge opens",
        ),
        ("record ubre+ws://127.0.0.1:1/bus captured", "--ca is for connections with TLS"),
        (
            "record ubre+tcp://127.0.0.1:1 captured --listen ubre+tls://127.0.0.1:0",
            "for connections with TLS, and URL has no TLS",
        ),
    ],
)
def test_an_authority_is_refused_where_nothing_connects_with_tls(
    command: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    status, text = one_line(capsys, *command.split(), *OWN)
    assert (status, says in text) == (2, True)
