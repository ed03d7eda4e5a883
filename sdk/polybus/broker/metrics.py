"""``/metrics`` on a port of its own: enough HTTP for Prometheus and a health check, nothing more."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio

from ..errors import LocalProtocolError
from ..transports._sockets import is_loopback

if TYPE_CHECKING:
    from ..runtime import Runtime

__all__ = ["MetricsPort"]


_MOST = 4096
"""Bytes of a request, of which the first line is read."""


class MetricsPort:
    """Answers ``GET /metrics`` with what `text` gives."""

    def __init__(self, url: str, text: Callable[[], str]) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.port is None:
            raise ValueError(f"metrics={url!r}: of the form http://127.0.0.1:9100")
        if not is_loopback(parts.hostname):
            raise LocalProtocolError(
                f"metrics={url!r} can be reached from other machines: bind it to 127.0.0.1 and put a proxy in front"
            )
        self._host, self._port = parts.hostname, parts.port
        self._text = text
        self._listener: Any = None
        # Made when it listens: an address may be checked before there is an event loop.
        self._scope: anyio.CancelScope
        self._ended: anyio.Event
        self.url: str = url

    async def listen(self, runtime: Runtime) -> None:
        """Bind and answer.

        Raises:
            OSError: The address cannot be bound.
        """
        self._listener = await anyio.create_tcp_listener(local_host=self._host, local_port=self._port)
        port = self._listener.extra(anyio.abc.SocketAttribute.local_port)
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"http://{shown}:{port}/metrics"
        self._scope, self._ended = anyio.CancelScope(), anyio.Event()
        runtime.spawn(self._serve)

    async def _serve(self) -> None:
        try:
            with self._scope:
                await self._listener.serve(self._answer)
        finally:
            with anyio.CancelScope(shield=True):
                await self._listener.aclose()
            self._ended.set()

    async def _answer(self, stream: Any) -> None:
        # Whoever only knocks, or goes in the middle, is no reason to stop answering others.
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with stream:
                with anyio.move_on_after(5):
                    request = await stream.receive(_MOST)
                    while b"\n" not in request and len(request) < _MOST:
                        request += await stream.receive(_MOST)
                    await stream.send(self._reply(request))

    def _reply(self, request: bytes) -> bytes:
        words = request.split(b" ", 2)
        found = len(words) > 1 and words[0] == b"GET" and words[1].partition(b"?")[0] == b"/metrics"
        status, text = ("200 OK", self._text()) if found else ("404 Not Found", "see /metrics\n")
        body = text.encode()
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + body

    async def aclose(self) -> None:
        """Stop answering."""
        if self._listener is not None:
            self._scope.cancel()
            await self._ended.wait()
            self._listener = None
