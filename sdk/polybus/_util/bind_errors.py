"""Says why an address cannot be listened on, and what to do about it."""

from __future__ import annotations

import errno
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
    """Put what the system said about an address into words."""
    remedy = _REMEDIES.get(error.errno or 0)
    why = f"{error.strerror or error}; {remedy}" if remedy else f"{error.strerror or error}"
    return OSError(error.errno, f"cannot listen on {where}: {why}")
