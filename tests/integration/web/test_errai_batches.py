"""Our bus as a client of a server that puts all that waits into one payload, as Errai's servlets do (notes 2, S1)."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from polybus import Limits, connect
from tests.support import eventually

from .test_errai_client import errai
from .test_errai_sse import streaming

pytestmark = pytest.mark.anyio
COUNT = 16_275
"""Messages in the longest payload that was met: 1.6 MB."""


def burst(subject: str = "news") -> list[dict[str, Any]]:
    return [{"ToSubject": subject, "Value": f"{n:06} {'x' * 60}"} for n in range(COUNT)]


async def test_a_poll_that_brings_more_than_sixteen_thousand_messages_is_read_and_the_link_stays() -> None:
    async with errai() as (server, url), connect(url) as bus, bus.subscribe("news", queue=100) as news:
        server.waiting.extend(burst())
        server.changed.set()
        assert sum(len(json.dumps(one)) for one in burst()) > Limits().message
        heard = [(await anext(news)).body for _ in range(COUNT)]
        assert heard == [one["Value"] for one in burst()]
        assert bus.stats().reconnects == 0


async def test_an_event_of_more_than_sixteen_thousand_messages_is_read_and_the_link_stays() -> None:
    async with streaming() as (server, url), connect(url) as bus, bus.subscribe("news", queue=100) as news:
        await eventually(lambda: server.streams == 1)
        server.waiting.extend(burst())
        heard = [(await anext(news)).body for _ in range(COUNT)]
        assert heard == [one["Value"] for one in burst()]
        assert bus.stats().reconnects == 0


async def test_others_run_while_a_long_payload_is_read() -> None:
    turns, seen = 0, list[int]()

    async with errai() as (server, url), connect(url) as bus:

        @bus.on("news", queue=COUNT)
        async def on_news(body: str) -> None:
            seen.append(turns)

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(count)
            server.waiting.extend(burst())
            server.changed.set()
            await eventually(lambda: len(seen) == COUNT)
            group.cancel_scope.cancel()
    assert len(set(seen)) > COUNT // 1000
