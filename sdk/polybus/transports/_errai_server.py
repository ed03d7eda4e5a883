"""What an Errai client asks of its server: ``*.erraiBus`` addresses with long polls and streams of events, and WebSockets.

Sources: Errai's `HttpPollingHandler`, `SSEHandler` and servlets, as told in the J.REP notes, sections 2.1 and 2.3. Addresses
are ``in.<client id>.erraiBus`` and ``out.<client id>.erraiBus``; which of them is of no importance, what counts is the query. A
session is known by a cookie of ours together with the client's id, so that no other user's browser can name it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from http import HTTPStatus

import anyio
from attrs import evolve

from ..plugins import Handshake, Listening, ListenOptions, WebRoute
from ._asgi import Receive, Scope, Send, socket_of
from ._asgi_server import AsgiWebSocket, _address, _at, _decision, _is_open, _upgrade
from ._errai_connection import NOTHING, ErraiConnection
from ._sockets import is_loopback, tune
from ._ws_policy import Door, Turned, answer, cookies_of, query_of, refused

__all__ = ["ErraiEndpoint"]

logger: logging.Logger = logging.getLogger("polybus.transports")

_COOKIE = "polybus-errai"
_POLL = 45.0
"""Seconds that a poll waits, as on a real server."""
_EXPIRED = b'[{"ToSubject":"ClientBus","CommandType":"SessionExpired"}]'
_BEGINNINGS = (b'"Associate"', b'"ConnectToQueue"')
_MAX_ID = 128


class ErraiEndpoint:
    """A `plugins.WebEndpoint`: J.REP for Errai's own clients, beside the bare WebSockets of others.

    Args:
        path: For people: where the application's router has it. Errai's clients expect ``/``, or where their module stands.
    """

    def __init__(self, path: str = "/") -> None:
        self.path: str = path
        self._sockets = AsgiWebSocket(path)
        self._options: ListenOptions | None = None
        self._sessions: dict[tuple[str, str], ErraiConnection] = {}

    def routes(self) -> Sequence[WebRoute]:
        """WebSockets at the path itself, and all addresses below it that end in ``.erraiBus``."""
        return [*self._sockets.routes(), WebRoute("/{name}.erraiBus", self.exchange, ("GET", "POST"))]

    @property
    def url(self) -> str:
        """Where it is in its application."""
        return self._sockets.url

    async def listen(self, options: ListenOptions) -> Listening:
        """Let strangers in.

        Raises:
            ValueError: Something in `origins` is no origin.
            LocalProtocolError: Somebody is let in here already.
        """
        await self._sockets.listen(options)
        self._options = options
        return self

    async def aclose(self) -> None:
        """Let nobody in any more; sessions stay."""
        self._options = None
        await self._sockets.aclose()

    # -- requests

    async def exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        try:
            await self._exchange(scope, receive, send)
        except Turned as turned:
            _, body = answer(turned)
            await _respond(send, turned.status, body, [(b"content-type", b"text/plain; charset=utf-8")])

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        """
        Raises:
            Turned: The request is not as it has to be, or whoever makes it is not let in.
        """
        door = self._door(scope)
        socket = socket_of(receive)
        if socket is not None:
            # Head and body are two writes; with Nagle's algorithm the second waits 40 ms for the client to confirm the first.
            tune(socket.get_extra_info("socket"))
        query = query_of(_upgrade(scope).query)
        client = query.get("clientId", "")
        if not 0 < len(client) <= _MAX_ID:
            raise Turned(HTTPStatus.BAD_REQUEST, f"the query has no clientId, or one of more than {_MAX_ID} characters")
        body = await self._body(scope, receive)
        cookie = cookies_of("; ".join(_upgrade(scope).headers.get("cookie", ()))).get(_COOKIE, "")
        connection = self._sessions.get((cookie, client))
        headers: list[tuple[bytes, bytes]] = []
        if connection is None:
            if not any(word in body for word in _BEGINNINGS):
                await _respond_json(send, _EXPIRED, headers)
                return
            cookie, connection = await self._enter(scope, door, cookie, client)
            secure = "; Secure" if door.tls else ""
            kept = f"{_COOKIE}={cookie}; Path=/; HttpOnly; SameSite=Strict{secure}"
            headers = [(b"set-cookie", kept.encode())]
        if body:
            connection.receive(body)
        if query.get("sse") == "1":
            connection.polls = True
            await _stream(connection, receive, send)
        elif query.get("wait") == "1":
            connection.polls = connection.polls or query.get("phase") != "connection"
            await _poll(connection, receive, send, headers)
        else:
            # To who polls nothing comes on other ways: two answers could overtake each other.
            await _respond_json(send, NOTHING if connection.polls else connection.take(), headers)

    def _door(self, scope: Scope) -> Door:
        """
        Raises:
            Turned: 503 while nobody is let in; what `Door.check` and `AsgiWebSocket` say.
        """
        options = self._options
        if options is None:
            raise Turned(HTTPStatus.SERVICE_UNAVAILABLE, "this server is shutting down")
        here: tuple[str, int | None] = scope.get("server") or ("", None)
        upgrade = _upgrade(scope)
        door = Door(
            path=upgrade.path,
            tls=scope.get("scheme") == "https",
            loopback=here[1] is not None and is_loopback(here[0]),
            subprotocol="",
            origins=options.origins,
            hosts=options.hosts,
        )
        if options.private and _is_open(here[0]):
            self._sockets._turn_from_open(here[0])
        door.check(upgrade)
        kind = (upgrade.only("content-type") or "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            # A page of another site can post forms and plain text without being asked, and no JSON.
            raise Turned(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"a payload is application/json, not {kind or 'without a type'}")
        return door

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """
        Raises:
            Turned: 413
        """
        assert self._options is not None
        limit, parts, size = self._options.host.limits.message, list[bytes](), 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return b""  # it has gone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise Turned(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a payload of more than {limit} bytes (Limits.message)")
            if not message.get("more_body"):
                return b"".join(parts)

    async def _enter(self, scope: Scope, door: Door, cookie: str, client: str) -> tuple[str, ErraiConnection]:
        """A new session.

        Raises:
            Turned: The bus does not let the stranger in.
        """
        options = self._options
        assert options is not None
        address = _address(scope)
        refusal = options.gate.knock(address)
        if refusal is not None:
            raise refused(refusal)
        inside = False
        try:
            here: tuple[str, int | None] = scope.get("server") or ("", None)
            upgrade = _upgrade(scope)
            name = "https" if door.tls else "http"
            known = Handshake(protocol=options.protocol, url=f"{name}://{_at(*here)}{upgrade.path}", address=address)
            _, handshake = door.handshake(upgrade, known)
            admission = await _decision(options, evolve(handshake, transport=name))
            if not any(known == cookie for known, _ in self._sessions):
                cookie = secrets.token_urlsafe(24)  # never one that somebody else has chosen
            key = cookie, client
            connection = ErraiConnection(name, address, options.host, lambda ended: self._left(key, ended))
            self._sessions[key] = connection
            inside = True
            options.gate.opened(connection, admission)
        finally:
            if not inside:
                options.gate.left(address)
        return cookie, connection

    def _left(self, key: tuple[str, str], connection: ErraiConnection) -> None:
        if self._sessions.get(key) is connection:
            del self._sessions[key]


async def _poll(connection: ErraiConnection, receive: Receive, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
    """Answer with what waits; who goes away meanwhile takes nothing along."""
    payload = connection.take() if connection.over else await _while_there(connection, receive)
    if payload is not None:
        await _respond_json(send, payload, headers)


async def _while_there(connection: ErraiConnection, receive: Receive) -> bytes | None:
    payload: bytes | None = None
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(watch)
        payload = await connection.fetch(_POLL)
        group.cancel_scope.cancel()
    return payload


async def _stream(connection: ErraiConnection, receive: Receive, send: Send) -> None:
    """A stream of events; an empty payload now and then shows that it lives."""
    fields = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": b"retry: 500\n\n", "more_body": True})
    while not connection.over:
        payload = await _while_there(connection, receive)
        if payload is None:
            return
        await send({"type": "http.response.body", "body": b"data: %b\n\n" % payload, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _respond_json(send: Send, payload: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    await _respond(send, HTTPStatus.OK, payload, [(b"content-type", b"application/json; charset=utf-8"), *headers])


async def _respond(send: Send, status: HTTPStatus, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    fields = [*headers, (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    try:
        await send({"type": "http.response.start", "status": status.value, "headers": fields})
        await send({"type": "http.response.body", "body": body})
    except OSError as error:
        if body != NOTHING:
            logger.debug("polybus: gone before its answer: %r", error)
