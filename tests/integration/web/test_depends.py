"""`BusDep`: the bus of the application that serves the request, in coroutine and in `def` endpoints."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Annotated, Any

import anyio
import anyio.to_thread
import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route, Router
from starlette.testclient import TestClient

import polybus.fastapi
from polybus import Bus, Limits
from polybus.fastapi import BlockingBusDep, BusDep, attach, bus_of
from polybus.fastapi._attachment import attached_here
from polybus.sync import BlockingBus
from tests.support import BOUND, eventually


def named(name: str) -> Bus:
    bus = Bus()

    @bus.handle("name")
    async def tell() -> str:
        return name

    return bus


def with_endpoints(app: FastAPI) -> None:
    @app.get("/coroutine")
    async def coroutine(bus: BusDep) -> Any:
        return [type(bus).__name__, await bus.request("name")]

    @app.get("/def")
    def plain(bus: BlockingBusDep) -> Any:
        return [type(bus).__name__, bus.request("name")]

    @app.get("/def/untyped")
    def untyped(bus: BusDep) -> Any:
        return [type(bus).__name__, bus.request("name")]


def test_a_coroutine_endpoint_gets_the_bus_and_a_def_endpoint_its_blocking_twin() -> None:
    app = FastAPI()
    attach(app, named("one"))
    with_endpoints(app)
    with TestClient(app) as client:
        assert client.get("/coroutine").json() == ["Bus", "one"]
        assert client.get("/def").json() == ["BlockingBus", "one"]
        assert client.get("/def/untyped").json() == ["BlockingBus", "one"]


@pytest.mark.anyio
async def test_def_endpoints_in_the_last_thread_of_the_server_ask_a_def_handler_in_the_last_one_of_the_bus() -> None:
    app, bus = FastAPI(), Bus(limits=Limits(threads=1))
    attach(app, bus)

    @bus.handle("inner")
    def inner(n: int) -> int:
        return n

    @bus.handle("outer")
    def outer(n: int, bus: BlockingBus) -> int:
        return bus.request("inner", n, returns=int)

    @app.get("/{n}")
    def endpoint(n: int, bus: BlockingBusDep) -> int:
        return bus.request("outer", n, returns=int)

    answers: list[int] = []

    async def ask(n: int) -> None:
        answers.append((await client.get(f"/{n}")).json())

    anyio.to_thread.current_default_thread_limiter().total_tokens = 1
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=BOUND) as client,
        anyio.create_task_group() as group,
    ):
        for n in range(8):
            group.start_soon(ask, n)
    assert sorted(answers) == [*range(8)]


@pytest.mark.anyio
async def test_a_bus_that_a_request_has_started_is_started_again_after_it_was_closed() -> None:
    app, bus = FastAPI(), named("one")
    attach(app, bus)
    with_endpoints(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=BOUND) as client:
        for _ in range(2):
            assert (await client.get("/coroutine")).json() == ["Bus", "one"]
            await bus.aclose()
            await eventually(lambda: not attached_here())


def test_what_wraps_an_endpoint_does_not_change_which_it_is() -> None:
    app = FastAPI()
    attach(app, named("one"))

    def kind(bus: BusDep, more: str = "") -> str:
        return type(bus).__name__ + more

    @functools.wraps(kind)
    def wrapped(*args: Any, **kwargs: Any) -> str:
        return kind(*args, **kwargs)

    class Callable:
        async def __call__(self, bus: BusDep) -> str:
            return type(bus).__name__

    app.get("/partial")(functools.partial(kind, more="!"))
    app.get("/wrapped")(wrapped)
    app.get("/object")(Callable())
    with TestClient(app) as client:
        answers = {path: client.get(path).json() for path in ("/partial", "/wrapped", "/object")}
    assert answers == {"/partial": "BlockingBus!", "/wrapped": "BlockingBus", "/object": "Bus"}


def by_thread(bus: BlockingBusDep) -> str:
    answer: str = bus.request("name")
    return answer


def test_it_comes_through_other_dependencies_too() -> None:
    app = FastAPI()
    attach(app, named("one"))

    @app.get("/")
    async def endpoint(name: Annotated[str, Depends(by_thread)], bus: BusDep) -> Any:
        return [name, await bus.request("name")]

    with TestClient(app) as client:
        assert client.get("/").json() == ["one", "one"]


def test_a_websocket_endpoint_of_the_application_gets_it_too() -> None:
    app = FastAPI()
    attach(app, named("one"))

    @app.websocket("/own")
    async def own(socket: WebSocket, bus: BusDep) -> None:
        await socket.accept()
        await socket.send_text(await bus.request("name"))
        await socket.close()

    with TestClient(app) as client, client.websocket_connect("/own") as socket:
        assert socket.receive_text() == "one"


def test_a_mounted_application_has_its_own_and_the_first_request_starts_it() -> None:
    outer, inner = FastAPI(), FastAPI()
    attach(outer, named("outer"))
    attach(inner, named("inner"))
    with_endpoints(outer)
    with_endpoints(inner)
    outer.mount("/sub", inner)
    with TestClient(outer) as client:
        assert client.get("/coroutine").json() == ["Bus", "outer"]
        assert client.get("/sub/coroutine").json() == ["Bus", "inner"]
        assert client.get("/sub/def").json() == ["BlockingBus", "inner"]


@pytest.mark.parametrize("included", ["before", "after"])
def test_a_bus_attached_to_a_router_is_that_of_the_application(included: str) -> None:
    app, router = FastAPI(), APIRouter()
    with_endpoints(app)
    if included == "before":
        app.include_router(router, prefix="/v1")
    attach(router, named("of the router"))
    if included == "after":
        app.include_router(router, prefix="/v1")
    with TestClient(app) as client:
        assert client.get("/coroutine").json() == ["Bus", "of the router"]


def test_the_bus_of_a_mounted_router_is_that_of_the_application() -> None:
    router = Router()
    attach(router, named("one"))

    async def endpoint(request: Request) -> JSONResponse:
        return JSONResponse(await (await bus_of(request)).request("name"))

    app = Starlette(routes=[Route("/", endpoint), Mount("/sub", router)])
    with TestClient(app) as client:
        assert client.get("/").json() == "one"


def test_several_buses_or_none_are_told_apart_by_the_error() -> None:
    none, several = FastAPI(), FastAPI()
    attach(several, Bus(), "/one")
    attach(several, Bus(), "/two")
    for app, says in ((none, "no bus is attached"), (several, "2 buses are attached")):
        with_endpoints(app)
        with TestClient(app) as client, pytest.raises(RuntimeError, match=says):
            client.get("/coroutine")


def test_one_bus_at_several_paths_is_one_bus() -> None:
    app, bus = FastAPI(), named("one")
    attach(app, bus, "/one")
    attach(app, bus, "/two")
    with_endpoints(app)
    with TestClient(app) as client:
        assert client.get("/coroutine").json() == ["Bus", "one"]


def test_a_name_that_the_module_does_not_have() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Busdep'"):
        _ = polybus.fastapi.Busdep


def test_without_fastapi_a_starlette_application_is_served() -> None:
    script = """
import sys
sys.modules["fastapi"] = None
from starlette.applications import Starlette
from starlette.testclient import TestClient
from polybus import Bus
from polybus.fastapi import attach, run
app, bus = Starlette(), Bus()
attach(app, bus)
with TestClient(app) as client, client.websocket_connect("/bus") as socket:
    socket.send_json({"request": "x", "id": 1})
    print(socket.receive_json()["body"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("NotFound\n", "")
