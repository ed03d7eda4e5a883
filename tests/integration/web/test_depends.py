"""Endpoints: `BusDep`, the bus of the application that serves the request, and errors of it that an endpoint does not catch."""

import functools
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.to_thread
import attrs
import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route, Router
from starlette.testclient import TestClient

import polybus.fastapi
from polybus import (
    Bus,
    BusError,
    Code,
    Conflict,
    ConnectFailed,
    Context,
    DeadlineExceeded,
    Disconnected,
    Forbidden,
    Limits,
    LocalProtocolError,
    NoHandler,
    NotFound,
    QueueFull,
    RequestError,
    TooLarge,
    Unauthorized,
    connect,
)
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


def with_endpoints(app: FastAPI, bus: Bus | None = None) -> FastAPI:
    if bus is not None:
        attach(app, bus)

    @app.get("/coroutine")
    async def coroutine(bus: BusDep) -> Any:
        return [type(bus).__name__, await bus.request("name")]

    @app.get("/def")
    def plain(bus: BlockingBusDep) -> Any:
        return [type(bus).__name__, bus.request("name")]

    @app.get("/def/untyped")
    def untyped(bus: BusDep) -> Any:
        return [type(bus).__name__, bus.request("name")]

    return app


def test_a_coroutine_endpoint_gets_the_bus_and_a_def_endpoint_its_blocking_twin() -> None:
    with TestClient(with_endpoints(FastAPI(), named("one"))) as client:
        assert client.get("/coroutine").json() == ["Bus", "one"]
        assert client.get("/def").json() == ["BlockingBus", "one"]
        assert client.get("/def/untyped").json() == ["BlockingBus", "one"]


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


async def test_a_bus_that_a_request_has_started_is_started_again_after_it_was_closed() -> None:
    bus = named("one")
    app = with_endpoints(FastAPI(), bus)
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


def test_a_mounted_application_has_its_own_and_the_first_request_starts_it() -> None:
    outer = with_endpoints(FastAPI(), named("outer"))
    outer.mount("/sub", with_endpoints(FastAPI(), named("inner")))
    with TestClient(outer) as client:
        assert client.get("/coroutine").json() == ["Bus", "outer"]
        assert client.get("/sub/coroutine").json() == ["Bus", "inner"]
        assert client.get("/sub/def").json() == ["BlockingBus", "inner"]


@pytest.mark.parametrize("included", ["before", "after"])
def test_a_bus_attached_to_a_router_is_that_of_the_application(included: str) -> None:
    app, router = with_endpoints(FastAPI()), APIRouter()
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


class TheDatabase:
    def __init__(self) -> None:
        self.log: list[str] = []

    async def real(self) -> AsyncIterator[str]:
        self.log.append("production")
        yield "production"

    async def fake(self) -> AsyncIterator[str]:
        self.log.append("opened")
        yield "fake"
        self.log.append("closed")


@pytest.mark.parametrize("how", ["application", "mounted", "router"])
def test_what_an_application_overrides_holds_for_the_handlers_of_its_bus(how: str) -> None:
    database, bus, app, outer = TheDatabase(), Bus(authenticate=lambda handshake: True), FastAPI(), FastAPI()

    @bus.handle("database")
    async def handler(name: str = Depends(database.real)) -> str:
        return name

    router = APIRouter()

    @router.get("/direct")
    async def direct(name: str = Depends(database.real)) -> str:
        return name

    @router.get("/asked")
    async def asked(bus: BusDep) -> str:
        return await bus.request("database", returns=str)

    attach(router if how == "router" else app, bus)
    app.include_router(router)
    outer.mount("/sub", app)
    prefix = "/sub" if how == "mounted" else ""
    app.dependency_overrides[database.real] = database.fake
    with TestClient(outer if prefix else app) as client:
        with client.websocket_connect(f"{prefix}/bus") as socket:
            socket.send_json({"request": "database", "id": 1})
            assert socket.receive_json()["body"] == "fake"
        assert [client.get(f"{prefix}/{path}").json() for path in ("direct", "asked")] == ["fake", "fake"]
        with bus.dependencies.override(database.real, lambda: "nearer"):
            assert client.get(f"{prefix}/asked").json() == "nearer"
        assert database.log == ["opened", "closed"] * 3
        app.dependency_overrides = {}
        assert client.get(f"{prefix}/asked").json() == "production"


