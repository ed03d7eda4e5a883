"""--cert and --key of commands that serve and connect: what they show to both sides, where there is TLS."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from polybus import Broker

from .support import APP, Cli, next_line, serving, started

OWN = ("--ca", "ca.pem", "--cert", "cert.pem", "--key", "key.pem")
ROUTES = '[[route]]\nsource = "greet"\ntarget = "greet"\n'


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, suspicious: ssl.SSLContext) -> None:
    (tmp_path / "routes.toml").write_text(ROUTES)
    (tmp_path / "app.py").write_text(APP)


@pytest.fixture
def servers(suspicious: ssl.SSLContext) -> Iterator[dict[str, str]]:
    """URLs of a bus, and of a broker for its servers, that both want certificates."""
    broker = Broker("csb+tcp://127.0.0.1:0", "csb+tls://127.0.0.1:0", tls=suspicious)
    with (
        serving("ubre+tls://127.0.0.1:0", tls=suspicious) as bus,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(broker) as made,
    ):
        yield {"bus": bus, "broker": made.server_urls[0]}


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("serve app:bus ubre+tls://127.0.0.1:0 ubre+tcp://127.0.0.1:0 {broker}", 3),
        ("bridge ubre+tls://127.0.0.1:0 {bus} --serve left --routes routes.toml", 2),
        ("record {bus} captured --listen ubre+tls://127.0.0.1:0", 1),
    ],
)
def test_a_command_that_serves_and_connects_shows_its_certificate_to_both_sides(
    command: str, lines: int, servers: dict[str, str], tmp_path: Path, cli: Cli
) -> None:
    words = [word.format(**servers) for word in command.split()]
    with started(*words, *OWN, cwd=tmp_path) as process:
        said = [next_line(process) for _ in range(lines)]
        assert all(said), process.communicate(timeout=60)
        url = said[0].split()[-1]
        assert url.startswith("ubre+tls://")
        assert cli.out("request", url, "greet", '"Ann"', "--ca", str(tmp_path / "ca.pem")) == '"Hello, Ann"\n'


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("serve app:bus ubre+tls://127.0.0.1:0", "--ca is for connections that this command opens"),
        ("bridge a b --serve left --serve right --routes routes.toml", "--ca is for connections that the bridge opens"),
        ("record ubre+ws://127.0.0.1:1/bus captured", "--ca is for connections with TLS"),
        ("record ubre+tcp://127.0.0.1:1 captured --listen ubre+tls://127.0.0.1:0", "with TLS, but URL does not use TLS"),
    ],
)
def test_an_authority_without_tls_is_refused(
    command: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in cli.line(2, *command.split(), *OWN)
