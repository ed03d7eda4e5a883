"""Socket options and kernel statistics, addresses, binding and accepting, and readable errors."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import socket
import ssl
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import anyio
import anyio.lowlevel
from attrs import frozen

from .._util.listening import cannot_listen, is_loopback
from .._util.logs import log_fields
from ..errors import ConnectFailed
from ..limits import Limits
from ..plugins import Closed
from ..plugins.close_codes import UNEXPLAINED
from ..secrets import shown_target, without_secrets
from .tls import client_fault

_PORTS: Final = {"ws": 80, "wss": 443, "http": 80, "https": 443}


@frozen
class NetAddress:
    scheme: str
    host: str
    port: int
    path: str
    query: str

    @property
    def private(self) -> bool:
        """True if the address is reachable only from this machine."""
        return is_loopback(self.host)

    def with_port(self, port: int) -> str:
        return urlunsplit((self.scheme, host_port(self.host, port), self.path, self.query, ""))


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def net_address(url: str) -> NetAddress:
    """Parse a URL that has a host and a port. Raises `ValueError` if a part is missing or malformed."""
    parts = urlsplit(url)
    url = without_secrets(url)
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{url}: the port must be a number from 0 to 65535") from None
    if not parts.hostname:
        raise ValueError(f"{url}: the host is missing: write, for example, {parts.scheme}://127.0.0.1:9000")
    if port is None:
        port = _PORTS.get(parts.scheme)
    if port is None:
        raise ValueError(f"{url}: the port is missing: write, for example, {parts.scheme}://{parts.hostname}:9000")
    return NetAddress(parts.scheme, parts.hostname, port, parts.path, parts.query)


def bare_address(url: str) -> NetAddress:
    """Parse a URL that consists only of a host and a port. Raises `ValueError` if it has other parts."""
    address = net_address(url)
    parts = urlsplit(url)
    url = without_secrets(url)
    if address.path not in ("", "/"):
        raise ValueError(
            f"{url}: {address.scheme}:// has no path, so leave out {address.path!r}; only ws:// sends a path to the server"
        )
    if address.query:
        raise ValueError(f"{url}: {address.scheme}:// has no query, so leave out {shown_target('?' + address.query)!r}")
    if parts.username is not None:
        where = f"{address.scheme}://{host_port(address.host, address.port)}"  # not the whole URL, which has a password
        raise ValueError(f"{where} cannot send a user or password: identify yourself with a client certificate on tls://")
    return address


def unix_path(url: str) -> str:
    """Return the path in a URL such as ``unix:///run/app.sock``. Raises `ValueError` if the URL has a host or no path."""
    parts = urlsplit(url)
    if "\\" in url:
        text = "not the path of a socket: write three slashes, for example unix:///run/app.sock; on Windows use tcp://127.0.0.1:9000"
        raise ValueError(f"{url}: {text}")
    if parts.netloc or not parts.path:
        raise ValueError(f"{url}: the path of the socket is missing: write three slashes, for example unix:///run/app.sock")
    path = unquote(parts.path)
    with contextlib.suppress(UnicodeEncodeError):
        if b"\0" not in os.fsencode(path):
            return path
    raise ValueError(f"{url!r}: the path of the socket contains a character that no file system accepts: remove it")


logger: logging.Logger = logging.getLogger("polybus.transports")

_HARMLESS: Final = (errno.ECONNABORTED, errno.EPROTO, errno.EINTR)
_PAUSE: Final = 0.2
"""Seconds between accept attempts while no file descriptors are free, since the socket stays readable."""

BACKLOG: Final = 2048
"""Number of connections that the kernel queues for `accept`."""
_PROBES: Final = 4
"""Number of keep-alive probes that the kernel sends within `Limits.ping_timeout`."""

UNSENT = 128 * 1024
"""Maximum unsent bytes in the kernel for a connection with priorities. Linux allows up to 4 MiB by default. At 1 MB/s, an
urgent message would wait behind four seconds of publications.
"""


def load_names() -> None:
    """Import the modules that Python needs for host name look-ups."""
    for name in ("concurrent.futures.thread", "encodings.idna", "stringprep"):
        import_module(name)


def keep_short(sock: Any) -> None:
    """Limit the kernel's buffer of unsent bytes. Urgent frames can overtake other frames in polybus's queue, but not in the
    kernel.

    Don't use this function for every socket: a flood of 4 KiB messages takes up to 50 % more CPU time on both sides.
    """
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)


