"""Tunnels: connections inside another connection. A tunnel is a channel with frames as its items.

`Bus.tunnel` and `Peer.tunnel` return a `TunnelConnector`. A `TunnelTransport` is one end of a connection. Sending a frame
requires neither a task nor a queue, unless the other side has not granted credit or the outer connection is slow. Frames are
sent as bytes. In a text protocol, JSON documents are embedded instead of being quoted as strings.
"""

from __future__ import annotations

import binascii
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from msgspec import Struct

from ..body import JSON, OCTETS, BodyFormat, check_json
from ..errors import (
    AmbiguousRoute,
    BusError,
    Code,
    ConnectFailed,
    DeadlineExceeded,
    EncodeError,
    Forbidden,
    LocalProtocolError,
    RequestError,
    TooLarge,
    Unauthorized,
)
from ..message import Kind, Message
from ..plugins import Closed, CodecFeatures
from ..plugins.close_codes import closed_by_peer, sayable
from .rpc.channel import CREDIT_BYTES, Channel
from .runtime.memory_budgets import cost

if TYPE_CHECKING:
    from ..plugins import DialOptions, Host, Receiver
    from .link.link import Link
    from .peer.peer_core import PeerCore
    from .peer.streams import Streams

_MARGIN: Final = 512
"""Maximum number of bytes that the outer frame adds to an inner frame, not counting the name."""
_DEPTH: Final = 8
"""Nesting levels that the outer message uses up in `Limits.depth`."""
_decode: Final = msgspec.json.Decoder().decode


def _is_document(frame: bytes, depth: int) -> bool:
    """Return True if a frame is a JSON object or array, which can be embedded."""
    if frame[:1] not in (b"{", b"["):
        return False
    try:
        check_json(frame, depth)
        _decode(frame)  # fully decoded, since a reader of the outer message also parses the numbers
    except (ValueError, RecursionError, EncodeError):
        return False
    return True


class Packing(Struct, frozen=True):
    text: bool
    """True if JSON frames are embedded without quoting."""
    octets: bool
    """True if items can contain raw bytes. Otherwise bytes are encoded as a value."""
    depth: int
    plain: int
    """Maximum size in bytes of a frame that is sent without encoding."""
    encoded: int
    """Maximum size in bytes of a frame that a text protocol sends as base64."""
    outer: int
    """Maximum size in bytes of a frame on the outer connection."""

    def choose(self, frame: bytes) -> BodyFormat | None:
        """Return JSON, bytes, or None to send the frame as a value of the protocol's own. Raises `TooLarge`."""
        chosen: BodyFormat | None = OCTETS if self.octets else None
        limit = self.encoded
        if self.text and _is_document(frame, self.depth):
            limit, chosen = self.plain, JSON
        if len(frame) > limit:
            raise TooLarge(
                f"a frame of {len(frame)} bytes: this tunnel takes {limit}, because the outer connection takes {self.outer}: "
                "increase Limits(message=...) at both ends of the outer connection"
            )
        return chosen


def packing_for(peer: PeerCore, name: str | int, *, text: bool) -> Packing:
    """Return the packing for a peer. `text` is True if the inner protocol writes text."""
    link = peer.link
    limits, transport = link.runtime.limits, link.transport
    codec = link.adapter.codec(limits)
    outer = limits.message if transport is None else min(limits.message, transport.max_frame)
    formats = CodecFeatures.of(codec).item_formats or codec.formats
    binary = codec.writes == "binary"
    room = max(0, outer - _MARGIN - 2 * len(str(name).encode()))
    return Packing(
        text=text and not binary and JSON in formats,
        octets=OCTETS in formats,
        depth=max(1, limits.depth - _DEPTH),
        plain=room,
        encoded=room if binary and OCTETS in formats else room * 3 // 4,
        outer=outer,
    )


def frame_of(message: Message) -> bytes | None:
    raw, body_format = message.raw, message.format
    if raw is not None and (body_format is OCTETS or (body_format is JSON and raw[:1] in b"{[")):
        return raw
    try:
        body = message.body
        if isinstance(body, str):
            return binascii.a2b_base64(body, strict_mode=True)
    except (ValueError, BusError):
        return None
    return body if isinstance(body, bytes) else None


