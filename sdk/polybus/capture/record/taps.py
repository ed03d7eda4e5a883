"""Taps, which wrap a link's session and transport to record each frame, at the cost of a tuple and an append."""

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
from .redact_bytes import blank

if TYPE_CHECKING:
    from ...plugins import Closed, Receiver
    from .recorder import CaptureRecorder

_REQUEST: Final = Kind.REQUEST


def tunnels_of(transport: Any) -> tuple[str, ...]:
    """Return the names of the tunnels that carry a connection, outermost first."""
    names: list[str] = []
    while (channel := getattr(transport, "_channel", None)) is not None and getattr(transport, "name", "") == "tunnel":
        names.insert(0, str(channel.subject))
        transport = channel.link.transport
    return tuple(names)


_SEARCHED: Final = 100_000
_LONGEST: Final = 1000
"""Maximum characters of a text about a connection that are searched for secrets, and that are recorded."""


def _shown(text: str) -> str:
    """Return a text about a connection without its secrets and without characters that UTF-8 cannot represent."""
    return blank(text[:_SEARCHED].encode(errors="replace")).decode(errors="replace")[:_LONGEST]


class ConnectionTap:
    def __init__(
        self, recorder: CaptureRecorder, adapter: Any, transport: Any, conn_id: str, opened: bool, who: str | None
    ) -> None:
        self.recorder: CaptureRecorder = recorder
        self._who = None if who is None else _shown(who)
        # Decoding needs these options; they contain no secrets.
        self._options: dict[str, Any] = dict(adapter.url_options)
        if actions := ProtocolFeatures.of(adapter).actions:
            self._options["actions"] = dict(actions)
        options, role = json.dumps(self._options, separators=(",", ":")), 0 if opened else 1
        common = conn_id, transport.address, adapter.name, transport.name, tunnels_of(transport), options, role
        self._outgoing = RowHeader(DIRECTION_OUT, *common)
        self._incoming = evolve(self._outgoing, direction=DIRECTION_IN)
        self._asked: list[Ttl] = []  # timeouts of frames about to be sent, the next one last
        self._say({"state": "open"})

    def _say(self, what: dict[str, Any]) -> None:
        named = what if self._who is None else {**what, "who": self._who}
        options = json.dumps({**self._options, "link": named}, separators=(",", ":"))
        self.recorder.take((evolve(self._outgoing, options=options), monotonic_ns(), None, None))

    def over(self, why: Closed) -> None:
        self._say({"state": "close", "code": why.code, "reason": _shown(why.reason)[:200]})

    def around(self, session: Any, transport: Any) -> tuple[RecordedSession, RecordedTransport]:
        """Return a recording session and transport for the link to use in place of the originals."""
        says = not session.capabilities.deadlines or self._outgoing.protocol in _SILENT
        recorded = RecordedSession(session, self.came_in(session.receive))
        if says:
            recorded.send = _asking(session, self._asked)
            recorded.ask = None  # a shortcut past the tap
        return recorded, RecordedTransport(transport, self.goes_out(transport.send, self._asked if says else None))

    def listening_in(self, transport: Any) -> tuple[Any, Callable[[Receiver], Receiver]]:
        """Return a recording transport, and a function that wraps its receiver, for callers without a session."""
        recorded = RecordedTransport(transport, self.goes_out(transport.send))
        return recorded, lambda receiver: cast("Receiver", RecordedReceiver(self, receiver))

    def came_in(self, hand_on: Callable[[bytes, float], Any]) -> Callable[[bytes, float], Any]:
        """Return a function that records an incoming frame and passes it on."""
        return self._writing(self._incoming, hand_on)

    def goes_out(self, hand_on: Callable[[bytes], None], asked: list[Ttl] | None = None) -> Callable[[bytes], None]:
        """Return a function that passes an outgoing frame on and records it, with the timeouts of its requests."""
        return self._writing(self._outgoing, hand_on, asked)

    def _writing(self, end: RowHeader, hand_on: Callable[..., Any], asked: list[Ttl] | None = None) -> Callable[..., Any]:
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
            except BaseException:  # a refused frame is not recorded, and the frames behind it are not sent
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
"""In these protocols, a request does not always contain its timeout."""


class RecordedTransport:
    """A transport that records sent frames and delegates everything else to the inner transport."""

    send_framed: None = None
    """`None`, because a fan-out would create the bytes for many connections at once and bypass the tap."""
    send_alone: None = None
    """`None`, because this method would also bypass the tap."""

    def __init__(self, inner: Any, send: Callable[[bytes], None]) -> None:
        self._inner = inner
        self.send: Callable[[bytes], None] = send

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class RecordedReceiver:
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
    """A session that records received frames and delegates everything else to the inner session."""

    usual: None = None
    """`None`, because this method would bypass the tap."""

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
    """Return a session's ``send`` that inserts the timeout of each frame's request into `asked`, with the next frame last."""
    send, append = session.send, asked.append

    def sending(message: Message, now: float, peer_key: Any = None) -> tuple[Any, Any]:
        key, frames = send(message, now, peer_key)
        if message.kind is _REQUEST:
            if isinstance(frames, bytes):
                append(message.ttl)
            else:  # a request with other frames
                first = next((frame for frame in frames if _has_request(session.codec, frame)), None)
                asked[:] = [message.ttl if frame is first else None for frame in frames][::-1]
        return key, frames

    return sending


def _has_request(codec: Any, frame: bytes) -> bool:
    try:
        return any(isinstance(message, Message) and message.kind is _REQUEST for message in codec.decode(frame))
    except RemoteProtocolError:
        return False
