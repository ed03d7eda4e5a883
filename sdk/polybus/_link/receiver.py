"""The receiver of one connection of a link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..plugins import Closed, SessionFeatures
from .pieces import Pieces

if TYPE_CHECKING:
    from ..plugins import Session, Transport
    from .link import Link

__all__ = ["ConnectionReceiver"]


class ConnectionReceiver:
    """Receives what one connection of a link reports; implements `plugins.Receiver`.

    Once the connection is over it tells the link nothing more: a transport may report often and late, and the link may have its
    next connection by then.
    """

    __slots__ = ("_link", "_pieces", "frames_received")

    def __init__(self, link: Link, transport: Transport, session: Session) -> None:
        self._link: Link | None = link
        self._pieces: Pieces | None = None
        self.frames_received: Callable[[Sequence[bytes]], None] = link.frames_received  # no call in between, for speed
        if (cut := SessionFeatures.of(session).pieces) is not None:
            self._pieces = Pieces(link, transport, cut)
            self.frames_received = self._pieces.frames_received

    def over(self) -> None:
        """Detach from the link: the connection is no longer its own."""
        self._link = None
        self.frames_received = _unheard
        if self._pieces is not None:
            self._pieces.drop()

    def closing(self, why: Closed) -> None:
        if self._pieces is not None:
            self._pieces.finish()
        if self._link is not None:
            self._link.closing(why)

    def closed(self, why: Closed) -> None:
        if self._pieces is not None:
            self._pieces.finish()
        if self._link is not None:
            self._link.closed(why)

    def pause_writing(self) -> None:
        if self._link is not None:
            self._link.pause_writing()

    def resume_writing(self) -> None:
        if self._link is not None:
            self._link.resume_writing()


def _unheard(frames: Sequence[bytes]) -> None:
    """Drop the frames of a connection that is over."""
