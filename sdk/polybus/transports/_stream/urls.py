"""The addresses in URLs of transports."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from attrs import frozen

from ..._secrets import shown_target, without_secrets
from ..._util.listening import is_loopback

_PORTS: Final = {"ws": 80, "wss": 443, "http": 80, "https": 443}


@frozen
class NetAddress:
    """Address on a network."""

    scheme: str
    host: str
    port: int
    path: str
    query: str

    @property
    def private(self) -> bool:
        """True if it can be reached from this machine only."""
        return is_loopback(self.host)

    def with_port(self, port: int) -> str:
        return urlunsplit((self.scheme, host_port(self.host, port), self.path, self.query, ""))


def host_port(host: str, port: int) -> str:
    """``example.org:80`` or ``[::1]:80``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def net_address(url: str) -> NetAddress:
    """The parts of a URL with host and port. May raise `ValueError`: a part is missing or malformed."""
    parts = urlsplit(url)
    url = without_secrets(url)
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{url}: the port is not a number from 0 to 65535") from None
    if not parts.hostname:
        raise ValueError(f"{url}: the host is missing, write for example {parts.scheme}://127.0.0.1:9000")
    if port is None:
        port = _PORTS.get(parts.scheme)
    if port is None:
        raise ValueError(f"{url}: the port is missing, write for example {parts.scheme}://{parts.hostname}:9000")
    return NetAddress(parts.scheme, parts.hostname, port, parts.path, parts.query)


def bare_address(url: str) -> NetAddress:
    """The parts of a URL of which only host and port mean something. May raise `ValueError`: a part is missing, malformed, or
    one too many."""
    address = net_address(url)
    parts = urlsplit(url)
    url = without_secrets(url)
    if address.path not in ("", "/"):
        raise ValueError(f"{url}: {address.scheme}:// has no path, leave out {address.path!r}; ws:// shows one to the server")
    if address.query:
        raise ValueError(f"{url}: {address.scheme}:// has no query, leave out {shown_target('?' + address.query)!r}")
    if parts.username is not None:
        where = f"{address.scheme}://{host_port(address.host, address.port)}"  # not the whole URL: it has a password
        raise ValueError(f"{where} carries no user or password: a client certificate on tls:// tells who you are")
    return address


def unix_path(url: str) -> str:
    """The path of a Unix socket in a URL such as ``unix:///run/app.sock``. May raise `ValueError`: there is none, or a host
    stands before it."""
    parts = urlsplit(url)
    if "\\" in url:
        raise ValueError(
            f"{url}: no path of a socket: write three slashes, for example unix:///run/app.sock; on Windows take tcp://127.0.0.1:9000"
        )
    if parts.netloc or not parts.path:
        raise ValueError(f"{url}: the path of the socket is missing, write three slashes, for example unix:///run/app.sock")
    return unquote(parts.path)
