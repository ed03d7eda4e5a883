"""A page that Vite builds with the npm package of the client."""

import re
from functools import partial
from pathlib import Path

import anyio.to_thread
from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from polybus import Bus, Peer
from polybus.fastapi import attach
from tests.integration.interop.node_peer import require_node
from tests.integration.web.browser import browser
from tests.integration.web.support import running

from .packages import NODE, ROOT, run

PAGE = '<!doctype html><main></main><script type="module" src="/main.js"></script>'

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


async def test_an_effect_that_strict_mode_runs_twice_subscribes_once(project: Path) -> None:
    require_node("vite", "react-dom")
    for package in ("react", "react-dom", "scheduler"):
        (project / "node_modules" / package).symlink_to(NODE / "node_modules" / package)
    (project / "index.html").write_text(PAGE)
    (project / "main.js").write_text(STRICT)
    command = [str(NODE / "node_modules" / ".bin" / "vite"), "build", "--mode", "development"]
    await anyio.to_thread.run_sync(partial(run, *command, cwd=project, NODE_ENV="development"))
    subscribed = []

    def authorize(peer: Peer, verb: str, subject: str | int) -> bool:
        if verb == "subscribe":
            subscribed.append(subject)
        return True

    app, bus = FastAPI(), Bus(authorize=authorize)
    attach(app, bus, path="/bus")
    app.mount("/", StaticFiles(directory=project / "dist", html=True))
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