WINDOW: Final = 256
"""Number of frames that may be sent before the first is read. See also `channel.CREDIT_BYTES`."""
_CODES: Final[Mapping[int, Code]] = {
    1000: Code.CANCELLED, 1001: Code.UNAVAILABLE, 1009: Code.RESOURCE_EXHAUSTED, 1011: Code.INTERNAL, 1013: Code.UNAVAILABLE,
    4401: Code.UNAUTHENTICATED, 4403: Code.PERMISSION_DENIED,
}  # fmt: skip


class FrameChannel(Channel[bytes, bytes]):
    """The channel that carries a tunnel. Passes incoming frames to a receiver and queues outgoing frames."""

    def __init__(self, peer: PeerCore, name: str | int, credit: int, *, text: bool) -> None:
        super().__init__(peer.link.runtime.loop, peer.streams, name, credit, window=WINDOW)
        self.frames = True
        self._streams: Streams = peer.streams
        self.link: Link = peer.link
        self.packing: Packing = packing_for(peer, name, text=text)
        self._queue: deque[tuple[bytes, BodyFormat | None]] = deque()
        self.queued: int = 0
        self._receiver: Receiver | None = None
        self._arrived: list[bytes] = []
        self._deaf = True
        self._paused = False
        self._stalled = False
        self._since = 0.0
        """Time at which the last frame was written, or the oldest waiting frame was queued."""
        self._goodbye: Closed | None = None
        self._why: Closed | None = None
        self._answered = anyio.Event()
        self.accepted: bool = False

    # -- acceptance ------------------------------------------------------------------------------------------------------

    async def acceptance(self) -> None:
        """Wait until the other side accepts the tunnel. Raises `BusError` if it rejects the tunnel or has left."""
        await self._answered.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._why is not None:
            raise RequestError(Code.UNAVAILABLE, self._why.reason or "the tunnel closed immediately")

    def accept(self) -> None:
        self.accepted = True
        self._port.channel_send(self, Kind.CREDIT, None, None, {"credit": WINDOW})

    # -- outgoing --------------------------------------------------------------------------------------------------------

    def put(self, frame: bytes) -> None:
        """Write a frame, or queue it until there is space. Raises `TooLarge`."""
        if not self._sending or self._goodbye is not None:
            return
        chosen = self.packing.choose(frame)
        if self._queue or not self._may_write():
            if not self._queue:
                self._since = self._loop.time()
            self._queue.append((frame, chosen))
            self.queued += len(frame)
            self._hold_writer()
        else:
            self._write(frame, chosen)

    def _hold_writer(self) -> None:
        if not self._paused and self._receiver is not None:
            self._paused = True
            self._receiver.pause_writing()

    def _may_write(self) -> bool:
        if self._stalled or self._credit <= 0 or self._ahead_bytes >= CREDIT_BYTES:
            return False
        if self._streams.takes_items:
            return True
        self._stalled = True
        self.link.runtime.spawn(self._wait_for_room)
        return False

    async def _wait_for_room(self) -> None:
        """Wait until the slow outer connection has space. A single task does this for all frames."""
        try:
            if (room := self._port.channel_room()) is not None:
                await room
        finally:
            self._stalled = False
        self._pump()

    def _write(self, frame: bytes, chosen: BodyFormat | None) -> None:
        size = self._streams.channel_frame(self, frame, chosen)
        self._credit -= 1
        self._ahead.append(size)
        self._ahead_bytes += size

    def _pump(self) -> None:
        while self._queue and self._sending and self._may_write():
            frame, chosen = self._queue.popleft()
            self.queued -= len(frame)
            self._since = self._loop.time()
            try:
                self._write(frame, chosen)
            except BusError as error:
                self.cut(too_large(error))
                return
        if not self._queue and self._sending:
            if self._goodbye is not None:
                self._say_goodbye(self._goodbye)
            elif self._paused and self._receiver is not None:
                self._paused = False
                self._receiver.resume_writing()

    def received_credit(self, count: Any) -> None:
        self.accepted = True
        super().received_credit(count)
        self._answered.set()
        self._pump()

    # -- incoming --------------------------------------------------------------------------------------------------------

    def attach(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._deaf = False
        self._loop.call_soon(self._deliver)

    def listen(self, *, on: bool) -> None:
        """Start or stop passing on frames. While stopped, frames are queued, which limits the other side to its credit."""
        if self._deaf is on:
            self._deaf = not on
            self._loop.call_soon(self._deliver)

    def received_item(self, message: Message) -> None:
        if not self._receiving:
            return
        if self._deaf or self._items or self._receiver is None:
            super().received_item(message)
            return
        frame = frame_of(message)
        if self._granted <= 0 or frame is None:
            self._refuse_item(frame)
            return
        self._granted -= 1
        arrived = self._arrived
        if not arrived:
            self.link.deferred.append(self._hand_over)
        arrived.append(frame)
        self._consumed += 1
        self._consumed_bytes += cost(message)

    def _hand_over(self) -> None:
        frames, self._arrived = self._arrived, []
        if frames and self._receiver is not None:
            self._receiver.frames_received(frames)
            self._grant_consumed()

    def _refuse_item(self, frame: bytes | None) -> None:
        if frame is None:
            self.cut(Closed(1003, "an item in the tunnel is not a frame"))
        else:
            self.cut(Closed(1008, f"more frames than the credit of {WINDOW} allows"))

    def _deliver(self) -> None:
        """Pass on the frames that arrived before there was a receiver, and then the end."""
        receiver = self._receiver
        if receiver is None or (self._deaf and self._why is None):
            return
        while self._items and not self._deaf:
            message = self._items.popleft()
            size = cost(message)
            self._unread -= size
            self._port.budget.release(size)
            frame = frame_of(message)
            if frame is None:
                self._refuse_item(frame)
                break
            receiver.frames_received((frame,))
            self._grant(size)
        if self._why is not None and (not self._items or self._error is not None):
            self._receiver = None
            self.discard()  # unread frames
            receiver.closed(self._why)

    # -- closing ---------------------------------------------------------------------------------------------------------

    def close(self, why: Closed) -> None:
        if self._goodbye is None and self._sending:
            self._goodbye = why
            self._since = self._loop.time()
            if not self._queue:
                self._say_goodbye(why)
        elif self._done:
            self._end(why)

    def _say_goodbye(self, why: Closed) -> None:
        if why.code == 1000 and not why.reason:
            self._finish_sending()  # the other half ends when all frames of the peer have arrived
            if self._done:
                self._end(why)
        else:
            self.cut(why)

    def cut(self, why: Closed) -> None:
        """Close both directions immediately, and send the reason."""
        if self.id is None:
            return  # the other side does not know this channel yet
        self._drop()
        self._goodbye = self._goodbye or why
        if not self._done:
            self.abort(_CODES.get(why.code, Code.ABORTED), why.reason, None, {"close": sayable(why.code)})
        self._end(why)

    def received_end(self, message: Message) -> None:
        code = message.code
        if code is None or code is Code.OK:
            self._receiving = False
            self._maybe_done()
            if self._goodbye is not None and self._sending is False:
                self._end(self._goodbye)
            else:
                self.close(Closed(1000))
                self._end(closed_by_peer(1000, ""))
        else:
            super().received_end(message)

    def _break(self, error: BusError) -> None:
        self._drop()
        super()._break(error)
        if self._receiver is None:
            self.discard()
        self._end(_closed_by(error))

    def _overrun(self, told: str, seen: str) -> None:
        self.cut(Closed(1008, told))

    def _drop(self) -> None:
        self._queue.clear()
        self.queued = 0

    def _end(self, why: Closed) -> None:
        if self._why is None:
            self._why = why
            self._answered.set()
            self._loop.call_soon(self._deliver)
            self._hold_writer()  # the writer learns of the end in the next turn, and must not wait for room until then

    def watch(self, now: float, write_timeout: float, close_timeout: float) -> None:
        if self._why is not None or self._done:
            return
        if self._goodbye is not None and now - self._since > close_timeout:
            self.cut(self._goodbye)
        elif self._queue and now - self._since > write_timeout:
            self.cut(Closed(1006, f"no progress in {write_timeout:g} s of writing into the tunnel (Limits.write_timeout)"))


def too_large(error: BusError) -> Closed:
    """Return the reason for closing a tunnel when the outer connection rejects a frame after its sender has gone on."""
    return Closed(1009, getattr(error, "text", "") or str(error))


def _closed_by(error: BusError) -> Closed:
    if isinstance(error, RequestError) and error.received:
        given = error.detail.get("close") if isinstance(error.detail, dict) else None
        if type(given) is int and 1000 <= given < 5000:
            return closed_by_peer(given, error.text)
        return Closed(1006, f"the tunnel was closed: {error}")
    return Closed(1006, f"the outer connection is gone: {getattr(error, 'reason', None) or error}")


class TunnelTransport:
    """A connection through a tunnel. Implements `plugins.Transport`."""

    __slots__ = ("_channel", "_limits", "address", "hops", "max_frame")

    name = "tunnel"

    def __init__(self, host: Host, channel: FrameChannel, address: str, hops: int) -> None:
        self._channel = channel
        self._limits = host.limits
        self.address: str = address
        self.hops: int = hops
        self.max_frame: int = min(host.limits.message, channel.packing.plain)

    def send(self, frame: bytes) -> None:
        """Send a frame without waiting. Raises `TooLarge`, naming the limits of the tunnel and of the outer connection."""
        self._channel.put(frame)

    def start(self, receiver: Receiver) -> None:
        self._channel.attach(receiver)

    def write_backlog(self) -> int:
        return self._channel.queued

    def pause_reading(self) -> None:
        self._channel.listen(on=False)

    def resume_reading(self) -> None:
        self._channel.listen(on=True)

    def close(self, code: int = 1000, reason: str = "") -> None:
        self._channel.close(Closed(code, reason))

    def abort(self, why: Closed) -> None:
        self._channel.cut(why)

    def tick(self, now: float) -> None:
        self._channel.watch(now, self._limits.write_timeout, self._limits.close_timeout)


class TunnelConnector:
    """A destination at the other end of a link, as in ``connect(bus.tunnel("plant.7"), protocol="csb")``."""

    def __init__(
        self, route: Callable[[], PeerCore], lasting: Callable[[], bool], name: str, params: Mapping[str, str]
    ) -> None:
        self.url: str = f"tunnel://{name}"
        self._name = name
        self._params = params
        self._route = route
        self._lasting = lasting

    @property
    def reconnects(self) -> bool:
        return self._lasting()

    def __repr__(self) -> str:
        return f"<TunnelConnector {self._name!r}>"

    async def connect(self, options: DialOptions) -> TunnelTransport:
        """Make one attempt to connect. Raises the errors of `Connector.connect`, or of the search for the peer."""
        if options.tls is not None:
            raise LocalProtocolError(
                "tls= does not apply to a tunnel, which is as secure as its outer connection", protocol="tunnel"
            )
        try:
            return await self._connect(options)
        except (ConnectFailed, LocalProtocolError, AmbiguousRoute):
            raise
        except Unauthorized as error:
            raise Unauthorized(error.text) from None
        except Forbidden as error:
            raise Forbidden(error.text) from None
        except BusError as error:
            reason = getattr(error, "text", None) or getattr(error, "reason", None) or str(error)
            raise ConnectFailed(self.url, reason) from error

    async def _connect(self, options: DialOptions) -> TunnelTransport:
        peer = self._route()
        runtime = peer.link.runtime
        runtime.check_here()
        if not peer.connected:
            raise ConnectFailed(self.url, f"the outer link to {peer.address} is down")
        transport = peer.link.transport
        hops = 0 if transport is None else transport.hops
        limit = options.host.limits.hops
        if hops >= limit:
            raise ConnectFailed(self.url, too_deep(hops + 1, limit))
        facts = {"protocol": options.subprotocol, "headers": dict(options.headers), "params": dict(self._params)}
        facts = {name: value for name, value in facts.items() if value}
        channel = FrameChannel(peer, self._name, 0, text=options.writes == "text")
        seconds = options.host.limits.connect_timeout
        try:
            with anyio.fail_after(seconds):
                await peer.streams.open_channel(channel, facts, "tunnel", None, WINDOW)
                await channel.acceptance()
        except TimeoutError as error:
            if isinstance(error, DeadlineExceeded):
                raise
            channel.cut(Closed(1000, "the opener cancelled"))
            raise ConnectFailed(
                self.url, f"timed out after {seconds:g} s, waiting for the other side to accept the tunnel"
            ) from None
        except BaseException:
            channel.cut(Closed(1000, "the opener cancelled"))
            raise
        return TunnelTransport(options.host, channel, f"{peer.address}/{self._name}", hops + 1)


def too_deep(depth: int, limit: int) -> str:
    return f"it would be tunnel number {depth} inside the others: the limit is {limit} (Limits.hops)"
