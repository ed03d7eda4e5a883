"""Listening: bound sockets and the accept loop."""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import anyio
import anyio.lowlevel

from ...errors import TooManyRequests
from ...plugins import ListenOptions
from .dial import open_wire
from .pending import AdmissionSlot, PendingConnection
from .sockets import address_of, unlink_if_ours
from .wire import Wire, plain_reason

logger: logging.Logger = logging.getLogger("polybus.transports")

_HARMLESS: Final = (errno.ECONNABORTED, errno.EPROTO, errno.EINTR)
_PAUSE: Final = 0.2
"""Seconds between two attempts to accept when the process is out of file descriptors: the socket stays readable then."""


PendingFactory = Callable[["StreamListener", Wire, "AdmissionSlot | None", float], PendingConnection]


class StreamListener:
    """Bound sockets and the task that accepts from them, which belongs to the bus."""

    def __init__(
        self,
        url: str,
        options: ListenOptions,
        sockets: list[socket.socket],
        tls: ssl.SSLContext | None,
        arrival: PendingFactory,
    ) -> None:
        self.url: str = url
        self.options: ListenOptions = options
        self._sockets = sockets
        self._tls = tls
        self._arrival = arrival
        self._arrivals: set[PendingConnection] = set()
        self.silent: dict[AdmissionSlot, None] = {}
        """Connections that have said nothing yet, the oldest first."""
        self._path, self._inode = "", 0
        if sockets[0].family not in (socket.AF_INET, socket.AF_INET6):
            self._path = sockets[0].getsockname()
            self._inode = os.stat(self._path).st_ino
        self._scope = anyio.CancelScope()
        self._released = anyio.Event()
        self._alone = anyio.Event()
        options.host.spawn(self._run)

    async def aclose(self) -> None:
        """Stop accepting and release the address; connections stay, those in the middle of their handshake are cut."""
        self._scope.cancel()
        for arrival in list(self._arrivals):
            if arrival.undecided:
                arrival.wire.abort()
        await self._released.wait()

    def forget(self, arrival: PendingConnection) -> None:
        """It was let in or went away."""
        self._arrivals.discard(arrival)
        if not self._arrivals:
            self._alone.set()

    async def _run(self) -> None:
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    for sock in self._sockets:
                        group.start_soon(self._accept_from, sock)
            self._release()
            # Those who were told no may still be reading it; leaving the bus ends that too.
            while self._arrivals:
                self._alone = anyio.Event()
                await self._alone.wait()
        finally:
            self._release()
            for arrival in list(self._arrivals):
                arrival.wire.abort()

    def _release(self) -> None:
        if self._released.is_set():
            return
        for sock in self._sockets:
            sock.close()
        if self._path:
            unlink_if_ours(self._path, self._inode)
        self._released.set()

    async def _accept_from(self, sock: socket.socket) -> None:
        told = False
        while True:
            try:
                accepted, name = await _accept(sock)
            except OSError as error:
                if error.errno in _HARMLESS:
                    # The client hung up before we came.
                    continue
                if not told:
                    logger.error("%s: accepting pauses: %s", self.url, plain_reason(error))
                    told = True
                await anyio.sleep(_PAUSE)
                continue
            told = False
            self.options.host.spawn(self._open, accepted, address_of(sock.family, name))
            # asyncio does not suspend while more connections wait, and there may be thousands.
            await anyio.lowlevel.checkpoint()

    async def _open(self, sock: socket.socket, address: str) -> None:
        """One connection, from accept to its handshake."""
        host, gate = self.options.host, self.options.gate
        deadline = host.time() + host.limits.handshake_timeout
        refusal = gate.knock(address)
        if isinstance(refusal, TooManyRequests) and refusal.reason == "handshakes" and self._make_room():
            refusal = gate.knock(address)
        if refusal is not None and (self._tls is not None or len(self._arrivals) > host.limits.handshakes):
            # A refusal is not worth a TLS handshake, nor a crowd of those who listen to theirs.
            sock.close()
            return
        scope = anyio.CancelScope()
        knock = AdmissionSlot(self, address, scope.cancel) if refusal is None else None
        wire: Wire | None = None
        try:
            with scope:
                with anyio.fail_after(host.limits.handshake_timeout):
                    wire = await open_wire(sock, address, host, self._tls)
        except Exception as error:
            logger.info("%s: no connection: %s", address, error)
        finally:
            if wire is None and knock is not None:
                knock.left()
        if wire is None:
            return
        if scope.cancel_called:  # it has given way in the last moment
            wire.abort()
            return
        arrival = self._arrival(self, wire, knock, deadline - host.time())
        self._arrivals.add(arrival)
        wire.attach(arrival)
        if refusal is not None:
            arrival.refuse(refusal)
        else:
            arrival.begin()

    def _make_room(self) -> bool:
        """Send the oldest of the silent away, of the address that has most of them. Whether there was one."""
        if not self.silent:
            return False
        share = Counter(knock.host for knock in self.silent)
        most = max(share.values())
        oldest = next(knock for knock in self.silent if share[knock.host] == most)
        oldest.left()
        oldest.give_up()
        return True


async def _accept(sock: socket.socket) -> tuple[socket.socket, Any]:
    """The next connection, and the name of its other end.

    Not `loop.create_server`: of Python 3.11 and 3.12, out of file descriptors, it reports and re-arms itself once per entry of
    the backlog, that is 2,048 times; and with TLS it would not let us knock before the handshake.
    """
    while True:
        try:
            accepted, name = sock.accept()
        except BlockingIOError:
            await anyio.wait_readable(sock)
        else:
            accepted.setblocking(False)
            return accepted, name
