"""What a real browser does with our handshakes: tokens as sub-protocols, foreign origins, codes of the end."""

import datetime
import json
from typing import Any

import anyio
from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from polybus import Bus, Context, Identity
from polybus.fastapi import attach
from polybus.plugins import Handshake
from tests.integration.web.browser import BOUND, Browser, Tab
from tests.integration.web.support import Uvicorn, running

# Opens a WebSocket, asks who it is, and tells all that happened until the end, or until `frames` frames have come.
SCRIPT = """
new Promise((resolve) => {
  const log = []
  const socket = new WebSocket(%(url)s, %(offers)s)
  socket.onopen = () => { log.push(['open', socket.protocol]); socket.send('{"request": "whoami", "id": 1}') }
  socket.onmessage = ({ data }) => { log.push(['frame', data]); log.length > %(frames)d && resolve(log) }
  socket.onclose = ({ code, reason }) => { log.push(['close', code, reason]); resolve(log) }
})
"""


def authenticate(handshake: Handshake) -> Identity | None:
    """``Bearer ann`` is Ann, ``Bearer ann.soon`` is she for a moment, and so is the cookie."""
    token = handshake.cookies.get("session") or handshake.headers.get("authorization", "").removeprefix("Bearer ")
    name, _, until = token.partition(".")
    seconds = 0.2 if until else 3600.0
    expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    return Identity(name, key=name, expires_at=expires) if name else None


def site(**options: Any) -> FastAPI:
    app, bus = FastAPI(), Bus(authenticate=authenticate)

    @bus.handle("whoami")
    async def whoami(ctx: Context) -> Any:
        return ctx.identity

    @app.get("/")
    async def page() -> HTMLResponse:
        answer = HTMLResponse("<!doctype html><title>page</title>")
        answer.set_cookie("session", "ann")
        return answer

    @app.get("/plain")
    async def plain() -> HTMLResponse:
        return HTMLResponse("<!doctype html><title>page</title>")

    attach(app, bus, **options)
    return app


async def talk(tab: Tab, server: Uvicorn, offers: list[str], host: str = "127.0.0.1", frames: int = 1) -> Any:
    url = json.dumps(f"ws://{host}:{server.port}/bus")
    with anyio.fail_after(BOUND):
        return await tab.run(SCRIPT % {"url": url, "offers": json.dumps(offers), "frames": frames})


async def test_a_page_brings_a_token_as_sub_protocol(chromium: Browser) -> None:
    async with running(site()) as server:
        tab = await chromium.tab(f"http://127.0.0.1:{server.port}/plain")
        said = [["open", "ubre"], ["frame", '{"success":1,"body":"ann"}']]
        assert await talk(tab, server, ["ubre", "polybus.token.ann"]) == said
        # A browser that offers a token alone has to get it back.
        assert (await talk(tab, server, ["polybus.token.ann"]))[0] == ["open", "polybus.token.ann"]


async def test_a_page_of_another_origin_stays_outside_unless_it_is_named(chromium: Browser) -> None:
    async with running(site()) as strict:
        # Same machine, same port: `localhost` is another origin than 127.0.0.1.
        tab = await chromium.tab(f"http://localhost:{strict.port}/")
        assert await talk(tab, strict, ["ubre", "polybus.token.ann"]) == [["close", 1006, ""]]
        origins = [f"http://localhost:{strict.port}"]
        async with running(site(origins=origins)) as open_to_it:
            assert (await talk(tab, open_to_it, ["ubre", "polybus.token.ann"]))[0] == ["open", "ubre"]


async def test_a_page_sees_that_its_token_has_expired(chromium: Browser) -> None:
    async with running(site()) as server:
        tab = await chromium.tab(f"http://127.0.0.1:{server.port}/plain")
        log = await talk(tab, server, ["ubre", "polybus.token.ann.soon"], frames=2)
        assert log[-1] == ["close", 4401, "the identity has expired: authenticate again"]
