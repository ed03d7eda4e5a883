"""The server side of protocols over HTTP: admission, limits and answers, and a server for a bus without an application."""

from __future__ import annotations

import logging
import math
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import anyio
from attrs import frozen

from ...errors import Unsupported
from ...limits import Limits
from ...plugins import Admission, Listening, ListenOptions, Reservation, Transport, WebRoute
from ...plugins.connections import SLOWEST, Pace
from ...plugins.registry import find_web_endpoint
from ...plugins.tools import log_fields
from ...transports.asgi import AsgiRequest, AsgiWebSocket, HandshakeRejected, Receive, Scope, Send, answered
from ...transports.sockets import NetAddress

T = TypeVar("T")
A = TypeVar("A", bound=Transport)

logger: logging.Logger = logging.getLogger("polybus.transports")

_SMALL: Final = 16 * 1024
"""Maximum size of a body that arrives in one piece and is not charged, because a running request is not charged either."""

_EARLY: Final = 4
"""Maximum number of messages of a body that wait until the client is admitted. hypercorn sends at least two."""

_PIECE: Final = 32 * 1024
"""Number of bytes of a response to pass to the server at a time. uvicorn accepts more while at most 64 KiB are waiting."""

_PARTING: Final = 1.0

_UNSEEN: Final = 16.0
"""Extra seconds for a piece and the data before it if the server does not show its progress. The assumed rate is 64 kbit/s."""


class WriteStalled(Exception):
    """A client does not read its response."""


