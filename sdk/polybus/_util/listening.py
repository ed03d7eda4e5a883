"""Helpers for listeners, for error messages, addresses and Unix socket files."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from typing import Final

_REMEDIES: Final = {
    errno.EADDRINUSE: "another program listens there: end it, or take another address (port 0 is a free one)",
    errno.EACCES: "ports below 1024 are the system's: take one above",
    errno.ENOENT: "make its folder first (RuntimeDirectory= in a unit of systemd does)",
    socket.EAI_NONAME: "127.0.0.1 is this machine for itself, 0.0.0.0 all addresses that it has",
    errno.EADDRNOTAVAIL: "this machine has no such address: 127.0.0.1 is for itself, 0.0.0.0 for all that it has",
}


def cannot_listen(where: str, error: OSError) -> OSError:
    """Return an error that says why an address cannot be bound."""
    remedy = _REMEDIES.get(error.errno or 0)
    why = f"{error.strerror or error}; {remedy}" if remedy else f"{error.strerror or error}"
    text = f"cannot listen on {where}: {why}"
    return OSError(text) if error.errno is None else OSError(error.errno, text)


def is_loopback(host: str) -> bool:
    """Return True for ``localhost`` and loopback addresses."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def network_of(address: str) -> str:
    """Return an address's host. For IPv6, return its /64 network, because a host can choose any address in it."""
    host = address.rpartition(":")[0] or address
    if not host.startswith("["):
        return host
    try:
        found = ipaddress.IPv6Address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    return str(found.ipv4_mapped or ipaddress.IPv6Network((found, 64), strict=False))


def unlink_if_ours(path: str, inode: int) -> None:
    """Remove a Unix socket's file, unless another process has replaced it."""
    with contextlib.suppress(OSError):
        if os.stat(path).st_ino == inode:
            os.unlink(path)
