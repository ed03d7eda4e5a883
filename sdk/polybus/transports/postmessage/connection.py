"""One connection over a port, and the control messages between its ends.

A port cannot tell the other end that it has closed, check whether the other end is alive, or pause a sender. Between two
polybus ends, control messages do this. They are strings that start with U+0000. If a polybus frame starts with U+0000, a second
U+0000 is prepended. ``polybus-frames.js`` uses the same control messages.

====================  =============================================================================
``\\0hi {...}``        first message of each end: a JSON object with ``v``, ``protocol``, ``headers``
``\\0ack N``           total number of data messages received
``\\0ping`` ``\\0pong``  a sign of life, and its answer
``\\0bye CODE TEXT``   last message: a WebSocket close code and a reason
====================  =============================================================================
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec
from attrs import define, field, frozen

from ...errors import TooLarge
from ...plugins import Closed, Host, Receiver
from ...plugins.close_codes import closed_by_peer, cut_reason
from ...plugins.connections import write_stalled
from .channel import MessagePort, PortData

MARK: Final = "\0"
VERSION: Final = 1
PING: Final = "\0ping"
PONG: Final = "\0pong"
ACK_FRAMES: Final = 64
ACK_BYTES: Final = 64 * 1024
"""An acknowledgement is sent after this many bytes or frames."""
_HELLO_SIZE: Final = 64 * 1024


@frozen
class Hello:
    protocol: str | None = None
    headers: Mapping[str, str] = field(factory=dict)


def _read_hello(text: str) -> Hello | Closed:
    if len(text) > _HELLO_SIZE:
        return Closed(1009, f"a greeting of {len(text)} characters: the limit is {_HELLO_SIZE}")
    try:
        said = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        said = None
    if not isinstance(said, dict) or said.get("v", VERSION) != VERSION:
        return Closed(1002, f"unsupported greeting, expected version {VERSION}: {text[:80]!r}")
    protocol, headers = said.get("protocol"), said.get("headers", {})
    if not (protocol is None or isinstance(protocol, str)) or not isinstance(headers, dict):
        return Closed(1002, f"invalid protocol or headers in a greeting: {text[:80]!r}")
    if not all(isinstance(value, str) for value in headers.values()):
        return Closed(1002, "headers in a greeting that are not strings")
    return Hello(protocol, {name.lower(): value for name, value in headers.items()})


def _read_bye(text: str) -> Closed:
    word, _, reason = text.partition(" ")
    code = int(word) if word.isascii() and word.isdigit() and len(word) <= 4 else 1002
    return closed_by_peer(code, reason[:256])


HIGH_BYTES: Final = 256 * 1024
HIGH_FRAMES: Final = 1024
"""Unacknowledged frames or bytes above which `pause_writing` is called. Far above `ACK_BYTES` and `ACK_FRAMES`."""
LOW_BYTES: Final = 3 * HIGH_BYTES // 4
LOW_FRAMES: Final = HIGH_FRAMES // 2
"""The limit is above the number of frames that the other end may leave unacknowledged."""
_ERROR_TEXT: Final = 256


class _State(enum.Enum):
    GREETING = 1
    """It is not known yet whether the two ends match."""
    OPEN = 2
    OVER = 3


@define(eq=False, repr=False)
class PortConnection:
    """A transport over a message port.

    The other end's first message, a greeting or a frame, shows whether it uses polybus. Only then are there acknowledgements,
    pings and a goodbye.
    """

    _port: MessagePort
    _host: Host
    _reads: frozenset[Literal["text", "binary"]]
    _writes: Literal["text", "binary"]
    _first: Callable[[Hello | None], None] | None
    """Called once: with the other end's greeting, or with `None` for a frame or the end of the connection."""
    _over: Callable[[], None] = lambda: None
    name = "port"
    hops = 0
    address: str = field(init=False)
    max_frame: int = field(init=False)
    ours: bool = field(init=False)
    ended: Closed | None = field(default=None, init=False)
    _state: _State = field(default=_State.GREETING, init=False)
    _receiver: Receiver | None = field(default=None, init=False)
    # Frames received before `start` or while paused.
    _early: list[bytes] = field(factory=list, init=False)
    _deaf: bool = field(default=False, init=False)
    # Input: number of data messages, when to acknowledge next, unacknowledged bytes, and bytes in `_early`.
    _count: int = field(default=0, init=False)
    _ack_at: int = field(default=ACK_FRAMES, init=False)
    _unacked_bytes: int = field(default=0, init=False)
    _bytes: int = field(default=0, init=False)
    # Output: sizes of unacknowledged messages.
    _sizes: deque[int] = field(factory=deque, init=False)
    _size: int = field(default=0, init=False)
    _acked: int = field(default=0, init=False)
    _paused: bool = field(default=False, init=False)
    _stuck_at: int = field(default=0, init=False)
    _stuck_since: float | None = field(default=None, init=False)
    # Liveness: True if input arrived since the last tick, and the time when a tick last noticed input.
    _heard: bool = field(default=True, init=False)
    _heard_at: float = field(init=False)
    _pinged_at: float | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        info = self._port.info
        self.address, self.ours = info.address, info.epoch is not None
        self.max_frame = self._host.limits.message
        self._heard_at = self._host.time()

    # -- the beginning ---------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Start accepting input. If the port raises an error, the connection ends."""
        try:
            on_close = getattr(self._port, "on_close", None)
            if on_close is not None:
                on_close(self._port_closed)
            on_message_error = getattr(self._port, "on_message_error", None)
            if on_message_error is not None:
                on_message_error(self._unreadable)
            self._port.on_message(self._received)
        except Exception as error:  # a port is foreign code
            self._fail(error)

    def greet(self, protocol: str, headers: Mapping[str, str]) -> None:
        said: dict[str, Any] = {"v": VERSION, "protocol": protocol}
        if headers:
            said["headers"] = dict(headers)
        self._tell(f"\0hi {msgspec.json.encode(said).decode()}")

    def settled(self) -> None:
        if self._state is _State.GREETING:
            self._state = _State.OPEN

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._deaf = True
        self._host.call_soon(self._begin if self.ended is None else self._finish)

    def _begin(self) -> None:
        if self.ended is None:
            self.resume_reading()

    def _say(self, said: Hello | None) -> None:
        first, self._first = self._first, None
        if first is not None:
            first(said)

    # -- out -------------------------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        size = len(frame)
        if size > self.max_frame:
            raise TooLarge(f"a frame of {size} bytes, the limit is {self.max_frame}: raise Limits(message=...) on both sides")
        if self._state is _State.OVER:
            return
        if self.ours:  # before posting, because a port may deliver immediately, and so may the answer
            self._sizes.append(size)
            self._size += size
        else:
            self._acked += 1
        try:
            if self._writes == "text":
                text = frame.decode("utf-8", "surrogatepass")
                self._port.post(text if text[:1] != MARK else MARK + text)
            else:
                self._port.post(frame)
        except Exception as error:  # a port is foreign code
            self._fail(error)
        if not self._paused and (self._size > HIGH_BYTES or len(self._sizes) > HIGH_FRAMES):
            self._paused = True
            self._stuck_since = None
            if self._receiver is not None:
                self._receiver.pause_writing()

    def _tell(self, text: str) -> None:
        try:
            self._port.post(text)
        except Exception as error:  # a port is foreign code
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        try:
            text = f": {error}"[:_ERROR_TEXT]
        except Exception:  # the error is foreign code, too
            text = ""
        self._end(Closed(1006, f"the port failed: {type(error).__name__}{text}"))
        self._close_port()

    def _close_port(self) -> None:
        with suppress(Exception):  # a port is foreign code, and this is its last use
            self._port.close()

    def write_backlog(self) -> int:
        """Return the number of unacknowledged bytes, which is 0 if the other end never acknowledges."""
        return self._size

    def _taken(self, text: str) -> None:
        count = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1
        sizes = self._sizes
        fresh = count - self._acked
        if not 0 <= fresh <= len(sizes):
            self.close(
                1002, f"an acknowledgement of {text[:20]!r} messages: between {self._acked} and {self._acked + len(sizes)}"
            )
            return
        for _ in range(fresh):
            self._size -= sizes.popleft()
        self._acked = count
        if self._paused and self._size <= LOW_BYTES and len(sizes) <= LOW_FRAMES:
            self._paused = False
            if self._receiver is not None:
                self._receiver.resume_writing()

    # -- in --------------------------------------------------------------------------------------------------------------

    def _received(self, data: PortData) -> None:
        if self._state is _State.OVER:
            return
        self._heard = True
        if type(data) is str:
            if data[:1] == MARK:
                if data[1:2] != MARK:
                    self._control(data)
                    return
                data = data[1:]
            frame, kind = data.encode("utf-8", "surrogatepass"), "text"
        elif type(data) is bytes:
            frame, kind = data, "binary"
        else:
            self.close(1003, f"{type(data).__name__} is not a frame: a port carries text and bytes")
            return
        if self._first is not None:
            self._say(None)
        if len(frame) > self.max_frame:
            self.close(1009, f"a frame of {len(frame)} bytes, the limit is {self.max_frame}")
            return
        if kind not in self._reads:
            self.close(1003, f"{kind} frames are not part of the protocol that is spoken here")
            return
        if self._deaf or self._receiver is None:
            self._keep(frame)
            return
        self._count += 1
        self._unacked_bytes += len(frame)
        self._receiver.frames_received((frame,))
        if self._count >= self._ack_at or self._unacked_bytes >= ACK_BYTES:
            self._acknowledge()

    def _acknowledge(self) -> None:
        """Acknowledge messages after delivering them, because `post` may deliver further messages immediately."""
        if self.ours and self._state is not _State.OVER:
            self._ack_at = self._count + ACK_FRAMES
            self._unacked_bytes = 0
            self._tell(f"\0ack {self._count}")

    def _keep(self, frame: bytes) -> None:
        """Store a frame while the receiver is paused. Without acknowledgements, a polybus sender soon stops sending."""
        self._early.append(frame)
        self._bytes += len(frame)
        limits = self._host.limits
        if self._bytes > limits.outbox_bytes + HIGH_BYTES or len(self._early) > limits.outbox + HIGH_FRAMES:
            self._early = []
            self.close(1013, f"more than {limits.outbox_bytes} bytes arrived, and this side does not read")

    def _control(self, data: str) -> None:
        if not data.isascii():  # lone surrogates could be neither parsed nor printed
            data = data.encode("utf-8", "replace").decode()
        word, _, rest = data[1:].partition(" ")
        if self._first is not None:
            self.ours = True  # even if this closes the connection: an end with control messages reads a goodbye
        if word == "hi":
            self._greeted(rest)
        elif self._first is not None and word != "bye":
            self.close(1002, f"{word[:20]!r} before a greeting")
        elif word == "ack":
            self._taken(rest)
        elif word == "ping":
            self._tell(PONG)
        elif word == "bye":
            self._end(_read_bye(rest))
            self._close_port()
        elif word != "pong":
            self.close(1002, f"{word[:20]!r} is no control message")

    def _greeted(self, text: str) -> None:
        said = _read_hello(text)
        if isinstance(said, Closed):
            self.close(said.code, said.reason)
        else:
            self.ours = True
            self._say(said)

    def pause_reading(self) -> None:
        if self._state is not _State.OVER:
            self._deaf = True

    def resume_reading(self) -> None:
        receiver = self._receiver
        if not self._deaf or receiver is None:
            return
        self._deaf = False
        early, self._early = self._early, []
        self._bytes = 0
        if early:
            self._count += len(early)
            receiver.frames_received(early)
            self._acknowledge()

    # -- the end ---------------------------------------------------------------------------------------------------------

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self._state is not _State.OVER:
            self._early = []
            self._end(Closed(code, reason))
            self._leave(code, reason)

    def abort(self, why: Closed) -> None:
        if self._state is not _State.OVER:
            self._early = []
            self._end(why)
            self._leave(1006, "the peer cut the connection")

    def _unreadable(self) -> None:  # the lost frame is unknown
        self.close(1003, "a message came that cannot be read here")

    def _leave(self, code: int, reason: str) -> None:
        if self.ours:
            self._tell(f"\0bye {code} {cut_reason(reason).decode()}")
        self._close_port()

    def _port_closed(self, reason: str) -> None:
        self._end(Closed(1006, reason))
        self._close_port()  # release the callbacks

    def _end(self, why: Closed) -> None:
        if self._state is _State.OVER:
            return
        self._state = _State.OVER
        self.ended = why
        self._sizes.clear()
        self._size = 0
        self._say(None)
        self._over()
        if self._receiver is not None:
            self._host.call_soon(self._finish)

    def _finish(self) -> None:
        receiver, early = self._receiver, self._early
        assert receiver is not None
        assert self.ended is not None
        self._early = []
        if early:
            receiver.frames_received(early)
        receiver.closed(self.ended)

    def tick(self, now: float) -> None:
        """Acknowledge remaining messages, ping, and check liveness, about once a second."""
        if self._state is not _State.OPEN or not self.ours:
            return
        if self._count and self._ack_at - ACK_FRAMES != self._count:
            self._acknowledge()
        limits = self._host.limits
        if self._heard or self._deaf:
            self._heard = False
            self._heard_at = now
            self._pinged_at = None
        elif self._pinged_at is None:
            if now - self._heard_at >= limits.ping_interval:
                self._pinged_at = now
                self._tell(PING)
        elif now - self._pinged_at >= limits.ping_timeout:
            self.abort(Closed(1006, f"no answer to ping within {limits.ping_timeout:g} s"))
            return
        self._check_writing(now)

    def _check_writing(self, now: float) -> None:
        if not self._paused:
            self._stuck_since = None
        elif self._stuck_since is None or self._acked != self._stuck_at:
            self._stuck_since = now
            self._stuck_at = self._acked
        elif now - self._stuck_since >= self._host.limits.write_timeout:
            self.abort(write_stalled(self._host.limits.write_timeout, self._size))
