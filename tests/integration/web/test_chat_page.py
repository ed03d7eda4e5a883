"""The chat example: a page in a real browser talks to a bus in FastAPI, by `polybus.js`."""

import signal

import anyio
import anyio.to_thread

from tests.integration.web.browser import Browser, Tab
from tests.integration.web.support import example
from tests.support import free_port

SEEN = """
globalThis.seen = [];
new MutationObserver(() => seen.push(state.textContent)).observe(state, { childList: true })
"""
"""All that the page says of its state from now on: the next attempt to connect says something else."""
LINES = "[...document.querySelectorAll('#lines li')].map(line => line.textContent)"


async def entered(chromium: Browser, site: str, name: str) -> Tab:
    tab = await chromium.tab(site)
    await tab.until("!document.querySelector('#login').hidden")
    await tab.fill("#login input", name)
    await tab.until("document.querySelector('#state').innerText === 'connected'")
    return tab


async def test_two_people_talk_and_a_third_reads_what_was_said_before(chromium: Browser) -> None:
    async with example("chat") as chat:
        ann = await entered(chromium, chat.site, "Ann")
        ben = await entered(chromium, chat.site, "Ben")
        await ann.fill("#say input", "Hello, <b>Ben</b> \u2028 \U0001f600")
        for tab in (ann, ben):
            await tab.until(f"{LINES}.length === 1")
            assert await tab.run(LINES) == ["Ann: Hello, <b>Ben</b> \u2028 \U0001f600"]
        await ben.fill("#say input", "Hello, Ann")
        await ann.until(f"{LINES}.length === 2")
        cyd = await entered(chromium, chat.site, "Cyd")
        await cyd.until(f"{LINES}.length === 2")
        assert (await cyd.run(LINES))[1] == "Ben: Hello, Ann"
    assert chromium.problems == []


async def test_a_page_comes_back_after_the_server_was_restarted(chromium: Browser) -> None:
    port = str(free_port())
    async with example("chat", PORT=port) as server:
        ann = await entered(chromium, server.site, "Ann")
        await ann.run(SEEN)
        server.process.send_signal(signal.SIGTERM)
        await ann.until("seen.includes('not connected (1001 the bus is leaving)')")
        assert await anyio.to_thread.run_sync(server.process.wait) == 0
    async with example("chat", PORT=port):
        # The sessions of the example live in the process, so she has to enter again, in the tab that is open.
        await ann.until(
            "!document.querySelector('#login').hidden && state.innerText === 'not connected (4401 not authenticated)'"
        )
        await ann.fill("#login input", "Ann")
        await ann.until("document.querySelector('#state').innerText === 'connected'")
        await ann.fill("#say input", "here again")
        await ann.until(f"{LINES}.length === 1")
        assert await ann.run(LINES) == ["Ann: here again"]
    assert chromium.problems == []
