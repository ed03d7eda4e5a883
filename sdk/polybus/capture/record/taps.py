"""Taps: wrappers of the session and the transport of a link that record each frame.

A link that is not recorded knows nothing of this. One that is has a session and a transport that write down each frame, with
the time, before they hand it on. What that costs is paid for each message, so it is one tuple and one append.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, cast

from attrs import evolve

from ...errors import RemoteProtocolError
from ...message import Kind, Message
from ...plugins import ProtocolFeatures
from ..rows import DIRECTION_IN, DIRECTION_OUT, FIELDS, MOST, SMALL, RowHeader, Ttl

if TYPE_CHECKING:
    from ...plugins import Closed, Receiver
    from .recorder import CaptureRecorder

_REQUEST: Final = Kind.REQUEST


def tunnels_of(transport: Any) -> tuple[str, ...]:
    """The names of the tunnels that carry a connection, the outermost first."""
    names: list[str] = []
    while (channel := getattr(transport, "_channel", None)) is not None and getattr(transport, "name", "") == "tunnel":
        names.insert(0, str(channel.subject))
        transport = channel.link.transport
    return tuple(names)


class ConnectionTap:
    """One connection of a link that is recorded."""

    def __init__(self, recorder: CaptureRecorder, adapter: Any, transport: Any, conn_id: str, *, opened: bool) -> None:
        self.recorder: CaptureRecorder = recorder
        # Without these the frames cannot be read; there are no secrets among them.
        self._options: dict[str, Any] = dict(adapter.url_options)
        if actions := ProtocolFeatures.of(adapter).actions:
            self._options["actions"] = dict(actions)
        options, role = json.dumps(self._options, separators=(",", ":")), 0 if opened else 1
        common = conn_id, transport.address, adapter.name, transport.name, tunnels_of(transport), options, role
        self._outgoing = RowHeader(DIRECTION_OUT, *common)
        self._incoming = evolve(self._outgoing, direction=DIRECTION_IN)
        self._asked: list[Ttl] = []  # of the frames that are about to be sent, the next one last
        self._say({"state": "open"})

    def _say(self, what: dict[str, Any]) -> None:
        """A row without a frame: what became of the connection."""
        options = json.dumps({**self._options, "link": what}, separators=(",", ":"))
        self.recorder.take((evolve(self._outgoing, options=options), monotonic_ns(), None, None))

    def over(self, why: Closed) -> None:
        """The connection has ended."""
        self._say({"state": "close", "code": why.code, "reason": why.reason[:200]})

    def around(self, session: Any, transport: Any) -> tuple[RecordedSession, RecordedTransport]:
        """A session and a transport that record, for a link to use in place of these."""
        says = not session.capabilities.deadlines or self._outgoing.protocol in _SILENT
        recorded = RecordedSession(session, self.came_in(session.receive))
        if says:
            recorded.send = _asking(session, self._asked)
            recorded.ask = None  # it would pass by
        return recorded, RecordedTransport(transport, self.goes_out(transport.send, self._asked if says else None))

    def listening_in(self, transport: Any) -> tuple[Any, Callable[[Receiver], Receiver]]:
        """For those who have no session: what to use in place of a transport, and what makes what it is to report to."""
        recorded = RecordedTransport(transport, self.goes_out(transport.send))
        return recorded, lambda receiver: cast("Receiver", RecordedReceiver(self, receiver))

    def came_in(self, hand_on: Callable[[bytes, float], Any]) -> Callable[[bytes, float], Any]:
        """A function that records an incoming frame and hands it on."""
        return self._writing(self._incoming, hand_on)

    def goes_out(self, hand_on: Callable[[bytes], None], asked: list[Ttl] | None = None) -> Callable[[bytes], None]:
        """The same for an outgoing frame, with how long its requests are waited for."""
        return self._writing(self._outgoing, hand_on, asked)

    def _writing(self, end: RowHeader, hand_on: Callable[..., Any], asked: list[Ttl] | None = None) -> Callable[..., Any]:
        """A function that writes a frame down and hands it on: in first writes, out first hands on."""
        rows, wake, take, now_ns = self.recorder.rows, self.recorder.wake, self.recorder.take, monotonic_ns
        extend, wakes = rows.extend, self.recorder.enough * FIELDS - FIELDS

        def came_in(frame: bytes, now: float) -> Any:
            waiting = len(rows)
            if waiting < MOST and len(frame) < SMALL:
                extend((end, now_ns(), frame, None))
                if waiting == wakes:
                    wake()
            else:
                take((end, now_ns(), frame, None))
            return hand_on(frame, now)

        def goes_out(frame: bytes) -> None:
            try:
                hand_on(frame)
            except BaseException:  # what the transport refuses is not written down, and what comes behind it is not sent
                if asked:
                    asked.clear()
                raise
            waiting = len(rows)
            if waiting < MOST and len(frame) < SMALL:
                extend((end, now_ns(), frame, asked.pop() if asked else None))
                if waiting == wakes:
                    wake()
            else:
                take((end, now_ns(), frame, asked.pop() if asked else None))

        return came_in if end.direction == DIRECTION_IN else goes_out


_SILENT: Final = frozenset({"csb"})
"""Protocols whose requests do not always say how long they are worth."""


class RecordedTransport:
    """A transport that writes down what is sent; everything else is the transport's own."""

    send_framed: None = None
    """A fan-out makes bytes for many connections at once, which would pass by."""
    send_alone: None = None
    """It would pass by too."""

    def __init__(self, inner: Any, send: Callable[[bytes], None]) -> None:
        self._inner = inner
        self.send: Callable[[bytes], None] = send

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class RecordedReceiver:
    """A receiver of frames for which they are written down before it gets them."""

    def __init__(self, tap: ConnectionTap, inner: Receiver) -> None:
        self._tap, self._inner = tap, inner
        self._write = tap.came_in(lambda frame, now: None)

    def frames_received(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            self._write(frame, 0.0)
        self._inner.frames_received(frames)

    def closed(self, why: Closed) -> None:
        self._tap.over(why)
        self._inner.closed(why)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class RecordedSession:
    """A session that writes down what comes in; everything else is the session's own."""

    def __init__(self, inner: Any, receive: Callable[[bytes, float], Any]) -> None:
        self._inner = inner
        self.receive: Callable[[bytes, float], Any] = receive
        self.send: Callable[..., tuple[Any, Any]] = inner.send
        self.ask: Callable[..., tuple[Any, Any]] | None = getattr(inner, "ask", None)

    @property
    def capabilities(self) -> Any:
        return self._inner.capabilities

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _asking(session: Any, asked: list[Ttl]) -> Callable[..., tuple[Any, Any]]:
    """A session's ``send`` that puts into `asked` how long the request in a frame is waited for, the next frame last."""
    send, append = session.send, asked.append

    def sending(message: Message, now: float, peer_key: Any = None) -> tuple[Any, Any]:
        key, frames = send(message, now, peer_key)
        if message.kind is _REQUEST:
            if isinstance(frames, bytes):
                append(message.ttl)
            else:  # a request and what goes with it
                first = next((frame for frame in frames if _has_request(session.codec, frame)), None)
                asked[:] = [message.ttl if frame is first else None for frame in frames][::-1]
        return key, frames

    return sending


def _has_request(codec: Any, frame: bytes) -> bool:
    try:
        return any(isinstance(message, Message) and message.kind is _REQUEST for message in codec.decode(frame))
    except RemoteProtocolError:
        return False
