"""A connection to an Errai or polybus server over HTTP, consisting of posts and a return channel (J.REP notes, sections 2.1 to
2.4, 4).

The first post opens the session, and its answer lists the server's capabilities. The client then uses the best return channel
that both support. In order of preference, these are a WebSocket (which carries both directions), server-sent events, long polls
and short polls.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import anyio
from attrs import define, field, frozen

from ...errors import BusError
from ...plugins import Closed, DialOptions, Receiver, Transport
from ...plugins.connections import TransportState
from ...plugins.tools import log_fields
from ...transports import WebSocket
from ..http.client import ExchangeFailed, HttpClient
from .payloads import MAX_WORD, NOTHING, Echo, Intake, command_in, next_payload, readable, word
from .requests import HEADERS, POLL, ErraiRequests

_TEXT: Final[frozenset[Literal["text", "binary"]]] = frozenset({"text"})
PATIENCE: Final = 2.5
"""Seconds to wait at each step, because a proxy without WebSocket support may never respond."""
_PAUSE: Final = 0.05
_TRIES: Final = 20
"""Number of times to check whether the channel is open. Errai answers from another thread, possibly after the post."""


@frozen
class Offer:
    flags: frozenset[str] = frozenset()
    key: str = ""
    url: str = ""
    token: str = field(default="", repr=False)
    frequency: float = 0.5
    legacy: bool = False
    """True for Errai servers up to 2.3."""
    ours: bool = False


def offer_in(payload: bytes) -> Offer:
    message = command_in(payload, "FinishAssociation", "CapabilitiesNotice")
    if message is None:
        return Offer()

    def text(part: str) -> str:
        value = message.get(part)
        return value if isinstance(value, str) else ""

    flags = frozenset(flag.strip() for flag in text("CapabilitiesFlags").split(","))
    legacy, ours = message["CommandType"] == "CapabilitiesNotice", "Polybus" in message
    given = message.get("PollFrequency")
    try:
        number = float(str(given.get("^NumVal") if isinstance(given, dict) else given))
        frequency = min(max(int(number), 100), 30_000) / 1000
    except (ValueError, OverflowError):  # OverflowError: Infinity
        frequency = 0.5
    key, url, token = text("ConnectionSessionKey"), text("WebSocketURL"), text("WebSocketToken")
    return Offer(flags, key, url, token, frequency, legacy, ours)


@define(eq=False, repr=False)
class WebSocketNegotiation:
    """Negotiates the WebSocket that an Errai client uses in addition to its posts (J.REP notes, section 2.4).

    `post` sends a post between other posts, delivers the bus's part of the answer, and returns the answer. `receiver` is the
    user of the WebSocket. Until the WebSocket is open, pass its input to `hear` and `end`.
    """

    _post: Callable[[bytes], Awaitable[bytes]]
    _receiver: Receiver
    _offer: Offer
    _requests: ErraiRequests
    _options: DialOptions
    _word: Mapping[str, Any] | None = field(default=None, init=False)
    _heard: anyio.Event = field(factory=anyio.Event, init=False)
    over: bool = field(default=False, init=False)
    socket: Transport | None = field(default=None, init=False)
    reason: str = field(default="", init=False)

    @property
    def claim(self) -> bytes:
        """The first and last message of the negotiation: a bare object, because arrays are not answered."""
        offer = self._offer
        return word(CommandType="Associate", ConnectionSessionKey=offer.key, WebSocketToken=offer.token)[1:-1]

    async def negotiate(self) -> bool:
        """Return True once the server has confirmed the WebSocket. Then send `claim`."""
        try:
            self.reason = self._objection() or await self._negotiate()
        except BusError as error:
            self.reason = str(error)
        if self.reason and self.socket is not None:
            self.socket.abort(Closed(1000, self.reason))
        return not self.reason

    def hear(self, frame: bytes) -> None:
        if self._word is None and len(frame) <= MAX_WORD:
            self._word = command_in(frame, "WebsocketChannelVerify", "WebsocketNegotiationFailed")
            if self._word is not None:
                self._heard.set()

    def end(self) -> None:
        self.over = True
        self._heard.set()

    def _objection(self) -> str:
        """Return a reason to decline, if any. A WebSocket must be on the same host, and must use TLS if the session does."""
        parts = urlsplit(self._offer.url)
        if parts.scheme not in ("ws", "wss") or not self._offer.token or not self._offer.key:
            return "the server offers WebSockets without an address"
        if parts.hostname != self._requests.host:
            return f"the server offers a WebSocket at another host, {parts.hostname}"
        if self._requests.secure and parts.scheme != "wss":
            return "the server offers a WebSocket without encryption"
        return ""

    async def _negotiate(self) -> str:
        url, host = self._offer.url, self._options.host
        headers = self._requests.upgrade_headers(url)
        options = DialOptions(
            host=host, reads=_TEXT, writes="text", subprotocol="", headers=headers, tls=self._requests.tls_of(url)
        )
        with anyio.move_on_after(PATIENCE):
            self.socket = await WebSocket().connector(url).connect(options)
            self.socket.start(self._receiver)
            self.socket.send(self.claim)
            await self._heard.wait()
        if self._word is None:
            return "the server does not answer over the WebSocket"
        if self._word.get("CommandType") != "WebsocketChannelVerify":
            return f"the server refuses the WebSocket: {self._word.get('ErrorMessage')}"
        token = str(self._word.get("WebSocketToken"))
        answer = await self._post(word(ToSubject="ServerBus", CommandType="WebsocketChannelVerify", WebSocketToken=token))
        for _ in range(_TRIES):
            said = command_in(answer, "WebsocketChannelOpen", "WebsocketNegotiationFailed")
            if said is not None:
                return "" if said.get("CommandType") == "WebsocketChannelOpen" else f"refused: {said.get('ErrorMessage')}"
            await anyio.sleep(_PAUSE)
            answer = await self._post(b"[]")
        return "the server does not confirm the WebSocket"


FRAME: Final = 8000
"""Maximum bytes of a WebSocket frame that every Errai server accepts. Tomcat's endpoint closes the connection at 8,192
characters.
"""
_LULL = 0.1
"""Seconds before the next poll if the server has immediately sent an empty answer."""
_PAUSES = 30.0
"""Maximum pause in seconds between two event streams, which a server may request."""
_MOMENT = 0.25
"""Seconds to wait for activity on an event stream."""
logger: logging.Logger = logging.getLogger("polybus.transports")


class ErraiClient(HttpClient):
    """A `plugins.Transport` that posts frames in order and fetches incoming messages.

    During a post, frames stay in the link, so that the link knows which frames were never sent.

    `ways` are the allowed channels: ``websocket``, ``events`` and ``poll``. If a channel loses messages and there is another
    channel, it is removed for later connections. For `frame` see `JrepHttp`.
    """

    def __init__(
        self, url: str, tls: ssl.SSLContext | None, options: DialOptions, ways: set[str], frame: int | None = None
    ) -> None:
        super().__init__(url, tls, options, HEADERS, [self._post_all, self._fetch_all])
        self._requests = ErraiRequests(self, self._http, url, tls, options)
        self._options = options
        self._ways = ways
        self._frame = frame
        # Errai returns everything that is waiting in one answer.
        self.max_answer: int = max(self.max_answer, options.host.limits.payload)
        self._intake = Intake(options.host, lambda payload: self.deliver([payload]))
        self._posting = anyio.Lock()
        """Lock that is held while posting, because input from another channel must not overtake an undelivered answer."""
        self._busy = False
        self._given = 0
        self._gone = 0
        self._progress = anyio.Event()
        self._offer = Offer()
        self._opened = anyio.Event()
        self._echo: Echo | None = None
        self._carries = anyio.Event()
        """Event that is set once the event stream has delivered data, or is known not to exist."""
        self._leaving = False
        self._stream_over = anyio.Event()
        self._upgrade: WebSocketNegotiation | None = None
        self._socket: Transport | None = None
        self._unread = False
        """True if the server may not have read all messages sent over the WebSocket."""
        self._slow = False

    # -- plugins.Transport

    def send(self, frame: bytes) -> None:
        socket = self._socket if self._state is TransportState.OPEN and not (self._queue or self._busy) else None
        if socket is not None and self._fits(frame):
            self._unread = True
            socket.send(frame)
            return
        waiting = len(self._queue)
        super().send(frame)
        self._given += len(self._queue) - waiting

    async def written(self) -> None:
        """Wait until the server has answered all previous posts, or the connection has ended."""
        goal = self._given
        while self._gone < goal and self._state is not TransportState.LOST:
            await self._progress.wait()

    def write_backlog(self) -> int:
        return self._size + (self._socket.write_backlog() if self._socket is not None else 0)

    def tick(self, now: float) -> None:
        if self._upgrade is not None and self._upgrade.socket is not None:
            self._upgrade.socket.tick(now)

    def resume(self) -> None:
        if not self._busy and not (self._slow and self._socket is not None):
            super().resume()

    # -- the tasks

    async def _run(self) -> None:
        try:
            await super()._run()
        finally:
            self._progress.set()
            self._intake.drop()
            if self._upgrade is not None and self._upgrade.socket is not None:
                self._upgrade.socket.abort(self._why or Closed(1006, "the connection attempt was cancelled"))

    # -- out

    async def _post_all(self) -> None:
        """Post waiting frames in order, one request at a time. The first request opens the session."""
        while await self.something():
            async with self._posting:
                if self._socket is not None:
                    await self._pass_by(self._socket)
                if self._queue:
                    await self._post_waiting()
        if self._socket is None:
            self._scope.cancel()
        elif self._why is not None:
            self._socket.close(self._why.code, self._why.reason)

    async def _post_waiting(self) -> None:
        waiting = len(self._queue)
        payload = next_payload(self._queue, self.max_frame)
        posted = waiting - len(self._queue)
        query = {} if self._opened.is_set() else {"phase": "connection", "wait": "1"}
        if self._state is TransportState.CLOSING and not self._queue:
            query = {"phase": "disconnect"}
        await self._ask("out", payload, query)
        if self._offer.flags or not self._queue:  # otherwise the session will try its other handshake
            self._opened.set()
        self._left(posted)

    async def post(self, payload: bytes) -> bytes:
        async with self._posting:
            return await self._ask("out", payload, {})

    async def _ask(self, name: str, payload: bytes, query: Mapping[str, str]) -> bytes:
        self._busy = True
        self.pause()
        answer = await self._requests.post(name, payload, query)
        if not self._opened.is_set():
            self._offer = offer_in(answer)
        self._deliver(answer)
        self._busy = False
        self.resume()
        return answer

    def _left(self, frames: int) -> None:
        self._gone += frames
        progress, self._progress = self._progress, anyio.Event()
        progress.set()
        self.taken(self._size - sum(map(len, self._queue)))

    # -- out, with a WebSocket

    def _fits(self, frame: bytes) -> bool:
        most = self._frame if self._frame is not None else 0 if self._offer.ours else FRAME
        return not most or len(frame) <= most

    async def _pass_by(self, socket: Transport) -> None:
        """Send frames over the WebSocket until one is too large, which is posted once the server has confirmed the others."""
        said = 0
        while self._queue and self._fits(self._queue[0]):
            self._unread = True
            socket.send(self._queue.popleft())
            said += 1
        self._left(said)
        if self._queue and self._unread:
            self.pause()
            echo = self._echo = Echo()
            socket.send(echo.question)
            with anyio.move_on_after(POLL):
                await echo.heard.wait()
            if not echo.heard.is_set():
                raise ExchangeFailed(Closed(1006, f"{self.address} stopped reading its WebSocket"))
            self._unread = False

    # -- in

    async def _fetch_all(self) -> None:
        await self._opened.wait()
        flags = self._offer.flags
        if "WebSockets" in flags and "websocket" in self._ways and await self._upgraded():
            return
        await self._take_over()
        if "SSE" in flags and "events" in self._ways and not await self._events_end():
            return
        if "poll" not in self._ways:
            offers, ways = ", ".join(sorted(flags)) or "nothing", " or ".join(sorted(self._ways))
            raise ExchangeFailed(Closed(1006, f"{self.address} offers {offers}, so it cannot send messages over {ways}"))
        await self._poll_all()

    async def _upgraded(self) -> bool:
        """Return True if a WebSocket carries all messages from now on, except frames that are too large."""
        self._upgrade = upgrade = WebSocketNegotiation(self.post, self, self._offer, self._requests, self._options)
        if not await upgrade.negotiate():
            fields = log_fields(address=self.address, protocol="jrep")
            logger.info("%s: no WebSocket: %s", self.address, upgrade.reason, extra=fields)
            return False
        async with self._posting:  # all answers are delivered now
            if upgrade.socket is None or upgrade.over:
                return False
            self._socket = upgrade.socket
            if self._slow:
                self.pause()
            self._socket.send(upgrade.claim)
        return True

    async def _events_end(self) -> bool:
        """Read event streams. Returns True if the server doesn't support them."""
        self.begin(self._try_events)
        began = self._host.time()
        try:
            while self._state is TransportState.OPEN and not self._leaving:
                pause = await self._requests.listen(self._deliver, self._carries.set)
                if pause is None:
                    return True
                await anyio.sleep(min(max(pause, _LULL), _PAUSES))
        except ExchangeFailed:
            # Errai sends something by then. Timers and event loops use slightly different clocks.
            if not self._carries.is_set() and self._host.time() - began >= 0.9 * POLL:
                self._do_without_events()
            if not self._leaving:
                raise
        finally:
            self._carries.set()
            self._stream_over.set()
        return False

    async def _take_over(self) -> None:
        """Fetch messages without waiting. From then on posts no longer return messages, so no message is overtaken."""
        async with self._posting:
            await self._ask("in", NOTHING, {})

    async def _try_events(self) -> None:
        """Check that events arrive, while other work continues.

        Errai sends not even the response head before its first event, so the client requests an event, as Errai's own client
        does. If the answer was sent to the stream but did not arrive, the connection fails.
        """
        pause = _MOMENT
        while not await self._carries_within(pause):
            echo = self._echo = Echo()
            await self.post(echo.question)
            # An answer in a post proves nothing: in Errai, post and stream race for it.
            if not echo.heard.is_set() and not await self._carries_within(PATIENCE):
                await self.post(NOTHING)
                if not echo.heard.is_set():
                    await self._leave()
            pause = min(2 * pause, PATIENCE)

    async def _carries_within(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self._carries.wait()
        return self._carries.is_set()

    async def _leave(self) -> None:
        """End the session and raise `ExchangeFailed`. The server then ends the stream, and buffered events still arrive."""
        without = self._do_without_events()
        hint = "the next connection does without" if without else "use channel=poll behind a proxy that buffers"
        why = Closed(1006, f"events of {self.address} are held up on the way: {hint}")
        self._leaving = True
        goodbye = word(ToSubject="ServerBus", CommandType="Disconnect", Reason="events are held up on the way")
        async with self._posting:
            self._busy = True
            self.pause()
            self._deliver(await self._requests.post("out", goodbye, {"phase": "disconnect"}))
            with anyio.move_on_after(PATIENCE):
                await self._stream_over.wait()
                await self._intake.settled()
        raise ExchangeFailed(why)

    def _do_without_events(self) -> bool:
        """Disable event streams for later connections. Returns False if there is no other channel."""
        if self._ways == {"events"}:
            return False
        self._ways.discard("events")
        return True

    async def _poll_all(self) -> None:
        flags, legacy = self._offer.flags, self._offer.legacy
        short = not flags.isdisjoint(("ShortPolling", "NoLongPollAvailable")) and "LongPolling" not in flags
        while self._state is TransportState.OPEN:
            if short:
                await anyio.sleep(self._offer.frequency)
                await self._take_over()
                continue
            asked = self._host.time()
            answer = await self._requests.poll(legacy)
            self._deliver(answer)
            await self._intake.settled()
            if readable(answer) == NOTHING and self._host.time() - asked < _LULL:
                await anyio.sleep(_LULL)

    def _deliver(self, payload: bytes) -> None:
        payload = readable(payload)
        if self._echo is not None:
            payload = self._echo.taken_from(payload)
        if payload != NOTHING or not self._opened.is_set():  # an empty answer to its first message means something to a session
            self._intake.take(payload)

    # -- plugins.Receiver, of the WebSocket

    def frames_received(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            if self._socket is not None:
                self._deliver(frame)
            elif self._upgrade is not None:
                self._upgrade.hear(frame)

    def closed(self, why: Closed) -> None:
        """Handle the end of the WebSocket. Messages in flight are lost, and the link reconnects."""
        if self._socket is None:
            if self._upgrade is not None:
                self._upgrade.end()
        elif self._state is TransportState.OPEN:
            self.abort(why)
        else:
            self._scope.cancel()

    def pause_writing(self) -> None:
        self._slow = True
        if self._socket is not None:
            self.pause()

    def resume_writing(self) -> None:
        self._slow = False
        self.resume()
