"""Pages that Vite builds with the npm package of the client."""

import re
from pathlib import Path

import anyio
import anyio.to_thread
from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from polybus import Bus, Peer
from polybus.fastapi import attach
from tests.integration.interop.node_peer import require_node
from tests.integration.web.browser import browser
from tests.integration.web.support import echoing, running
from tests.support import BOUND

from .packages import NODE, ROOT, run

CONFIG = "export default { build: { modulePreload: { polyfill: false } } }"
"""The polyfill needs a `document`, which Node does not have."""
PAGE = '<!doctype html><main></main><script type="module" src="/main.js"></script>'

ASKS = """
import { connect } from 'polybus'

const bus = connect(globalThis.url)
const error = await bus.request('unknown').catch((error) => error.name) // minified, too
console.log(await bus.request('echo', 'hello'), error)
bus.close()
"""
[REACT] = re.findall(r"^## React\n.*?```js\n(.*?)```", (ROOT / "docs/how-to/browser.md").read_text(), re.M | re.S)
STRICT = f"""
import {{ connect }} from 'polybus'
import {{ createElement, StrictMode, useEffect, useState }} from 'react'
import {{ createRoot }} from 'react-dom/client'

{REACT}
function News() {{
  useEffect(() => void (globalThis.effects = (globalThis.effects ?? 0) + 1), [])
  return createElement('p', null, useLatest('news'))
}}
createRoot(document.querySelector('main')).render(createElement(StrictMode, null, createElement(News)))
globalThis.bus = bus
"""


async def built(project: Path, program: str, mode: str = "production") -> Path:
    require_node("vite", "react-dom")
    for package in ("react", "react-dom", "scheduler"):
        link = project / "node_modules" / package
        if not link.exists():
            link.symlink_to(NODE / "node_modules" / package)
    for name, text in (("vite.config.js", CONFIG), ("index.html", PAGE), ("main.js", program)):
        (project / name).write_text(text)
    vite = str(NODE / "node_modules" / ".bin" / "vite")

    def build() -> None:
        run(vite, "build", "--mode", mode, cwd=project, NODE_ENV=mode)

    await anyio.to_thread.run_sync(build)
    return project / "dist"


async def test_a_page_that_vite_has_built_talks_to_its_bus(project: Path) -> None:
    require_node("ws8")
    [bundle] = (await built(project, ASKS) / "assets").glob("*.js")
    async with echoing().serve("ubre+ws://127.0.0.1:0/bus") as listener:
        url = listener.url.removeprefix("ubre+")
        program = f"""
            import {{ WebSocket }} from 'ws8'
            Object.assign(globalThis, {{ WebSocket, url: '{url}' }})
            await import('{bundle.as_uri()}')
        """
        with anyio.fail_after(BOUND):
            done = await anyio.run_process(["node", "--input-type=module", "-e", program], cwd=NODE, stderr=None)
    assert done.stdout.decode() == "hello NoHandler\n"


async def test_an_effect_that_strict_mode_runs_twice_subscribes_once(project: Path) -> None:
    subscribed = []

    def authorize(peer: Peer, verb: str, subject: str | int) -> bool:
        if verb == "subscribe":
            subscribed.append(subject)
        return True

    files = await built(project, STRICT, "development")
    app, bus = FastAPI(), Bus(authorize=authorize)
    attach(app, bus, path="/bus")
    app.mount("/", StaticFiles(directory=files, html=True))
    async with browser() as chromium, running(app) as server:
        tab = await chromium.tab(f"http://127.0.0.1:{server.port}/")
        await tab.until("window.bus?.state === 'open'")
        await tab.run("bus.subscribe('more', () => {}).ready")  # the server has everything that the page sent before
        await bus.publish("news", "good morning")
        await tab.until("document.querySelector('p').textContent === 'good morning'")
        assert await tab.run("effects") == 2
        await tab.aclose()
        assert chromium.problems == []
    assert subscribed == ["news", "more"]
