"""An in-memory engine for the nodes of a test, and a unique name."""

import itertools
from collections.abc import AsyncIterator

import pytest

from polybus.testing import NatsEngine

_names = itertools.count()


@pytest.fixture
async def engine() -> AsyncIterator[NatsEngine]:
    async with NatsEngine() as running:
        yield running


@pytest.fixture
def name() -> str:
    """Of a cluster, or of the subjects of a stream: one for each test, since a server keeps what is stored."""
    return f"shop{next(_names)}"
