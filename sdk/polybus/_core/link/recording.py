"""The recording of a connection: taps around its session and its transport, which know nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define, field

if TYPE_CHECKING:
    from ...plugins import Closed, ProtocolAdapter, Session, Transport
    from ...plugins.recording import Recorder, Tap


@define(eq=False)
class Taps:
    """The taps that record the frames of one connection."""

    _session: Session
    _transport: Transport
    _taps: list[Tap] = field(factory=list)

    def add(self, recorder: Recorder, adapter: ProtocolAdapter, transport: Transport, *, opened: bool) -> bool:
        """Record there from now on. False if it is recorded there already."""
        if any(tap.recorder is recorder for tap in self._taps):
            return False
        self._taps.append(recorder.tap(adapter, transport, opened=opened))
        return True

    def remove(self, recorder: Recorder) -> bool:
        """Stop recording there. True if it was recorded there."""
        before = len(self._taps)
        self._taps = [tap for tap in self._taps if tap.recorder is not recorder]
        return len(self._taps) < before

    def around(self) -> tuple[Session, Transport]:
        """The session and the transport with all taps around them."""
        session: Any = self._session
        transport: Any = self._transport
        for tap in self._taps:
            session, transport = tap.around(session, transport)
        return session, transport

    def over(self, why: Closed) -> None:
        """End the taps: the connection is over."""
        for tap in self._taps:
            tap.over(why)
