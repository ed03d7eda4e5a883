"""Dialling: one attempt to reach a server, with time-outs and readable errors.

Addresses of a name are tried in a race (RFC 8305, "happy eyeballs"). It is our own, because a cancelled connect must not leak a
socket: asyncio and anyio drop the winner if cancelled at that moment, and uvloop has no race.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import Any, Final, TypeAlias

import anyio

from ...errors import ConnectFailed, RemoteProtocolError
from ...plugins import Host
from ..sockets import address_of, bounded
from .asyncio_wire import open_wire as open_asyncio
from .pump_wire import open_wire as open_pump
from .wire import Wire

_HEAD_START: Final = 0.25

_FIRST_WORDS: Final = 64 * 1024
"""Bytes that a server may send in plain text before TLS: the INFO of a NATS server names its whole cluster."""

Address: TypeAlias = tuple[int, Any]


async def dial_tcp(url: str, host: str, port: int, tls: ssl.SSLContext | None, bus: Host, name: str = "") -> Wire:
    """Connect to a TCP address, with a TLS handshake if needed. May raise `ConnectFailed`, with the reason.

    Args:
        url: URL for errors.
        host: Host to connect to.
        port: Port to connect to.
        tls: None without TLS.
        bus: The services of the bus.
        name: Name in the certificate, if not the host.
    """
    return await _dialled(url, await _reach(url, host, port, bus), name or host, tls, bus)


async def dial_with_preface(
    url: str, host: str, port: int, tls: ssl.SSLContext, bus: Host, name: str, preface: Callable[[bytes], int | None]
) -> tuple[Wire, bytes]:
    """Connect to a TCP address whose server sends plain text before the TLS handshake, and return that text too.

    Args: as `dial_tcp`, and
        preface: As `Framing.plain_preface`.

    Raises:
        ConnectFailed: With the reason.
    """
    if preface(b"") is None:
        return await dial_tcp(url, host, port, tls, bus, name), b""
    sock = await _reach(url, host, port, bus)
    try:
        with bounded(url, bus.limits.handshake_timeout, "waiting for the first words of the server, before TLS"):
            said = await _first_words(url, sock, preface)
    except BaseException:
        sock.close()
        raise
    return await _dialled(url, sock, name, tls, bus), said


async def _first_words(url: str, sock: socket.socket, preface: Callable[[bytes], int | None]) -> bytes:
    """Read the text before TLS. May raise `ConnectFailed`: malformed, too long, or with extra bytes."""
    said = b""
    while True:
        await anyio.wait_readable(sock)
        try:
            chunk = sock.recv(_FIRST_WORDS - len(said))
        except BlockingIOError:
            continue
        said += chunk
        try:
            size = preface(said)
        except RemoteProtocolError as error:
            raise ConnectFailed(url, error.text) from error
        if size and size == len(said):
            return said
        if size:  # an attacker could inject text before the encrypted part
            raise ConnectFailed(url, f"{len(said) - size} bytes of plain text after the first words, where TLS should begin")
        if not chunk:
            raise ConnectFailed(url, "the server closed the connection before TLS")
        if len(said) == _FIRST_WORDS:
            raise ConnectFailed(url, f"the first words of the server have no end within {_FIRST_WORDS} bytes")


async def _reach(url: str, host: str, port: int, bus: Host) -> socket.socket:
    """A connected socket. May raise `ConnectFailed`, with the reason."""
    with bounded(url, bus.limits.connect_timeout, "while connecting"):
        sock = await connect_tcp(host, port)
        if _met_itself(sock):
            sock.close()
            raise ConnectFailed(url, "connection refused: no server listens there (the connection had met itself)")
    return sock


def _met_itself(sock: socket.socket) -> bool:
    """True if a socket is connected to itself: without a listener, the system may choose its port for this end.

    Such a connection would hold the port that the server needs to come back.
    """
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False  # gone again, as its user will notice


async def dial_unix(url: str, path: str, bus: Host) -> Wire:
    """Connect to a Unix socket. May raise `ConnectFailed`, with the reason."""
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
    """Make a wire from a connected socket, with a TLS handshake if needed; on failure the socket is closed.

    Args:
        server_name: For clients, the name required in the server's certificate.

    Raises:
        OSError: The connection broke or the TLS handshake failed.
    """
    if host.backend == "asyncio":
        return await open_asyncio(sock, address, host, tls, server_name)
    return await open_pump(sock, address, host, tls, server_name)


async def connect_tcp(host: str, port: int) -> socket.socket:
    """A connected socket. May raise `OSError`: the name does not resolve, or the first address's error if none answers."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys((int(family), address) for family, _, _, _, address in found))
    if len(addresses) == 1:
        return await connect(addresses[0])
    return await _race(_alternating(addresses))


def _alternating(addresses: Sequence[Address]) -> list[Address]:
    """IPv6 and IPv4 in turn, beginning with the kind that the system prefers (RFC 8305, section 4)."""
    first = addresses[0][0]
    preferred = [address for address in addresses if address[0] == first]
    others = [address for address in addresses if address[0] != first]
    return [address for address in chain(*zip_longest(preferred, others)) if address is not None]


async def _race(addresses: Sequence[Address]) -> socket.socket:
    winners, errors = list[socket.socket](), list[OSError]()

    async def attempt(address: Address, failed: anyio.Event, race: anyio.CancelScope) -> None:
        try:
            sock = await connect(address)
        except OSError as error:
            errors.append(error)
            failed.set()
            return
        if winners:
            sock.close()
        else:
            winners.append(sock)
            race.cancel()

    try:
        async with anyio.create_task_group() as group:
            for address in addresses:
                failed = anyio.Event()
                group.start_soon(attempt, address, failed, group.cancel_scope)
                with anyio.move_on_after(_HEAD_START):
                    await failed.wait()
    except BaseException:
        for sock in winners:
            sock.close()
        raise
    if not winners:
        raise errors[0]
    return winners[0]


async def connect(address: Address) -> socket.socket:
    """Connect a socket to an address of a family. May raise `OSError`: no listener."""
    family, name = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        try:
            sock.connect(name)
        except BlockingIOError:
            await anyio.wait_writable(sock)
            if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, os.strerror(error)) from None
        return sock
    except BaseException:
        sock.close()
        raise
