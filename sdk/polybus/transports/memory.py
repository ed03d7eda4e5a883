"""In-process connections, which need neither sockets nor threads.

A name such as ``memory://orders`` is local to one event loop, so event loops in different threads don't share it. For a
connection without a name, use `pipe`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import anyio
from anyio.lowlevel import RunVar
from attrs import define, field, frozen

from ..errors import BusError, ConnectFailed, Forbidden, LocalProtocolError, TooLarge, Unauthorized
from ..plugins import Admission, Closed, Connector, DialOptions, Handshake, Host, Listening, ListenOptions, Receiver, Transport
from ..plugins.close_codes import closed_by_peer, text_of
from ..plugins.connections import cookies_of
from ..secrets import shown_url, without_secrets

HIGH_BYTES: Final = 64 * 1024
HIGH_FRAMES: Final = 256
"""Frames or bytes in transit above which `pause_writing` is called. Once all are delivered, `resume_writing` is called."""


@define(eq=False, repr=False, weakref_slot=False)
class MemoryTransport:
    """Transport for one end of an in-process connection."""

    _host: Host
    address: str
    name = "memory"
    hops = 0
    max_frame: int = field(init=False)
    _other: MemoryTransport | None = field(default=None, init=False)
    _receiver: Receiver | None = field(default=None, init=False)
    # Undelivered frames from the other end, and their total size.
    _inbox: list[bytes] = field(factory=list, init=False)
    _bytes: int = field(default=0, init=False)
    _scheduled: bool = field(default=False, init=False)
    # True while the other end's inbox is full.
    _paused: bool = field(default=False, init=False)
    # True while reading is paused.
    _deaf: bool = field(default=False, init=False)
    # True after the end. The receiver gets `_last` once the inbox is empty.
    _over: bool = field(default=False, init=False)
    _last: Closed | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.max_frame = self._host.limits.message

    def join(self, other: MemoryTransport) -> None:
        self._other, other._other = other, self

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._schedule()

    def send(self, frame: bytes) -> None:
        size = len(frame)
        if size > self.max_frame:
            raise TooLarge(f"a frame of {size} bytes, the limit is {self.max_frame}: raise Limits(message=...) on both sides")
        other = self._other
        if self._over or other is None or other._over:
            return
        if size > other.max_frame:
            # If the other end's limit is lower, an oversized frame ends the connection, as on a socket.
            why = Closed(1009, f"a frame of {size} bytes, the limit is {other.max_frame}")
            other._end(why)
            self._end(why)
            return
        other._inbox.append(frame)
        other._bytes += size
        other._schedule()
        if not self._paused and (other._bytes > HIGH_BYTES or len(other._inbox) > HIGH_FRAMES):
            self._paused = True
            if self._receiver is not None:
                self._receiver.pause_writing()

    def write_backlog(self) -> int:
        return 0 if self._other is None else self._other._bytes

    def pause_reading(self) -> None:
        self._deaf = True

    def resume_reading(self) -> None:
        if self._deaf:
            self._deaf = False
            self._schedule()

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection after delivering all frames that have already been sent."""
        if self._over:
            return
        if self._other is not None:
            self._other._end(closed_by_peer(code, reason))
        self._drop()
        self._end(Closed(code, reason))

    def abort(self, why: Closed) -> None:
        """Abort the connection and drop undelivered frames."""
        if self._over:
            return
        if self._other is not None and not self._other._over:
            self._other._drop()
            self._other._end(Closed(1006, "the peer cut the connection"))
        self._drop()
        self._end(why)

    def tick(self, now: float) -> None:
        pass

    def _drop(self) -> None:
        self._inbox = []
        self._bytes = 0

    def _end(self, why: Closed) -> None:
        if not self._over:
            self._over = True
            self._deaf = False
            self._last = why
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._receiver is not None:
            self._scheduled = True
            self._host.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        receiver, frames = self._receiver, self._inbox
        assert receiver is not None
        if self._deaf and not self._over:
            return
        if frames:
            self._drop()
            receiver.frames_received(frames)
        # The receiver may have closed the connection while handling the frames, and new frames may have arrived.
        if self._last is not None and not self._inbox:
            last, self._last = self._last, None
            receiver.closed(last)
        other = self._other
        if other is not None and other._paused:
            other._paused = False
            if not other._over and other._receiver is not None:
                other._receiver.resume_writing()


# One registry for each event loop: a module-level dictionary would connect event loops in different threads.
_served: RunVar[dict[str, MemoryListener]] = RunVar("polybus memory listeners")


def _names() -> dict[str, MemoryListener]:
    names = _served.get(None)
    if names is None:
        _served.set(names := {})
    return names


