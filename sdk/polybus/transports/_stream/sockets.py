"""Sockets: their options, what the kernel knows of the other end, how their addresses are written, and binding."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import stat
import struct
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple

import anyio

from ..._util.listening import cannot_listen
from ...limits import Limits

BACKLOG: Final = 2048
"""Connections that the kernel holds until we accept them."""
_PROBES: Final = 4
"""Of the kernel's keep-alive, within `Limits.ping_timeout`."""

NAMES: Final = ("concurrent.futures.thread", "encodings.idna", "stringprep")
"""Modules that looking up the name of a host imports by itself."""

UNSENT = 128 * 1024
"""Bytes that the kernel takes, of a wire with priorities, beyond what the peer has room for. Linux alone takes 4 MiB: on a line
with 1 MB a second nothing could overtake what was published in the last four seconds."""


def load_names() -> None:
    """Import `NAMES`."""
    for name in NAMES:
        import_module(name)


def keep_short(sock: Any) -> None:
    """Let the kernel take little that it cannot send yet: what waits here can be overtaken, what waits there cannot.

    Not for every socket: a flood of messages of 4 KiB costs up to half as much processor time again, on both sides.
    """
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)


def tune(sock: Any, limits: Limits) -> None:
    """Set what every stream socket of ours has: no Nagle, keep-alive, and an end to waiting for acknowledgements.

    The kernel's own keep-alive has the times of ours. BSD and macOS end a connection so long after the last sign of life. Linux
    does not while anything is on its way: there ``TCP_USER_TIMEOUT`` (RFC 5482) does, which counts from the first byte that is
    not acknowledged (without it: about 15 minutes). It counts against a peer that reads nothing, too, and must not be shorter
    than the write deadline; so `TcpTransport` does not rely on it, but asks for `signs_of` life.
    """
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    pause = _whole(limits.ping_timeout / _PROBES)
    options = {
        # macOS has another name for it.
        "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE": _whole(limits.ping_interval),
        "TCP_KEEPINTVL": pause,
        "TCP_KEEPCNT": max(1, min(_PROBES, int(limits.ping_timeout // pause))),
        "TCP_USER_TIMEOUT": int(1000 * min(86_400, max(limits.write_timeout, limits.ping_interval + limits.ping_timeout))),
    }
    # A connection that is already gone refuses options; its loss is reported by the event loop.
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _whole(seconds: float) -> int:
    """As keep-alive takes them."""
    return max(1, min(32_767, math.ceil(seconds)))


class Signs(NamedTuple):
    """Facts that the kernel knows of the other end."""

    silence: float
    """Seconds since the other machine last sent anything, an acknowledgement at least."""
    unanswered: int
    """Number of times that it has been asked in vain since: what was written again, and probes. A peer that is there and reads
    nothing answers these."""
    acknowledged: int
    """Bytes of ours that have arrived there since the beginning."""
    outstanding: int
    """Bytes of ours that the kernel has taken, and that have not."""


_INFO_SIZE: Final = 128
# The beginning of Linux's `struct tcp_info`, which only ever grows at its end: tcpi_retransmits and tcpi_probes;
# tcpi_last_data_recv and tcpi_last_ack_recv, in milliseconds; tcpi_bytes_acked.
_info = struct.Struct("=2xBB48xII60xQ").unpack


def signs_of(sock: Any) -> Signs | None:
    """Signs of life, where the system tells them (Linux; of a Unix socket only `outstanding`)."""
    if sys.platform != "linux" or sock is None:
        return None
    import fcntl
    import termios

    try:
        (outstanding,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            return Signs(0.0, 0, 0, outstanding)
        retransmits, probes, data, ack, acknowledged = _info(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE))
    except (OSError, ValueError, struct.error):  # it is gone, or the kernel is one that tells less
        return None
    return Signs(min(data, ack) / 1000, retransmits + probes, acknowledged, outstanding)


class PingProgress:
    """Progress of a ping, which waits behind what was written before it, where the kernel tells that.

    Args:
        signs: When it is written.
        waiting: Bytes that the kernel has not taken then, it among them.
    """

    __slots__ = ("_acknowledged", "_end")

    def __init__(self, signs: Signs | None, waiting: int) -> None:
        self._acknowledged = signs.acknowledged if signs is not None else 0
        self._end = signs.acknowledged + signs.outstanding + waiting if signs is not None else 0

    def comes_near(self, look: Callable[[], Signs | None]) -> bool:
        """True if it has not arrived yet, and more of what was written before it has."""
        signs = look() if self._acknowledged < self._end else None
        if signs is None:
            return False
        before, self._acknowledged = self._acknowledged, signs.acknowledged
        return before < signs.acknowledged < self._end


def address_of(family: int, name: Any) -> str:
    """A socket's address as it stands in a URL: ``127.0.0.1:80``, ``[::1]:80``; a path for a Unix socket."""
    if family == socket.AF_INET6:
        return f"[{name[0]}]:{name[1]}"
    if family == socket.AF_INET:
        return f"{name[0]}:{name[1]}"
    return f"unix:{os.fsdecode(name)}" if name else "unix:"


async def bind_tcp(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address of a host, all with the same port; port 0 picks a free one. May raise `OSError`: an
    address is taken or not ours."""
    try:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise cannot_listen(f"{host} port {port}", error) from None
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    for _ in range(10):
        try:
            return _bind_all(addresses, port)
        except OSError as error:
            # Port 0: the port that was free on the first address is taken on the second.
            if port or error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"no port is free on all addresses of {host}")


def _bind_all(addresses: list[tuple[Any, Any]], port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    with contextlib.ExitStack() as opened:
        for family, (host, _, *rest) in addresses:
            try:
                sock = opened.enter_context(_bind(family, (host, port, *rest), f"{host} port {port}"))
            except OSError as error:
                # "localhost" names ::1 also where the machine has no IPv6.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error
                continue
            sockets.append(sock)
            port = port or sock.getsockname()[1]
        if not sockets and missing is not None:
            raise missing
        opened.pop_all()
    return sockets


def _bind(family: int, address: Any, shown: str) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if os.name == "posix" and family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            raise cannot_listen(shown, error) from None
        raise
    return sock


def bind_unix(path: str) -> socket.socket:
    """A listening Unix socket. A socket file without a listener is replaced. May raise `OSError`: another server listens
    there, or the path cannot be used."""
    _remove_stale(path)
    if os.path.exists(path) and not stat.S_ISSOCK(os.stat(path).st_mode):
        raise OSError(errno.EEXIST, f"cannot listen on {path}: a file that is no socket is there; take another path")
    return _bind(socket.AF_UNIX, path, path)


def _remove_stale(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except OSError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError:
            return
