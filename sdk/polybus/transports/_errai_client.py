"""A connection to an Errai server, or to one of ours, over HTTP: posts, and a way back (J.REP notes, sections 2.1 to 2.4, 4).

The first post lets us in; its answer says what the server can do. Then the best way back that both have is taken: a WebSocket,
which carries both directions; a stream of events; long polls; short ones.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from ..plugins import Closed
from ._errai_payloads import NOTHING, next_payload
from ._errai_requests import HEADERS, POLL, Requests
from ._errai_upgrade import PATIENCE, Offer, Upgrade, offer_in
from ._http_client import HttpClient, Lost
from ._stream import State

if TYPE_CHECKING:
    import ssl

    from ..plugins import DialOptions
    from ._ws_transport import WebSocketTransport

__all__ = ["ErraiClient"]

_LULL = 0.1
"""Seconds until the next question to a server that has answered nothing, and that at once."""
_PAUSES = 30.0
"""The longest pause between two streams of events that a server may ask for."""
logger: logging.Logger = logging.getLogger("polybus.transports")


class ErraiClient(HttpClient):
    """A `plugins.Transport` that posts what it is given, in order, and fetches the rest.

    Args:
        ways: Of ``websocket``, ``events`` and ``poll`` those that may be tried. One that turns out to swallow what is sent to
            us is taken out, for the connections that come after this one.
    """

    def __init__(self, url: str, tls: ssl.SSLContext | None, options: DialOptions, ways: set[str]) -> None:
        super().__init__(url, tls, options, HEADERS)
        self._requests = Requests(self, url, tls, options)
        self._options = options
        self._ways = ways
        self._posting = anyio.Lock()
        """Held by whoever posts: an answer that has not been delivered may not be overtaken by what comes on another way."""
        self._offer = Offer()
        self._opened = anyio.Event()
        """The first answer has come: there is a session to fetch from."""
        self._upgrade: Upgrade | None = None
        self._socket: WebSocketTransport | None = None

    # -- plugins.Transport

    def send(self, frame: bytes) -> None:
        """Keep a frame until it is posted, or hand it to the WebSocket. After the end: ignored.

        Raises:
            TooLarge: The frame is over `Limits.message`.
        """
        if self._socket is None:
            super().send(frame)
        elif self._state is State.OPEN:
            self._socket.send(frame)

    def write_backlog(self) -> int:
        """Bytes that have not left yet."""
        return self._size if self._socket is None else self._socket.write_backlog()

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Send what waits, tell the server; after `Limits.close_timeout` cut. `Receiver.closed` follows."""
        super().close(code, reason)
        if self._socket is not None:
            self._socket.close(code, reason)

    def tick(self, now: float) -> None:
        """Requests have their own deadlines."""
        if self._upgrade is not None and self._upgrade.socket is not None:
            self._upgrade.socket.tick(now)

    # -- the tasks

    def works(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Out and in."""
        return self._post_all, self._fetch_all

    async def _run(self) -> None:
        try:
            await super()._run()
        finally:
            if self._upgrade is not None and self._upgrade.socket is not None:
                self._upgrade.socket.abort(self._why or Closed(1006, "the connection was given up"))

    # -- out

    async def _post_all(self) -> None:
        """What waits, one request at a time, so that it arrives in order. The first one opens the session."""
        phase = {"phase": "connection", "wait": "1"}
        while await self.something():
            async with self._posting:
                if not self._queue:
                    continue  # the WebSocket has taken it
                payload = next_payload(self._queue, self.max_frame)
                if self._state is State.CLOSING and not self._queue:
                    phase = {"phase": "disconnect"}
                answer = await self._requests.post("out", payload, phase)
                if not self._opened.is_set():
                    self._offer = offer_in(answer)
                self._deliver(answer)
            phase = {}
            self._opened.set()
            self.taken(self._size - sum(map(len, self._queue)))
        if self._socket is None:
            self._scope.cancel()

    async def post(self, payload: bytes) -> bytes:
        """Post between other posts.

        Raises:
            Lost: It does not get through.
        """
        async with self._posting:
            answer = await self._requests.post("out", payload, {})
            self._deliver(answer)
        return answer

    # -- in

    async def _fetch_all(self) -> None:
        """
        Raises:
            Lost: Nothing can be fetched, or no longer.
        """
        await self._opened.wait()
        flags = self._offer.flags
        if "WebSockets" in flags and "websocket" in self._ways and await self._upgraded():
            return
        if "SSE" in flags and "events" in self._ways and not await self._events_end():
            return
        if "poll" not in self._ways:
            ways = " or ".join(sorted(self._ways))
            raise Lost(Closed(1006, f"{self.address} offers {', '.join(sorted(flags)) or 'nothing'}: no way back by {ways}"))
        await self._poll_all()

    async def _upgraded(self) -> bool:
        """Whether a WebSocket carries everything from now on."""
        self._upgrade = upgrade = Upgrade(self, self._offer, self._requests, self._options)
        if not await upgrade.negotiate():
            logger.info("polybus: %s: no WebSocket: %s", self.address, upgrade.reason)
            return False
        async with self._posting:  # all answers have been delivered
            self._socket = socket = upgrade.open()
            if socket is None:
                return False
            while self._queue:
                socket.send(self._queue.popleft())
        self.taken(self._size)
        if self._state is State.CLOSING and self._why is not None:
            socket.close(self._why.code, self._why.reason)
        return True

    async def _events_end(self) -> bool:
        """Read events for as long as there are some; whether there are none here.

        Raises:
            Lost: They broke off, or are held up on the way.
        """
        while self._state is State.OPEN:
            pause, held_up = await self._one_stream()
            if held_up:
                self._ways.discard("events")
                raise Lost(Closed(1006, f"events of {self.address} are held up on the way: the next connection does without"))
            if pause is None:
                return True
            await anyio.sleep(min(max(pause, _LULL), _PAUSES))
        return False

    async def _one_stream(self) -> tuple[float | None, bool]:
        """Until it ends in order; the pause before the next one, and whether nothing came in time."""
        await self._posting.acquire()
        holding = True  # until its first bytes: an answer under way could be overtaken

        def release() -> None:
            nonlocal holding
            if holding:
                holding = False
                self._posting.release()

        def began() -> None:
            patience.deadline = float("inf")
            release()

        try:
            with anyio.move_on_after(PATIENCE) as patience:
                return await self._requests.listen(self._deliver, began), False
        finally:
            release()
        return None, True

    async def _poll_all(self) -> None:
        """Ask, wait, ask again. The first one does not wait: from then on no post takes along what a poll would bring."""
        async with self._posting:
            self._deliver(await self._requests.post("in", NOTHING, {}))
        short = "ShortPolling" in self._offer.flags and "LongPolling" not in self._offer.flags
        while self._state is State.OPEN:
            if short:
                await anyio.sleep(self._offer.frequency)
            asked = self._host.time()
            answer = await self._requests.post("in", NOTHING, {} if short else {"wait": "1"}, POLL)
            self._deliver(answer)
            if not short and _is_nothing(answer) and self._host.time() - asked < _LULL:
                await anyio.sleep(_LULL)

    def _deliver(self, payload: bytes) -> None:
        if not _is_nothing(payload):
            self.deliver([payload])

    # -- what the WebSocket calls

    def frame_received(self, frame: bytes) -> None:
        """A payload over the WebSocket."""
        self._deliver(frame)

    def socket_closed(self, why: Closed) -> None:
        """Nothing is kept of what may not have arrived; the link begins anew."""
        if self._state is State.OPEN:
            self.abort(why)
        else:
            self._scope.cancel()

    def pause_writing(self) -> None:
        """The server is slow."""
        if not self._paused and self._receiver is not None:
            self._paused = True
            self._receiver.pause_writing()

    def resume_writing(self) -> None:
        """There is room again."""
        self.taken(0)


def _is_nothing(payload: bytes) -> bool:
    return payload.strip() in (b"", NOTHING)