def test_what_another_application_overrides_is_over_with_it() -> None:
    database, bus = TheDatabase(), Bus()

    @bus.handle("database")
    async def handler(name: str = Depends(database.real)) -> str:
        return name

    for overrides, gives in (({database.real: lambda: "fake"}, "fake"), ({}, "production")):
        app = FastAPI()
        attach(app, bus)
        app.dependency_overrides = overrides

        @app.get("/")
        async def asked(bus: BusDep) -> str:
            return await bus.request("database", returns=str)

        with TestClient(app) as client:
            assert client.get("/").json() == gives


def test_an_application_may_override_its_bus() -> None:
    app = with_endpoints(FastAPI(), named("production"))

    class Fake:
        async def request(self, subject: str) -> str:
            return "fake"

    class BlockingFake:
        def request(self, subject: str) -> str:
            return "fake"

    with TestClient(app) as client:
        app.dependency_overrides[bus_of] = Fake
        assert client.get("/coroutine").json() == ["Fake", "fake"]
        app.dependency_overrides[bus_of] = BlockingFake
        assert client.get("/def").json() == client.get("/def/untyped").json() == ["BlockingFake", "fake"]


def test_several_buses_or_none_are_told_apart_by_the_error() -> None:
    none, several = with_endpoints(FastAPI()), with_endpoints(FastAPI(), Bus())
    attach(several, Bus(), "/two")
    for app, says in ((none, "no bus is attached"), (several, "2 buses are attached")):
        with TestClient(app) as client, pytest.raises(RuntimeError, match=says):
            client.get("/coroutine")


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


# -- errors of the bus that an endpoint does not catch, and the bus's handlers asked for the user of an endpoint ----------


@attrs.frozen
class Ticket:
    title: str


def make_bus() -> Bus:
    bus = Bus(authenticate=lambda handshake: None)

    @bus.handle("ticket.create")
    async def create(ticket: Ticket, ctx: Context) -> str:
        if ctx.identity is None:
            raise RequestError(Code.UNAUTHENTICATED, "who are you?")
        if ctx.identity != "ann":
            raise RequestError(Code.PERMISSION_DENIED, "only Ann may", reason="not_ann")
        return f"{ticket.title} by {ctx.identity}, who has no link: {ctx.peer}"

    @bus.handle("fails")
    async def fails(number: int) -> None:
        raise RequestError(Code(number), "as it was asked")

    return bus


def make_app(bus: Bus, error: Exception | None = None, app: FastAPI | None = None) -> FastAPI:
    app = app or FastAPI()
    attach(app, bus)

    @app.post("/tickets/{user}")
    async def create(user: str, ticket: dict[str, Any]) -> Any:
        return await bus.as_(None if user == "nobody" else user).request("ticket.create", ticket)

    @app.get("/fails/{number}")
    async def fails(number: int) -> Any:
        return await bus.request("fails", number)

    @app.get("/missing")
    async def missing() -> Any:
        return await bus.as_("ann").request("nobody.handles.this")

    @app.get("/raises")
    async def raises() -> None:
        assert error is not None
        raise error

    return app


async def get(app: FastAPI, path: str, body: Any = None) -> httpx.Response:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client, app.router.lifespan_context(app):
        return await (client.get(path) if body is None else client.post(path, json=body))


MISFIT = "invalid body: Field required (at $.title)"
FAULT = {"path": "$.title", "text": "Field required", "type": "missing"}
NOBODY = "this bus has no handler for 'nobody.handles.this', and as_() only calls its own"


