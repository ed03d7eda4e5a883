"""A transport over an ASGI server's WebSocket, using `receive` and `send`.

The server (uvicorn, hypercorn) is responsible for the socket, framing and pings. This transport keeps frames in order, pauses
for a slow peer, and reports the end of the connection once. Since both `receive` and `send` block, it needs two tasks: the
server's own task reads and another task writes. Input from a peer that doesn't read its own is still received.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, Literal, Protocol, TypeAlias

import anyio
from attrs import define, field

from ...errors import TooLarge
from ...plugins import Closed, Host, Receiver, ReceiverFeatures
from ...plugins.close_codes import UNEXPLAINED, closed_by_peer, cut_reason, sayable
from ...plugins.connections import HIGH_WATER, LOW_WATER, TransportState, call_later, write_stalled
from ...plugins.tools import Loop, log_fields, running_loop

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

logger: logging.Logger = logging.getLogger("polybus.transports")

_UNSEEN: Final = 8192
"""Minimum rate in bytes per second if the server hides the progress of a frame, 64 kbit/s."""


class Socket(Protocol):
    def abort(self) -> None: ...

    def get_write_buffer_size(self) -> int: ...

    def get_extra_info(self, name: str) -> Any: ...


def socket_of(receive: Receive) -> Socket | None:
    """Return the connection behind an ASGI `receive`, or `None` if a middleware or another server hides it.

    An ASGI application cannot abort a connection: after `websocket.close`, uvicorn waits until its buffer is written, which
    takes forever if the peer doesn't read. Its `receive` is a method of the object that owns the socket.
    """
    socket = getattr(getattr(receive, "__self__", None), "transport", None)
    wanted = ("abort", "get_write_buffer_size", "get_extra_info")
    return socket if all(callable(getattr(socket, name, None)) for name in wanted) else None


@define(eq=False, repr=False)
class AsgiTransport:
    name: str
    address: str
    _host: Host
    _send: Send
    _socket: Socket | None
    _reads: AbstractSet[Literal["text", "binary"]] = field(kw_only=True, alias="reads")
    _writes: Literal["text", "binary"] = field(kw_only=True, alias="writes")
    hops = 0
    max_frame: int = field(init=False)
    _loop: Loop = field(factory=running_loop, init=False)
    _state: TransportState = field(default=TransportState.OPEN, init=False)
    _receiver: Receiver | None = field(default=None, init=False)
    _why: Closed | None = field(default=None, init=False)
    # Frames waiting for the server, and their total size, including the frame in progress.
    _pending: deque[bytes] = field(factory=deque, init=False)
    _size: int = field(default=0, init=False)
    _paused: bool = field(default=False, init=False)
    _goodbye: tuple[int, str] | None = field(default=None, init=False)
    # Wakes the idle writing task.
    _waiter: Any = field(default=None, init=False)
    _scope: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    _cancel_timer: Callable[[], None] | None = field(default=None, init=False)
    # Frames that the server has accepted, its last known buffer size, and the start of a stall.
    _sent: int = field(default=0, init=False)
    _taking: int = field(default=0, init=False)  # size of the frame in progress
    _buffered: int = field(default=0, init=False)
    _stuck_at: int = field(default=0, init=False)
    _stuck_since: float | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.max_frame = self._host.limits.message

    # -- plugins.Transport

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def send(self, frame: bytes) -> None:
        size = len(frame)
        if size > self.max_frame:
            raise TooLarge(f"a frame of {size} bytes, the limit is {self.max_frame}: raise Limits(message=...) on both sides")
        if self._state is not TransportState.OPEN:
            return
        self._pending.append(frame)
        self._size += size
        self._wake()
        if self._size > HIGH_WATER and not self._paused and self._receiver is not None:
            self._paused = True
            self._receiver.pause_writing()

    def write_backlog(self) -> int:
        """Return the number of bytes that the operating system has not accepted, if the server shows it."""
        if self._state is TransportState.LOST:
            return 0
        return self._size + (self._socket.get_write_buffer_size() if self._socket is not None else 0)

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self._state is TransportState.OPEN:
            self._state = TransportState.CLOSING
            self._why = Closed(code, reason)
            self._goodbye = (sayable(code), cut_reason(reason).decode())
            self._cancel_timer = call_later(self._host, self._host.limits.close_timeout, self._cut)
            self._wake()
            ReceiverFeatures.of(self._receiver).closing(self._why)

    def abort(self, why: Closed) -> None:
        if self._state is not TransportState.LOST:
            self._state = TransportState.CLOSING
            self._why = why
            self._cut()

    def tick(self, now: float) -> None:
        """Check the write timeout, about once a second. Pings are the server's task."""
        if self._state is not TransportState.OPEN:
            return
        limits = self._host.limits
        buffered = self._socket.get_write_buffer_size() if self._socket is not None else 0
        if buffered > self.max_frame + limits.outbox_bytes:
            # The buffer has at most one frame: the rest are uvicorn's answers to pings, sent even if the peer doesn't read.
            self.abort(Closed(1008, f"{buffered} bytes of answers to pings wait, and the peer reads none"))
        elif not self._size and not buffered:
            self._stuck_since = None
        elif self._stuck_since is None or self._sent != self._stuck_at or buffered < self._buffered:
            self._stuck_since = now
            self._stuck_at = self._sent
        elif now - self._stuck_since >= (seconds := self._patience()):
            self.abort(write_stalled(seconds, self.write_backlog()))
        self._buffered = buffered

    def _patience(self) -> float:
        # If the server hides its socket, progress is visible only after whole frames.
        longer = self._taking / _UNSEEN if self._socket is None else 0.0
        return self._host.limits.write_timeout + longer

    # -- the connection

    async def run(self, receive: Receive) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._write)
                with self._scope:
                    await self._read(receive)
                group.cancel_scope.cancel()
        finally:
            self._finish()

    async def _read(self, receive: Receive) -> None:
        while True:
            try:
                message = await receive()
            except Exception as error:
                self._why = self._why or Closed(1006, f"the server lost the connection: {error!r}")
                return
            kind = message["type"]
            if kind == "websocket.receive":
                self._take(message)
            elif kind == "websocket.disconnect":
                self._why = self._why or _ended(message)
                return

    def _take(self, message: MutableMapping[str, Any]) -> None:
        if self._state is not TransportState.OPEN:
            return
        binary: bytes | None = message.get("bytes")
        kind: Literal["text", "binary"] = "text" if binary is None else "binary"
        # A lone surrogate is invalid in a WebSocket, and becomes bytes that no decoder accepts.
        data: bytes = message["text"].encode("utf-8", "surrogatepass") if binary is None else binary
        if kind not in self._reads:
            other = "binary" if kind == "text" else "text"
            self.close(1003, f"a {kind} frame, but only {other} frames are accepted here")
        elif len(data) > self.max_frame:
            self.close(1009, f"a frame of {len(data)} bytes, the limit is {self.max_frame} (Limits.message)")
        elif self._receiver is not None:
            self._receiver.frames_received([data])

    async def _write(self) -> None:
        pending = self._pending
        try:
            while True:
                while pending:
                    frame = pending.popleft()
                    self._taking = len(frame)
                    if self._writes == "text":
                        await self._send({"type": "websocket.send", "text": frame.decode()})
                    else:
                        await self._send({"type": "websocket.send", "bytes": frame})
                    self._sent += 1
                    self._size -= len(frame)
                    if self._paused and self._size <= LOW_WATER:
                        self._paused = False
                        if self._receiver is not None and self._state is TransportState.OPEN:
                            self._receiver.resume_writing()
                if self._goodbye is not None:
                    code, reason = self._goodbye
                    await self._send({"type": "websocket.close", "code": code, "reason": reason})
                    return
                self._waiter = self._loop.waiter()
                await self._waiter
        except Exception as error:
            # The peer has gone; the reading task learns the reason.
            logger.debug("%s: nothing more can be written: %r", self.address, error, extra=log_fields(address=self.address))
            pending.clear()

    def _wake(self) -> None:
        if self._waiter is not None:
            self._loop.wake(self._waiter)

    def _cut(self) -> None:
        if self._socket is not None:
            self._socket.abort()
        self._scope.cancel()

    def _finish(self) -> None:
        if self._cancel_timer is not None:
            self._cancel_timer()
            self._cancel_timer = None
        self._state = TransportState.LOST
        self._pending.clear()
        self._size = 0
        if self._receiver is not None:
            self._receiver.closed(self._why or Closed(1001, "the server closed the connection"))


def _ended(message: MutableMapping[str, Any]) -> Closed:
    """Return the end reported by `websocket.disconnect`.

    Code 1005 with a reason means that the closing frame had no code. Without a reason, or with 1006, the connection was lost.
    """
    code, reason = message.get("code", 1005), message.get("reason")
    if code == 1006 or (code == 1005 and reason is None):
        return Closed(1006, reason or UNEXPLAINED)
    if code == 1005:
        code = 1000
    return closed_by_peer(code, reason or "")