def tune(sock: Any, limits: Limits) -> None:
    """Set socket options: disable Nagle's algorithm, enable keep-alive, and limit the wait for acknowledgements.

    Keep-alive uses the same intervals as polybus. BSD and macOS close a connection after that much silence, but Linux doesn't
    while data is in flight. There, ``TCP_USER_TIMEOUT`` (RFC 5482) limits the age of the oldest unacknowledged byte, by default
    to about 15 minutes. The limit also applies to a peer that doesn't read, so it must not be shorter than the write timeout.
    For shorter limits, `TcpTransport` checks `signs_of` itself.
    """
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    pause = _whole(limits.ping_timeout / _PROBES)
    options = {
        # macOS calls it TCP_KEEPALIVE.
        "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE": _whole(limits.ping_interval),
        "TCP_KEEPINTVL": pause,
        "TCP_KEEPCNT": max(1, min(_PROBES, int(limits.ping_timeout // pause))),
        "TCP_USER_TIMEOUT": int(1000 * min(86_400, max(limits.write_timeout, limits.ping_interval + limits.ping_timeout))),
    }
    # Setting options fails if the connection is lost, which the event loop reports.
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _whole(seconds: float) -> int:
    return max(1, min(32_767, math.ceil(seconds)))


class Signs(NamedTuple):
    silence: float
    """Seconds since the remote machine last sent anything, including acknowledgements."""
    unanswered: int
    """Number of retransmissions and probes without an answer. A live kernel answers even if its program doesn't read."""
    acknowledged: int
    """Number of bytes acknowledged since the connection was established."""
    outstanding: int
    """Number of bytes in the kernel that are not acknowledged yet."""


_INFO_SIZE: Final = 128
# Linux's `struct tcp_info`, growing only at its end: retransmits, probes, last_data_recv (ms), last_ack_recv (ms), bytes_acked.
_info = struct.Struct("=2xBB48xII60xQ").unpack


def signs_of(sock: Any) -> Signs | None:
    """Return kernel statistics that show whether a socket's peer is alive, or `None` on systems other than Linux.

    For a Unix socket, only `outstanding` is meaningful.
    """
    if sys.platform != "linux" or sock is None:
        return None
    import fcntl
    import termios

    try:
        (outstanding,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            return Signs(0.0, 0, 0, outstanding)
        retransmits, probes, data, ack, acknowledged = _info(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE))
    except (OSError, ValueError, struct.error):  # the connection is gone, or the kernel reports less
        return None
    return Signs(min(data, ack) / 1000, retransmits + probes, acknowledged, outstanding)


class PingProgress:
    """Tracks whether the data ahead of a ping makes progress, if the kernel reports progress.

    `waiting` is the number of bytes, including the ping, that had not been passed to the kernel when `signs` were read.
    """

    __slots__ = ("_acknowledged", "_end")

    def __init__(self, signs: Signs | None, waiting: int) -> None:
        self._acknowledged = signs.acknowledged if signs is not None else 0
        self._end = signs.acknowledged + signs.outstanding + waiting if signs is not None else 0

    def comes_near(self, look: Callable[[], Signs | None]) -> bool:
        """Return True if the ping hasn't arrived yet but the data ahead of it has made progress."""
        signs = look() if self._acknowledged < self._end else None
        if signs is None:
            return False
        before, self._acknowledged = self._acknowledged, signs.acknowledged
        return before < signs.acknowledged < self._end


def address_of(family: int, name: Any) -> str:
    """Return a socket's address in URL notation: ``127.0.0.1:80``, ``[::1]:80``, or a path for a Unix socket."""
    if family == socket.AF_INET6:
        return f"[{name[0]}]:{name[1]}"
    if family == socket.AF_INET:
        return f"{name[0]}:{name[1]}"
    return f"unix:{os.fsdecode(name)}" if name else "unix:"


async def bind_tcp(host: str, port: int) -> list[socket.socket]:
    """Listen on every address of a host, on the same port. Port 0 picks a free port. Raises `OSError` if that fails."""
    try:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise cannot_listen(f"{host} port {port}", error) from None
    except UnicodeError as error:  # `idna` is stricter than the codec
        raise ValueError(f"{host!r} is not a host name ({error}): is it misspelled?") from None
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    for _ in range(10):
        try:
            return _bind_all(addresses, port)
        except OSError as error:
            # The port is free on the first address but not on the second.
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
                # "localhost" includes ::1 even on a machine without IPv6.
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
    """Listen on a Unix socket, replacing a socket file without a server. Raises `OSError` if the path cannot be used."""
    if os.path.exists(path):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise OSError(errno.EEXIST, f"cannot listen on {path}: a file there is not a socket; use another path")
        _remove_stale(path)
    return _bind(socket.AF_UNIX, path, path)


def _remove_stale(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError:
            pass


def closed_with(error: Exception | None) -> Closed:
    """Return the close reason for a connection that was lost without a goodbye."""
    if error is None:
        return Closed(1006, UNEXPLAINED)
    return Closed(1006, plain_reason(error), errno=error_number(error))


_REASONS: Final[Mapping[int, str]] = {
    errno.ECONNREFUSED: "connection refused: no server listens there",
    errno.ECONNRESET: "connection reset by the peer",
    errno.ENOTCONN: "connection reset by the peer",
    errno.EPIPE: "the peer closed the connection",
    errno.ETIMEDOUT: "timed out: no answer from the network",
    errno.EHOSTUNREACH: "host unreachable",
    errno.ENETUNREACH: "network unreachable",
    errno.ENOENT: "no such file",
    errno.EACCES: "permission denied",
    errno.EMFILE: "too many open files in this process",
}


def plain_reason(error: BaseException) -> str:
    """Return the cause of a failure in plain language, without error numbers, class names or chained exceptions."""
    if isinstance(error, ssl.SSLError):
        return ": ".join(client_fault(error))
    if type(error).__name__ == "gaierror" or isinstance(error, UnicodeError):
        return "name does not resolve: is it misspelled?"
    if (number := error_number(error)) is not None and number in _REASONS:
        return _REASONS[number]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    if isinstance(error, anyio.EndOfStream):
        return "the peer closed the connection"
    cause = _cause(error)
    return str(error) or type(error).__name__ if cause is None else plain_reason(cause)


def error_number(error: BaseException) -> int | None:
    """Return the system's error number of an error or its cause, or None. `SSLError` and `gaierror` have different numbers."""
    if isinstance(error, ssl.SSLError) or type(error).__name__ == "gaierror":
        return None
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if (cause := _cause(error)) is not None:
        return error_number(cause)
    # asyncio and trio omit the number.
    is_reset = isinstance(error, ConnectionResetError) or type(error).__name__ == "BrokenResourceError"
    return errno.ECONNRESET if is_reset else None


def _cause(error: BaseException) -> BaseException | None:
    """Return the cause, which httpcore passes as an argument, or the first error of a group."""
    inner = (*error.args, *getattr(error, "exceptions", ()))
    return error.__cause__ or next((one for one in inner if isinstance(one, Exception)), None)


@contextlib.contextmanager
def bounded(url: str, seconds: float, step: str) -> Iterator[None]:
    """Raise `ConnectFailed` if a block takes more than `seconds` or fails to connect."""
    scope = anyio.CancelScope()
    try:
        with anyio.move_on_after(seconds) as scope:
            yield
    except (OSError, EOFError, UnicodeError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError) as error:
        if isinstance(error, ConnectFailed):
            raise
        raise ConnectFailed(url, plain_reason(error), errno=error_number(error)) from error
    if scope.cancelled_caught:
        raise ConnectFailed(url, f"timed out after {seconds:g} s {step}", errno=errno.ETIMEDOUT)


async def accept_from(sock: socket.socket, url: str, opened: Callable[[socket.socket, Any], object]) -> None:
    """Accept connections until cancelled, calling `opened` with each socket and its peer's name. Failures are retried."""
    told = False
    while True:
        try:
            accepted, name = await _accept(sock)
        except OSError as error:
            if error.errno in _HARMLESS:
                # The client hung up before it was accepted.
                continue
            if not told:
                logger.error("%s: accepting pauses: %s", url, plain_reason(error), extra=log_fields(address=url))
                told = True
            await anyio.sleep(_PAUSE)
            continue
        told = False
        opened(accepted, name)
        # Otherwise asyncio would not suspend this task while thousands of connections are waiting.
        await anyio.lowlevel.checkpoint()


async def _accept(sock: socket.socket) -> tuple[socket.socket, Any]:
    """Return the next connection and its peer's name.

    `loop.create_server` is not suitable for two reasons. If no file descriptors are free, Python 3.11 and 3.12 log an error and
    re-arm once per backlog entry, 2,048 times. And with TLS, the gate could not reject a connection before the handshake.
    """
    while True:
        try:
            accepted, name = sock.accept()
        except BlockingIOError:
            await anyio.wait_readable(sock)
        else:
            accepted.setblocking(False)
            return accepted, name
