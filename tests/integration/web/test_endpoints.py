"""A protocol of a third party that brings routes of its own: the plug for everything that is not a WebSocket."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.testclient import TestClient

from polybus import Bus
from polybus.fastapi import attach
from polybus.plugins import Listening, ListenOptions, WebEndpoint, WebRoute
from polybus.protocols import Ubre
from polybus.transports.asgi import AsgiWebSocket


class WithStatus:
    """WebSockets, and a page that says how they are."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.sockets = AsgiWebSocket(path)
        self.options: ListenOptions | None = None

    def routes(self) -> Sequence[WebRoute]:
        return [*self.sockets.routes(), WebRoute("", self.status, ("GET",)), WebRoute("/{part}/echo", self.echo, ("POST",))]

    async def listen(self, options: ListenOptions) -> Listening:
        self.options = options
        return await self.sockets.listen(options)

    async def status(self, scope: Any, receive: Any, send: Any) -> None:
        assert self.options is not None
        said = {"protocol": self.options.protocol, "path": scope["path"], "private": self.options.private}
        await JSONResponse(said)(scope, receive, send)

    async def echo(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        await JSONResponse([request.path_params["part"], await request.json()])(scope, receive, send)


class UbreWithStatus(Ubre):
    """A protocol that knows more of the web than WebSockets."""

    def web_endpoint(self, path: str) -> WebEndpoint:
        return WithStatus(path)


def exchange(client: TestClient, path: str) -> None:
    said = {"protocol": "ubre", "path": path, "private": True}
    assert client.get(path).json() == said
    assert client.post(f"{path}/x/echo", json=[1]).json() == ["x", [1]]
    assert client.get(f"{path}/x/echo").status_code == 405
    with client.websocket_connect(path) as socket:
        socket.send_json({"request": "nothing", "id": 1})
        assert socket.receive_json()["fail"] == 1


def test_a_protocol_adds_its_routes_to_an_application() -> None:
    app, bus = FastAPI(), Bus()
    attach(app, bus, "/bus", protocol=UbreWithStatus())
    with TestClient(app) as client:
        exchange(client, "/bus")
        assert "/bus" not in client.get("/openapi.json").json()["paths"]


def test_they_move_with_a_router_and_with_a_mounted_application() -> None:
    app, inner, router, prefixed = FastAPI(), FastAPI(), APIRouter(), APIRouter(prefix="/api")
    attach(router, Bus(), "/bus", protocol=UbreWithStatus())
    attach(prefixed, Bus(), "/bus", protocol=UbreWithStatus())
    app.include_router(prefixed, prefix="/v1")
    attach(inner, Bus(), "/bus", protocol=UbreWithStatus())
    app.include_router(router, prefix="/v1")
    app.mount("/sub", inner)
    with TestClient(app) as client:
        exchange(client, "/v1/bus")
        exchange(client, "/v1/api/bus")
        exchange(client, "/sub/bus")


def test_the_first_request_starts_the_bus_where_no_lifespan_runs() -> None:
    app, inner, bus = FastAPI(), FastAPI(), Bus()
    attach(inner, bus, "/bus", protocol=UbreWithStatus())
    app.mount("/sub", inner)
    with TestClient(app) as client:
        assert not bus.ready
        assert client.get("/sub/bus").status_code == 200
        assert bus.ready
