"""Connecting a socket: the addresses of a name, tried in a race (RFC 8305, "happy eyeballs").

Our own, because a cancelled connect must leave no socket behind: that of asyncio and that of anyio drop the winner when they
are cancelled in the moment of its victory, and uvloop has none.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any, Final, TypeAlias

import anyio

_HEAD_START: Final = 0.25
"""Seconds that an address has before the next one is tried too."""

Address: TypeAlias = tuple[int, Any]


async def connect_tcp(host: str, port: int) -> socket.socket:
    """A connected socket.

    Raises:
        OSError: The name does not resolve, or no address answers: the error of the first one.
    """
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys((int(family), address) for family, _, _, _, address in found))
    if len(addresses) == 1:
        return await connect(addresses[0])
    return await _Race().run(_alternating(addresses))


def _alternating(addresses: Sequence[Address]) -> list[Address]:
    """IPv6 and IPv4 in turn, beginning with the kind that the system prefers (RFC 8305, section 4)."""
    first = addresses[0][0]
    preferred = [address for address in addresses if address[0] == first]
    others = [address for address in addresses if address[0] != first]
    return [address for address in chain(*zip_longest(preferred, others)) if address is not None]


class _Race:
    def __init__(self) -> None:
        self._winner: socket.socket | None = None
        self._errors: list[OSError] = []

    async def run(self, addresses: Sequence[Address]) -> socket.socket:
        try:
            async with anyio.create_task_group() as group:
                for address in addresses:
                    failed = anyio.Event()
                    group.start_soon(self._attempt, address, failed, group.cancel_scope)
                    with anyio.move_on_after(_HEAD_START):
                        await failed.wait()
        except BaseException:
            if self._winner is not None:
                self._winner.close()
            raise
        if self._winner is None:
            raise self._errors[0]
        return self._winner

    async def _attempt(self, address: Address, failed: anyio.Event, race: anyio.CancelScope) -> None:
        try:
            sock = await connect(address)
        except OSError as error:
            self._errors.append(error)
            failed.set()
            return
        if self._winner is None:
            self._winner = sock
            race.cancel()
        else:
            sock.close()


async def connect(address: Address) -> socket.socket:
    """A socket that is connected to an address of a family.

    Raises:
        OSError: There is no listener.
    """
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
