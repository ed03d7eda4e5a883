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


def test_a_protocol_adds_its_routes_to_an_application_a_router_and_a_mounted_application() -> None:
    app, inner, router, bus = FastAPI(), FastAPI(), APIRouter(prefix="/api"), Bus()
    attach(app, Bus(), "/bus", protocol=UbreWithStatus())
    attach(router, Bus(), "/bus", protocol=UbreWithStatus())
    app.include_router(router, prefix="/v1")
    attach(inner, bus, "/bus", protocol=UbreWithStatus())
    app.mount("/sub", inner)
    with TestClient(app) as client:
        assert "/bus" not in client.get("/openapi.json").json()["paths"]
        assert not bus.ready  # the first request starts it
        for path in ("/bus", "/v1/api/bus", "/sub/bus"):
            exchange(client, path)
