"""A bus alone behind HTTP: the endpoint of its protocol, served by uvicorn inside the bus's own event loop.

uvicorn parses requests and frames WebSockets; what it would do for a process of its own (signals, logging, lifespan) is off.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import anyio

from ..errors import Unsupported
from ._asgi_server import answered
from ._errai_server import ErraiEndpoint
from ._events_server import EventsEndpoint
from ._http_server import turn_away
from ._ws_policy import Turned

if TYPE_CHECKING:
    import socket

    from ..plugins import Listening, ListenOptions, WebEndpoint, WebRoute
    from ._asgi import Receive, Scope, Send
    from ._urls import NetAddress

__all__ = ["WEB_ENDPOINTS", "HttpListener"]

WEB_ENDPOINTS: Final[Mapping[str, Callable[[str], WebEndpoint]]] = {"jrep": ErraiEndpoint, "uprotocol": EventsEndpoint}
"""Of protocols of ours that want more of the web than WebSockets: a protocol cannot name a transport."""

logger: logging.Logger = logging.getLogger("polybus.transports")


class Application:
    """The routes of an endpoint under one path, as an ASGI application."""

    def __init__(self, path: str, routes: Sequence[WebRoute]) -> None:
        self._base = path.rstrip("/")
        self._exact: dict[tuple[str, bool], WebRoute] = {}
        self._endings: list[tuple[str, str, WebRoute]] = []
        for route in routes:
            where = self._base + route.path if route.path else path
            start, _, rest = where.partition("{")
            if rest:
                self._endings.append((start, rest.partition("}")[2], route))
            else:
                self._exact[where, route.methods is None] = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection or request."""
        socket = scope["type"] == "websocket"
        route = self._route(scope["path"], socket)
        if route is None:
            turned = Turned(
                HTTPStatus.NOT_FOUND, f"nothing is served at {scope['path'][:200]!r}, only below {self._base or '/'}"
            )
        elif route.methods is not None and scope["method"] not in route.methods:
            turned = Turned(HTTPStatus.METHOD_NOT_ALLOWED, f"{scope['method'][:20]} here: only {', '.join(route.methods)}")
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


class HttpListener:
    """A `plugins.Listening`."""

    def __init__(self, url: str, listening: Listening, server: Any) -> None:
        self.url: str = url
        self._listening = listening
        self._server = server

    @classmethod
    async def open(cls, address: NetAddress, options: ListenOptions, sockets: list[socket.socket]) -> HttpListener:
        """Serve at sockets that are bound.

        Raises:
            Unsupported: The protocol has no form over HTTP, uvicorn is missing, or the event loop is not asyncio's.
            ValueError: Something in `origins` is no origin.
        """
        try:
            endpoint = _endpoint(address.path, options)
            server = _server(Application(address.path, endpoint.routes()), options)
            listening = await endpoint.listen(options)
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        await server.startup(sockets=sockets)
        options.host.spawn(_keep, server, options)
        real = address.with_port(sockets[0].getsockname()[1])
        return cls(real, listening, server)

    async def aclose(self) -> None:
        """Let nobody in any more and release the address; sessions stay, and the connections on which they ask."""
        await self._listening.aclose()
        for server in self._server.servers:
            server.close()


def _endpoint(path: str, options: ListenOptions) -> WebEndpoint:
    """
    Raises:
        Unsupported: The protocol has no form over HTTP.
    """
    make = getattr(options.adapter, "web_endpoint", WEB_ENDPOINTS.get(options.protocol))
    if make is None:
        raise Unsupported(f"{options.protocol} has no form over HTTP here: use ws:// or tcp://")
    endpoint: WebEndpoint = make(path)
    return endpoint


def _server(application: Application, options: ListenOptions) -> Any:
    """
    Raises:
        Unsupported: uvicorn is missing, or the event loop is not asyncio's.
    """
    if options.host.backend != "asyncio":
        raise Unsupported("HTTP is served by uvicorn, which knows asyncio only: attach(app, bus) under hypercorn runs on trio")
    try:
        import uvicorn
        from uvicorn.lifespan.off import LifespanOff
    except ImportError as error:
        raise Unsupported(f"to serve HTTP alone needs uvicorn ({error}): pip install 'polybus[fastapi]'") from None

    class Embedded(uvicorn.Server):
        """Leaves signals to the program."""

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            yield

    limits, tls = options.host.limits, options.tls
    more: dict[str, Any] = {} if tls is None else {"ssl_context_factory": lambda config, default: tls}
    config = uvicorn.Config(
        application,
        http="h11",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_max_size=limits.message,
        ws_ping_interval=limits.ping_interval,
        ws_ping_timeout=limits.ping_timeout,
        lifespan="off",
        log_config=None,
        access_log=False,
        # Nobody's word is taken for who somebody else is.
        proxy_headers=False,
        server_header=False,
        date_header=False,
        **more,
    )
    config.load()
    server = Embedded(config)
    server.lifespan = LifespanOff(config)
    return server


def _asks_nothing(connection: Any) -> bool:
    """Whether no request has come in yet; a WebSocket has no cycle of requests."""
    return getattr(connection, "cycle", connection) is None


async def _keep(server: Any, options: ListenOptions) -> None:
    """Cut who connects and asks for nothing; at the end of the bus, everybody."""
    state, limits = server.server_state, options.host.limits
    silent: dict[Any, float] = {}
    try:
        while True:
            await anyio.sleep(1)
            now = options.host.time()
            silent = {connection: silent.get(connection, now) for connection in state.connections if _asks_nothing(connection)}
            for connection, since in silent.items():
                if now - since > limits.handshake_timeout:
                    connection.transport.close()
    finally:
        for listening in server.servers:
            listening.close()
        for connection in list(state.connections):
            connection.shutdown()
        with anyio.CancelScope(shield=True), anyio.move_on_after(limits.close_timeout):
            while state.tasks:  # noqa: ASYNC110  # uvicorn tells nobody
                await anyio.sleep(0.002)
        for connection in list(state.connections):
            connection.transport.abort()
