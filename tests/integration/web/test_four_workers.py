"""An application that four workers serve at one port is one bus: for many clients, for users, and for a page in a browser."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from attrs import frozen

from polybus import Bus, connect
from tests.integration.processes.processes import BOUND, eventually, running, stopped
from tests.integration.processes.test_workers import server_is_there  # noqa: F401  # for all tests here
from tests.integration.web.browser import browser
from tests.integration.web.test_workers import APP, said, serving

WORKERS = 4
CLIENTS = 200
PUBLICATIONS = 25
"""Of each publisher, of which each worker has one."""
PAGE = """
from fastapi.responses import HTMLResponse

@app.get("/page")
async def page() -> HTMLResponse:
    answer = HTMLResponse('''<!doctype html><title>page</title><script>
const heard = []
const socket = new WebSocket(`ws://${location.host}/bus`, ['ubre'])
socket.onopen = () => socket.send('{"subscribe": "page.*"}')
socket.onmessage = ({ data }) => {
  const message = JSON.parse(data)
  if (message.request) socket.send(JSON.stringify({ success: message.id, body: [document.title, message.body] }))
  if (message.publish) heard.push(message.body)
}
</script>''')
    answer.set_cookie("user", "page")
    return answer
"""


@frozen
class Site:
    """The four workers, and a client at each."""

    url: str
    at: dict[int, Bus]


@pytest.fixture(scope="module")
async def site(anyio_backend: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    folder: Path = tmp_path_factory.mktemp("four")
    with serving(folder, "port=0", workers=WORKERS, app=APP + PAGE) as process:
        url = await anyio.to_thread.run_sync(said, process)
        bus_url = f"ubre+ws{url.removeprefix('http')}/bus"
        async with AsyncExitStack() as stack:
            at: dict[int, Bus] = {}
            while len(at) < WORKERS:
                async with stopped(at):
                    client = await stack.enter_async_context(connect(bus_url))
                    at[await client.request("pid", timeout=BOUND)] = client
            with anyio.fail_after(BOUND):
                first = next(iter(at.values()))
                while await first.request("nodes", timeout=BOUND) < WORKERS:  # noqa: ASYNC110  # nobody tells
                    await anyio.sleep(0.02)
            yield Site(url, at)


async def test_each_publication_reaches_each_of_many_clients_once_and_in_order(site: Site) -> None:
    bus_url = f"ubre+ws{site.url.removeprefix('http')}/bus"
    users = [f"user{number}" for number in range(CLIENTS)]
    async with running("tests.integration.web.crowd", url=bus_url, users=users) as process, connect(process.url) as crowd:
        async with anyio.create_task_group() as group:
            for publisher, client in enumerate(site.at.values()):
                group.start_soon(publish_all, client, publisher)

        async def all_heard(count: int) -> bool:
            orders = await crowd.request("orders", timeout=BOUND)
            return bool(orders == {json.dumps({str(publisher): count for publisher in range(WORKERS)}): CLIENTS})

        await eventually(partial(all_heard, PUBLICATIONS), BOUND)
        # Whichever worker a user is connected to: at most one of these four is that one.
        for user in users[:: CLIENTS // 5]:
            for client in site.at.values():
                question = {"key": user, "subject": "who", "body": None}
                assert await client.request("ask.user", question, timeout=BOUND) == user
        for publisher, client in enumerate(site.at.values()):  # all that comes twice has come by now
            await client.request("publish", {"subject": "news", "body": [publisher, PUBLICATIONS]}, timeout=BOUND)
        await eventually(partial(all_heard, PUBLICATIONS + 1), BOUND)


async def publish_all(client: Bus, publisher: int) -> None:
    for number in range(PUBLICATIONS):
        await client.request("publish", {"subject": "news", "body": [publisher, number]}, timeout=BOUND)


async def test_a_page_in_a_browser_is_asked_and_told_from_each_worker(site: Site) -> None:
    async with browser() as chromium:
        tab = await chromium.tab(f"{site.url}/page")
        await tab.until("socket.readyState === WebSocket.OPEN")
        first = next(iter(site.at.values()))

        async def online() -> bool:
            return bool(await first.request("online", "page", timeout=BOUND))

        await eventually(online)
        for number, client in enumerate(site.at.values()):
            question = {"key": "page", "subject": "title", "body": number}
            assert await client.request("ask.user", question, timeout=BOUND) == ["page", number]
            await client.request("publish", {"subject": "page.news", "body": number}, timeout=BOUND)
        await tab.until(f"heard.length === {WORKERS}")
        assert sorted(await tab.run("heard")) == list(range(WORKERS))
        assert chromium.problems == []
        await tab.aclose()

        async def gone() -> bool:
            return not await first.request("online", "page", timeout=BOUND)

        await eventually(gone)
