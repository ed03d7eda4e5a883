"""A bus alone behind HTTP: the endpoint of its protocol, served inside the bus's own event loop."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from attrs import frozen

from ...errors import Unsupported
from ...plugins import Listening, ListenOptions, WebRoute
from ...plugins.registry import find_web_endpoint
from ...transports.asgi import HandshakeRejected, Receive, Scope, Send, answered
from ...transports.sockets import NetAddress
from .server import turn_away

logger: logging.Logger = logging.getLogger("polybus.transports")


class Application:
    """The routes of an endpoint under one path, as an ASGI application."""

    def __init__(self, path: str, routes: Sequence[WebRoute]) -> None:
        self._base = path.rstrip("/")
        self._exact: dict[tuple[str, bool], WebRoute] = {}
        self._endings: list[tuple[str, str, WebRoute]] = []
        for route in routes:
            where = self._base + route.path if route.path else path or "/"
            start, _, rest = where.partition("{")
            if rest:
                self._endings.append((start, rest.partition("}")[2], route))
            else:
                self._exact[where, route.methods is None] = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection or request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        socket = scope["type"] == "websocket"
        route = self._route(scope["path"], socket)
        if route is None:
            turned = HandshakeRejected(404, f"nothing is served at {scope['path'][:200]!r}, only below {self._base or '/'}")
        elif route.methods is not None and scope["method"] not in route.methods:
            turned = HandshakeRejected(405, f"{scope['method'][:20]} here: only {', '.join(route.methods)}")
        else:
            await route.app(scope, receive, send)
            return

        async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
            raise turned

        if socket:
            await answered(refuse, scope, receive, send)
        else:
            await turn_away(send, turned)

    def _route(self, path: str, socket: bool) -> WebRoute | None:
        route = self._exact.get((path, socket))
        if route is None:
            for start, end, candidate in self._endings:
                inner = path[len(start) : len(path) - len(end)]
                if path.startswith(start) and path.endswith(end) and inner and "/" not in inner:
                    return candidate if (candidate.methods is None) == socket else None
        return route


async def _live(receive: Receive, send: Send) -> None:
    """There is nothing to prepare: the bus runs already."""
    while True:
        word = (await receive())["type"]
        await send({"type": f"{word}.complete"})
        if word == "lifespan.shutdown":
            return


class HttpServer(Protocol):
    """Server of an application on one event loop."""

    async def start(self, sockets: list[socket.socket], url: str) -> None:
        """Begin to accept at sockets that are bound, under an address for people."""

    async def aclose(self) -> None:
        """Stop accepting and release the address."""


@frozen
class HttpListener:
    """A `plugins.Listening`."""

    url: str
    _listening: Listening
    _server: HttpServer

    @classmethod
    async def open(cls, address: NetAddress, options: ListenOptions, sockets: list[socket.socket]) -> HttpListener:
        """Serve at sockets that are bound. May raise `Unsupported`: the protocol has no form over HTTP, or the server is not
        installed; `ValueError`: something in `origins` is no origin."""
        try:
            endpoint = None if options.adapter is None else find_web_endpoint(options.adapter, address.path)
            if endpoint is None:
                raise Unsupported(f"{options.protocol} has no form over HTTP here: use ws:// or tcp://")
            server = _server(options)(Application(address.path, endpoint.routes()), options)
            listening = await endpoint.listen(options)
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        real = address.with_port(sockets[0].getsockname()[1])
        await server.start(sockets, real)
        return cls(real, listening, server)

    async def aclose(self) -> None:
        """Stop accepting and release the address; sessions stay, and the connections on which they ask."""
        await self._listening.aclose()
        await self._server.aclose()


def _server(options: ListenOptions) -> Callable[[Application, ListenOptions], HttpServer]:
    """uvicorn knows asyncio only, and hypercorn is slower. May raise `Unsupported`: it is not installed."""
    try:
        if options.host.backend == "asyncio":
            from .uvicorn import UvicornServer

            return UvicornServer
        from .hypercorn import HypercornServer

        return HypercornServer
    except ImportError as error:
        if options.host.backend == "asyncio":
            text = f"to serve HTTP alone needs uvicorn ({error}): pip install 'polybus[fastapi]'"
        else:
            text = f"to serve HTTP alone on trio needs hypercorn ({error}): pip install hypercorn"
        raise Unsupported(text) from None
