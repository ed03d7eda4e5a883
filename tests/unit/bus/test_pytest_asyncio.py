"""A pytest-asyncio fixture, whose set-up and clean-up may run in different tasks."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from polybus import Bus
from polybus.testing import pair


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Bus]:
    bus = Bus()

    @bus.handle("echo")
    async def echo(body: Any) -> Any:
        return body

    async with pair(bus) as client:
        yield client


@pytest.mark.asyncio
async def test_a_pytest_asyncio_fixture_may_yield_a_client(client: Bus) -> None:
    assert await client.request("echo", 1) == 1
