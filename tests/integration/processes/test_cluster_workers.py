"""Four workers of one program as one bus: what clients of one worker say and ask, clients of all others hear and answer."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from polybus import Bus, Disconnected, connect
from tests.integration.processes.processes import BOUND, eventually
from tests.integration.processes.test_workers import ANY_PORT, SOON, crew, server_is_there

__all__ = ["server_is_there"]
CLIENTS = 40
PUBLICATIONS = 50

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The processes choose their own event loop; the test itself needs one."""
    return "asyncio", {"use_uvloop": False}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_each_publication_reaches_each_client_of_four_workers_once_and_in_order(backend: str) -> None:
    async with crew(ANY_PORT, workers=4, backend=backend) as found, AsyncExitStack() as stack:
        url = found.process.url
        clients = [await stack.enter_async_context(connect(url)) for _ in range(CLIENTS)]
        assert len({await client.request("pid") for client in clients}) > 1
        await eventually(lambda: is_true(clients[0].request("nodes"), 4))
        heard = [await stack.enter_async_context(client.subscribe("news.*", queue=10_000)) for client in clients]
        async with anyio.create_task_group() as group:
            for publisher in range(4):
                group.start_soon(publish_all, clients[publisher], publisher)
        for subscription in heard:
            got: dict[int, list[int]] = {publisher: [] for publisher in range(4)}
            for _ in range(4 * PUBLICATIONS):
                publisher, number = (await subscription.receive(BOUND)).body
                got[publisher].append(number)
            assert got == {publisher: list(range(PUBLICATIONS)) for publisher in range(4)}
            with pytest.raises(TimeoutError):
                await subscription.receive(0.01)


async def publish_all(client: Bus, publisher: int) -> None:
    for number in range(PUBLICATIONS):
        await client.request("publish", {"subject": f"news.{publisher}", "body": [publisher, number]}, timeout=BOUND)


async def is_true(answer: Any, expected: object) -> bool:
    return bool(await answer == expected)


async def test_a_user_is_asked_from_every_worker_and_those_who_ask_a_killed_one_are_told() -> None:
    page = Bus()
    begun = anyio.Event()

    @page.handle("confirm")
    async def confirm(n: int) -> int:
        return n + 1

    @page.handle("think")
    async def think(n: int) -> None:
        begun.set()
        await anyio.sleep_forever()

    async with crew(ANY_PORT, workers=4) as found, AsyncExitStack() as stack:
        url = found.process.url
        async with connect(url, bus=page, headers={"x-user": "ann"}, backoff=SOON):
            (home,) = [await page.request("pid", to=peer) for peer in page.peers]
            others: dict[int, Bus] = {}
            with anyio.fail_after(BOUND):
                while len(others) < 3:
                    client = await stack.enter_async_context(connect(url, backoff=SOON))
                    pid = await client.request("pid", timeout=BOUND)
                    if pid != home:
                        others.setdefault(pid, client)
            answers: Counter[int] = Counter()
            for client in others.values():
                assert await client.request("online", "ann", timeout=BOUND)
                answers[await client.request("ask.user", {"key": "ann", "subject": "confirm", "body": 1}, timeout=BOUND)] += 1
            assert answers == {2: 3}
            asker = next(iter(others.values()))
            reply = asker.request("ask.user", {"key": "ann", "subject": "think", "body": 1}, timeout=BOUND)
            with anyio.fail_after(BOUND):
                await begun.wait()
            os.kill(home, signal.SIGKILL)
            with pytest.raises(Exception) as caught:
                await reply
            assert not isinstance(caught.value, TimeoutError | Disconnected)
            # The page comes back to another worker, or to the successor of that one.
            await eventually(lambda: is_true(asker.request("online", "ann", timeout=BOUND), True))
            question = {"key": "ann", "subject": "confirm", "body": 2}
            assert await asker.request("ask.user", question, timeout=BOUND) == 3
