"""Serves a few short texts over HTTP on a separate port: health checks, metrics."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import anyio

from .._validation import shown
from .listening import cannot_listen
from .logs import log_fields

logger: logging.Logger = logging.getLogger("polybus")

Page: TypeAlias = "Callable[[], tuple[int, str] | Awaitable[tuple[int, str]]]"
"""Returns status and text of a page when requested; may be async."""

_SECONDS: Final = 5.0
_PAUSE: Final = 0.2
"""Seconds between attempts to accept without any file descriptor, not even the spare one."""
_LARGEST: Final = 4096
"""Bytes of a request's head."""
_FIELDS: Final = (("content-type", "text/plain; version=0.0.4; charset=utf-8"), ("connection", "close"))
"""The version is Prometheus's, of its text format; other readers of plain text ignore it."""


class HttpStatus:
    """Server of pages that are created on request. Each connection carries one request.

    Args:
        option: Name of the URL's argument, for error texts.
        url: ``http://host:port``; port 0 is any free one.
        pages: Pages by path.
        example: Example of a URL, for error texts.

    Raises:
        TypeError: The URL is not text.
        ValueError: The URL has another form.
    """

    def __init__(self, option: str, url: str, pages: Mapping[str, Page], example: str) -> None:
        if not isinstance(url, str):
            raise TypeError(f"{option}={shown(url)}: a URL such as {example!r}, not {type(url).__name__}")
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:  # out of range
            port = None
        if parts.scheme != "http" or not parts.hostname or port is None:
            raise ValueError(f"{option}={url!r}: of the form {example}")
        self.host: str = parts.hostname
        self._wanted = port
        self.port: int = port
        """The real one after `listen`."""
        self._pages = dict(pages)
        self._listener: Any = None
        self._spare: int | None = None
        # Created by `listen`: an address may be checked before there is an event loop.
        self._scope: anyio.CancelScope
        self._ended: anyio.Event

    @property
    def url(self) -> str:
        """Its address, after `listen` with the real port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def listen(self) -> None:
        """Bind the address.

        Raises:
            OSError: It cannot be bound.
        """
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
        """Stop answering; closes an unbound socket, too."""
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
            except OSError as error:  # must not end what is being served
                if not told and not isinstance(error, BlockingIOError):  # BlockingIOError: the client has left
                    told = True
                    logger.warning("%s pauses: %s", self.url, error, extra=log_fields(address=self.url))
                await anyio.sleep(_PAUSE)
                continue
            told = False
            if self._keep_spare():
                group.start_soon(self._answer, sock)
            else:  # it used the spare descriptor, which the next one gets
                await self._answer(sock)

    def _accept(self, listening: socket.socket) -> socket.socket:
        """Accept a client; without file descriptors, by giving up the spare one."""
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
        """Keep a spare file descriptor: clients of a bus may take all others, and a supervisor without an answer would end
        the process."""
        if self._spare is None:
            with suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)
        return self._spare is not None

    def _give_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    async def _answer(self, sock: socket.socket) -> None:
        # A client that is silent, or leaves early, must not affect others.
        with suppress(anyio.EndOfStream, OSError), sock, anyio.move_on_after(_SECONDS):
            await _send(sock, await self._exchange(partial(_receive, sock)))

    async def _exchange(self, receive: Callable[[], Awaitable[bytes]]) -> bytes:
        """Read the head of a request, and create the response."""
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
        except (anyio.EndOfStream, ConnectionError):
            raise
        except Exception:  # a failing page must not affect the others
            logger.exception("%s: a page could not be made", self.url, extra=log_fields(address=self.url))
            status, text = HTTPStatus.INTERNAL_SERVER_ERROR, "this page could not be made, see the log\n"
        body = text.encode()
        fields = [*_FIELDS, ("content-length", str(len(body)))]
        head = connection.send(h11.Response(status_code=status, reason=HTTPStatus(status).phrase, headers=fields)) or b""
        return head if request is not None and request.method == b"HEAD" else head + body

    def _page(self, method: bytes, target: bytes, host: bytes) -> tuple[int, str] | Awaitable[tuple[int, str]]:
        if host and _is_own(self.host) and not _is_own(_name_in(host)):
            # A page in a browser on this machine arrives under a host name that its own server controls.
            return HTTPStatus.MISDIRECTED_REQUEST, f"this is {self.url}\n"
        page = self._pages.get(target.partition(b"?")[0].decode("ascii", "replace"))
        if page is None:
            return HTTPStatus.NOT_FOUND, f"see {' and '.join(self._pages)}\n"
        if method not in (b"GET", b"HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, "ask with GET\n"
        return page()


def _name_in(host: bytes) -> str:
    """Name or address in a field ``Host``; empty without one."""
    with suppress(ValueError):
        return urlsplit(f"//{host.decode('ascii', 'replace')}").hostname or ""
    return ""


def _is_own(name: str) -> bool:
    """True if a name or address always means this machine."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


async def _receive(sock: socket.socket) -> bytes:
    """Receive some bytes.

    Raises:
        EndOfStream: There are no more.
        OSError: The client has gone.
    """
    await anyio.wait_readable(sock)
    data = sock.recv(_LARGEST)
    if not data:
        raise anyio.EndOfStream
    return data


async def _send(sock: socket.socket, data: bytes) -> None:
    """Send all bytes.

    Raises:
        OSError: The client has gone.
    """
    rest = memoryview(data)
    while rest:
        await anyio.wait_writable(sock)
        rest = rest[sock.send(rest) :]
