"""Shared by the tests of commands."""

import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from tests.unit.cluster.in_a_thread import RunningCluster, running_cluster

from .support import Cli, serving

PLAIN = "from polybus import Bus\nbus = Bus()\n"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where the bus of `app` is served, in a thread of this process."""
    with serving() as real:
        yield real


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with running_cluster() as running:
        yield running


@pytest.fixture
def suspicious(tmp_path: Path) -> ssl.SSLContext:
    """The context of a server that wants certificates of its clients; theirs are ca.pem, cert.pem and key.pem."""
    authority, tls = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own = authority.issue_cert("127.0.0.1")
    own.configure_cert(tls)
    authority.configure_trust(tls)
    tls.verify_mode = ssl.CERT_REQUIRED
    own.private_key_pem.write_to_path(tmp_path / "key.pem")
    own.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tls


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Writes a module of that text in the folder where the test runs, under a name of its own, which it returns."""
    name = f"module_{abs(hash(request.node.nodeid))}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(text: str = PLAIN) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)
