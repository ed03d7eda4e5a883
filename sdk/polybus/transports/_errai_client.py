"""A connection to an Errai server, or to one of ours, over HTTP: posts and long polls (J.REP notes, sections 2.1 and 4)."""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import httpx

from ..errors import Forbidden, TooLarge, Unauthorized
from ..plugins import Closed
from ._errai_connection import NOTHING, next_payload
from ._stream import State
from ._wire import HIGH_WATER, LOW_WATER, call_later

if TYPE_CHECKING:
    import ssl

    from ..plugins import DialOptions, Receiver

__all__ = ["ErraiClient"]

logger: logging.Logger = logging.getLogger("polybus.transports")

_POLL = 60.0
"""Seconds of patience with a poll; a real server answers after 45."""
_CSRF = "errai-csrf-token"
_JSON = "application/json"


class _Lost(Exception):
    """The server, or the way to it, does not do as it should; nothing is sent a second time."""

    def __init__(self, why: Closed) -> None:
        self.why: Closed = why
        super().__init__(why)


class ErraiClient:
    """A `plugins.Transport` that posts what it is given, in order, and polls for the rest."""

    hops = 0

    def __init__(self, url: str, tls: ssl.SSLContext | None, options: DialOptions) -> None:
        parts = urlsplit(url)
        self.name: str = parts.scheme
        self.address: str = parts.netloc
        self.max_frame: int = options.host.limits.message
        self._host = options.host
        self._id = f"{secrets.randbelow(2**31)}-{secrets.randbelow(2**31)}"
        self._root, _, self._query = url.partition("?")
        limits = options.host.limits
        self._http = httpx.AsyncClient(
            headers={**options.headers, "content-type": f"{_JSON}; charset=utf-8", "accept": _JSON},
            verify=tls if tls is not None else self.name == "https",
            timeout=httpx.Timeout(limits.write_timeout, connect=limits.connect_timeout),
            trust_env=False,
        )
        self._state = State.OPEN
        self._receiver: Receiver | None = None
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._count = 0
        self._changed = anyio.Event()
        self._opened = anyio.Event()
        """The first answer has come: there is a session to poll for."""
        self._scope = anyio.CancelScope()
        self._why: Closed | None = None
        self._cancel_timer: Callable[[], None] | None = None

    # -- plugins.Transport

    def start(self, receiver: Receiver) -> None:
        """Begin to post and to poll."""
        self._receiver = receiver
        self._host.spawn(self._run)

    def send(self, frame: bytes) -> None:
        """Keep a frame until it is posted. After the end: ignored.

        Raises:
            TooLarge: The frame is over `Limits.message`.
        """
        if len(frame) > self.max_frame:
            raise TooLarge(f"a payload of {len(frame)} bytes: the limit is {self.max_frame} (Limits.message)")
        if self._state is not State.OPEN:
            return
        self._queue.append(frame)
        self._size += len(frame)
        self._changed.set()
        if self._size > HIGH_WATER and not self._paused and self._receiver is not None:
            self._paused = True
            self._receiver.pause_writing()

    def write_backlog(self) -> int:
        """Bytes that have not been posted yet."""
        return self._size

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Post what waits, tell the server; after `Limits.close_timeout` cut. `Receiver.closed` follows."""
        if self._state is State.OPEN:
            self._state = State.CLOSING
            self._why = Closed(code, reason)
            self._cancel_timer = call_later(self._host, self._host.limits.close_timeout, self._scope.cancel)
            self._changed.set()

    def abort(self, why: Closed) -> None:
        """Cut at once. `Receiver.closed` follows with this reason."""
        if self._state is not State.LOST:
            self._state, self._why = State.CLOSING, why
            self._queue.clear()
            self._scope.cancel()

    def tick(self, now: float) -> None:
        """Requests have their own deadlines."""

    # -- the requests

    async def _run(self) -> None:
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._guarded, self._post_all)
                    group.start_soon(self._guarded, self._poll_all)
        finally:
            self._state = State.LOST
            if self._cancel_timer is not None:
                self._cancel_timer()
            with anyio.CancelScope(shield=True), anyio.move_on_after(self._host.limits.close_timeout):
                await self._http.aclose()
            if self._receiver is not None:
                self._receiver.closed(self._why or Closed(1006, "the connection was given up"))

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except _Lost as lost:
            self.abort(lost.why)

    async def _post_all(self) -> None:
        """What waits, one request at a time, so that it arrives in order. The first one opens the session."""
        phase = {"phase": "connection", "wait": "1"}
        while True:
            while not self._queue and self._state is State.OPEN:
                self._changed = anyio.Event()
                await self._changed.wait()
            if not self._queue:
                break
            payload = next_payload(self._queue, self.max_frame)
            self._size = sum(map(len, self._queue))
            if self._state is State.CLOSING and not self._queue:
                phase = {"phase": "disconnect"}
            self._deliver(await self._ask("out", payload, phase))
            phase = {}
            self._opened.set()
            if self._paused and self._size <= LOW_WATER and self._state is State.OPEN and self._receiver is not None:
                self._paused = False
                self._receiver.resume_writing()
        self._scope.cancel()

    async def _poll_all(self) -> None:
        await self._opened.wait()
        while self._state is State.OPEN:
            self._deliver(await self._ask("in", NOTHING, {"wait": "1"}, _POLL))

    def _deliver(self, payload: bytes) -> None:
        if payload.strip() not in (b"", NOTHING) and self._receiver is not None and self._state is not State.LOST:
            self._receiver.frames_received([payload])

    async def _ask(self, name: str, payload: bytes, query: dict[str, str], patience: float | None = None) -> bytes:
        """
        Raises:
            _Lost: No answer, or one that ends the connection.
        """
        status, headers, body = await self._tried(name, payload, query, patience)
        token = headers.get(_CSRF)
        if status == 403 and token:  # "repeat with this header" (notes, section 2.1)
            self._http.headers[_CSRF] = token
            status, headers, body = await self._tried(name, payload, query, patience)
        return self._judge(status, headers, body)

    async def _tried(
        self, name: str, payload: bytes, query: dict[str, str], patience: float | None
    ) -> tuple[int, httpx.Headers, bytes]:
        """
        Raises:
            _Lost: No answer.
        """
        try:
            return await self._exchange(name, payload, query, patience)
        except httpx.TimeoutException as error:
            raise _Lost(Closed(1006, f"{self.address} did not answer in time ({type(error).__name__})")) from error
        except httpx.HTTPError as error:
            raise _Lost(Closed(1006, f"{self.address}: {str(error) or type(error).__name__}")) from error

    async def _exchange(
        self, name: str, payload: bytes, query: dict[str, str], patience: float | None
    ) -> tuple[int, httpx.Headers, bytes]:
        self._count += 1
        params = httpx.QueryParams(self._query).merge({"z": str(self._count), "clientId": self._id, **query})
        url = f"{self._root.rstrip('/')}/{name}.{self._id}.erraiBus"
        timeout = self._http.timeout if patience is None else httpx.Timeout(self._http.timeout.write, read=patience)
        async with self._http.stream("POST", url, params=params, content=payload, timeout=timeout) as response:
            parts, size = list[bytes](), 0
            async for chunk in response.aiter_bytes():
                parts.append(chunk)
                size += len(chunk)
                if size > 2 * self.max_frame:
                    raise _Lost(Closed(1009, f"an answer of more than {2 * self.max_frame} bytes (Limits.message)"))
            return response.status_code, response.headers, b"".join(parts)

    def _judge(self, status: int, headers: httpx.Headers, body: bytes) -> bytes:
        """
        Raises:
            _Lost: Anything but 200 with JSON, or with nothing.
        """
        text = body[:200].decode("utf-8", "replace").strip()
        if status == 401:
            raise _Lost(Closed(4401, text, Unauthorized(text or "the server answered 401")))
        if status == 403:
            raise _Lost(Closed(4403, text, Forbidden(text or "the server answered 403")))
        if status != 200:
            raise _Lost(Closed(1006, f"the server answered {status}: {text}"))
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if body.strip() and kind != _JSON:
            raise _Lost(Closed(1006, f"the server's answer is {kind or 'of no type'}, not {_JSON}: {text}"))
        return body
