"""The question whether a peer is one of ours, and what its answer, a refusal or silence tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .._rpc.reply import Reply, error_of
from .._util.hello import HELLO
from ..errors import BusError, DeadlineExceeded, Disconnected, QueueFull, RequestCancelled

if TYPE_CHECKING:
    from ..message import Message
    from .peer import Peer

__all__ = ["HELLO_TIMEOUT", "LATE", "Question"]

HELLO_TIMEOUT: Final = 1.0
"""Seconds for which a verb waits to learn who the peer is. An answer that comes later counts all the same."""
LATE: Final = 30
"""Questions without an answer that are remembered: whoever is asked once a second may be this many seconds late."""


class Question(Reply[Any]):
    """A hello that was asked. It belongs to the peer: it goes on when whoever asked it was cancelled."""

    __slots__ = ("_peer",)

    def __init__(self, peer: Peer, now: float) -> None:
        super().__init__(peer.link.runtime.loop, HELLO, Any, now, now + HELLO_TIMEOUT)
        self._peer = peer

    def _left(self, waiter: Any) -> None:
        held = self._waiters
        if isinstance(held, list):
            held.remove(waiter)
        elif held is waiter:
            self._waiters = None

    def _resolve(self, message: Message) -> None:
        try:
            answer = message.body
        except BusError:
            answer = None
        self._peer._answered(answer)
        super()._resolve(message)

    def _reject(self, message: Message, now: float) -> None:
        self._fail(error_of(message, self.subject, now - self.started))

    def _fail(self, error: BusError) -> None:
        peer = self._peer
        peer.is_at_an_end()
        if peer._extended is None and self.sent:  # one that never left says nothing of the peer
            if isinstance(error, DeadlineExceeded):
                peer._silent = True
            elif not isinstance(error, (Disconnected, RequestCancelled, QueueFull)):
                peer._extended = False
        super()._fail(error)
