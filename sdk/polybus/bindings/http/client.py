"""The client side of all connections over HTTP: the queue of frames to post, requests, and their errors."""

from __future__ import annotations

import errno
import logging
import math
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import httpx
from anyio.abc import TaskGroup

from ...errors import Forbidden, TooLarge, Unauthorized
from ...plugins import Closed, DialOptions, Receiver
from ...plugins.connections import HIGH_WATER, LOW_WATER, Pace, TransportState, call_later
from ...transports.sockets import error_number, plain_reason

_PIECE: Final = 8 * 1024
"""Number of bytes that must be sent within `Limits.write_timeout`."""
_RATE: Final = 4 * 1024
"""Assumed rate in bytes per second of data that is still in the kernel, before the server can answer."""
_COOKIES: Final = 256
_COOKIE_BYTES: Final = 64 * 1024
"""Maximum number and size of a server's cookies, which are sent with every request. Browsers store at most 180."""
_OURS: Final = ContextVar("polybus_http_client", default=False)


def _is_not_ours(record: logging.LogRecord) -> bool:
    return not _OURS.get()


# Otherwise tokens and cookies would be logged: httpx logs each URL at INFO, and httpcore each answer's headers at DEBUG.
for _name in ("httpx", "httpcore.http11"):
    logging.getLogger(_name).addFilter(_is_not_ours)


async def _in_pieces(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), _PIECE):
        yield content[start : start + _PIECE]


class ExchangeFailed(Exception):
    """The server or the network failed. The request is not repeated."""

    def __init__(self, why: Closed) -> None:
        self.why: Closed = why
        super().__init__(why)


