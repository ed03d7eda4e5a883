"""The server for Errai clients, with ``*.erraiBus`` addresses for long polls and event streams, and with WebSockets.

Sources: Errai's `HttpPollingHandler`, `SSEHandler` and servlets (J.REP notes, sections 2.1 and 2.3). Addresses are ``in.<client
id>.erraiBus`` and ``out.<client id>.erraiBus``. Only the query distinguishes the kinds of requests. A session is identified by
a cookie together with the client's id, so that another user's browser cannot access it.

Request bodies contain the client's messages. Messages to the client wait for a request that can return them (a long poll, an
event stream, or the answer to a post), or are sent immediately over a negotiated WebSocket.

A WebSocket proves that it belongs to the polling client, and then carries frames (notes, section 2.4)::

    client, socket  {"CommandType":"Associate","ConnectionSessionKey":k,"WebSocketToken":t}     t from FinishAssociation
    server, socket  WebsocketChannelVerify with a token u
    client, HTTP    WebsocketChannelVerify with u, from the session that k names
    server, HTTP    WebsocketChannelOpen with a token for the next time
    client, socket  the first message again; then payloads in both directions
"""

from __future__ import annotations

import enum
import hmac
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import anyio
from attrs import define, field

from ...errors import TooLarge
from ...plugins import Closed, Receiver, WebRoute
from ...plugins.connections import HIGH_WATER, LOW_WATER, TransportState, call_later
from ...plugins.tools import cookies_of
from ...transports.asgi import AsgiTransport, HandshakeRejected, Receive, Scope, Send, accept, answered
from ..http.server import HttpEndpoint, HttpRequest, WriteStalled, respond
from .payloads import MAX_WORD, NOTHING, Intake, Offering, command_in, complaint, next_payload, said, word

_TEXT: Final[frozenset[Literal["text", "binary"]]] = frozenset({"text"})
_SILENCE = 90.0
"""Seconds without a request after which a session ends, as in Errai."""
_AFTER_CHANNEL = 15.0
"""Seconds that a session outlives its WebSocket. An Errai client polls after one second, and polybus reconnects."""


class Tokens:
    """One-time tokens that link a WebSocket to its session (notes, section 2.4)."""

    def __init__(self) -> None:
        self._known: deque[str] = deque(maxlen=6)  # as in Errai

    def new(self) -> str:
        token = secrets.token_urlsafe(16)
        self._known.append(token)
        return token

    def use(self, token: object) -> bool:
        given = token.encode("utf-8", "surrogatepass") if isinstance(token, str) else b""
        for known in self._known:
            if hmac.compare_digest(known.encode(), given):
                self._known.remove(known)
                return True
        return False


