"""A page that shows a third party's widget in a frame of another site, and lets it talk to the page and to the server.

    python examples/frames/app.py

and open http://127.0.0.1:8000. The page is of 127.0.0.1, its frames of localhost: for a browser these are two sites, so the
widgets run in a separate process and can only use what the page and the server offer.
"""

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from fastapi import FastAPI
from fastapi.responses import FileResponse

import polybus.fastapi
from polybus import Bus, Context, Handshake, Identity

HERE = Path(__file__).parent

widgets: dict[str, str] = {}
"""Widget by token. A real application signs its tokens, and lets them expire."""


def authenticate(handshake: Handshake) -> Identity | None:
    """Decide only by the token: a browser sends the page's cookies with any request."""
    name = widgets.get(handshake.headers.get("authorization", "").removeprefix("Bearer "))
    return None if name is None else Identity(name, key=name)


bus = Bus(authenticate=authenticate, authorize=lambda peer, verb, subject: str(subject).startswith("weather"))


@bus.handle("weather.now")
async def now(ctx: Context) -> str:
    return f"rain in {ctx.identity}"


async def change() -> None:
    """Change the weather."""
    temperature = 12
    while True:
        temperature = 12 + (temperature - 11) % 9
        await bus.publish("weather", temperature)
        await anyio.sleep(0.5)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with bus, anyio.create_task_group() as group:
        group.start_soon(change)
        yield
        group.cancel_scope.cancel()


app = FastAPI(lifespan=lifespan)
polybus.fastapi.attach(app, bus, script="/polybus.js")


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(HERE / "page.html")


@app.get("/widget")
async def widget() -> FileResponse:
    return FileResponse(HERE / "widget.html")


@app.post("/widgets/{name}")
async def add(name: str) -> str:
    """Create a token before the page shows a widget."""
    token = secrets.token_urlsafe(16)
    widgets[token] = name[:30]
    return token


if __name__ == "__main__":
    polybus.fastapi.run(app, port=int(os.environ.get("PORT", "8000")))
