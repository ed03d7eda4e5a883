"""Server for Errai's clients: ``*.erraiBus`` addresses with long polls and streams of events, and WebSockets.

Sources: Errai's `HttpPollingHandler`, `SSEHandler` and servlets, as told in the J.REP notes, sections 2.1 and 2.3. Addresses
are ``in.<client id>.erraiBus`` and ``out.<client id>.erraiBus``; which of them is of no importance, what counts is the query. A
session is known by a cookie of ours together with the client's id, so that no other user's browser can name it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from ...plugins import Closed, WebRoute
from ...plugins.admission import cookies_of
from ...transports._ws.asgi import Send
from ...transports._ws.policy import HandshakeRejected, query_of
from ..http.server import HttpEndpoint, HttpRequest, WriteStalled, respond
from .connection import ErraiConnection
from .payloads import NOTHING, command_in, complaint
from .websocket import SessionSockets, confirm

CHANNEL = "/websocket.bus"
"""Path of the WebSockets of sessions, as on a real server."""
_COOKIE = "polybus-errai"
_POLL = 45.0
"""Seconds that a poll waits, as on a real server."""
_EXPIRED = b'[{"ToSubject":"ClientBus","CommandType":"SessionExpired"}]'
_BEGINNINGS = (b'"Associate"', b'"ConnectToQueue"')
_MAX_ID = 128
_OF_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),  # nginx would keep the end of a large event until another one follows
]
_JSON = (b"content-type", b"application/json; charset=utf-8")


class ErraiEndpoint(HttpEndpoint):
    """A `plugins.WebEndpoint`: J.REP for Errai's own clients, beside the bare WebSockets of others. These clients expect it at
    ``/``, or where their module stands."""

    def __init__(self, path: str = "/") -> None:
        super().__init__(path)
        self._sessions: dict[str, dict[str, ErraiConnection]] = {}
        """By the cookie of a browser, and the client's id in one of its windows."""
        self._channels = SessionSockets(self.knock, self._sessions_of)

    def routes(self) -> Sequence[WebRoute]:
        """WebSockets at the path itself, those of sessions, and all addresses below it that end in ``.erraiBus``."""
        requests = WebRoute("/{name}.erraiBus", self.exchange, ("GET", "POST"))
        return [*super().routes(), WebRoute(CHANNEL, self._channels), requests]

    async def aclose(self) -> None:
        """Stop accepting. Sessions stay, and may fetch their last words."""
        await self._sockets.aclose()

    # -- requests

    async def take(self, request: HttpRequest, send: Send) -> None:
        """May raise `HandshakeRejected`: the request is not as it has to be, or its client is not let in."""
        if request.scope["method"] == "POST" and request.media != "application/json":
            # A page of another site can post forms and plain text without being asked, and no JSON.
            text = f"a payload is application/json, not {request.media or 'without a type'}"
            raise HandshakeRejected(415, text)
        query = query_of(request.head.query)
        client = query.get("clientId") or request.head.only("remotequeueid") or ""  # the latter of Errai until 2.3
        if not 0 < len(client) <= _MAX_ID:
            raise HandshakeRejected(400, f"the query has no clientId, or one of more than {_MAX_ID} characters")
        cookie = _cookie_of(request)
        session = self._sessions.get(cookie, {}).get(client)
        try:
            body = await _body_of(request, session)
        except HandshakeRejected as turned:
            if turned.status != 413 or session is None or session.ours:
                raise
            # After another status than 200 an Errai client stays interrupted (notes of the second round, M7).
            await request.rest()
            await respond(send, 200, complaint(turned.text, "too_large"), [_JSON])
            return
        begins = any(word in body for word in _BEGINNINGS)
        connection = self._sessions.get(cookie, {}).get(client)
        headers: list[tuple[bytes, bytes]] = [_JSON]
        if connection is None:
            if not begins:
                await respond(send, 200, _EXPIRED, headers)
                return
            connection = await self._enter(request, cookie, client)
            secure = "; Secure" if request.policy.tls else ""
            kept = f"{_COOKIE}={connection.cookie}; Path=/; HttpOnly; SameSite=Strict{secure}"
            headers.append((b"set-cookie", kept.encode()))
        if body:
            if begins:
                connection.ours = connection.ours or b'"Polybus"' in body
            verify = command_in(body, "WebsocketChannelVerify")
            connection.receive(connection.offer(body, _channel_url(request)) if begins else body)
            del body
            request.release()
            await connection.intake.settled()
            if verify is not None:
                confirm(connection, verify)
        try:
            await self._answer(connection, request, query, send, headers)
        except WriteStalled as stalled:  # what it has taken along is lost to the session
            connection.abort(Closed(1006, str(stalled), stalled=True))
        finally:
            connection.answered(request)
        if query.get("phase") == "disconnect":
            connection.close(1000, "the client has left")

    async def _answer(
        self,
        connection: ErraiConnection,
        request: HttpRequest,
        query: Mapping[str, str],
        send: Send,
        headers: list[tuple[bytes, bytes]],
    ) -> None:
        """May raise `WriteStalled`: the client reads nothing."""
        if query.get("sse") == "1":
            connection.polls = True
            await _stream(connection, request, send)
        elif query.get("wait") == "1" or request.scope["method"] == "GET":  # a GET polls in Errai until 2.3
            connection.polls = connection.polls or query.get("phase") != "connection"
            await _poll(connection, request, send, headers)
        elif request.head.path.rpartition("/")[2].startswith("in."):
            connection.polls = True
            await request.respond(send, connection.take(request), headers)
        else:
            # To who polls nothing comes on other ways: two answers could overtake each other.
            await request.respond(send, NOTHING if connection.polls else connection.take(request), headers)

    async def _enter(self, request: HttpRequest, cookie: str, client: str) -> ErraiConnection:
        """A new session. May raise `HandshakeRejected`: the bus does not let the client in."""

        def make() -> ErraiConnection:
            mine = cookie if cookie in self._sessions else secrets.token_urlsafe(24)  # never one that the client has chosen
            connection = ErraiConnection(request, mine, lambda ended: self._left(client, ended))
            self._sessions.setdefault(mine, {})[client] = connection
            return connection

        return await request.enter(make)

    def _left(self, client: str, connection: ErraiConnection) -> None:
        windows = self._sessions.get(connection.cookie, {})
        if windows.get(client) is connection:
            del windows[client]
            if not windows:
                del self._sessions[connection.cookie]

    def _sessions_of(self, request: HttpRequest) -> list[ErraiConnection]:
        """The sessions of a browser, which its cookie names."""
        return list(self._sessions.get(_cookie_of(request), {}).values())


