"""Connects to servers, with timeouts and readable errors.

If a host name has several addresses, connection attempts race each other (RFC 8305, "happy eyeballs"). The race is implemented
here because a cancelled connect must not leak a socket. asyncio and anyio leak the winning socket if they are cancelled at that
moment, and uvloop does not implement the algorithm.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import anyio
from attrs import define, field

from ...errors import ConnectFailed, RemoteProtocolError
from ...plugins import DialOptions, Host, Transport
from ...secrets import shown_url
from ..sockets import address_of, bounded, error_number, host_port, net_address
from ..tls import CUT, check_client_tls
from .asyncio_wire import open_wire as open_asyncio
from .pump_wire import open_wire as open_pump
from .wire import Wire

_HEAD_START: Final = 0.25

_FIRST_WORDS: Final = 64 * 1024
"""Maximum bytes of plain text before TLS. The INFO message of a NATS server lists its whole cluster."""

Address: TypeAlias = tuple[int, Any]


async def dial_tcp(url: str, host: str, port: int, tls: ssl.SSLContext | None, bus: Host, name: str = "") -> Wire:
    """Connect to a TCP address, with a TLS handshake if `tls` is set. Raises `ConnectFailed` if the server cannot be reached.

    `url` is used in error messages. `name` is the expected name in the server's certificate, by default the host.
    """
    return await _dialled(url, await _reach(url, host, port, bus), name or host, tls, bus)


async def dial_with_preface(
    url: str, host: str, port: int, tls: ssl.SSLContext, bus: Host, name: str, preface: Callable[[bytes], int | None]
) -> tuple[Wire, bytes]:
    """Connect to a TCP server that sends plain text before the TLS handshake, and return the socket's wire and that text.

    `preface` is `Framing.plain_preface`. For the other arguments see `dial_tcp`.
    """
    if preface(b"") is None:
        return await dial_tcp(url, host, port, tls, bus, name), b""
    sock = await _reach(url, host, port, bus)
    try:
        with bounded(url, bus.limits.handshake_timeout, "waiting for the server's plain text before TLS"):
            said = await _first_words(url, sock, preface)
    except BaseException:
        sock.close()
        raise
    return await _dialled(url, sock, name, tls, bus), said


async def _first_words(url: str, sock: socket.socket, preface: Callable[[bytes], int | None]) -> bytes:
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
            raise ConnectFailed(url, f"{len(said) - size} bytes of plain text where TLS should begin")
        if not chunk:
            first = "if it begins with TLS, add ?tls_first=true to the URL"  # the option of the only such protocol, NATS
            raise ConnectFailed(url, f"the server closed the connection before TLS: {first}")
        if len(said) == _FIRST_WORDS:
            raise ConnectFailed(url, f"the server's plain text before TLS does not end within {_FIRST_WORDS} bytes")


async def _reach(url: str, host: str, port: int, bus: Host) -> socket.socket:
    with bounded(url, bus.limits.connect_timeout, "while connecting"):
        sock = await connect_tcp(host, port)
        if _met_itself(sock):
            sock.close()
            reason = "connection refused: no server listens there (the connection had met itself)"
            raise ConnectFailed(url, reason, errno=errno.ECONNREFUSED)
    return sock


def _met_itself(sock: socket.socket) -> bool:
    """Return True if a socket is connected to itself.

    If there is no listener, the system may choose the target port as the local port. Such a connection would occupy the port
    that the server needs.
    """
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False  # already lost, as its user will notice


async def dial_unix(url: str, path: str, bus: Host) -> Wire:
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
        try:
            return await open_wire(sock, address, bus, tls, name)
        except (OSError, anyio.BrokenResourceError) as error:
            if tls is None or (number := error_number(error)) != errno.ECONNRESET:
                raise
            raise ConnectFailed(url, ": ".join(CUT), errno=number) from error


async def open_wire(
    sock: socket.socket, address: str, host: Host, tls: ssl.SSLContext | None, server_name: str | None = None
) -> Wire:
    """Create a wire from a connected socket, with a TLS handshake if `tls` is set. The socket is closed on failure.

    `server_name` is the name that a client expects in the server's certificate. Raises `OSError` if the connection is lost or
    the handshake fails.
    """
    return await (open_asyncio if host.backend == "asyncio" else open_pump)(sock, address, host, tls, server_name)


async def connect_tcp(host: str, port: int) -> socket.socket:
    """Return a connected socket. If no address can be reached, raise the first address's `OSError`."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys((int(family), address) for family, _, _, _, address in found))
    if len(addresses) == 1:
        return await connect(addresses[0])
    return await _race(_alternating(addresses))


