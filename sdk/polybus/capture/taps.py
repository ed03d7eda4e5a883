"""Where frames are picked up: round the session and the transport of a link.

A link that is not recorded knows nothing of this. One that is has a session and a transport that write down each frame, with
the time, before they hand it on. What that costs is paid for each message, so it is one tuple and one append.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..errors import RemoteProtocolError
from ..message import Kind, Message
from .schema import DIRECTION_IN, DIRECTION_OUT, FLAG_GAP_BEFORE

if TYPE_CHECKING:
    from ..link import Link
    from ..plugins import Closed
    from .recorder import Recorder

__all__ = ["End", "Gap", "RecordedSession", "RecordedTransport", "Row", "Tap"]

_REQUEST: Final = Kind.REQUEST


class End:
    """One direction of one connection, or something that is said about it: what all its rows have in common."""

    __slots__ = ("conn_id", "direction", "flags", "options", "peer", "protocol", "role", "transport", "tunnel")

    def __init__(
        self,
        direction: int,
        conn_id: str = "",
        peer: str = "",
        protocol: str = "",
        transport: str = "",
        tunnel: tuple[str, ...] = (),
        options: str = "",
        role: int = 0,
        flags: int = 0,
    ) -> None:
        self.direction = direction
        self.conn_id = conn_id
        self.peer = peer
        self.protocol = protocol
        self.transport = transport
        self.tunnel = tunnel
        self.options = options
        self.role = role
        self.flags = flags

    def saying(self, options: str) -> End:
        """The same connection, with other options."""
        return End(
            self.direction, self.conn_id, self.peer, self.protocol, self.transport, self.tunnel, options, self.role, self.flags
        )


Row: TypeAlias = "tuple[End, int, bytes | None, tuple[int | None, ...] | None]"
"""What is written down of a frame: its end, the monotonic clock, the bytes, the deadlines of the requests in it."""


class Gap(End):
    """The end of a row that says that frames are missing before it, how many, and why."""

    __slots__ = ("frames", "what")

    def __init__(self, what: str, frames: int, **facts: Any) -> None:
        super().__init__(DIRECTION_OUT, options=json.dumps({"gap": what, "frames": frames, **facts}), flags=FLAG_GAP_BEFORE)
        self.what = what
        self.frames = frames


def options_of(link: Link) -> dict[str, Any]:
    """What is needed to read the frames of a link: its protocol's options, but no secrets."""
    adapter: Any = link.adapter
    options: dict[str, Any] = dict(adapter.url_options)
    actions = getattr(adapter, "actions", None)
    if actions:
        options["actions"] = dict(actions)
    return options


def tunnels_of(transport: Any) -> tuple[str, ...]:
    """The names of the tunnels that carry a connection, the outermost first."""
    names: list[str] = []
    while (channel := getattr(transport, "_channel", None)) is not None and getattr(transport, "name", "") == "tunnel":
        names.insert(0, str(channel.subject))
        transport = channel._peer._link.transport
    return tuple(names)


class Tap:
    """One connection of a link that is recorded."""

    def __init__(self, recorder: Recorder, link: Link, transport: Any, conn_id: str) -> None:
        self.recorder = recorder
        options = options_of(link)
        self._options = options
        self.outgoing = End(
            DIRECTION_OUT,
            conn_id,
            transport.address,
            link.adapter.name,
            transport.name,
            tunnels_of(transport),
            json.dumps(options, separators=(",", ":")),
            0 if link.opened else 1,
        )
        self.incoming = self.outgoing.saying(self.outgoing.options)
        self.incoming.direction = DIRECTION_IN
        self.asked: dict[int, tuple[int | None, ...]] = {}
        """The deadlines of the requests in frames that are about to be sent, by the identity of the frame."""
        self.on = True
        self._say({"state": "open"})

    def _say(self, what: dict[str, Any]) -> None:
        """A row without a frame: what became of the connection."""
        end = self.outgoing.saying(json.dumps({**self._options, "link": what}, separators=(",", ":")))
        self.recorder.take((end, monotonic_ns(), None, None))

    def over(self, why: Closed) -> None:
        """The connection has ended."""
        if self.on:
            self.on = False
            self._say({"state": "close", "code": why.code, "reason": why.reason[:200]})

    def left(self) -> None:
        """The connection goes on, but is not recorded any more."""
        self.on = False