async def _body_of(request: HttpRequest, session: ErraiConnection | None) -> bytes:
    """Read the body: of a client that is known up to `Limits.payload`, of others up to `Limits.message`. May raise
    `HandshakeRejected`: 413, 408; 503, what came before it has not been read yet."""
    limits = request.options.host.limits
    if session is None:
        return await request.body() or b""
    if request.length <= limits.message:
        body = await request.body() or b""
        there = await session.intake.room(len(body))
    else:
        async with session.large:
            there = await session.intake.room(min(request.length, limits.payload))
            body = await request.body(limits.payload) or b"" if there else b""
    if not there:
        text = f"{limits.payload} bytes of this session wait to be read (Limits.payload): fetch what waits, and try again"
        raise HandshakeRejected(503, text)
    return body


def _cookie_of(request: HttpRequest) -> str:
    return cookies_of("; ".join(request.head.headers.get("cookie", ()))).get(_COOKIE, "")


def _channel_url(request: HttpRequest) -> str:
    """Address at which the client finds its WebSocket: at the same host, whatever that is called from outside."""
    scheme = "wss" if request.policy.tls else "ws"
    return f"{scheme}://{request.head.only('host')}{request.head.path.rpartition('/')[0]}{CHANNEL}"


async def _poll(connection: ErraiConnection, request: HttpRequest, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
    """Answer with what waits; who goes away meanwhile takes nothing along."""
    if connection.over:
        await request.respond(send, connection.take(request), headers)
    elif (fetched := await request.while_there(connection.fetch(request, _POLL))) is not None:
        await request.respond(send, fetched[0], headers)


async def _stream(connection: ErraiConnection, request: HttpRequest, send: Send) -> None:
    """A stream of events; an empty payload now and then shows that it lives. It ends when another request takes its place."""
    await request.send(send, {"type": "http.response.start", "status": 200, "headers": [*_OF_EVENTS]})
    await request.write(send, b"retry: 500\n\n", more=True)
    latest = True
    while latest and not connection.over:
        fetched = await request.while_there(connection.fetch(request, _POLL))
        if fetched is None:
            return
        payload, latest = fetched
        await request.write(send, b"data: %b\n\n" % payload, more=True)
        connection.answered(request)
    await request.write(send, b"")
