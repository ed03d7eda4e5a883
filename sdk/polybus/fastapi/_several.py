"""Processes that listen at the same address, each with a bus of its own: they are told that one publication does not reach all.

Workers of uvicorn, gunicorn, hypercorn and others have nothing in common but the address at which they listen. So the first
process takes a name in the kernel that is made of the address; the others find it taken. Such names exist on Linux alone, go
with their process, and are those of one network namespace, as addresses are.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import struct
import sys
from contextlib import ExitStack, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import anyio

from .._core.bus.bus import parts_of
from .._core.bus.cluster import VARIABLE
from .._util.log_fields import log_fields
from ..transports._stream.sockets import address_of

if TYPE_CHECKING:
    from .._core.bus.bus import Bus

logger: logging.Logger = logging.getLogger("polybus")

GRACE: Final = 3.0
"""Seconds in which a process that this one replaces gives its address up."""
_PAUSE: Final = 0.05
_WAITING: Final = 64
"""Processes that wait for that at once; others of them would say the same."""
_OPEN_FILES: Final = "/proc/self/fd"
_CREDENTIALS: Final = struct.Struct("3i")
_ADVICE: Final = (
    "a publication reaches the clients of one process, and users are found in one alone. Make them one bus: "
    "Bus(cluster='auto') with polybus.fastapi.run('module:app', workers=...), or with the URL of a NATS server in "
    f"{VARIABLE}; or serve with one process"
)


def watch_neighbours(bus: Bus) -> None:
    """Have a bus that is alone find out whether other processes serve at the address of this one; it says so once."""
    parts = parts_of(bus)
    cluster = parts.links.cluster
    if sys.platform == "linux" and (cluster is None or cluster.peer is None):
        addresses = _addresses()
        if addresses:
            parts.services.running.spawn(_watch, addresses)


async def _watch(addresses: dict[str, bytes]) -> None:
    """Hold the names of all addresses that nobody else holds, for as long as the bus runs."""
    with ExitStack() as held:
        for address, name in addresses.items():
            other = await _claim(name, held)
            if other is None:
                logger.debug("no other process serves at %s with a bus of its own", address, extra=log_fields(address=address))
            else:
                level = logging.WARNING if _take(name + b" told", held) else logging.DEBUG
                text = "this process is one of several at %s (process %d is another), and its bus is alone: %s"
                logger.log(level, text, address, other, _ADVICE, extra=log_fields(address=address))
        await anyio.sleep_forever()


async def _claim(name: bytes, held: ExitStack) -> int | None:
    """Take the name of an address. The process that keeps it; None where this one has it now, or the other is not known."""
    other: int | None = None
    with anyio.move_on_after(GRACE):
        while not _take(name, held):
            with socket.socket(socket.AF_UNIX) as at_holder:
                at_holder.setblocking(False)
                try:
                    at_holder.connect(name)
                except ConnectionRefusedError:  # it has just come, or gone
                    await anyio.sleep(_PAUSE)
                    continue
                except OSError:
                    return None
                other = _process_of(at_holder)
                if other is None or other == os.getpid():
                    return None
                await anyio.wait_readable(at_holder)  # to its end: nobody answers there
        return None
    return other


def _take(name: bytes, held: ExitStack) -> bool:
    """Take a name of the kernel. False where another process has it."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(name)
        sock.listen(_WAITING)
    except OSError:
        sock.close()
        return False
    held.enter_context(sock)
    return True


def _process_of(connection: socket.socket) -> int | None:
    """Find the process at the other end; None where it is no more, and only one that it started has its socket."""
    number, _, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    with suppress(PermissionError):
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return None
    return int(number)


def _addresses() -> dict[str, bytes]:
    """Find the addresses of stream sockets of this process that are bound and not connected, and their names in the kernel."""
    found: dict[str, bytes] = {}
    with suppress(OSError):
        for file in os.listdir(_OPEN_FILES):
            with suppress(OSError):
                if stat.S_ISSOCK(os.stat(f"{_OPEN_FILES}/{file}").st_mode):
                    with socket.socket(fileno=os.dup(int(file))) as sock:
                        if sock.type == socket.SOCK_STREAM and not _is_connected(sock):
                            _add_address(found, sock)
    return found


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def _add_address(found: dict[str, bytes], sock: socket.socket) -> None:
    address = sock.getsockname()
    if sock.family in (socket.AF_INET, socket.AF_INET6) and address[1]:
        shown = key = address_of(sock.family, address)
    elif sock.family == socket.AF_UNIX and address and isinstance(address, str):  # without a file: the names taken here
        shown, key = address, f"{os.path.abspath(address)} {os.fstat(sock.fileno()).st_ino}"  # another may have its path later
    else:
        return
    found[shown] = b"\0polybus " + sha256(key.encode()).hexdigest().encode()
