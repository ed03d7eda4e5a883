"""One logical connection of an Errai client over HTTP: many requests, one queue of messages to fetch (J.REP notes 2.1).

Request bodies carry the client's messages. Messages to the client wait for a request that can return them: a long poll, an
event stream, or the answer to a post; or they leave at once over a negotiated WebSocket.
"""

from __future__ import annotations

import hmac
import secrets
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from ...errors import TooLarge
from ...plugins import Closed, Receiver
from ...plugins.connections import HIGH_WATER, LOW_WATER, TransportState, call_later
from ..http.server import HttpRequest
from .payloads import NOTHING, Intake, Offering, next_payload

if TYPE_CHECKING:
    from .server import SessionSocket

_SILENCE = 90.0
"""Seconds without a request after which a session ends, as on a real server."""
_AFTER_CHANNEL = 15.0
"""Seconds after a lost WebSocket: an Errai client polls after a second, a polybus reconnects."""


class Tokens:
    """One-time tokens that link a WebSocket to its session (notes, section 2.4)."""

    def __init__(self) -> None:
        self._known: deque[str] = deque(maxlen=6)  # as on a real server

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
    """A `plugins.Transport` whose frames are fetched."""

    hops = 0

    def __init__(self, request: HttpRequest, cookie: str, ended: Callable[[ErraiConnection], None]) -> None:
        host = request.options.host
        self.name: str = request.name
        self.address: str = request.address
        self.max_frame: int = host.limits.message
        self.cookie: str = cookie
        self.key: str = secrets.token_urlsafe(12)
        """``ConnectionSessionKey``: with a token, it identifies the session to a WebSocket."""
        self.tokens: Tokens = Tokens()
        self.large: anyio.Lock = anyio.Lock()
        """Held while posting more than one message may have, so that few such payloads are in memory."""
        self.ours: bool = False
        self.polls: bool = False
        """True if separate requests fetch messages."""
        self.negotiating: SessionSocket | None = None
        """A WebSocket that has shown a token and awaits confirmation over HTTP."""
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
        """A shorter time-out than usual, until the next request."""
        self._fetching = 0
        """Number of waiting requests; only the last one gets messages."""
        self._turn = 0
        self._changed = anyio.Event()
        self.intake: Intake = Intake(host, self._give)
        self._why: Closed | None = None
        self._cancel_timer: Callable[[], None] | None = None

    # -- plugins.Transport

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def send(self, frame: bytes) -> None:
        """Queue a frame until it is fetched, or send it over the WebSocket. After the end: ignored."""
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
        """Wait until the queue is fetched, at most `Limits.close_timeout`. `Receiver.closed` follows."""
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
        """Close after a long time without requests, unless a WebSocket is open; called about once a second."""
        if self._channel is not None:
            self._channel.transport.tick(now)
            return
        patience = _SILENCE if self._silence is None else self._silence
        if not self._fetching and now - self._seen > patience and self._state is TransportState.OPEN:
            self.abort(Closed(1006, f"no request for {patience:g} s"))

    def idle(self) -> float:
        """Seconds without a request; 0 while one waits, or a WebSocket is open."""
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
        """Waiting messages, or an empty payload after `wait` seconds; and True unless a later request replaced this one.

        A replaced request must not ask again automatically: two would replace each other for ever.
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
        """All waiting messages, which count as unread until `answered` is called for the request."""
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
        """Send everything over this WebSocket from now on, waiting messages first; polls get nothing."""
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
        """Handle a WebSocket's end. The session remains for a while, as its client may poll or negotiate another."""
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
        why = self._why or Closed(1001, "the server ended the session")
        for channel in (self.negotiating, self._channel):
            if channel is not None:
                channel.transport.abort(why)
        self._ended(self)
        if self._receiver is not None:
            self._receiver.closed(why)