class ErraiConnection:
    hops = 0

    def __init__(self, request: HttpRequest, cookie: str, ended: Callable[[ErraiConnection], None]) -> None:
        host = request.options.host
        self.name: str = request.name
        self.address: str = request.address
        self.max_frame: int = host.limits.message
        self.cookie: str = cookie
        self.key: str = secrets.token_urlsafe(12)
        """The ``ConnectionSessionKey``. A WebSocket names its session by this key and a token."""
        self.tokens: Tokens = Tokens()
        self.large: anyio.Lock = anyio.Lock()
        """Lock held while posting a payload larger than a single message may be, so that few of them are in memory."""
        self.ours: bool = False
        self.polls: bool = False
        """True if messages are fetched by separate requests."""
        self.negotiating: SessionSocket | None = None
        """A WebSocket that has sent a valid token and is waiting for confirmation over HTTP."""
        self._host = host
        self._ended = ended
        self._channel: SessionSocket | None = None
        self._state = TransportState.OPEN
        self._receiver: Receiver | None = None
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._leaving: dict[HttpRequest, int] = {}
        self._paused = False
        self._seen = host.time()
        self._silence: float | None = None
        """A shorter timeout than usual, which applies until the next request."""
        self._fetching = 0
        """Number of waiting requests. Only the last request receives messages."""
        self._turn = 0
        self._changed = anyio.Event()
        self.intake: Intake = Intake(host, self._give)
        self._why: Closed | None = None
        self._cancel_timer: Callable[[], None] | None = None

    # -- plugins.Transport

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def send(self, frame: bytes) -> None:
        if len(frame) > self.max_frame:
            raise TooLarge(f"a payload of {len(frame)} bytes: the limit is {self.max_frame} (Limits.message)")
        if self._state is not TransportState.OPEN:
            return
        if self._channel is not None:
            self._channel.transport.send(frame)
            return
        self._queue.append(frame)
        self._size += len(frame)
        self._wake()
        if self._unread > HIGH_WATER:
            self.pause()

    def write_backlog(self) -> int:
        return self._unread + (self._channel.transport.write_backlog() if self._channel is not None else 0)

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self._state is TransportState.OPEN:
            self._state = TransportState.CLOSING
            self._why = Closed(code, reason)
            self._cancel_timer = call_later(self._host, self._host.limits.close_timeout, self._finish)
            self._wake()
            if self._channel is not None:
                self._channel.transport.close(code, reason)
            elif not self._queue:
                self._host.call_soon(self._finish)

    def abort(self, why: Closed) -> None:
        if self._state is not TransportState.LOST:
            self._state, self._why = TransportState.CLOSING, why
            self._queue.clear()
            self._host.call_soon(self._finish)

    def tick(self, now: float) -> None:
        """Close the session after a long time without requests, unless a WebSocket is open."""
        if self._channel is not None:
            self._channel.transport.tick(now)
            return
        patience = _SILENCE if self._silence is None else self._silence
        if not self._fetching and now - self._seen > patience and self._state is TransportState.OPEN:
            self.abort(Closed(1006, f"no request for {patience:g} s"))

    def idle(self) -> float:
        return 0 if self._fetching or self._channel is not None else self._host.time() - self._seen

    @property
    def _unread(self) -> int:
        return self._size + sum(self._leaving.values())

    # -- requests

    @property
    def over(self) -> bool:
        return self._state is TransportState.LOST or (self._state is TransportState.CLOSING and not self._queue)

    def slow_arrival(self) -> int:
        return self.intake.size

    def receive(self, payload: bytes) -> None:
        self._seen, self._silence = self._host.time(), None
        self.intake.take(payload)

    def _give(self, payload: bytes) -> None:
        if self._state is TransportState.OPEN and self._receiver is not None:
            self._receiver.frames_received([payload])

    async def fetch(self, request: HttpRequest, wait: float) -> tuple[bytes, bool]:
        """Return waiting messages, or an empty payload after `wait` seconds, and False if a later request replaced this one.

        A replaced request must not be repeated automatically, because two requests would then replace each other forever.
        """
        turn = self._turn = self._turn + 1
        self._wake()
        self._fetching += 1
        self._silence = None
        try:
            with anyio.move_on_after(wait):
                while not self._queue and self._state is TransportState.OPEN and self._turn == turn:
                    await self._changed.wait()
        finally:
            self._fetching -= 1
            self._seen = self._host.time()
        return (self.take(request), True) if self._turn == turn else (NOTHING, False)

    def take(self, request: HttpRequest) -> bytes:
        """Return all waiting messages. They count as unread until `answered` is called for the request."""
        if not self._queue:
            return NOTHING
        payload = next_payload(self._queue, self.max_frame)
        self._size = sum(map(len, self._queue))
        self._leaving[request] = len(payload)
        if self._unread <= LOW_WATER:
            self.resume()
        if self._state is TransportState.CLOSING and not self._queue:
            self._host.call_soon(self._finish)
        return payload

    def answered(self, request: HttpRequest) -> None:
        if self._leaving.pop(request, 0) and self._unread <= LOW_WATER:
            self.resume()

    # -- a WebSocket (notes, section 2.4)

    def offer(self, payload: bytes, url: str) -> Offering:
        offering = Offering(payload)
        offering.offers = {
            "CapabilitiesFlags": "LongPolling,WebSockets,SSE",
            "ConnectionSessionKey": self.key,
            "WebSocketURL": url,
            "WebSocketToken": self.tokens.new(),
        }
        return offering

    def open_channel(self, channel: SessionSocket) -> None:
        """Send all messages over this WebSocket from now on, starting with the waiting messages. Polls return no messages."""
        before, self._channel = self._channel, channel
        if before is not None:
            before.transport.close(1000, "another WebSocket has taken its place")
        self._turn += 1
        self._wake()
        while self._queue:
            channel.transport.send(self._queue.popleft())
        self._size = 0
        if not channel.paused:
            self.resume()
        if self._state is TransportState.CLOSING:
            channel.transport.close(1001, self._why.reason if self._why is not None else "")

    def channel_lost(self, channel: SessionSocket) -> None:
        """Keep the session open for a while after its WebSocket is lost, because the client may poll or negotiate another."""
        if channel is self.negotiating:
            self.negotiating = None
        if channel is self._channel:
            self._channel = None
            self._seen, self._silence = self._host.time(), _AFTER_CHANNEL
            if self._state is TransportState.CLOSING:
                self._host.call_soon(self._finish)
            else:
                self.resume()

    def pause(self) -> None:
        if not self._paused and self._receiver is not None:
            self._paused = True
            self.intake.pause()
            self._receiver.pause_writing()

    def resume(self) -> None:
        if self._paused and self._state is TransportState.OPEN and self._receiver is not None:
            self._paused = False
            self.intake.resume()
            self._receiver.resume_writing()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _finish(self) -> None:
        if self._state is TransportState.LOST:
            return
        self._state = TransportState.LOST
        if self._cancel_timer is not None:
            self._cancel_timer()
        self._queue.clear()
        self._size = 0
        self.intake.drop()
        self._wake()
        why = self._why or Closed(1001, "the server closed the session")
        for channel in (self.negotiating, self._channel):
            if channel is not None:
                channel.transport.abort(why)
        self._ended(self)
        if self._receiver is not None:
            self._receiver.closed(why)


