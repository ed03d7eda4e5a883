"""Byte-stream connections with the protocol's own framing.

Heartbeat and goodbye, if any, are the protocol's; this module adds deadlines for writes and incomplete frames.
"""

from __future__ import annotations

from typing import ClassVar, Final

from ...errors import BusError
from ...plugins import Admission, Closed, FrameCutter, Framing, FramingFeatures, Handshake, Host
from ...plugins.connections import TransportState
from .listen import PendingConnection
from .transport import Framer, StreamTransport
from .wire import GATHERED, Wire


class ProtocolFramer(Framer):
    __slots__ = ("_cutter",)

    ends_with_goodbye: ClassVar[bool] = True

    def __init__(self, cutter: FrameCutter, limit: int) -> None:
        super().__init__(limit)
        self._cutter = cutter

    @property
    def partial(self) -> str:
        return self._cutter.partial

    @property
    def arrived(self) -> int:
        return self._cutter.arrived

    def feed(self, data: bytes) -> list[bytes]:
        if self.broken is not None:
            return []
        cutter = self._cutter
        frames = list(cutter.feed(data))
        if cutter.broken is not None:
            self.broken = how_it_broke(cutter)
        return frames

    def goodbye(self, code: int, reason: str) -> list[bytes]:
        """Empty: the protocol sends its own goodbye, if any."""
        return []


def how_it_broke(cutter: FrameCutter) -> Closed | None:
    """The end of a connection after a framing error; None without one."""
    error = cutter.broken
    return None if error is None else Closed(error.close_code or 1002, error.text)


class FramedTransport(StreamTransport[ProtocolFramer]):
    __slots__ = ("_pack",)

    admitted: Final = True
    """The protocol's handshake shows if the server accepts the client."""

    def __init__(self, name: str, wire: Wire, host: Host, framing: Framing) -> None:
        super().__init__(name, wire, host, ProtocolFramer(framing.cutter(host.limits, name), host.limits.message))
        if FramingFeatures.of(framing).gathers:
            wire.burst = GATHERED
        self._pack = framing.pack

    def send(self, frame: bytes) -> None:
        if len(frame) > self.max_frame:
            self._check_size(len(frame))
        if self._state is TransportState.OPEN:
            self._wire.write(self._pack(frame))

    def framed(self, frame: bytes) -> bytes:
        """The bytes of a frame, equal on each connection. May raise `TooLarge`."""
        self._check_size(len(frame))
        return self._pack(frame)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        framer = self._framer
        if frames := framer.feed(data):
            self._deliver(frames)
        if framer.broken is not None and self._state is TransportState.OPEN:
            self._fail(framer.broken.code, framer.broken.reason)

    def _check_silence(self, now: float) -> None:
        """Do nothing: the session asks for signs of life."""


class PendingFramedConnection(PendingConnection):
    """A connection with the protocol's framing before admission, which precedes the protocol's handshake."""

    __slots__ = ()

    def begin(self) -> None:
        listener = self.listener
        name = listener.url.partition(":")[0]
        self.ask(Handshake(protocol=listener.options.protocol, transport=name, url=listener.url, address=self.wire.address))

    def no(self, error: BusError) -> bytes:
        """Empty: the protocol has no refusal before its handshake."""
        return b""

    def let_in(self, admission: Admission) -> FramedTransport:
        options = self.listener.options
        assert options.framing is not None
        return FramedTransport(self.listener.url.partition(":")[0], self.wire, options.host, options.framing)
