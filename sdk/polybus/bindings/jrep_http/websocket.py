"""The WebSocket of an Errai session: how a client shows that it is the one that polls, and the frames afterwards (notes 2.4).

::

    client, socket  {"CommandType":"Associate","ConnectionSessionKey":k,"WebSocketToken":t}     t from FinishAssociation
    server, socket  WebsocketChannelVerify with a token u
    client, HTTP    WebsocketChannelVerify with u, from the session that k names
    server, HTTP    WebsocketChannelOpen with a token for the next time
    client, socket  the first word once more; then payloads in both directions
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from ...plugins import Closed
from ...transports._stream.wire import call_later
from ...transports._ws.asgi import AsgiTransport, Receive, Scope, Send
from ...transports._ws.asgi_server import accept, answered
from ...transports._ws.policy import HandshakeRejected
from ..http.server import HttpRequest
from .connection import ErraiConnection
from .payloads import MAX_WORD, said, word

_TEXT: Final[frozenset[Literal["text", "binary"]]] = frozenset({"text"})


class NegotiationStage(enum.Enum):
    """States of the negotiation."""

    CLAIMING = 1
    """Nothing has been shown yet."""
    VERIFYING = 2
    """A token was right; the client has to return another one over HTTP."""
    VERIFIED = 3
    OPEN = 4
    OVER = 5


class SessionSocket:
    """One WebSocket, as what its transport calls."""

    def __init__(
        self, transport: AsgiTransport, find: Callable[[object], ErraiConnection | None], settled: Callable[[], object]
    ) -> None:
        self.transport: AsgiTransport = transport
        self.paused: bool = False
        self._find = find
        self._settled: Callable[[], object] | None = settled
        self._stage = NegotiationStage.CLAIMING
        self._connection: ErraiConnection | None = None
        self._token = ""

    # -- plugins.Receiver

    def frames_received(self, frames: Sequence[bytes]) -> None:
        """Words of the negotiation, then payloads."""
        for frame in frames:
            if self._stage is not NegotiationStage.OPEN:
                self._negotiate(frame)
            elif self._connection is not None and not _is_claim(frame):
                self._connection.receive(frame)

    def closed(self, why: Closed) -> None:
        """The session goes on without it."""
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
        """The time for it is over."""
        if self._settled is not None:
            self.transport.abort(Closed(1008, "the negotiation was not completed"))

    def verified(self, token: object) -> bool:
        """True if the client has returned the right token over HTTP."""
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
            self._token = secrets.token_urlsafe(16)  # for this socket alone
            if connection.negotiating is not None:
                connection.negotiating.give_up()
            connection.negotiating = self
            self.transport.send(word(ToSubject="ClientBus", CommandType="WebsocketChannelVerify", WebSocketToken=self._token))
        else:
            self._fail("bad negotiation key")

    def _settle(self, stage: NegotiationStage) -> None:
        """There is nothing left to negotiate."""
        self._stage = stage
        if self._settled is not None:
            settled, self._settled = self._settled, None
            settled()

    def _fail(self, text: str) -> None:
        self._settle(NegotiationStage.OVER)
        self.transport.send(word(ToSubject="ClientBus", CommandType="WebsocketNegotiationFailed", ErrorMessage=text))
        self.transport.close(1008, text)


def confirm(connection: ErraiConnection, message: Mapping[str, Any]) -> None:
    """``WebsocketChannelVerify`` over HTTP: the answer is queued for the client."""
    channel = connection.negotiating
    if channel is not None and channel.verified(message.get("WebSocketToken")):
        token = connection.tokens.new()
        connection.send(word(ToSubject="ClientBus", CommandType="WebsocketChannelOpen", WebSocketToken=token))
    else:
        text = "bad negotiation key"
        connection.send(word(ToSubject="ClientBus", CommandType="WebsocketNegotiationFailed", ErrorMessage=text))


def _is_claim(frame: bytes) -> bool:
    """True if a client says its first word a third time, as it does after WebsocketChannelOpen over the socket (notes 2.4)."""
    return frame[:1] == b"{" and len(frame) <= MAX_WORD and b'"Associate"' in frame and b'"ToSubject"' not in frame


class SessionSockets:
    """The ASGI application of these WebSockets. Whom they belong to shows the cookie of a session, before the upgrade.

    They are part of a session that the bus has let in, so its gate is not asked again: also while it drains.
    """

    def __init__(
        self, knock: Callable[[Scope, Receive], HttpRequest], sessions: Callable[[HttpRequest], list[ErraiConnection]]
    ) -> None:
        self._knock = knock
        self._sessions = sessions
        self._claiming: dict[SessionSocket, list[ErraiConnection]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answered(self._admit, scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """May raise `HandshakeRejected`: before the upgrade: the client is not let in."""
        request = self._knock(scope, receive)
        sessions = self._sessions(request)
        if not sessions:
            raise HandshakeRejected(403, "no session has this cookie: an Errai client associates over HTTP first")
        if sum(sessions[0] in others for others in self._claiming.values()) >= 2 * len(sessions):
            raise HandshakeRejected(503, "too many WebSockets of this browser are being negotiated")
        host, name = request.options.host, "wss" if request.policy.tls else "ws"
        transport = AsgiTransport(name, request.address, host, send, request.socket, reads=_TEXT, writes="text")

        def find(key: object) -> ErraiConnection | None:
            return next((session for session in self._sessions(request) if session.key == key), None)

        channel = SessionSocket(transport, find, lambda: self._claiming.pop(channel, None))
        self._claiming[channel] = sessions
        transport.start(channel)
        cancel = call_later(host, host.limits.handshake_timeout, channel.give_up)
        try:
            if await accept(send, None):
                await transport.run(receive)
        finally:
            cancel()
            channel.closed(Closed(1006, "the connection is over"))
