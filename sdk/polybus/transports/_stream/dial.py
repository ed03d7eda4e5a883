"""Dialling: one attempt to reach a server, bounded in time, with its failures in plain words."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from ...errors import ConnectFailed
from .happy_eyeballs import connect, connect_tcp
from .sockets import address_of
from .wire import Wire, plain_reason

if TYPE_CHECKING:
    from ...plugins import Host


@contextmanager
def bounded(url: str, seconds: float, step: str) -> Iterator[None]:
    """Gives what is inside so many seconds.

    Raises:
        ConnectFailed: It failed or took too long.
    """
    scope = anyio.CancelScope()
    try:
        with anyio.move_on_after(seconds) as scope:
            yield
    except (OSError, EOFError, UnicodeError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError) as error:
        if isinstance(error, ConnectFailed):
            raise
        raise ConnectFailed(url, plain_reason(error)) from error
    if scope.cancelled_caught:
        raise ConnectFailed(url, f"timed out after {seconds:g} s {step}")


async def dial_tcp(url: str, host: str, port: int, tls: ssl.SSLContext | None, bus: Host) -> Wire:
    """A wire to a TCP address, after the TLS handshake where there is one.

    Raises:
        ConnectFailed: With the reason.
    """
    with bounded(url, bus.limits.connect_timeout, "while connecting"):
        sock = await connect_tcp(host, port)
        if _met_itself(sock):
            sock.close()
            raise ConnectFailed(url, "connection refused: nobody listens there (the connection had met itself)")
    return await _dialled(url, sock, host, tls, bus)


def _met_itself(sock: socket.socket) -> bool:
    """True if a socket is connected to itself: without a listener, the system may have chosen that very port for this end.

    Such a connection would hold the port that the server needs in order to come back.
    """
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False  # gone again: its user will see


async def dial_unix(url: str, path: str, bus: Host) -> Wire:
    """A wire to a Unix socket.

    Raises:
        ConnectFailed: With the reason.
    """
    with bounded(url, bus.limits.connect_timeout, "while connecting"):
        sock = await connect((socket.AF_UNIX, path))
    return await _dialled(url, sock, "", None, bus)


async def _dialled(url: str, sock: socket.socket, name: str, tls: ssl.SSLContext | None, bus: Host) -> Wire:
    with bounded(url, bus.limits.handshake_timeout, "in the TLS handshake"):
        try:
            address = address_of(sock.family, sock.getpeername())
        except OSError:
            sock.close()
            raise
        return await open_wire(sock, address, bus, tls, name)


async def open_wire(
    sock: socket.socket, address: str, host: Host, tls: ssl.SSLContext | None, server_name: str | None = None
) -> Wire:
    """A wire on a connected socket, after the TLS handshake where there is one; the socket is closed on failure.

    Args:
        server_name: On the client's side, the name that the server's certificate must have.

    Raises:
        OSError: The connection broke or the TLS handshake failed.
    """
    if host.backend == "asyncio":
        from .asyncio_wire import open_wire as open_asyncio

        return await open_asyncio(sock, address, host, tls, server_name)
    from .pump_wire import open_wire as open_pump

    return await open_pump(sock, address, host, tls, server_name)
