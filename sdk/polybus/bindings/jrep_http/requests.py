"""Requests of an Errai client: addresses, cookies, the CSRF token, and checks of answers (J.REP notes, sections 2.1, 4).

Of server-sent events, Errai uses only the data and the retry time (HTML Standard, section 9.2.6).
"""

from __future__ import annotations

import re
import secrets
import ssl
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

import httpx

from ...plugins import Closed, DialOptions
from ..http.client import ExchangeFailed, HttpClient, answered, lost, shown, turned_away, without_cookies
from .payloads import NOTHING

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


class EventTooLarge(Exception):
    """An event or line exceeds the size limit."""


class EventReader:
    def __init__(self, limit: int) -> None:
        self.retry: float = 0.5
        self._limit = limit
        self._rest = bytearray()
        """An incomplete line, or a possible byte order mark at the start of the stream."""
        self._data: bytearray | None = None
        self._begun = False
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        events: list[bytes] = []
        if not self._begun:
            chunk = bytes(self._rest) + chunk
            self._rest.clear()
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._rest += chunk
                return events
            self._begun, chunk = True, chunk.removeprefix(_BOM)
        if self._after_cr and chunk:
            chunk, self._after_cr = chunk.removeprefix(b"\n"), False
        self._after_cr = self._after_cr or chunk.endswith(b"\r")
        first, *others = _LINE_END.split(chunk)
        self._rest += first
        for following in others:
            self._line(bytes(self._rest), events)
            self._rest[:] = following
        if len(self._rest) + len(self._data or b"") > self._limit:
            raise EventTooLarge(f"an event of more than {self._limit} bytes")
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line and self._data is not None:
            events.append(bytes(self._data))
            self._data = None
        elif name == b"data":
            if self._data is None:
                self._data = bytearray(value)
            else:
                self._data += b"\n" + value
        elif name == b"retry" and value.isdigit() and len(value) < 8:
            self.retry = int(value) / 1000


POLL: Final = 60.0
"""Timeout in seconds for a poll, and between two signs of life in an event stream. Errai sends one every 45 seconds."""
_QUEUE: Final = "RemoteQueueID"
"""Header with the client's id for Errai servers up to 2.3. Later servers read query parameters, as with ``phase``."""
_CSRF: Final = "errai-csrf-token"
_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
HEADERS: Final = {"content-type": f"{_JSON}; charset=utf-8", "accept": _JSON}


class ErraiRequests:
    def __init__(
        self, client: HttpClient, http: httpx.AsyncClient, url: str, tls: ssl.SSLContext | None, options: DialOptions
    ) -> None:
        root, _, self._query = url.partition("?")
        parts = urlsplit(root)
        self.secure: bool = parts.scheme == "https"
        self.host: str = parts.hostname or ""
        self._client = client
        self._http = http
        self._tls = tls
        self._given = without_cookies(options.headers)
        self._id = f"{secrets.randbelow(2**31)}-{secrets.randbelow(2**31)}"
        http.headers[_QUEUE] = self._id
        self._root = root.rstrip("/")
        self._count = 0

    async def post(self, name: str, payload: bytes, query: Mapping[str, str], patience: float | None = None) -> bytes:
        status, headers, body = await self._exchange("POST", name, payload, query, patience)
        token = headers.get(_CSRF)
        if status == 403 and token:  # "repeat with this header" (notes, section 2.1)
            self._http.headers[_CSRF] = token
            status, headers, body = await self._exchange("POST", name, payload, query, patience)
        return _judged(status, headers, body)

    async def poll(self, legacy: bool) -> bytes:
        """Wait for messages from the server. Errai servers up to 2.3 wait only in response to a GET."""
        if legacy:
            return _judged(*await self._exchange("GET", "in", b"", {}, POLL))
        return await self.post("in", NOTHING, {"wait": "1"}, POLL)

    async def listen(self, deliver: Callable[[bytes], None], began: Callable[[], None]) -> float | None:
        """Read an event stream until it ends in an orderly way. `began` is called at its first bytes.

        Returns the seconds before reconnecting, or `None` if the server has no event stream. Raises `ExchangeFailed` if the
        stream is interrupted or invalid, which means that messages in flight are lost.
        """
        reader = EventReader(self._client.max_answer)
        timeout = httpx.Timeout(self._http.timeout.write, read=POLL)
        params, headers = self._params({"sse": "1"}), {"accept": _EVENTS}
        try:
            async with self._client.stream("GET", self._url("in"), params=params, headers=headers, timeout=timeout) as response:
                if response.status_code != 200 or _media_type(response.headers) != _EVENTS:
                    return await self._no_events(response, deliver)
                async for chunk in self._client.chunks(response):
                    began()
                    for event in reader.feed(chunk):
                        deliver(event)
        except EventTooLarge as error:
            raise ExchangeFailed(Closed(1009, f"{self._client.address} sent {error} (Limits.payload)")) from error
        except (httpx.HTTPError, ssl.SSLError) as error:
            raise lost(self._client.address, error) from error
        return reader.retry

    async def _no_events(self, response: httpx.Response, deliver: Callable[[bytes], None]) -> float | None:
        body = await self._client.read(response)
        if response.status_code == 200 and _media_type(response.headers) == _JSON:
            deliver(body)  # for example SessionExpired
            return 0.5
        away = turned_away(response.status_code, body)
        if away is not None:
            raise ExchangeFailed(away)
        return None

    def upgrade_headers(self, url: str) -> dict[str, str]:
        """Return the headers for a WebSocket upgrade at the same host: cookies and the application's headers."""
        request = httpx.Request("GET", url.replace("ws", "http", 1), headers=self._given)
        self._http.cookies.set_cookie_header(request)
        cookies = request.headers.get("cookie")
        return {**self._given, **({"Cookie": cookies} if cookies else {})}

    def tls_of(self, url: str) -> ssl.SSLContext | None:
        return self._tls if url.startswith("wss:") else None

    def _url(self, name: str) -> str:
        return f"{self._root}/{name}.{self._id}.erraiBus"

    def _params(self, query: Mapping[str, str]) -> httpx.QueryParams:
        self._count += 1
        return httpx.QueryParams(self._query).merge({"z": str(self._count), "clientId": self._id, **query})

    async def _exchange(
        self, method: str, name: str, payload: bytes, query: Mapping[str, str], patience: float | None
    ) -> tuple[int, httpx.Headers, bytes]:
        timeout = self._http.timeout if patience is None else httpx.Timeout(self._http.timeout.write, read=patience)
        headers = {"phase": query["phase"]} if "phase" in query else {}
        return await self._client.ask(
            method, self._url(name), params=self._params(query), headers=headers, content=payload, timeout=timeout
        )


def _judged(status: int, headers: httpx.Headers, body: bytes) -> bytes:
    """Return the body of an answer. Raises `ExchangeFailed` unless the status is 200 and the body is JSON or empty."""
    away = turned_away(status, body)
    if away is not None:
        raise ExchangeFailed(away)
    if status != 200:
        raise answered(status, body)
    kind, start = _media_type(headers), body.lstrip()[:1]
    untyped = not kind and start == b"["  # Errai's asynchronous servlets send no type (notes, section 2.6)
    if start and kind != _JSON and not untyped:
        raise ExchangeFailed(Closed(1006, f"the server's answer is {kind or 'of no type'}, not {_JSON}: {shown(body)}"))
    return body


def _media_type(headers: httpx.Headers) -> str:
    kind: str = headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower()
