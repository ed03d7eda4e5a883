"""Contents for the browser: pages that act according to their address, our script, npm `ubre`, Pyodide and wheels."""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import anyio.to_thread
from attrs import define
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from polybus import Bus, Context, Identity
from polybus.fastapi import attach
from polybus.plugins import Handshake
from tests.integration.web.browser import Tab, missing
from tests.integration.web.support import running

ROOT = Path(__file__).resolve().parents[3]
MODULES = ROOT / "tests" / "integration" / "interop" / "node" / "node_modules"
WHEELS = ROOT / "tests" / "integration" / "pyodide" / "wheels"

PRELUDE = """
const settle = () => new Promise((resolve) => setTimeout(resolve, 50));
const until = async (condition) => { while (!condition()) await new Promise((resolve) => setTimeout(resolve, 5)) };
const name = (call) => { try { call() } catch (error) { return error.name } return 'nothing' };
const frame = (origin, program, { sandbox } = {}) => new Promise((resolve) => {
  const child = document.createElement('iframe');
  if (sandbox) child.sandbox = 'allow-scripts';
  child.onload = () => resolve(child);
  child.src = `${origin}/page?program=${encodeURIComponent(program)}`;
  document.body.append(child);
});
"""


async def page(request: Request) -> HTMLResponse:
    """A page that does what its address says."""
    program = request.query_params.get("program", "")
    kind = " type=module" if "module" in request.query_params else ""
    return HTMLResponse(f"<!doctype html><meta charset=utf-8><title>page</title><body><script{kind}>{program}</script>")


@define
class Site:
    port: int
    bus: Bus
    wheel: str = ""
    micropip: str = ""
    wheel_folder: str = ""

    @property
    def here(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def elsewhere(self) -> str:
        return f"http://localhost:{self.port}"


async def play(tab: Tab, script: str, **facts: Any) -> Any:
    """What a script of the page returns; it sees the prelude and the facts."""
    known = "".join(f"const {name} = {json.dumps(value)};" for name, value in facts.items())
    return await tab.run(f"(async () => {{ {known} {PRELUDE} {script} }})()")


def _bus() -> Bus:
    """What frames reach through the page: who has a token has a name."""

    def authenticate(handshake: Handshake) -> Identity | None:
        kind, _, name = handshake.headers.get("authorization", "").partition(" ")
        return Identity(name, key=name) if kind == "Bearer" and name.startswith("frame-") else None

    bus = Bus(authenticate=authenticate)

    @bus.handle("whoami")
    async def whoami(ctx: Context) -> Any:
        return ctx.identity

    @bus.handle("weather")
    async def weather(ctx: Context) -> str:
        return f"rain, says the server to {ctx.identity}"

    @bus.handle("double")
    async def double(number: int) -> int:
        return 2 * number

    @bus.handle("large")
    async def large(body: str) -> int:
        return len(body)

    @bus.handle("count")
    async def count(body: int) -> AsyncIterator[int]:
        for number in range(body):
            yield number

    return bus


def _inner() -> Bus:
    bus = Bus()

    @bus.handle(7)
    async def triple(number: int) -> int:
        return 3 * number

    return bus


def _open(app: Any) -> Any:
    """Files that sandboxed frames may load, too."""

    async def with_header(scope: Any, receive: Any, send: Any) -> None:
        async def marked(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"access-control-allow-origin", b"*")]
            await send(message)

        await app(scope, receive, marked)

    return with_header


def _index(folder: Path, wheel: Path) -> Any:
    """An index of packages as micropip asks one: our wheel, and what it needs."""

    known = (*folder.glob("*.whl"), wheel)

    async def index(request: Request) -> Response:
        name = request.path_params["name"].replace("-", "_").lower()
        files = [path for path in known if path.name.lower().startswith(f"{name}-")]
        if not files:
            return Response(status_code=404)
        here = f"{request.url.scheme}://{request.url.netloc}"  # micropip takes no relative addresses
        listed = [{"filename": path.name, "url": f"{here}/wheels/{path.name}", "hashes": {}} for path in files]
        answer = {"meta": {"api-version": "1.0"}, "name": name, "files": listed}
        return JSONResponse(answer, media_type="application/vnd.pypi.simple.v1+json")

    return index


@cache
def built_wheel() -> Path:
    """The one that a user would hand to micropip; built once for all modules of tests."""
    folder = Path(tempfile.mkdtemp(prefix="polybus-wheel-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    pure = os.environ | {"POLYBUS_SPEEDUPS": "0"}
    subprocess.run(build, cwd=ROOT, env=pure, check=True, capture_output=True, timeout=100)
    (wheel,) = folder.glob("polybus-*.whl")
    return wheel


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    for needed in (MODULES / "ubre" / "src" / "ubre.js", MODULES / "pyodide" / "pyodide.mjs", WHEELS / ".ready"):
        if not needed.exists():
            missing(f"{needed.relative_to(ROOT)} is not here: make peers")
    wheel = await anyio.to_thread.run_sync(built_wheel)

    async def file(request: Request) -> Response:
        name = Path(request.path_params["name"]).name
        path = wheel if name == wheel.name else WHEELS / name
        return Response(path.read_bytes(), media_type="application/octet-stream")

    app = Starlette(
        routes=[
            Route("/page", page),
            Mount("/ubre", _open(StaticFiles(directory=MODULES / "ubre" / "src"))),
            Mount("/pyodide", _open(StaticFiles(directory=MODULES / "pyodide"))),
            Mount("/wheels", _open(Starlette(routes=[Route("/{name}", file)]))),
            Mount("/simple", _open(Starlette(routes=[Route("/{name}/", _index(WHEELS, wheel))]))),
        ]
    )
    bus = _bus()
    attach(app, bus, path="/bus", script="/polybus.js")
    bus.handle_tunnels("plant.{id}", _inner(), protocol="csb")
    (micropip,) = WHEELS.glob("micropip-*.whl")
    async with running(app, access_log=False) as server:
        yield Site(server.port, bus, wheel.name, micropip.name, str(wheel.parent))
