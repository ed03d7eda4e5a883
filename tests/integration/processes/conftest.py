"""One server for the tests of a module, on the event loop of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from .processes import Process, loop_of, running


@pytest.fixture(scope="module")
async def server(anyio_backend: tuple[str, dict[str, Any]]) -> AsyncIterator[Process]:
    """A server with default limits, over TCP."""
    async with running(**loop_of(anyio_backend)) as process:
        yield process