class NegotiationStage(enum.Enum):
    CLAIMING = 1
    """The client has not sent a token yet."""
    VERIFYING = 2
    """The client has sent a valid token, and must return another token over HTTP."""
    VERIFIED = 3
    OPEN = 4
    OVER = 5


@define(eq=False, repr=False)
class SessionSocket:
    transport: AsgiTransport
    _find: Callable[[object], ErraiConnection | None]
    _settled: Callable[[], object] | None
    paused: bool = field(default=False, init=False)
    _stage: NegotiationStage = field(default=NegotiationStage.CLAIMING, init=False)
    _connection: ErraiConnection | None = field(default=None, init=False)
    _token: str = field(default="", init=False)

    # -- plugins.Receiver

    def frames_received(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            if self._stage is not NegotiationStage.OPEN:
                self._negotiate(frame)
            elif self._connection is not None and not _is_claim(frame):
                self._connection.receive(frame)

    def closed(self, why: Closed) -> None:
        self._settle(NegotiationStage.OVER)
        if self._connection is not None:
            self._connection.channel_lost(self)

    def pause_writing(self) -> None:
        self.paused = True
        if self._stage is NegotiationStage.OPEN and self._connection is not None:
            self._connection.pause()

    def resume_writing(self) -> None:
        self.paused = False
        if self._stage is NegotiationStage.OPEN and self._connection is not None:
            self._connection.resume()

    # -- the negotiation

    def give_up(self) -> None:
        if self._settled is not None:
            self.transport.abort(Closed(1008, "the negotiation was not completed"))

    def verified(self, token: object) -> bool:
        right = self._stage is NegotiationStage.VERIFYING and isinstance(token, str) and token == self._token
        if right:
            self._stage = NegotiationStage.VERIFIED
        return right

    def _negotiate(self, frame: bytes) -> None:
        claims = said(frame) if len(frame) <= MAX_WORD and frame.lstrip()[:1] == b"{" else []
        if not claims:
            self._fail("illegal handshake")
        elif claims[0].get("CommandType") != "Associate":
            self._fail("bad command")
        else:
            self._claim(claims[0])

    def _claim(self, claim: Mapping[str, Any]) -> None:
        connection = self._find(claim.get("ConnectionSessionKey"))
        if connection is None or self._connection not in (None, connection):
            self._fail("bad session id")
        elif self._stage is NegotiationStage.VERIFIED:
            connection.negotiating = None
            self._settle(NegotiationStage.OPEN)
            connection.open_channel(self)
        elif self._stage is NegotiationStage.CLAIMING and connection.tokens.use(claim.get("WebSocketToken")):
            self._stage, self._connection = NegotiationStage.VERIFYING, connection
            self._token = secrets.token_urlsafe(16)  # valid only for this socket
            if connection.negotiating is not None:
                connection.negotiating.give_up()
            connection.negotiating = self
            self.transport.send(word(ToSubject="ClientBus", CommandType="WebsocketChannelVerify", WebSocketToken=self._token))
        else:
            self._fail("bad negotiation key")

    def _settle(self, stage: NegotiationStage) -> None:
        self._stage = stage
        if self._settled is not None:
            settled, self._settled = self._settled, None
            settled()

    def _fail(self, text: str) -> None:
        self._settle(NegotiationStage.OVER)
        self.transport.send(word(ToSubject="ClientBus", CommandType="WebsocketNegotiationFailed", ErrorMessage=text))
        self.transport.close(1008, text)


def confirm(connection: ErraiConnection, message: Mapping[str, Any]) -> None:
    """Handle ``WebsocketChannelVerify`` over HTTP. The answer is queued for the client."""
    channel = connection.negotiating
    if channel is not None and channel.verified(message.get("WebSocketToken")):
        token = connection.tokens.new()
        connection.send(word(ToSubject="ClientBus", CommandType="WebsocketChannelOpen", WebSocketToken=token))
    else:
        text = "bad negotiation key"
        connection.send(word(ToSubject="ClientBus", CommandType="WebsocketNegotiationFailed", ErrorMessage=text))


def _is_claim(frame: bytes) -> bool:
    """Return True for a client's first message. The client repeats it after WebsocketChannelOpen (notes, section 2.4)."""
    return frame[:1] == b"{" and len(frame) <= MAX_WORD and b'"Associate"' in frame and b'"ToSubject"' not in frame


CHANNEL = "/websocket.bus"
"""Path of session WebSockets, as in Errai."""
_COOKIE = "polybus-errai"
_POLL = 45.0
"""Seconds that a poll waits, as in Errai."""
_EXPIRED = b'[{"ToSubject":"ClientBus","CommandType":"SessionExpired"}]'
_BEGINNINGS = (b'"Associate"', b'"ConnectToQueue"')
_MAX_ID = 128
_OF_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),  # nginx would keep the end of a large event until the next one
]
_JSON = (b"content-type", b"application/json; charset=utf-8")


