"""A small HTTP server for health checks and metrics on a separate port."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketStream

from .._validation import check_characters, check_host_name, shown
from .listening import cannot_listen, is_loopback
from .logs import log_fields

logger: logging.Logger = logging.getLogger("polybus")

Page: TypeAlias = "Callable[[], tuple[int, str] | Awaitable[tuple[int, str]]]"
"""Plain or async function that returns the status and text of a page."""

_SECONDS: Final = 5.0
"""Timeout of a request, in seconds."""
_PAUSE: Final = 0.2
"""Seconds to wait before accepting connections again if the process has run out of file descriptors."""
_LARGEST: Final = 4096
"""Maximum size of a request head, in bytes."""
_FIELDS: Final = (("content-type", "text/plain; version=0.0.4; charset=utf-8"), ("connection", "close"))
"""Response headers. Prometheus reads the version of its text format there, and other clients ignore it."""


class HttpStatus:
    """An HTTP server for pages that are rendered on request. Each connection serves a single request.

    Args:
        option: Name of the argument with the URL, for error messages.
        url: URL of the form ``http://host:port``. Port 0 selects a free port.
        pages: Pages by path.
        example: Example of a valid URL, for error messages.

    Raises:
        TypeError, ValueError: If the URL is not a string of this form.
    """

    def __init__(self, option: str, url: str, pages: Mapping[str, Page], example: str) -> None:
        if not isinstance(url, str):
            raise TypeError(f"{option}={shown(url)} must be a URL such as {example!r}, not {type(url).__name__}")
        check_characters(url, f"{option}={url!r}")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:  # out of range, or not an IPv6 address
            parts, port = urlsplit(""), None
        if parts.scheme != "http" or not parts.hostname or port is None:
            raise ValueError(f"{option}={url!r} must have the form {example}")
        check_host_name(parts.hostname, f"{option}={url!r}")
        self.host: str = parts.hostname
        self._wanted = port
        self.port: int = port
        """Actual port, after `listen`."""
        self._pages = dict(pages)
        self._listener: Any = None
        self._spare: int | None = None
        # Created in `listen`, because the constructor may run before the event loop.
        self._scope: anyio.CancelScope
        self._ended: anyio.Event

    @property
    def url(self) -> str:
        """URL of the server, with the actual port after `listen`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def listen(self) -> None:
        """Bind the address. Raises `OSError` if that fails."""
        try:
            self._listener = await anyio.create_tcp_listener(local_host=self.host, local_port=self._wanted)
        except OSError as error:
            raise cannot_listen(self.url, error) from error
        self.port = self._listener.extra(anyio.abc.SocketAttribute.local_port)
        self._scope, self._ended = anyio.CancelScope(), anyio.Event()

    async def serve(self) -> None:
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    for listener in self._listener.listeners:
                        sock = listener.extra(anyio.abc.SocketAttribute.raw_socket)
                        group.start_soon(self._accept_from, sock, group)
        finally:
            self._give_spare()
            with anyio.CancelScope(shield=True):
                await self._listener.aclose()
            self._ended.set()

    async def aclose(self) -> None:
        if self._listener is not None:
            self._scope.cancel()
            await self._ended.wait()
            self._listener = None

    async def _accept_from(self, listening: socket.socket, group: anyio.abc.TaskGroup) -> None:
        told = False
        while True:
            self._keep_spare()
            await anyio.wait_readable(listening)
            try:
                sock = self._accept(listening)
            except OSError as error:  # other connections are still being served
                if not told and not isinstance(error, BlockingIOError):  # BlockingIOError: the client has left
                    told = True
                    logger.warning("%s pauses: %s", self.url, error, extra=log_fields(address=self.url))
                await anyio.sleep(_PAUSE)
                continue
            told = False
            if self._keep_spare():
                group.start_soon(self._answer, sock)
            else:  # this connection used the spare descriptor, so wait until it is free again
                await self._answer(sock)

    def _accept(self, listening: socket.socket) -> socket.socket:
        """Accept a connection. If no other file descriptor is left, use the spare one."""
        try:
            sock, _ = listening.accept()
        except BlockingIOError:
            raise
        except OSError:
            self._give_spare()
            sock, _ = listening.accept()
        sock.setblocking(False)
        return sock

    def _keep_spare(self) -> bool:
        """Keep a spare file descriptor, because a supervisor kills the process if clients use up all others."""
        if self._spare is None:
            with suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)
        return self._spare is not None

    def _give_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    async def _answer(self, sock: socket.socket) -> None:
        # Clients that time out or disconnect must not affect others.
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, OSError), sock, anyio.move_on_after(_SECONDS):
            try:
                stream = await SocketStream.from_socket(sock)
            except ValueError:  # the client has already reset the connection
                return
            async with stream:
                await stream.send(await self._exchange(stream.receive))

    async def _exchange(self, receive: Callable[[], Awaitable[bytes]]) -> bytes:
        import h11  # not installed in browsers, where no server listens

        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_LARGEST)
        request: h11.Request | None = None
        try:
            event = connection.next_event()
            while not isinstance(event, h11.Request):
                connection.receive_data(await receive())
                event = connection.next_event()
            request = event
            found = self._page(request.method, request.target, dict(request.headers).get(b"host", b""))
            status, text = found if isinstance(found, tuple) else await found
        except h11.RemoteProtocolError as error:
            request, status, text = None, error.error_status_hint, f"{error}\n"
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            raise
        except Exception:  # other pages must still work
            logger.exception("%s: a page could not be made", self.url, extra=log_fields(address=self.url))
            status, text = HTTPStatus.INTERNAL_SERVER_ERROR, "this page could not be made, see the log\n"
        body = text.encode()
        fields = [*_FIELDS, ("content-length", str(len(body)))]
        head = connection.send(h11.Response(status_code=status, reason=HTTPStatus(status).phrase, headers=fields)) or b""
        return head if request is not None and request.method == b"HEAD" else head + body

    def _page(self, method: bytes, target: bytes, host: bytes) -> tuple[int, str] | Awaitable[tuple[int, str]]:
        if host and is_loopback(self.host) and not is_loopback(_name_in(host)):
            # DNS rebinding: a web page resolved its own host name to this machine.
            return HTTPStatus.MISDIRECTED_REQUEST, f"this is {self.url}\n"
        page = self._pages.get(target.partition(b"?")[0].decode("ascii", "replace"))
        if page is None:
            return HTTPStatus.NOT_FOUND, f"see {' and '.join(self._pages)}\n"
        if method not in (b"GET", b"HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, "ask with GET\n"
        return page()


def _name_in(host: bytes) -> str:
    """Return the host from a ``Host`` header without the port, or an empty string."""
    with suppress(ValueError):
        return urlsplit(f"//{host.decode('ascii', 'replace')}").hostname or ""
    return ""
