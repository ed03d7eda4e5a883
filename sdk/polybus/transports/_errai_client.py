"""A connection to an Errai server, or to one of ours, over HTTP: posts and long polls (J.REP notes, sections 2.1 and 4)."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
import httpx

from ..plugins import Closed
from ._errai_connection import NOTHING, next_payload
from ._http_client import HttpClient, Lost, turned_away
from ._stream import State

if TYPE_CHECKING:
    import ssl

    from ..plugins import DialOptions

__all__ = ["ErraiClient"]

_POLL = 60.0
"""Seconds of patience with a poll; a real server answers after 45."""
_CSRF = "errai-csrf-token"
_JSON = "application/json"


class ErraiClient(HttpClient):
    """A `plugins.Transport` that posts what it is given, in order, and polls for the rest."""

    def __init__(self, url: str, tls: ssl.SSLContext | None, options: DialOptions) -> None:
        super().__init__(url, tls, options, {"content-type": f"{_JSON}; charset=utf-8", "accept": _JSON})
        self._id = f"{secrets.randbelow(2**31)}-{secrets.randbelow(2**31)}"
        self._root, _, self._query = url.partition("?")
        self._count = 0
        self._opened = anyio.Event()
        """The first answer has come: there is a session to poll for."""

    def works(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Posts and polls."""
        return self._post_all, self._poll_all

    # -- the requests

    async def _post_all(self) -> None:
        """What waits, one request at a time, so that it arrives in order. The first one opens the session."""
        phase = {"phase": "connection", "wait": "1"}
        while await self.something():
            payload = next_payload(self._queue, self.max_frame)
            if self._state is State.CLOSING and not self._queue:
                phase = {"phase": "disconnect"}
            self._deliver(await self._ask("out", payload, phase))
            phase = {}
            self._opened.set()
            self.taken(self._size - sum(map(len, self._queue)))
        self._scope.cancel()

    async def _poll_all(self) -> None:
        await self._opened.wait()
        while self._state is State.OPEN:
            self._deliver(await self._ask("in", NOTHING, {"wait": "1"}, _POLL))

    def _deliver(self, payload: bytes) -> None:
        if payload.strip() not in (b"", NOTHING):
            self.deliver([payload])

    async def _ask(self, name: str, payload: bytes, query: dict[str, str], patience: float | None = None) -> bytes:
        """
        Raises:
            Lost: No answer, or one that ends the connection.
        """
        status, headers, body = await self._exchange(name, payload, query, patience)
        token = headers.get(_CSRF)
        if status == 403 and token:  # "repeat with this header" (notes, section 2.1)
            self._http.headers[_CSRF] = token
            status, headers, body = await self._exchange(name, payload, query, patience)
        return self._judge(status, headers, body)

    async def _exchange(
        self, name: str, payload: bytes, query: dict[str, str], patience: float | None
    ) -> tuple[int, httpx.Headers, bytes]:
        """
        Raises:
            Lost: No answer.
        """
        self._count += 1
        params = httpx.QueryParams(self._query).merge({"z": str(self._count), "clientId": self._id, **query})
        url = f"{self._root.rstrip('/')}/{name}.{self._id}.erraiBus"
        timeout = self._http.timeout if patience is None else httpx.Timeout(self._http.timeout.write, read=patience)
        return await self.ask("POST", url, params=params, content=payload, timeout=timeout)

    def _judge(self, status: int, headers: httpx.Headers, body: bytes) -> bytes:
        """
        Raises:
            Lost: Anything but 200 with JSON, or with nothing.
        """
        away = turned_away(status, body)
        if away is not None:
            raise Lost(away)
        text = body[:200].decode("utf-8", "replace").strip()
        if status != 200:
            raise Lost(Closed(1006, f"the server answered {status}: {text}"))
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if body.strip() and kind != _JSON:
            raise Lost(Closed(1006, f"the server's answer is {kind or 'of no type'}, not {_JSON}: {text}"))
        return body