class HttpClient:
    """A `plugins.Transport` that posts frames. Subclasses implement how frames are posted, and send other requests.

    `headers` are sent with each request, besides the application's own headers. `works` are tasks that run from start to end.
    If a task raises `ExchangeFailed`, the connection ends.
    """

    hops = 0

    def __init__(
        self,
        url: str,
        tls: ssl.SSLContext | None,
        options: DialOptions,
        headers: Mapping[str, str],
        works: Sequence[Callable[[], Awaitable[None]]],
    ) -> None:
        parts = urlsplit(url)
        self.name: str = parts.scheme
        self.address: str = parts.netloc.rpartition("@")[2]  # without a password
        self.max_frame: int = options.host.limits.message
        self.max_answer: int = 2 * self.max_frame
        """Maximum bytes of an answer, which may contain a re-encoded polybus frame."""
        self._host = options.host
        self._works = works
        self.tls: ssl.SSLContext | bool = tls or (self.name == "https" and ssl.create_default_context())
        limits = options.host.limits
        self._http = httpx.AsyncClient(
            headers={**without_cookies(options.headers), **headers},
            verify=self.tls,
            timeout=httpx.Timeout(limits.write_timeout, connect=limits.connect_timeout),
            # uvicorn closes idle connections after five seconds. A request sent at that moment would be lost.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=3.0),
            trust_env=False,
        )
        # As a header, the application's cookies would replace those of the server, which name the session.
        given = ";".join(value for name, value in options.headers.items() if name.lower() == "cookie")
        own = [("set-cookie", f"{each}; path=/") for each in given.split(";") if each.strip()]
        self._http.cookies.extract_cookies(httpx.Response(200, headers=own, request=httpx.Request("GET", url)))
        # A compressed answer may expand to any size, and httpx expands everything it reads before we can check.
        self._http.headers["accept-encoding"] = "identity"
        self._state = TransportState.OPEN
        self._receiver: Receiver | None = None
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._changed = anyio.Event()
        self._scope = anyio.CancelScope()
        self._group: TaskGroup | None = None
        self._why: Closed | None = None
        self._cancel_timer: Callable[[], None] | None = None

    # -- plugins.Transport

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._host.spawn(self._run)

    def send(self, frame: bytes) -> None:
        if len(frame) > self.max_frame:
            raise TooLarge(f"a payload of {len(frame)} bytes: the limit is {self.max_frame} (Limits.message)")
        if self._state is not TransportState.OPEN:
            return
        self._queue.append(frame)
        self._size += len(frame)
        self._changed.set()
        if self._size > HIGH_WATER:
            self.pause()

    def write_backlog(self) -> int:
        return self._size

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Post waiting frames, inform the server, and call `Receiver.closed`, after `Limits.close_timeout` at most."""
        if self._state is TransportState.OPEN:
            self._state = TransportState.CLOSING
            self._why = Closed(code, reason)
            self._cancel_timer = call_later(self._host, self._host.limits.close_timeout, self._scope.cancel)
            self._changed.set()

    def abort(self, why: Closed) -> None:
        if self._state is not TransportState.LOST:
            self._state, self._why = TransportState.CLOSING, why
            self._queue.clear()
            self._scope.cancel()

    async def drop(self) -> None:
        await self._http.aclose()

    def tick(self, now: float) -> None:
        """Do nothing, because requests have their own deadlines."""

    # -- for subclasses

    async def something(self) -> bool:
        """Wait for frames to post. Returns `False` if the connection is closing and the queue is empty."""
        while not self._queue and self._state is TransportState.OPEN:
            self._changed = anyio.Event()
            await self._changed.wait()
        return bool(self._queue)

    def taken(self, size: int) -> None:
        self._size -= size
        self.resume()

    def pause(self) -> None:
        if not self._paused and self._receiver is not None:
            self._paused = True
            self._receiver.pause_writing()

    def resume(self) -> None:
        if self._paused and self._size <= LOW_WATER and self._state is TransportState.OPEN and self._receiver is not None:
            self._paused = False
            self._receiver.resume_writing()

    def begin(self, work: Callable[[], Awaitable[None]]) -> None:
        assert self._group is not None
        self._group.start_soon(self.guarded, work)

    def deliver(self, frames: list[bytes]) -> None:
        if frames and self._receiver is not None and self._state is not TransportState.LOST:
            self._receiver.frames_received(frames)

    async def ask(self, method: str, url: str, **what: Any) -> tuple[int, httpx.Headers, bytes]:
        content = what.get("content")
        if isinstance(content, bytes) and len(content) > _PIECE:
            what = self._patiently(content, what)
        seconds = httpx.Timeout(what.get("timeout", self._http.timeout)).read
        try:
            with anyio.CancelScope() as scope:
                # httpx's time-outs apply to each read, so a server that sends single bytes would never time out.
                async with self.stream(method, url, trace=partial(_heads_in_time, scope, seconds), **what) as response:
                    scope.deadline = math.inf
                    return response.status_code, response.headers, await self.read(response)
        except (httpx.HTTPError, ssl.SSLError) as error:  # on asyncio, httpx passes on those of TLS when it reads
            raise lost(self.address, error) from error
        raise _too_slow(f"{self.address} did not answer in time: its response headers took {seconds:g} s")

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, trace: Callable[[str, Any], Awaitable[None]] | None = None, **what: Any
    ) -> AsyncIterator[httpx.Response]:
        """Send a request like `httpx.AsyncClient.stream`, but without log output from the libraries."""
        opened: Any = None

        async def follow(event: str, info: Any) -> None:
            nonlocal opened
            if event == "connection.connect_tcp.complete":
                opened = info["return_value"]
            elif event == "connection.start_tls.failed":  # httpcore doesn't close the socket of a cancelled handshake
                with anyio.move_on_after(self._host.limits.close_timeout, shield=True):
                    await opened.aclose()
            elif trace is not None:
                await trace(event, info)

        token = _OURS.set(True)
        try:
            async with self._http.stream(method, url, extensions={"trace": follow}, **what) as response:
                yield response
        finally:
            _OURS.reset(token)

    def _patiently(self, content: bytes, what: dict[str, Any]) -> dict[str, Any]:
        """Adapt a request to a slow network by using timeouts per piece instead of a total timeout."""
        timeout = httpx.Timeout(what.get("timeout", self._http.timeout))
        if timeout.read is not None:  # data in the kernel has not been sent yet
            timeout.read += len(content) / _RATE
        headers = {**what.get("headers", {}), "Content-Length": str(len(content))}
        return {**what, "content": _in_pieces(content), "headers": headers, "timeout": timeout}

    async def read(self, response: httpx.Response) -> bytes:
        body, seconds = bytearray(), self._host.limits.frame_timeout
        pace = Pace(anyio.current_time(), 0)
        with anyio.move_on_after(seconds) as scope:
            async for chunk in self.chunks(response):
                body += chunk
                if len(body) > self.max_answer:
                    text = f"an answer of more than {self.max_answer} bytes (Limits.message, payload)"
                    raise ExchangeFailed(Closed(1009, text))
                scope.deadline = pace.deadline(anyio.current_time(), len(body), seconds)
            return bytes(body)
        text = f"{self.address} did not answer in time: its answer stalled after {len(body)} bytes (Limits.frame_timeout)"
        raise _too_slow(text)

    def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Yield the chunks of an answer. Compressed answers, and answers that set too many cookies, are rejected."""
        coding: str = response.headers.get("content-encoding", "identity")
        if coding.strip().lower() not in ("", "identity"):
            text = (
                f"{self.address} compresses its answers (Content-Encoding: {coding[:40]}), though Accept-Encoding is identity"
            )
            raise ExchangeFailed(Closed(1006, f"{text}: disable compression there and in proxies on the way"))
        cookies = list(self._http.cookies.jar)
        if len(cookies) > _COOKIES or sum(len(one.name) + len(one.value or "") for one in cookies) > _COOKIE_BYTES:
            text = f"{self.address} has set more than {_COOKIES} cookies, or {_COOKIE_BYTES} bytes of them"
            raise ExchangeFailed(Closed(1006, text))
        return response.aiter_raw()

    # -- the tasks

    async def _run(self) -> None:
        try:
            with self._scope:
                async with anyio.create_task_group() as self._group:
                    for work in self._works:
                        self.begin(work)
        finally:
            self._state = TransportState.LOST
            if self._cancel_timer is not None:
                self._cancel_timer()
            with anyio.CancelScope(shield=True), anyio.move_on_after(self._host.limits.close_timeout):
                await self._http.aclose()
            if self._receiver is not None:
                self._receiver.closed(self._why or Closed(1006, "the connection was cancelled"))

    async def guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except ExchangeFailed as lost:
            self.abort(lost.why)


