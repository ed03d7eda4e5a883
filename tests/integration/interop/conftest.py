"""Real third-party peers: npm `ubre`, NATS servers and clients, FastStream, up-python, Zenoh, the parser of AsyncAPI.

Unit tests of each protocol prove its bytes, the contract its behaviour: here each real peer is tested in both roles. Needs
the packages of the extra ``dev``, which bring nats-py, FastStream, Zenoh and the newest NATS server; Node with the npm
packages of `node/package.json` and the environments of `up_python` and `umessage`, which ``make peers`` installs; and
Debian's `nats-server`. Tests with a missing peer are skipped; in CI they fail. To run only this folder: ``make
test-integration ARGS=tests/integration/interop``.
"""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from polybus.cli import app

from .nats_py_peer import NatsPy, nats_py
from .nats_servers import VERSIONS, NatsServer, nats_server

_names = itertools.count()


@pytest.fixture
def name() -> str:
    """Of a cluster, or of the subjects of a stream: one for each test, since a server keeps what is stored."""
    return f"shop{next(_names)}"


@pytest.fixture(scope="module", params=VERSIONS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A NATS server that keeps streams, for all tests of a module."""
    with nats_server(request.param, f'jetstream {{ store_dir: "{tmp_path_factory.mktemp("stores")}" }}') as server:
        yield server


@pytest.fixture(params=VERSIONS)
def keeping(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NatsServer]:
    """A NATS server that keeps streams, for one test."""
    with nats_server(request.param, f'jetstream {{ store_dir: "{tmp_path}" }}') as one:
        yield one


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """The newest NATS server, for all tests of a module."""
    with nats_server("wheel") as one:
        yield one


class Done(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> Done:
        status = app.run(arguments)
        return Done(status, *capsys.readouterr())

    return run


@pytest.fixture
async def theirs(server: NatsServer, anyio_backend: Any) -> AsyncIterator[NatsPy]:
    async with nats_py(server.address) as client:
        yield client