class ErraiEndpoint(HttpEndpoint):
    """A `plugins.WebEndpoint` that serves J.REP to Errai's own clients, in addition to ordinary WebSockets.

    Errai clients expect this endpoint at ``/``, or at the path of their module.
    """

    def __init__(self, path: str = "/") -> None:
        super().__init__(path)
        self._sessions: dict[str, dict[str, ErraiConnection]] = {}
        """Sessions by browser cookie, then by the client id of a window."""
        self._claiming: dict[SessionSocket, list[ErraiConnection]] = {}

    def routes(self) -> Sequence[WebRoute]:
        requests = WebRoute("/{name}.erraiBus", self.exchange, ("GET", "POST"))
        return [*super().routes(), WebRoute(CHANNEL, partial(answered, self._admit)), requests]

    async def aclose(self) -> None:
        """Stop accepting sessions. Existing sessions stay open, so that clients can fetch their last messages."""
        await self._sockets.aclose()

    # -- WebSockets

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept a WebSocket for a session, which its cookie identifies before the upgrade.

        Since the session was already admitted, the bus's gate is not asked again, even while it drains.
        """
        request = self.knock(scope, receive)
        sessions = self._sessions_of(request)
        if not sessions:
            raise HandshakeRejected(403, "no session has this cookie: an Errai client associates over HTTP first")
        if sum(sessions[0] in others for others in self._claiming.values()) >= 2 * len(sessions):
            raise HandshakeRejected(503, "too many WebSockets of this browser are being negotiated")
        host, name = request.options.host, "wss" if request.policy.tls else "ws"
        transport = AsgiTransport(name, request.address, host, send, request.socket, reads=_TEXT, writes="text")

        def find(key: object) -> ErraiConnection | None:
            return next((session for session in self._sessions_of(request) if session.key == key), None)

        channel = SessionSocket(transport, find, lambda: self._claiming.pop(channel, None))
        self._claiming[channel] = sessions
        transport.start(channel)
        cancel = call_later(host, host.limits.handshake_timeout, channel.give_up)
        try:
            if await accept(send, None):
                await transport.run(receive)
        finally:
            cancel()
            channel.closed(Closed(1006, "the connection is closed"))

    # -- requests

    async def take(self, request: HttpRequest, send: Send) -> None:
        if request.scope["method"] == "POST" and request.media != "application/json":
            # Pages of other sites can post forms and plain text without a preflight, but not JSON.
            text = f"a payload is application/json, not {request.media or 'without a type'}"
            raise HandshakeRejected(415, text)
        query = request.head.fields
        client = query.get("clientId") or request.head.only("remotequeueid") or ""  # Errai up to 2.3 sends the header
        if not 0 < len(client) <= _MAX_ID:
            raise HandshakeRejected(400, f"the query has no clientId, or one of more than {_MAX_ID} characters")
        cookie = _cookie_of(request)
        session = self._sessions.get(cookie, {}).get(client)
        try:
            body = await _body_of(request, session)
        except HandshakeRejected as turned:
            if turned.status != 413 or session is None or session.ours:
                raise
            # After a status other than 200 an Errai client stays interrupted (notes of the second round, M7).
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
        except WriteStalled as stalled:  # the session has lost the messages in the answer
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
        if query.get("sse") == "1":
            connection.polls = True
            await _stream(connection, request, send)
        elif query.get("wait") == "1" or request.scope["method"] == "GET":  # Errai up to 2.3 polls with GET
            connection.polls = connection.polls or query.get("phase") != "connection"
            await _poll(connection, request, send, headers)
        elif request.head.path.rpartition("/")[2].startswith("in."):
            connection.polls = True
            await request.respond(send, connection.take(request), headers)
        else:
            # A polling client gets nothing in other answers, because two answers could overtake each other.
            await request.respond(send, NOTHING if connection.polls else connection.take(request), headers)

    async def _enter(self, request: HttpRequest, cookie: str, client: str) -> ErraiConnection:
        def make() -> ErraiConnection:
            mine = cookie if cookie in self._sessions else secrets.token_urlsafe(24)  # never a cookie chosen by the client
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
        return list(self._sessions.get(_cookie_of(request), {}).values())


async def _body_of(request: HttpRequest, session: ErraiConnection | None) -> bytes:
    """Read the body. The limit is `Limits.payload` for a known client, otherwise `Limits.message`."""
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
        text = f"{limits.payload} bytes of this session wait to be read (Limits.payload): fetch the messages and try again"
        raise HandshakeRejected(503, text)
    return body


def _cookie_of(request: HttpRequest) -> str:
    return cookies_of("; ".join(request.head.headers.get("cookie", ()))).get(_COOKIE, "")


def _channel_url(request: HttpRequest) -> str:
    scheme = "wss" if request.policy.tls else "ws"
    return f"{scheme}://{request.head.only('host')}{request.head.path.rpartition('/')[0]}{CHANNEL}"


async def _poll(connection: ErraiConnection, request: HttpRequest, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
    """Answer with waiting messages. If the client disconnects, the messages stay in the queue."""
    if connection.over:
        await request.respond(send, connection.take(request), headers)
    elif (fetched := await request.while_there(connection.fetch(request, _POLL))) is not None:
        await request.respond(send, fetched[0], headers)


async def _stream(connection: ErraiConnection, request: HttpRequest, send: Send) -> None:
    """Send an event stream until another request replaces it. An occasional empty payload serves as a sign of life."""
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