async def _heads_in_time(scope: anyio.CancelScope, seconds: float | None, event: str, info: Any) -> None:
    if seconds is not None and event.endswith("receive_response_headers.started"):
        scope.deadline = anyio.current_time() + seconds


def without_cookies(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() != "cookie"}


def lost(address: str, error: httpx.HTTPError | ssl.SSLError) -> ExchangeFailed:
    if isinstance(error, httpx.TimeoutException):
        return _too_slow(f"{address} did not answer in time ({type(error).__name__})")
    return ExchangeFailed(Closed(1006, f"{address}: {plain_reason(error)}", errno=error_number(error)))


def _too_slow(text: str) -> ExchangeFailed:
    return ExchangeFailed(Closed(1006, text, errno=errno.ETIMEDOUT))


def shown(body: bytes) -> str:
    return body[:200].decode("utf-8", "replace").strip()


def answered(status: int, body: bytes) -> ExchangeFailed:
    text = shown(body)
    said = "" if text.startswith("<") else text  # a proxy's page for browsers says no more than the status
    return ExchangeFailed(Closed(1006, f"the server answered {status}: {said}".removesuffix(": "), status=status))


def turned_away(status: int, body: bytes) -> Closed | None:
    text = shown(body)
    if status == 401:
        return Closed(4401, text, Unauthorized(text or "the server answered 401"))
    if status == 403:
        return Closed(4403, text, Forbidden(text or "the server answered 403"))
    return None
