"""Connections that were accepted and are not let in yet."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...errors import BusError
from ...plugins import Admission, Handshake
from .wire import Wire, call_later

if TYPE_CHECKING:
    from .listen import StreamListener
    from .transport import WireTransport

logger: logging.Logger = logging.getLogger("polybus.transports")


class PendingConnection(ABC):
    """User of a wire from the moment it is accepted until it is let in or gone.

    Subclasses speak the framing: `begin`, `no` and `let_in`. All of it is over after `Limits.handshake_timeout`.
    """

    __slots__ = ("_cancel_timer", "_knock", "_over", "listener", "wire")

    def __init__(self, listener: StreamListener, wire: Wire, knock: AdmissionSlot | None, seconds: float) -> None:
        self.listener: StreamListener = listener
        self.wire: Wire = wire
        # What the gate has counted; None of a client that is only refused.
        self._knock = knock
        if knock is not None:
            knock.give_up = self._give_way
        # Decided: let in, refused or gone. What comes later is ignored.
        self._over = False
        self._cancel_timer = call_later(listener.options.host, max(seconds, 0), self._timed_out)

    @abstractmethod
    def begin(self) -> None:
        """The wire is there: read, or ask for admission at once."""

    @abstractmethod
    def no(self, error: BusError) -> bytes:
        """Bytes for a client that is not let in."""

    @abstractmethod
    def let_in(self, admission: Admission) -> WireTransport:
        """Write the welcome where there is one and make the transport."""

    def ask(self, handshake: Handshake) -> None:
        """Ask the bus, which may take its time; meanwhile nothing is read."""
        self.wire.pause_reading()
        if self._knock is not None:
            self._knock.heard()
        self.listener.options.gate.admit(handshake, self._decided)

    def refuse(self, error: BusError) -> None:
        """Say no."""
        self.turn_away(self.no(error))

    def turn_away(self, last_words: bytes) -> None:
        """Write this, give the peer `Limits.close_timeout` to read it, and close."""
        if self._over:
            return
        self._over = True
        if self._knock is not None:
            self._knock.heard()
        host = self.listener.options.host
        self._cancel_timer()
        self._cancel_timer = call_later(host, host.limits.close_timeout, self.wire.abort)
        self.wire.write(last_words)
        self.wire.hang_up()

    def _decided(self, outcome: Admission | BusError) -> None:
        if self._over:
            return
        if isinstance(outcome, BusError):
            self.refuse(outcome)
            return
        self._over = True
        self._knock = None
        self._cancel_timer()
        self.listener.forget(self)
        transport = self.let_in(outcome)
        self.wire.attach(transport)
        self.listener.options.gate.opened(transport, outcome)

    def _timed_out(self) -> None:
        self._over = True
        logger.info("%s: the handshake was not over in time", self.wire.address)
        self.wire.abort()

    def _give_way(self) -> None:
        self._over = True
        logger.info("%s: it has said nothing, and others want to come in", self.wire.address)
        self.wire.abort()

    @property
    def undecided(self) -> bool:
        return not self._over

    # -- what the wire calls

    def data_received(self, data: bytes) -> None:  # noqa: B027  # not every framing reads
        """Thrown away, unless a handshake has something to read."""

    def eof_received(self) -> None:
        self._over = True
        self.wire.hang_up()

    def wire_lost(self, error: Exception | None) -> None:
        self._over = True
        self._cancel_timer()
        self.listener.forget(self)
        if self._knock is not None:
            self._knock.left()

    def pause_writing(self) -> None:  # noqa: B027
        """Ignore: what is written here is short."""

    resume_writing = pause_writing


class AdmissionSlot:
    """Place of one connection in the gate's count, from the accept until it is let in or gone.

    While it is silent, it gives way to others: a listener cannot be shut by connecting and saying nothing.
    """

    __slots__ = ("_counted", "_listener", "address", "give_up")

    def __init__(self, listener: StreamListener, address: str, give_up: Callable[[], None]) -> None:
        self._listener = listener
        self._counted = True
        self.address: str = address
        self.give_up: Callable[[], None] = give_up
        """Cuts its connection."""
        listener.silent[self] = None

    @property
    def host(self) -> str:
        """The address without its port."""
        return self.address.rpartition(":")[0] or self.address

    def heard(self) -> None:
        """It has said who it is, or has been told no."""
        self._listener.silent.pop(self, None)

    def left(self) -> None:
        """It has gone."""
        self.heard()
        if self._counted:
            self._counted = False
            self._listener.options.gate.left(self.address)
