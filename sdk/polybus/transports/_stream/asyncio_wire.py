"""The driver for asyncio and uvloop: one callback object per connection, and no tasks.

It reads into one buffer per event loop (nothing else runs between `get_buffer` and `buffer_updated`), which means that idle
connections need no buffer and reads don't allocate. All output of one event-loop iteration is sent in one write, and output
that is produced while a chunk is handled is sent right after the chunk.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from contextvars import Context
from typing import Any, Final, cast

from anyio.lowlevel import RunVar
from attrs import define, field

from ...plugins import Host
from ...plugins.connections import HIGH_WATER, LOW_WATER
from ..sockets import Signs, keep_short, signs_of, tune
from .wire import BURST, BURST_PARTS, LEAST, Rations, WireUser, rations_here

_READ_SIZE: Final = 32 * 1024
"""Bytes to read and handle at a time. Thousands of messages would not fit into the CPU caches."""

# Per event loop, not per process: loops in several threads read at the same time.
_shared_buffer: RunVar[memoryview] = RunVar("polybus read buffer")


def _buffer_of_this_loop() -> memoryview:
    buffer = _shared_buffer.get(None)
    if buffer is None:
        _shared_buffer.set(buffer := memoryview(bytearray(_READ_SIZE)))
    return buffer


@define(eq=False, repr=False, weakref_slot=False)
class AsyncioWire(asyncio.BufferedProtocol):
    address: str = ""
    _loop: asyncio.AbstractEventLoop = field(factory=asyncio.get_running_loop, init=False)
    _buffer: memoryview = field(factory=_buffer_of_this_loop, init=False)
    _rations: Rations = field(init=False)
    _transport: asyncio.Transport | None = field(default=None, init=False)
    _user: WireUser | None = field(default=None, init=False)
    # Output not passed to the event loop's transport yet, and its size.
    _pending: list[bytes] = field(factory=list, init=False)
    _queued: int = field(default=0, init=False)
    # Total bytes passed to that transport.
    _handed: int = field(default=0, init=False)
    # Loop turn of the last `write_first` that was not queued.
    _turn: int = field(default=-1, init=False)
    shut: bool = field(default=False, init=False)
    alone: bool = field(default=False, init=False)
    burst: int = field(default=BURST, init=False)
    # True while handling a chunk, which flushes at its end without a scheduled call.
    _corked: bool = field(default=False, init=False)
    _paused: bool = field(default=True, init=False)
    _stash: list[bytes] | None = field(default=None, init=False)
    # uvloop reads a socket many times per turn. Bytes read in this turn, or -1 on asyncio, which reads once; True after a
    # full read; True if reading is held back until the next turn.
    _read: int = field(init=False)
    _filled: bool = field(default=False, init=False)
    _held_back: bool = field(default=False, init=False)
    _lost: tuple[Exception | None] | None = field(default=None, init=False)
    # Context in which the user gets what was stashed, or None for the one of the code that resumes reading.
    context: Context | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._rations = rations_here(self._loop.call_soon)
        self._read = 0 if type(self._loop).__module__.partition(".")[0] == "uvloop" else -1

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_WATER, LOW_WATER)

    def _socket(self) -> Any:
        return self._transport.get_extra_info("socket") if self._transport is not None else None

    def keep_short(self) -> None:
        keep_short(self._socket())

    def signs(self) -> Signs | None:
        return signs_of(self._socket()) if self._lost is None else None

    def get_buffer(self, sizehint: int) -> memoryview:
        size = self._rations.size
        return self._buffer if size >= _READ_SIZE else self._buffer[:size]

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._buffer[:nbytes])
        user = self._user
        if self._paused or self._stash or user is None:
            # An event loop may still deliver data that it read before the pause.
            self._stash = [*(self._stash or ()), data]
            return
        full = nbytes >= LEAST and nbytes >= min(_READ_SIZE, self._rations.size)
        if self._read >= 0:
            self._ration(nbytes, full)
        elif full:
            self._rations.filled(nbytes)
        self._corked = True
        try:
            user.data_received(data)
        finally:
            self._corked = False
            if self._pending:
                self._flush()

    def _ration(self, size: int, full: bool) -> None:
        """Let tasks process the input before reading more data than their queues can store."""
        if self._read == 0:
            self._loop.call_soon(self._next_turn)
        if full:
            self._rations.filled(size, again=self._filled)
            self._filled = True
        self._read += size
        if full and not self._held_back and self._transport is not None and self._rations.enough(self._read):
            self._held_back = True
            self._transport.pause_reading()

    def _next_turn(self) -> None:
        self._read = 0
        self._filled = False
        if self._held_back:
            self._held_back = False
            if not self._paused and self._lost is None and self._transport is not None:
                self._transport.resume_reading()

    def eof_received(self) -> bool:
        user = self._user
        if user is not None:
            self._corked = True
            while self._stash:
                user.data_received(self._stash.pop(0))
            user.eof_received()
            self._corked = False
        self._flush()
        # False: the event loop writes what it has and closes.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._pending.clear()
        self._queued = 0
        self._stash = None
        self.shut = True
        self._lost = (exc,)
        if self._user is not None:
            self._user.wire_lost(exc)

    def pause_writing(self) -> None:
        if self._user is not None:
            self._user.pause_writing()

    def resume_writing(self) -> None:
        if self._user is not None:
            self._user.resume_writing()

    # -- what the user calls

    def attach(self, user: WireUser) -> None:
        self._user = user
        if self._lost is not None:
            self._loop.call_soon(user.wire_lost, *self._lost)

    def write(self, data: bytes) -> None:
        if not self._pending:
            if self.alone or len(data) >= HIGH_WATER:
                self._hand_over(data)
                return
            if not self._corked:
                self._loop.call_soon(self._flush)
        self._pending.append(data)
        self._queued += len(data)
        # Written before the end of the turn, so that the peer can start on a burst and the transport can ask for a pause.
        if self._queued >= self.burst and (len(self._pending) >= BURST_PARTS or self._queued >= HIGH_WATER):
            self._flush()

    def write_first(self, data: bytes, turn: int) -> None:
        if self._turn == turn or self._pending or self.shut:
            if not self.shut:
                self.write(data)
            return
        self._turn = turn
        self._hand_over(data)

    def _flush(self) -> None:
        pending = self._pending
        if not pending:
            return
        self._queued = 0
        self._pending = []
        last = pending.pop() if len(pending[-1]) >= HIGH_WATER else b""
        if pending:
            self._hand_over(pending[0] if len(pending) == 1 else b"".join(pending))
        if last:
            # Joining would copy a large chunk just to save a write.
            self._hand_over(last)

    def _hand_over(self, data: bytes) -> None:
        transport = self._transport
        # The event loop logs each write to a broken connection, whose loss it reports a turn later.
        if transport is not None and not transport.is_closing():
            self._handed += len(data)
            transport.write(data)

    def backlog(self) -> int:
        if self._lost is not None or self._transport is None:
            return 0
        return self._queued + self._transport.get_write_buffer_size()

    def taken(self) -> int:
        return self._handed + self._queued - self.backlog()

    def pause_reading(self) -> None:
        self._paused = True
        if self._lost is None and self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._paused or self._lost is not None or self._transport is None:
            return
        self._paused = False
        if self._stash:
            # Stashed data comes first, in its own turn: uvloop may read before it runs scheduled calls.
            self._loop.call_soon(self._unstash, context=self.context)
        else:
            self._transport.resume_reading()

    def _unstash(self) -> None:
        while self._stash and not self._paused and self._user is not None:
            self._user.data_received(self._stash.pop(0))
        if not self._paused and self._lost is None and self._transport is not None:
            self._transport.resume_reading()

    def hang_up(self) -> None:
        self.shut = True
        self._flush()
        transport = self._transport
        if self._lost is not None or transport is None:
            return
        if transport.can_write_eof():
            try:
                transport.write_eof()
            except OSError:  # the peer is gone, but the loop hasn't noticed yet
                transport.abort()
                return
            self.resume_reading()
        elif not transport.is_closing():  # a second `close` would detach asyncio's TLS transport from its connection
            # With TLS, asyncio reads until the peer's goodbye.
            transport.close()

    def abort(self) -> None:
        self.shut = True
        self._pending.clear()
        self._queued = 0
        if self._transport is not None:
            self._transport.abort()

    def tls_peer(self) -> Mapping[str, Any] | None:
        if self._transport is None:
            return None
        return self._transport.get_extra_info("peercert") or None


async def open_wire(
    sock: socket.socket, address: str, host: Host, tls: ssl.SSLContext | None, server_name: str | None
) -> AsyncioWire:
    limits, loop, wire = host.limits, asyncio.get_running_loop(), AsyncioWire(address)
    times = {"ssl_handshake_timeout": limits.handshake_timeout, "ssl_shutdown_timeout": limits.close_timeout}
    options: dict[str, Any] = {} if tls is None else {"ssl": tls, **times}
    try:
        tune(sock, limits)
        if server_name is None:
            await loop.connect_accepted_socket(lambda: wire, sock, **options)
        else:
            options["server_hostname"] = server_name if tls is not None else None
            await loop.create_connection(lambda: wire, sock=sock, **options)
    except BaseException:
        wire.abort()
        sock.close()
        raise
    wire.pause_reading()
    return wire