class HttpRequest(AsgiRequest):
    def __init__(self, options: ListenOptions, scope: Scope, receive: Receive, slow: set[HttpRequest]) -> None:
        super().__init__(options, scope, receive)
        self.name: str = "https" if self.policy.tls else "http"
        self._slow = slow
        self._whole = False
        """True once the whole body has been read."""
        self._kept: Reservation | None = None

    @property
    def media(self) -> str:
        return (self.head.only("content-type") or "").partition(";")[0].strip().lower()

    @property
    def length(self) -> int:
        given = self.head.only("content-length") or ""
        return int(given) if given.isascii() and given.isdigit() and len(given) < 20 else 0

    async def body(self, limit: int | None = None) -> bytes | None:
        """Read the whole body, or return `None` if the client has disconnected. Received bytes are charged to the client's
        address.

        Raises:
            HandshakeRejected: With status 413 if the body is too large. With 408 if it stalls for `Limits.frame_timeout`, like
                a frame over TCP. With 503 if it is slower than that while `Limits.handshakes` other bodies are too, or if
                `Limits.total_bytes` is exhausted.
        """
        # A list of two-byte parts would take twenty times as much memory as a single buffer.
        body = bytearray()
        try:
            return bytes(body) if await self._read(body, self.options.host.limits, limit) else None
        finally:
            # An error's traceback would keep this buffer, uncharged, until the client has its answer.
            body.clear()
            self._slow.discard(self)

    async def _read(self, body: bytearray, limits: Limits, limit: int | None) -> bool:
        most, name = (limits.message, "message") if limit is None else (limit, "payload")
        seconds, pace = limits.frame_timeout, Pace(anyio.current_time(), 0)
        with anyio.move_on_after(seconds) as scope:
            while True:
                message = await self.receive()
                if message["type"] != "http.request":
                    return False
                part, more = message.get("body", b""), message.get("more_body", False)
                body += part
                if len(body) > most:
                    raise HandshakeRejected(413, f"a payload of more than {most} bytes (Limits.{name})")
                if (more or len(body) > _SMALL) and not self.hold(len(part)):
                    text = f"the share of Limits.total_bytes leaves no room for {len(body)} bytes of this body: try again later"
                    raise HandshakeRejected(503, text)
                if not more:
                    self._whole = True
                    return True
                now = anyio.current_time()
                scope.deadline = pace.deadline(now, len(body), seconds)
                if now - pace.began >= seconds and self not in self._slow:
                    if len(self._slow) >= limits.handshakes:
                        text = f"the body arrives slowly, and so do {len(self._slow)} others (Limits.handshakes)"
                        raise HandshakeRejected(503, text)
                    self._slow.add(self)
        text = f"the body stalled after {len(body)} bytes: less than {math.ceil(SLOWEST * seconds)} came within {seconds:g} s"
        raise HandshakeRejected(408, f"{text} (Limits.frame_timeout)")

    def hold(self, size: int) -> bool:
        """Charge more bytes to the client's address. Returns `False` if the address has used up its share."""
        if self._kept is None:
            self._kept = self.options.host.reserve(self.address)
        return self._kept.hold(size)

    def release(self) -> None:
        if self._kept is not None:
            self._kept.release()
            self._kept = None

    async def respond(self, send: Send, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
        try:
            await self.send(send, _start(200, body, headers))
            await self.write(send, body)
        except OSError as error:
            logger.debug("gone before its answer: %r", error)

    async def write(self, send: Send, body: bytes, *, more: bool = False) -> None:
        """Pass a body to the server in pieces, so that the server buffers little."""
        for start in range(0, len(body) or 1, _PIECE):
            piece, end = body[start : start + _PIECE], start + _PIECE
            await self.send(send, {"type": "http.response.body", "body": piece, "more_body": more or end < len(body)})

    async def send(self, send: Send, message: dict[str, Any]) -> None:
        """Pass a message to the server. If the client accepts no data for `Limits.write_timeout`, its connection is aborted."""
        socket, seconds = self.socket, self.options.host.limits.write_timeout
        if socket is None:
            seconds += _UNSEEN
        while True:
            before = 0 if socket is None else socket.get_write_buffer_size()
            with anyio.move_on_after(seconds):
                await send(message)
                return
            if socket is None or socket.get_write_buffer_size() >= before:
                break
            # uvicorn waits for space before it writes, so no part of this message was written.
        if socket is not None:
            socket.abort()
            with anyio.move_on_after(_PARTING):  # otherwise uvicorn logs an incomplete response
                await self.leaves()
        raise WriteStalled(f"write stalled: the client accepted no data for {seconds:g} s (Limits.write_timeout)")

    async def rest(self) -> None:
        """Discard input for `Limits.frame_timeout`, because a client may not see a response while it is still sending."""
        with anyio.move_on_after(self.options.host.limits.frame_timeout):
            while (message := await self.receive())["type"] == "http.request" and message.get("more_body"):
                pass

    async def while_there(self, work: Awaitable[T]) -> T | None:
        done: T | None = None
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                if await self.leaves():
                    group.cancel_scope.cancel()

            group.start_soon(watch)
            done = await work
            group.cancel_scope.cancel()
        return done

    async def leaves(self) -> bool:
        """Wait until the client has left, which means that it has given up its request, even a complete one.

        Returns `False` if the client is still to be admitted and may send a large body, which is read only afterwards.
        """
        while self._whole or (self.length <= _SMALL and len(self.early) < _EARLY):
            if await super().leaves():
                return True
        return False

    @property
    def host(self) -> str:
        """The client's host. The port is left out because it differs between requests."""
        client = self.scope.get("client")
        return client[0] if client else ""

    async def admission(self) -> Admission:
        return (await self.admitted(self.name))[1]

    def knock(self) -> None:
        refusal = self.options.gate.knock(self.address)
        if refusal is not None:
            raise HandshakeRejected.of(refusal)

    async def probe(self) -> None:
        self.knock()
        try:
            await self.admission()
        finally:
            self.options.gate.left(self.address)

    def open(self, transport: Transport, admission: Admission) -> None:
        self.knock()
        self.options.gate.opened(transport, admission)

    async def enter(self, make: Callable[[], A]) -> A:
        self.knock()
        try:
            admission = await self.admission()
            transport = make()
        except BaseException:
            self.options.gate.left(self.address)
            raise
        self.options.gate.opened(transport, admission)
        return transport


class HttpEndpoint(ABC):
    def __init__(self, path: str = "/") -> None:
        self.path: str = path
        self._sockets = AsgiWebSocket(path)
        self._options: ListenOptions | None = None
        # Requests whose bodies are slower than `Limits.frame_timeout`.
        self._slow: set[HttpRequest] = set()

    def routes(self) -> Sequence[WebRoute]:
        return self._sockets.routes()

    @property
    def url(self) -> str:
        return self._sockets.url

    async def listen(self, options: ListenOptions) -> Listening:
        await self._sockets.listen(options)
        self._options = options
        return self

    async def aclose(self) -> None:
        self._options = None
        await self._sockets.aclose()

    # -- requests

    @abstractmethod
    async def take(self, request: HttpRequest, send: Send) -> None: ...

    async def exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            request = self.knock(scope, receive)
            try:
                await self.take(request, send)
            except WriteStalled as stalled:
                address = request.address
                logger.debug("the connection of %s was cut: %s", address, stalled, extra=log_fields(address=address))
            finally:
                request.release()
        except HandshakeRejected as turned:
            await turn_away(send, turned)

    def knock(self, scope: Scope, receive: Receive) -> HttpRequest:
        options = self._options
        if options is None:
            raise HandshakeRejected(503, "this server accepts no clients: its bus has ended")
        request = HttpRequest(options, scope, receive, self._slow)
        self._sockets.check_private(request)
        return request


async def respond(send: Send, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    try:
        await send(_start(status, body, headers))
        await send({"type": "http.response.body", "body": body})
    except OSError as error:
        logger.debug("gone before its answer: %r", error)


def _start(status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> dict[str, Any]:
    fields = [*headers, (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    return {"type": "http.response.start", "status": int(status), "headers": fields}


async def turn_away(send: Send, turned: HandshakeRejected) -> None:
    fields, body = turned.answer()
    kept = [(name.lower().encode(), value.encode("latin-1")) for name, value in fields if name != "Content-Length"]
    await respond(send, turned.status, body, kept)


# -- a bus without an application -----------------------------------------------------------------------------------------


class Application:
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
    """Confirm lifespan events, because the bus is already running."""
    while True:
        word = (await receive())["type"]
        await send({"type": f"{word}.complete"})
        if word == "lifespan.shutdown":
            return


class HttpServer(Protocol):
    async def start(self, sockets: list[socket.socket], url: str) -> None: ...

    async def aclose(self) -> None: ...


@frozen
class HttpListener:
    url: str
    _listening: Listening
    _server: HttpServer

    @classmethod
    async def open(cls, address: NetAddress, options: ListenOptions, sockets: list[socket.socket]) -> HttpListener:
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
        await self._listening.aclose()
        await self._server.aclose()


def _server(options: ListenOptions) -> Callable[[Application, ListenOptions], HttpServer]:
    try:
        if options.host.backend == "asyncio":
            from .uvicorn import UvicornServer

            return UvicornServer
        from .hypercorn import HypercornServer

        return HypercornServer
    except ImportError as error:
        if options.host.backend == "asyncio":
            text = f"serving HTTP without an application needs uvicorn ({error}): pip install 'polybus[fastapi]'"
        else:
            text = f"serving HTTP without an application on trio needs hypercorn ({error}): pip install hypercorn"
        raise Unsupported(text) from None