def _alternating(addresses: Sequence[Address]) -> list[Address]:
    """Alternate IPv6 and IPv4, starting with the family that the system prefers (RFC 8305, section 4)."""
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


_MOST: Final = 64
"""Maximum number of addresses to remember besides the application's own."""


@define
class ServerAddresses:
    """The application's server address, and further addresses that the server has announced.

    Over TLS, every address must present a certificate for the application's host name, because a server may announce addresses
    in plain text before TLS.
    """

    host: str
    port: int
    _others: list[tuple[str, int]] = field(factory=list)
    _at: int = 0

    @property
    def current(self) -> tuple[str, int]:
        return [(self.host, self.port), *self._others][self._at]

    def url(self, url: str) -> str:
        scheme, _, rest = url.partition("://")
        own = host_port(self.host, self.port)
        return url if not self._at else f"{scheme}://{rest.replace(own, host_port(*self.current), 1)}"

    def failed(self) -> None:
        self._at = (self._at + 1) % (1 + len(self._others))

    def learn(self, addresses: Sequence[str], leaving: bool) -> None:
        """Replace the announced addresses, ignoring malformed ones. If `leaving` is set, switch to the next address."""
        current = self.current
        known = dict.fromkeys(found for text in addresses if (found := _parsed(text)) is not None)
        self._others = [address for address in known if address != (self.host, self.port)][:_MOST]
        everything = [(self.host, self.port), *self._others]
        self._at = everything.index(current) if current in everything else 0
        if leaving:
            self.failed()


@define
class NetConnector(ABC):
    """Connects over the network. After a failure, the next attempt uses the next address."""

    url: str = field(repr=shown_url)
    reconnects: bool = field(default=True, init=False)
    _tls: ssl.SSLContext | None = field(default=None, init=False, repr=False)
    _addresses: ServerAddresses | None = field(default=None, init=False)

    @property
    def addresses(self) -> ServerAddresses:
        if self._addresses is None:
            own = net_address(self.url)
            self._addresses = ServerAddresses(own.host, own.port)
        return self._addresses

    async def connect(self, options: DialOptions) -> Transport:
        tls = self._tls_of(options.tls)
        try:
            return await self.dial(tls, options)
        except ConnectFailed:
            self.addresses.failed()
            raise

    @abstractmethod
    async def dial(self, tls: ssl.SSLContext | None, options: DialOptions) -> Transport:
        """Connect to the current one of `addresses`."""

    def _tls_of(self, given: ssl.SSLContext | None) -> ssl.SSLContext | None:
        """Return the TLS context for a connection, or `None` if the scheme does not use TLS.

        Raises `LocalProtocolError` if `given` is set, but the scheme does not use TLS.
        """
        if not check_client_tls(urlsplit(self.url).scheme, given) or given is not None:
            return given
        if self._tls is None:
            # This context verifies the server's certificate and name, and requires at least TLS 1.2.
            self._tls = ssl.create_default_context()
        return self._tls

    def other_servers(self, addresses: Sequence[str], leaving: bool) -> None:
        self.addresses.learn(addresses, leaving)


def _parsed(text: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(f"//{text}")
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None
    except ValueError:
        return None
