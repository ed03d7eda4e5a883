"""WebSockets of uvicorn over slow lines: a ping waits behind what was written before it, and its answer with it."""

from __future__ import annotations

from asyncio import TimerHandle

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from ...transports._stream.sockets import signs_of


class PatientWebSockets(WebSocketsSansIOProtocol):
    """uvicorn's own, whose time for an answer to a ping begins anew while the peer shows that it is there: it has said
    anything, or more of what was written before the ping has arrived, where the kernel tells that. Else a large frame would end
    the connection of every peer whose line is slow.
    """

    _acknowledged = 0
    _ping_ends = 0
    _heard = False

    def data_received(self, data: bytes) -> None:
        """Something has come in."""
        self._heard = True
        super().data_received(data)

    def send_keepalive_ping(self) -> None:
        """Ask for a sign of life."""
        super().send_keepalive_ping()
        self._heard = False
        signs = signs_of(self.transport.get_extra_info("socket"))
        self._acknowledged = self._ping_ends = 0
        if signs is not None:
            self._acknowledged = signs.acknowledged
            self._ping_ends = signs.acknowledged + signs.outstanding + self.transport.get_write_buffer_size()

    def keepalive_timeout(self) -> None:
        """No answer to the ping in time."""
        if self._lives() and self.ping_timeout is not None:
            self.pong_timer: TimerHandle | None = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
        else:
            super().keepalive_timeout()

    def _lives(self) -> bool:
        """True if the peer has shown, since this was asked last, that it is there."""
        heard, self._heard = self._heard, False
        signs = signs_of(self.transport.get_extra_info("socket")) if self._acknowledged < self._ping_ends else None
        if signs is None:
            return heard
        before, self._acknowledged = self._acknowledged, signs.acknowledged
        return heard or before < signs.acknowledged < self._ping_ends