async def test_a_handler_is_asked_for_the_user_of_an_endpoint() -> None:
    answer = await get(make_app(make_bus()), "/tickets/ann", {"title": "broken"})
    assert (answer.status_code, answer.json()) == (200, "broken by ann, who has no link: None")


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/tickets/nobody", {"title": "x"}, 401, {"detail": "who are you?", "code": "UNAUTHENTICATED"}),
        ("/tickets/ben", {"title": "x"}, 403, {"detail": "only Ann may", "code": "PERMISSION_DENIED", "reason": "not_ann"}),
        ("/tickets/ann", {}, 422, {"detail": MISFIT, "code": "INVALID_ARGUMENT", "faults": [FAULT]}),
        ("/missing", None, 501, {"detail": NOBODY, "code": "UNIMPLEMENTED"}),
    ],
)
async def test_an_error_has_its_status_and_says_what_was_wrong(path: str, body: Any, status: int, said: dict[str, Any]) -> None:
    answer = await get(make_app(make_bus()), path, body)
    assert answer.status_code == status
    assert {name: value for name, value in answer.json().items() if value is not None} == said


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.NOT_FOUND, 404),
        (Code.ALREADY_EXISTS, 409),
        (Code.FAILED_PRECONDITION, 409),
        (Code.OUT_OF_RANGE, 400),
        (Code.RESOURCE_EXHAUSTED, 429),
        (Code.UNAVAILABLE, 503),
        (Code.INTERNAL, 500),
        (Code.DATA_LOSS, 500),
    ],
)
async def test_each_code_has_the_status_of_its_class_or_of_google_rpc(code: Code, status: int) -> None:
    answer = await get(make_app(make_bus()), f"/fails/{int(code)}")
    assert (answer.status_code, answer.json()["code"]) == (status, code.name)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DeadlineExceeded("x", 1.0, "local"), 504),
        (DeadlineExceeded("x", 1.0, "remote", "10.0.0.5"), 504),
        (Disconnected("the link is down", "10.0.0.5:9000", False), 503),
        (QueueFull("to 10.0.0.5:9000"), 503),
        (LocalProtocolError("a mistake in the program"), 500),
        (NoHandler("x"), 501),
        (Conflict("there is one"), 409),
        (TooLarge("a frame"), 413),
        (ConnectFailed("ubre+tcp://10.0.0.5", "refused"), 503),
    ],
)
async def test_what_is_no_answer_has_a_status_and_shows_no_address(error: Exception, status: int) -> None:
    answer = await get(make_app(make_bus(), error), "/raises")
    assert answer.status_code == status
    assert ("code" in answer.text) is (status != 500)
    assert "10.0.0.5" not in answer.text


@pytest.mark.parametrize(
    ("error", "status"),
    [(Unauthorized("service account 7", detail="hunter2"), 502), (Forbidden("not 7"), 502), (NotFound("db-3"), 404)],
)
async def test_what_another_program_says_is_not_shown_to_strangers(
    error: RequestError, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    billing, shop = Bus(), make_bus()

    @billing.handle("pay")
    async def pay() -> None:
        raise error

    app = make_app(shop)

    @app.get("/pay")
    async def endpoint() -> None:
        await shop.request("pay")

    @app.get("/relayed")
    async def relayed() -> None:
        try:
            await shop.request("pay")
        except RequestError as said:
            raise said.relay() from None

    async with billing.serve("ubre+memory://billing") as far, connect(far.url, bus=shop):
        answer = await get(app, "/pay")
        assert (await get(app, "/relayed")).json()["detail"] == error.text
    assert answer.status_code == status
    error_id = answer.json()["detail"].partition("[")[2].rstrip("]")
    assert answer.json() == {"detail": f"a service behind this one failed [{error_id}]", "code": error.code.name}
    (line,) = (record for record in caplog.records if getattr(record, "error_id", "") == error_id)
    assert error.text in line.getMessage()


async def test_an_application_with_an_answer_of_its_own_keeps_it() -> None:
    app = FastAPI()

    @app.exception_handler(BusError)
    async def own(request: object, error: BusError) -> JSONResponse:
        return JSONResponse({"own": str(error)}, status_code=418)

    make_app(make_bus(), Disconnected("gone", "there", True), app)
    assert (await get(app, "/raises")).status_code == 418