@define(eq=False)
class MemoryListener:
    url: str
    options: ListenOptions
    _names: dict[str, MemoryListener] | None = None

    async def aclose(self) -> None:
        if self._names is not None:
            self._names.pop(_name(self.url), None)
            self._names = None

    async def connect(self, url: str, dial: DialOptions) -> MemoryTransport:
        gate, server, handshake = self.options.gate, self.options.host, _handshake(self, url, dial)
        url = without_secrets(url)  # otherwise a token in it would be in logs and captures
        error = gate.knock(url)
        if error is not None:
            raise _refusal(url, error)
        decided, outcome, given_up = anyio.Event(), list[MemoryTransport | BusError](), False

        def decide(result: Admission | BusError) -> None:
            if given_up or outcome:
                return
            if isinstance(result, BusError):
                outcome.append(result)
            else:
                here, there = MemoryTransport(dial.host, self.url), MemoryTransport(server, url)
                here.join(there)
                outcome.append(here)
                gate.opened(there, result)
            decided.set()

        seconds = dial.host.limits.handshake_timeout
        withdraw: Callable[[], None] | None = None
        try:
            withdraw = gate.admit(handshake, decide)
            with anyio.move_on_after(seconds):
                await decided.wait()
        except BaseException:
            for end in outcome:
                if isinstance(end, MemoryTransport):
                    end.abort(Closed(1006, "the connecting side cancelled"))
            raise
        finally:
            given_up = True
            if withdraw is not None:
                withdraw()
            if not (outcome and isinstance(outcome[0], MemoryTransport)):
                gate.left(url)
        if not outcome:
            raise ConnectFailed(url, f"timed out after {seconds:g} s, waiting for admission", errno=errno.ETIMEDOUT)
        if isinstance(outcome[0], BusError):
            raise _refusal(url, outcome[0])
        return outcome[0]


def _refusal(url: str, error: BusError) -> BusError:
    text = text_of(error)
    if isinstance(error, Unauthorized):
        return Unauthorized(text)
    return Forbidden(text) if isinstance(error, Forbidden) else ConnectFailed(url, text)


def _handshake(listener: MemoryListener, url: str, dial: DialOptions) -> Handshake:
    parts = urlsplit(url)
    headers = {name.lower(): value for name, value in dial.headers.items()}
    return Handshake(
        protocol=listener.options.protocol,
        transport="memory",
        url=listener.url,
        path=parts.path or "/",
        query=dict(parse_qsl(parts.query, keep_blank_values=True)),
        headers=headers,
        cookies=cookies_of(headers.get("cookie", "")),
        origin=headers.get("origin"),
        address=without_secrets(url),
    )


def _name(url: str) -> str:
    name = urlsplit(url).netloc
    if not name:
        raise ValueError(f"{url}: the name is missing: write, for example, memory://orders")
    return name


def _check_tls(options: DialOptions | ListenOptions) -> None:
    if options.tls is not None:
        raise LocalProtocolError("memory:// never leaves the process and cannot use tls=", protocol="memory")


@frozen
class MemoryConnector:
    url: str = field(repr=shown_url)
    reconnects: bool = field(default=True, init=False)

    async def connect(self, options: DialOptions) -> Transport:
        _check_tls(options)
        listener = _names().get(_name(self.url))
        if listener is None:
            raise ConnectFailed(self.url, "no server has this name in this event loop", errno=errno.ECONNREFUSED)
        return await listener.connect(self.url, options)


class Memory:
    """``memory://name``"""

    name = "memory"

    def connector(self, url: str) -> Connector:
        _name(url)
        return MemoryConnector(url)

    def is_private(self, url: str) -> bool:
        return True

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        _check_tls(options)
        names = _names()
        name = _name(url)
        if name in names:
            raise OSError(f"cannot listen on {url}: the name is already in use")
        listener = names[name] = MemoryListener(url, options, names)
        return listener


class PipeEnd:
    """One of the two ends of a `pipe`. Use each end once, either to connect or to serve."""

    reconnects = False

    def __init__(self, url: str) -> None:
        self.url: str = url
        self._used = False
        self._ready = anyio.Event()
        self._listener: MemoryListener | None = None
        # If both ends connect as clients, the first waits here for the second.
        self._half: MemoryTransport | None = None
        self._other: PipeEnd = self

    async def connect(self, options: DialOptions) -> Transport:
        """Use this end as a client, waiting up to `Limits.connect_timeout` for the other end.

        Raises:
            ConnectFailed: If nothing uses the other end in time.
            LocalProtocolError: If this end has been used before.
            Unauthorized: If the server cannot authenticate this client.
            Forbidden: If the server does not admit this client.
        """
        _check_tls(options)
        self._use()
        other = self._other
        if other._half is not None:
            mine = MemoryTransport(options.host, other.url)
            mine.join(other._half)
            self._ready.set()
            return mine
        if other._listener is None:
            self._half = MemoryTransport(options.host, other.url)
            seconds = options.host.limits.connect_timeout
            try:
                with anyio.move_on_after(seconds) as scope:
                    await other._ready.wait()
                if scope.cancelled_caught:
                    reason = f"timed out after {seconds:g} s: the other end of the pipe is not used"
                    raise ConnectFailed(self.url, reason, errno=errno.ETIMEDOUT)
                if other._listener is None:
                    return self._half
            finally:
                self._half = None
        return await other._listener.connect(self.url, options)

    async def listen(self, options: ListenOptions) -> Listening:
        """Use this end as the server of one connection.

        Raises:
            LocalProtocolError: If this end has been used before.
        """
        _check_tls(options)
        self._use()
        self._listener = MemoryListener(self.url, options)
        self._ready.set()
        return self._listener

    def _use(self) -> None:
        if self._used:
            raise LocalProtocolError(f"this end of {self.url} has already been used: create another pipe()", protocol="memory")
        self._used = True


def pipe() -> tuple[PipeEnd, PipeEnd]:
    """Create an in-process connection and return its two ends, one for `connect` and one for `Bus.serve`.

    Example::

        here, there = pipe()
        async with server.serve(there), connect(here, protocol="ubre") as bus:
            ...
    """
    one, other = PipeEnd("memory://pipe-a"), PipeEnd("memory://pipe-b")
    one._other, other._other = other, one
    return one, other
