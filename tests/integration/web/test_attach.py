"""`attach`: in applications, mounted applications and routers; the lifespan; several buses; wrong use."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.routing import Router
from starlette.testclient import TestClient, WebSocketDenialResponse

from polybus import Bus, ConnectFailed, Context, Forbidden, LocalProtocolError, RequestError, connect
from polybus.fastapi import BusDep, attach
from polybus.plugins import Handshake
from polybus.protocols import Csb, Ubre
from tests.integration.web.support import echoing, running, served
from tests.refusal import refused


def is_up(bus: Bus) -> bool:
    return bus.ready


def echoes(client: TestClient, path: str = "/bus") -> None:
    with client.websocket_connect(path) as socket:
        echoes_at(socket)


def echoes_at(socket: Any) -> None:
    socket.send_json({"request": "echo", "id": 1, "body": "hi"})
    assert socket.receive_json() == {"success": 1, "body": "hi"}


async def asks(port: int, path: str, protocol: Any = None) -> Any:
    async with connect(f"ubre+ws://127.0.0.1:{port}{path}", protocol=protocol) as client:
        return await client.request("echo", {"path": path})


async def test_it_starts_after_the_applications_own_lifespan_and_ends_before_it() -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def of_app(app: Any) -> AsyncIterator[dict[str, str]]:
        seen.append(f"app up, bus {bus.ready}")
        yield {"database": "open"}
        seen.append(f"app down, bus {bus.ready}")

    @asynccontextmanager
    async def of_bus(bus: Bus) -> AsyncIterator[str]:
        seen.append("bus up")
        yield "of the bus"
        seen.append("bus down")

    app, bus = FastAPI(lifespan=of_app), Bus(lifespan=of_bus)

    @bus.handle("state")
    async def state(ctx: Context) -> Any:
        return ctx.state

    attach(app, bus)
    async with running(app) as server, connect(f"ubre+ws://127.0.0.1:{server.port}/bus") as client:
        assert server.lifespan.state == {"database": "open"}
        assert await client.request("state") == "of the bus"
    assert seen == ["app up, bus False", "bus up", "bus down", "app down, bus False"]


@pytest.mark.parametrize("kind", [FastAPI, Starlette, Router])
async def test_in_a_mounted_application_the_first_connection_starts_the_bus(kind: Any) -> None:
    outer, inner, bus = FastAPI(), kind(), echoing()
    attach(inner, bus)
    outer.mount("/sub", inner)
    async with running(outer) as server:
        assert not is_up(bus)
        async with AsyncExitStack() as stack:  # several at once
            url = f"ubre+ws://127.0.0.1:{server.port}/sub/bus"
            clients = [await stack.enter_async_context(connect(url)) for _ in range(3)]
            assert [await client.request("echo", 1) for client in clients] == [1, 1, 1]
        assert is_up(bus)  # it stays up between two visitors
        assert await asks(server.port, "/sub/bus") == {"path": "/sub/bus"}


@pytest.mark.parametrize("included", ["before", "after"])
async def test_the_prefix_of_a_router_itself_counts(included: str) -> None:
    app, router, bus = FastAPI(), APIRouter(prefix="/api"), echoing()
    if included == "before":
        app.include_router(router, prefix="/v1")
    attach(router, bus)
    if included == "after":
        app.include_router(router, prefix="/v1")
    async with running(app) as server:
        assert is_up(bus) is (included == "after")
        assert await asks(server.port, "/v1/api/bus") == {"path": "/v1/api/bus"}
        with pytest.raises(Forbidden):  # what Starlette says of a path that it does not have
            await asks(server.port, "/v1/bus")
    with pytest.raises(ValueError, match="already attached at /api/bus"):
        attach(router, Bus())


def test_a_path_at_which_the_application_has_a_websocket_route_is_refused() -> None:
    app = FastAPI()

    @app.websocket("/live")
    async def live(websocket: WebSocket) -> None: ...

    with pytest.raises(ValueError, match="the application has a WebSocket route at /live: use another path"):
        attach(app, Bus(), "/live")


def test_the_prefix_of_a_router_counts_for_the_script_and_the_page_too() -> None:
    app, router = FastAPI(), APIRouter(prefix="/api")
    attach(router, echoing(), script="/polybus.js", docs="/docs")
    attach(router, Bus(), path="/other", script="/polybus.js")  # once is enough
    app.include_router(router, prefix="/v1")
    with TestClient(app) as client:
        assert client.get("/v1/api/polybus.js").headers["content-type"].startswith("text/javascript")
        assert client.get("/v1/polybus.js").status_code == 404
        assert client.get("/v1/api/docs").status_code == 200


async def test_a_lifespan_of_the_bus_that_fails_refuses_the_first_connection_and_is_tried_again_for_the_next() -> None:
    attempts = 0

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise OSError("the database is away")
        yield

    outer, (inner, _) = FastAPI(), served(lifespan=lifespan)
    outer.mount("/sub", inner)
    async with running(outer) as server:
        with pytest.raises(ConnectFailed, match="500"):
            await asks(server.port, "/sub/bus")
        assert await asks(server.port, "/sub/bus") == {"path": "/sub/bus"}


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (_Unprintable(), "_Unprintable: (its text raises RuntimeError)"),
        (LookupError("first\nERROR second"), r"LookupError: first\nERROR second"),
    ],
)
async def test_an_error_of_a_lifespan_is_raised_and_logged_in_one_line_before_the_traceback_whatever_its_text(
    error: Exception, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        if bus:
            raise error
        yield

    app, _ = served(lifespan=lifespan)
    await refused(app.router.lifespan_context(app), type(error))
    [told] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert (told.getMessage(), told.exc_info) == (f"the bus of the application does not start: {says}", None)


async def test_several_buses_several_paths_and_two_forms_of_a_protocol() -> None:
    app, one, two = FastAPI(), echoing(), Bus()
    attach(app, one, "/one")
    attach(app, one, "/one/binary", protocol=Ubre(format="binary"))
    attach(app, two, "/two")
    async with running(app) as server:
        assert await asks(server.port, "/one") == {"path": "/one"}
        assert await asks(server.port, "/one/binary", Ubre(format="binary")) == {"path": "/one/binary"}
        with pytest.raises(RequestError, match="no handler for"):
            await asks(server.port, "/two")


def test_starlettes_test_client_without_a_lifespan_has_a_bus_for_each_connection() -> None:
    outer, (inner, bus) = FastAPI(), served()
    outer.mount("/sub", inner)
    client = TestClient(outer)
    for _ in range(3):
        echoes(client, "/sub/bus")
        assert not is_up(bus)  # each had an event loop of its own, which has ended


def test_a_test_client_may_be_used_with_and_without_the_lifespan_in_turn() -> None:
    app, bus = served()
    for client in (TestClient(app), TestClient(app)):
        with client, client.websocket_connect("/bus", subprotocols=["ubre"]) as socket:
            assert str(socket.accepted_subprotocol) == "ubre"
            echoes_at(socket)
        assert not is_up(bus)
        echoes(client)
        assert not is_up(bus)


@pytest.mark.parametrize("second", ["lifespan", "endpoint", "connection"])
@pytest.mark.parametrize("first", ["lifespan", "connection"])
def test_an_application_that_runs_in_two_event_loops_at_a_time_is_told_so(first: str, second: str) -> None:
    app, _ = served()

    @app.get("/asked")
    async def asked(bus: BusDep) -> Any:
        return await bus.request("echo", "hi")

    with ExitStack() as stack:
        client, other = TestClient(app), TestClient(app)
        if first == "lifespan":
            stack.enter_context(client)
        socket = stack.enter_context(client.websocket_connect("/bus"))
        echoes_at(socket)
        with pytest.raises(LocalProtocolError, match="this bus runs in another event loop"):
            if second == "lifespan":
                stack.enter_context(other)
            elif second == "endpoint":
                other.get("/asked")
            else:
                stack.enter_context(other.websocket_connect("/bus"))
        echoes_at(socket)
    with TestClient(app) as client:
        assert client.get("/asked").json() == "hi"


@pytest.mark.parametrize("later", [False, True])
def test_authenticate_that_wants_to_end_the_process_refuses(later: bool) -> None:
    def at_once(handshake: Handshake) -> None:
        raise SystemExit("no")

    async def awaited(handshake: Handshake) -> None:
        at_once(handshake)

    app, bus = served(authenticate=awaited if later else at_once)
    with TestClient(app) as client:
        for _ in range(2):
            with pytest.raises(WebSocketDenialResponse) as caught, client.websocket_connect("/bus"):
                pass
            assert caught.value.status_code == 503
        assert is_up(bus)


async def test_a_router_may_be_included_twice() -> None:
    app, router, bus = FastAPI(), APIRouter(), echoing()
    attach(router, bus)
    app.include_router(router, prefix="/v1")
    app.include_router(router, prefix="/v2")
    async with running(app) as server:
        assert await asks(server.port, "/v1/bus") == {"path": "/v1/bus"}
        assert await asks(server.port, "/v2/bus") == {"path": "/v2/bus"}
    assert not is_up(bus)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"app": object()}, TypeError, "takes a FastAPI or Starlette application"),
        ({"bus": "/bus"}, TypeError, "takes a polybus.Bus, not str"),
        ({"path": "bus"}, ValueError, "must begin with a slash"),
        ({"path": 5}, TypeError, "path=5 must be str"),
        ({"script": "polybus.js"}, ValueError, "must begin with a slash"),
        ({"path": "/a/{x"}, ValueError, "path='/a/{x': braces"),
        ({"path": "/a/{x}/{x}"}, ValueError, "path='/a/{x}/{x}': Duplicated"),
        ({"path": "/a/{x:no}"}, ValueError, "path='/a/{x:no}': Unknown"),
        ({"path": "/a?b"}, ValueError, "must be a path without"),
        ({"origins": None}, TypeError, "origins=None must be a list of strings"),
        ({"hosts": ["http://x/"]}, ValueError, "hosts: 'http://x/' is not a host"),
        ({"protocol": "morse"}, ValueError, "unknown protocol 'morse'"),
        ({"protocol": "nats"}, ValueError, "protocol='nats': the bus connects to a server"),
        ({"protocol": Csb(side="broker-server")}, ValueError, "the bus connects to a server"),
        ({"when_full": "wait"}, ValueError, "one of drop_oldest"),
    ],
)
def test_wrong_use_is_told_at_once(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        attach(**{"app": FastAPI(), "bus": Bus(), **options})


async def test_one_bus_may_be_attached_to_two_applications_and_served_besides() -> None:
    one, two, bus = FastAPI(), FastAPI(), echoing()
    attach(one, bus)
    attach(two, bus)
    async with running(one) as first, running(two) as second, bus.serve("ubre+ws://127.0.0.1:0/bus") as listener:
        for port in (first.port, second.port, int(listener.url.rpartition(":")[2].partition("/")[0])):
            assert await asks(port, "/bus") == {"path": "/bus"}
