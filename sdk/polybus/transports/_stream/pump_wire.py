"""The driver for other event loops. One task reads from an anyio byte stream, and another writes while data is waiting.

It is as fast as callbacks because it receives and sends once per chunk, not once per message. The tasks belong to the bus, so
cancelled user code cannot truncate a frame. Until a plain socket is full, the driver writes to it without a task: at the end of
an event-loop iteration, or immediately for a publication to many connections or a long burst.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, cast

import anyio
import anyio.lowlevel
from anyio.abc import ByteSendStream, ByteStream, SocketAttribute, SocketStream, UNIXSocketStream
from anyio.streams.stapled import StapledByteStream
from anyio.streams.tls import TLSAttribute, TLSStream

from ...plugins import Host
from ...plugins.connections import HIGH_WATER, LOW_WATER
from ..sockets import Signs, keep_short, signs_of, tune
from .wire import BURST, BURST_PARTS, WireUser, rations_here

_READ_SIZE: Final = 64 * 1024
"""Bytes per read, unless the previous read was full. Each read allocates this much."""
_READ_FULL: Final = 4 * 1024
"""Bytes per read while a lot of output is waiting."""
_TURNS: Final = 32
"""Maximum event-loop iterations to wait for a reading peer to accept output. The limit keeps a peer that doesn't read from
delaying input.
"""
_WRITE_SIZE: Final = 64 * 1024
"""Bytes per send, so that the progress of a large frame on a slow line is visible."""


class PumpWire:
    def __init__(self, stream: ByteStream, host: Host, address: str = "", sock: socket.socket | None = None) -> None:
        self.address: str = address
        self._socket = sock
        self._stream = stream
        self._host = host
        self._user: WireUser | None = None
        self._pending: list[bytes] = []
        self._backlog = 0
        # Bytes that the writing task is sending, and True if the socket was full at the last direct write.
        self._sending = 0
        self._stuck = False
        # Loop turn of the last `write_first` that was not queued.
        self._turn = -1
        self._taken = 0
        self._full = False
        # True while the writing task runs; its scope; and True while `_flush` is scheduled.
        self._writing = False
        self._sender: anyio.CancelScope | None = None
        self._flushes = False
        self._may_read: anyio.Event | None = anyio.Event()
        """Event that the reading task waits for, or `None` while it may read."""
        # This side has closed; all output is written; the peer has closed.
        self._hung_up = False
        self._all_written = False
        self._eof = False
        self._reading = anyio.CancelScope()
        self._everything = anyio.CancelScope()
        self._error: Exception | None = None
        self._lost = False
        self.shut: bool = False
        self.alone: bool = False
        self.burst: int = BURST
        host.spawn(self._run)

    # -- the two tasks

    async def _run(self) -> None:
        try:
            with self._everything:
                await self._read_all()
                await anyio.sleep_forever()  # the peer has closed, and the writing task finishes
        finally:
            if self._sender is not None:
                self._sender.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(self._stream)
            self._lost = True
            self._pending.clear()
            self._backlog = 0
            if self._user is not None:
                self._user.wire_lost(self._error)

    async def _read_all(self) -> None:
        rations = rations_here(self._host.call_soon)
        size = _READ_SIZE
        with self._reading:
            while True:
                if self._may_read is not None:
                    await self._may_read.wait()
                try:
                    data = await self._stream.receive(size)
                except (anyio.EndOfStream, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                    self._ended(error)
                    return
                full = len(data) >= size
                size = rations.size if full else min(_READ_SIZE, rations.size)
                at, step = 0, _READ_SIZE
                while at < len(data):
                    if full and at:  # the size was set before the number of busy connections was known
                        await anyio.lowlevel.checkpoint()
                    if self._may_read is not None:
                        await self._may_read.wait()
                    if full:
                        step = min(_READ_SIZE, rations.size)
                        rations.filled(step)
                    if self._user is not None:
                        self._user.data_received(data[at : at + step])
                    at += step
                    if self._full:
                        await self._let_write()
                        size = _READ_FULL

    async def _let_write(self) -> None:
        """Wait a few event-loop iterations for output to drain, because otherwise output would pile up even for a peer that
        reads.
        """
        for _ in range(_TURNS):
            if not self._full:
                return
            await anyio.lowlevel.checkpoint()

    def _ended(self, error: Exception) -> None:
        # A TLS peer may close without its goodbye.
        if isinstance(error, anyio.EndOfStream) or isinstance(error.__cause__, ssl.SSLEOFError):
            self._eof = True
            if self._user is not None:
                self._user.eof_received()
            self.hang_up()
            if self._all_written:
                self._everything.cancel()
        else:
            self._break(error)

    def _break(self, error: Exception) -> None:
        self._error = self._error or error
        self._everything.cancel()

    async def _write_all(self) -> None:
        try:
            with anyio.CancelScope() as self._sender:
                while self._pending:
                    await self._write_pending()
                if self._hung_up:
                    await self._close_our_half()
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            if not self._everything.cancel_called:
                self._break(error)
        finally:
            self._sender = None
            self._writing = False

    def _start_writing(self) -> None:
        if not self._writing and not self._lost:
            self._writing = True
            self._host.spawn(self._write_all)

    async def _write_pending(self) -> None:
        pending = self._pending
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        # A stalled peer blocks here, so drop references that would keep the data twice.
        self._pending = pending = []
        self._sending = len(data)
        self._stuck = False
        view = memoryview(data)
        for start in range(0, len(data), _WRITE_SIZE):
            part = view[start : start + _WRITE_SIZE]
            # anyio declares bytes but accepts any buffer.
            await self._stream.send(cast(bytes, part) if len(part) < len(data) else data)
            if not self._lost:
                self._taken += len(part)
                self._backlog -= len(part)
                self._sending -= len(part)
                self._relieve()

    def _relieve(self) -> None:
        if self._full and self._backlog <= LOW_WATER:
            self._full = False
            if self._user is not None:
                self._user.resume_writing()

    async def _close_our_half(self) -> None:
        """Close our half of the connection after all output is written. The reader continues until the peer closes its half."""
        if isinstance(self._stream, TLSStream):
            # TLS has no half-close: closing exchanges goodbyes, and only one task can read.
            self._reading.cancel()
            with anyio.move_on_after(self._host.limits.close_timeout, shield=True), suppress(Exception):
                await self._stream.aclose()
            self._eof = True
        elif not self._eof:
            await self._stream.send_eof()
        self._all_written = True
        if self._eof:
            self._everything.cancel()

    # -- what the user calls

    def attach(self, user: WireUser) -> None:
        self._user = user
        if self._lost:
            self._host.call_soon(lambda: user.wire_lost(self._error))

    def write(self, data: bytes) -> None:
        if self._lost or self._hung_up or not data:
            return
        if self.alone and self._socket is not None and not self._backlog:
            taken = self._try(data)
            if taken == len(data):
                return
            self._stuck = True
            data = data[taken:]
        self._pending.append(data)
        self._backlog += len(data)
        if self._backlog >= self.burst and self._socket is not None and not self._sending and not self._stuck:
            if len(self._pending) >= BURST_PARTS or self._backlog >= HIGH_WATER:
                self._write_now()
                if not self._backlog:
                    return
        if self._socket is None:
            self._start_writing()
        elif not self._flushes and not self._writing:
            self._flushes = True
            self._host.call_soon(self._flush)
        if self._backlog > HIGH_WATER and not self._full:
            self._full = True
            if self._user is not None:
                self._user.pause_writing()

    def write_first(self, data: bytes, turn: int) -> None:
        if self.shut:
            return
        if self._socket is None or self._turn == turn or self._backlog or self._lost or self._hung_up:
            self.write(data)
            return
        self._turn = turn
        taken = self._try(data)
        if taken < len(data):
            self._stuck = True
            self.write(data[taken:])

    def _flush(self) -> None:
        self._flushes = False
        if self._backlog and not self._writing and not self._lost:
            if not self._stuck:
                self._write_now()
            if self._backlog:
                self._start_writing()
            self._relieve()

    def _write_now(self) -> None:
        """Write to the socket until it is full. The writing task must be idle."""
        pending = self._pending
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        taken = self._try(data)
        self._backlog -= taken
        if self._backlog:
            self._stuck = True
            self._pending = [data[taken:]]
        else:
            self._pending = []

    def _try(self, data: bytes) -> int:
        try:
            taken = self._socket.send(data)  # type: ignore[union-attr]  # only called with a socket
        except OSError:  # full, or broken: the writing task waits, or gets the same error
            return 0
        self._taken += taken
        return taken

    def backlog(self) -> int:
        return self._backlog

    def taken(self) -> int:
        return self._taken

    def signs(self) -> Signs | None:
        return signs_of(self._stream.extra(SocketAttribute.raw_socket, None)) if not self._lost else None

    def keep_short(self) -> None:
        keep_short(self._stream.extra(SocketAttribute.raw_socket, None))

    def pause_reading(self) -> None:
        if self._may_read is None:
            self._may_read = anyio.Event()

    def resume_reading(self) -> None:
        if self._may_read is not None:
            self._may_read.set()
            self._may_read = None

    def hang_up(self) -> None:
        self.resume_reading()
        if not self._hung_up:
            self._hung_up = True
            self._start_writing()

    def abort(self) -> None:
        self._everything.cancel()

    def tls_peer(self) -> Mapping[str, Any] | None:
        return self._stream.extra(TLSAttribute.peer_certificate, None) or None


class _OneSender(ByteSendStream):
    """Lets the reader of a TLS stream answer the peer (for example a key update) while the writer sends."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._turn = anyio.Lock()

    async def send(self, item: bytes) -> None:
        async with self._turn:
            await self._stream.send(item)

    async def aclose(self) -> None:
        """Do nothing, because the reading half is the same stream and closes it."""


async def open_wire(
    sock: socket.socket, address: str, host: Host, tls: ssl.SSLContext | None, server_name: str | None
) -> PumpWire:
    tune(sock, host.limits)
    kind = SocketStream if sock.family in (socket.AF_INET, socket.AF_INET6) else UNIXSocketStream
    try:
        stream: ByteStream = await kind.from_socket(sock)
    except BaseException:
        sock.close()
        raise
    if tls is not None:
        halves, server_side = StapledByteStream(_OneSender(stream), stream), server_name is None
        try:
            stream = await TLSStream.wrap(halves, server_side=server_side, hostname=server_name, ssl_context=tls)
        except BaseException:
            await anyio.aclose_forcefully(stream)
            raise
    # Bypass the stream only if it doesn't buffer. That is true on trio, but not for asyncio's transports and TLS.
    return PumpWire(stream, host, address, sock if tls is None and host.backend == "trio" else None)