class RecordedTransport:
    """A transport that writes down what is sent; everything else is the transport's own."""

    send_framed: None = None
    """A fan-out makes bytes for many connections at once, which would pass by."""

    def __init__(self, inner: Any, tap: Tap) -> None:
        self.inner = inner
        self.tap = tap
        self._send: Callable[[bytes], None] = inner.send
        self._rows = tap.recorder.rows
        self._end = tap.outgoing
        self._asked = tap.asked

    def send(self, frame: bytes) -> None:
        """As the transport's; what it refuses is not recorded."""
        self._send(frame)
        asked = self._asked
        deadlines = asked.pop(id(frame), None) if asked else None
        rows = self._rows
        if len(rows) < 16_384 and len(frame) < 4096 and self.tap.on:
            rows.append((self._end, monotonic_ns(), frame, deadlines))
            if len(rows) == 512:
                self.tap.recorder.wake()
        elif self.tap.on:
            self.tap.recorder.take((self._end, monotonic_ns(), frame, deadlines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class RecordedSession:
    """A session that writes down what comes in, and the deadlines of what goes out; everything else is the session's own."""

    def __init__(self, inner: Any, tap: Tap) -> None:
        self.inner = inner
        self.tap = tap
        self._receive: Callable[[bytes, float], None] = inner.receive
        self._send: Callable[[Message, float, Any], Any] = inner.send
        self._frames: Callable[[], list[bytes]] = inner.frames_to_send
        self._rows = tap.recorder.rows
        self._end = tap.incoming
        self._deadlines: list[int | None] = []
        self.events: Callable[[], list[Any]] = inner.events

    @property
    def codec(self) -> Any:
        return self.inner.codec

    @property
    def capabilities(self) -> Any:
        return self.inner.capabilities

    def receive(self, frame: bytes, now: float) -> None:
        """Write it down first: what it causes comes after it."""
        rows = self._rows
        if len(rows) < 16_384 and len(frame) < 4096 and self.tap.on:
            rows.append((self._end, monotonic_ns(), frame, None))
            if len(rows) == 512:
                self.tap.recorder.wake()
        elif self.tap.on:
            self.tap.recorder.take((self._end, monotonic_ns(), frame, None))
        self._receive(frame, now)

    def send(self, message: Message, now: float, peer_key: Any = None) -> Any:
        """As the session's."""
        key = self._send(message, now, peer_key)
        if message.kind is _REQUEST:
            ttl = message.ttl
            self._deadlines.append(None if ttl is None else monotonic_ns() + int(ttl * 1e9))
        return key

    def frames_to_send(self) -> list[bytes]:
        """As the session's."""
        frames = self._frames()
        if self._deadlines:
            self._assign(frames)
        return frames

    def _assign(self, frames: Sequence[bytes]) -> None:
        """Each request's deadline to its frame."""
        deadlines, self._deadlines = self._deadlines, []
        asked = self.tap.asked
        asked.clear()
        if len(frames) == 1:
            asked[id(frames[0])] = tuple(deadlines)
            return
        left = iter(deadlines)
        for frame in frames:  # rare: a request and what goes with it
            own = tuple(next(left, None) for _ in range(_requests_in(self.inner.codec, frame)))
            if own:
                asked[id(frame)] = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _requests_in(codec: Any, frame: bytes) -> int:
    try:
        return sum(isinstance(message, Message) and message.kind is _REQUEST for message in codec.decode(frame))
    except RemoteProtocolError:
        return 0
