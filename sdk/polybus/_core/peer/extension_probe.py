"""The request that asks a peer for the extensions, and what its answer, a refusal or silence tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from ..._util.hello import HELLO
from ...errors import BusError, DeadlineExceeded, Disconnected, QueueFull, RequestCancelled
from ..rpc.reply import Reply, error_of

if TYPE_CHECKING:
    from ...message import Message
    from .peer import Peer

HELLO_TIMEOUT: Final = 1.0
"""Seconds for which a verb waits to learn whether the peer speaks the extensions. A later answer counts all the same."""


class ExtensionProbe(Reply[Any]):
    """A hello that was sent. It belongs to the peer: it goes on when the tasks that wait for it are cancelled."""

    __slots__ = ("_peer",)
    tells_failure: ClassVar[bool] = False

    def __init__(self, peer: Peer, now: float) -> None:
        super().__init__(peer.link.runtime.loop, HELLO, Any, now, now + HELLO_TIMEOUT)
        self._peer = peer

    def cancel(self) -> bool:
        return False

    def resolve(self, message: Message) -> None:
        try:
            answer = message.body
        except BusError:
            answer = None
        self._peer.negotiation.answered(answer)
        super().resolve(message)

    def reject(self, message: Message, now: float, *, own: bool = False) -> None:
        self.fail(error_of(message, self.subject, now - self.started, own=own))

    def fail(self, error: BusError) -> None:
        peer = self._peer
        peer.negotiation.takes_note(None)
        peer.link.runtime.bus_identities.take_proof(peer, None)
        if peer.speaks_extensions is None and self.sent:  # one that never left says nothing of the peer
            if isinstance(error, DeadlineExceeded):
                peer.negotiation.silent = True
            elif not isinstance(error, (Disconnected, RequestCancelled, QueueFull)):
                peer.negotiation.speaks_extensions = False
        super().fail(error)
