"""The client side of a WebSocket handshake (RFC 6455, section 4.1)."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import anyio
from websockets.client import ClientProtocol
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from ...errors import BusError, ConnectFailed, Forbidden, LocalProtocolError, Unauthorized
from ...plugins import DialOptions
from ...plugins.close_codes import CERTIFICATE_ASKED
from ...secrets import without_secrets
from .._stream.dial import ServerAddresses, dial_tcp
from .._stream.wire import Wire
from ..sockets import bounded, plain_reason
from ..websocket import core_logger
from .transport import WebSocketTransport, make_transport

_END: Final = b"\r\n\r\n"
_MAX_HEAD: Final = 64 * 1024
_MAX_TEXT: Final = 300
# RFC 9110, section 5.5: a line break in a value would begin another header.
_NAME: Final = re.compile(r"[-!#$%&'*+.^_`|~0-9a-zA-Z]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_INTERIM: Final = re.compile(rb"HTTP/1\.1 1(?!01)\d\d[ \r]")
_MAX_INTERIM: Final = 16
_RESERVED: Final = ("upgrade", "connection", "content-length", "transfer-encoding")


async def open_websocket(
    url: str, tls: ssl.SSLContext | None, options: DialOptions, addresses: ServerAddresses
) -> WebSocketTransport:
    core, request = _request(url, options)
    wire = await dial_tcp(addresses.url(url), *addresses.current, tls, options.host, addresses.host)
    answer = _Answer(core, wire)
    try:
        wire.attach(answer)
        wire.write(request.serialize())
        wire.resume_reading()
        with bounded(url, options.host.limits.handshake_timeout, "waiting for the answer to the upgrade"):
            await answer.complete.wait()
        if not answer.accepted:
            raise answer.failure(url, options.headers)
    except BaseException:
        wire.abort()
        raise
    transport = make_transport(urlsplit(url).scheme, wire, options, server=False)
    wire.attach(transport)
    if answer.rest:
        transport.data_received(bytes(answer.rest))
    if answer.eof:
        transport.eof_received()
    return transport


def _request(url: str, options: DialOptions) -> tuple[ClientProtocol, Request]:
    offers = [Subprotocol(options.subprotocol)] if options.subprotocol else None
    core = ClientProtocol(parse_uri(url), subprotocols=offers, logger=core_logger)
    request = core.connect()
    for name, value in options.headers.items():
        lower = name.lower()
        if lower in _RESERVED or lower.startswith("sec-websocket-"):
            raise LocalProtocolError(f"the header {name} belongs to the WebSocket handshake itself", protocol="ws")
        if lower in ("host", "authorization"):
            request.headers.pop(name, None)
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise LocalProtocolError(f"the header {name!r} has characters that are not allowed in a header", protocol="ws")
        request.headers[name] = value
    return core, request


class _Answer:
    def __init__(self, core: ClientProtocol, wire: Wire) -> None:
        self.complete = anyio.Event()
        self.accepted: bool = False
        self.rest = bytearray()
        self.eof: bool = False
        self._error: Exception | None = None
        self._core = core
        self._wire = wire
        self._head_over = False
        self._interim = 0
        self._first_line = b""
        self._response: Response | None = None

    def data_received(self, data: bytes) -> None:
        self.rest += data
        if not self._head_over:
            end = self._skip_interim()
            if end < 0 and len(self.rest) <= _MAX_HEAD:
                return
            self._head_over = True
            self._first_line = bytes(self.rest.partition(b"\r\n")[0])
            self._feed(end + len(_END) if end >= 0 else len(self.rest))
        if not self.accepted:  # the body of a refusal
            self._feed(len(self.rest))

    def _skip_interim(self) -> int:
        """Skip interim responses such as 100 and 103 (RFC 9110, section 15.2).

        Returns the end of the next response head, or -1 if it is incomplete. After `_MAX_INTERIM` interim responses, the next
        one counts as the answer.
        """
        while (end := self.rest.find(_END)) >= 0 and self._interim < _MAX_INTERIM and _INTERIM.match(self.rest):
            del self.rest[: end + len(_END)]
            self._interim += 1
        return end

    def _feed(self, size: int) -> None:
        data = bytes(self.rest[:size])
        del self.rest[:size]
        if data and not self.complete.is_set():
            self._core.receive_data(data)
            self._look()

    def _look(self) -> None:
        for event in self._core.events_received():
            if isinstance(event, Response):
                self._response = event
                self.accepted = self._core.handshake_exc is None
        if self.accepted:
            self._wire.pause_reading()
        fault = self._core.handshake_exc
        if self._response is not None or (fault is not None and not isinstance(fault.__cause__, EOFError)):
            self.complete.set()

    def eof_received(self) -> None:
        self.eof = True
        if not self.complete.is_set():
            if not self._head_over:
                self._core.receive_data(bytes(self.rest))
            self._core.receive_eof()
            self._look()
        self._wire.hang_up()

    def wire_lost(self, error: Exception | None) -> None:
        """End the handshake. asyncio reports the end of a connection that TLS has refused before the refusal."""
        self.eof, self._error = True, error
        self.complete.set()

    def pause_writing(self) -> None:
        """Do nothing, because a request is short."""

    resume_writing = pause_writing

    def failure(self, url: str, headers: Mapping[str, str]) -> BusError:
        response, error = self._response, self._core.handshake_exc
        if response is not None and response.status_code != 101:
            return _refusal(url, response, headers)
        if response is not None:
            return ConnectFailed(url, f"the server's answer to the upgrade is wrong: {error}")
        if self._first_line.startswith(b"HTTP/1.0 "):
            status = self._first_line[9:].decode("latin-1").strip()[:_MAX_TEXT]
            return ConnectFailed(
                url, f"the server answered {status} in HTTP/1.0, which has no upgrade: is it a WebSocket server?"
            )
        if error is not None and not isinstance(error.__cause__, EOFError):
            return ConnectFailed(
                url, "the server does not answer in HTTP: is it a WebSocket server, and ws:// not wss:// or tcp://?"
            )
        if url.startswith("ws:"):
            hint = "try wss:// (TLS), or tcp:// if it is not a WebSocket server"
        elif isinstance(self._error, Exception) and "certificate" in (told := plain_reason(self._error)):
            return ConnectFailed(url, told)
        else:
            hint = CERTIFICATE_ASKED
        return ConnectFailed(url, f"the server closed the connection during the handshake; {hint}")


def _refusal(url: str, response: Response, headers: Mapping[str, str]) -> BusError:
    text = bytes(response.body).decode("utf-8", "replace").strip()
    if text.startswith("<"):  # a proxy's page for browsers says no more than the status
        text = ""
    text = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
    if response.status_code == 401:
        brought = (
            f"the server refused {', '.join(headers)}: is it expired, or for another server?"
            if headers
            else "pass a token or a cookie in headers="
        )
        return Unauthorized(f"{text or 'the server answered 401'}; {brought}")
    if response.status_code == 403:
        if text.lower() in ("", "forbidden"):  # also the answer of ASGI servers without an application at the path
            at, path = without_secrets(url), urlsplit(url).path or "/"
            text = f"the server answered 403 at {at} and does not say why: is {path!r} the path of the bus?"
        return Forbidden(text)
    reason = f"the server answered {response.status_code} {response.reason_phrase}".rstrip()
    return ConnectFailed(url, f"{reason}: {text}" if text else reason, status=response.status_code)
