"""Publications to one peer while an asynchronous `authorize` thinks about one of them: in order, bounded, and charged."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import anyio

from .._core.memory import Account
from .._link.send_queue import SendQueue
from ..errors import BusError

if TYPE_CHECKING:
    from .._link.outbox import Waiting
    from ..message import Message
    from .peer import Peer

__all__ = ["Deliveries"]


class Deliveries:
    """What has been published since the question, up to the size of an outbox; then the listener's `when_full` decides.

    There is one for a peer as long as an answer is out, and one task with it.
    """

    __slots__ = ("_box", "_deciding", "_peer", "_publishers")

    def __init__(self, peer: Peer) -> None:
        link = peer.link
        self._peer = peer
        self._box = SendQueue(link)
        self._deciding = Account(link.runtime, share=link.share)
        """The publication that is being decided about."""
        self._publishers: list[Any] = []

    def begin(self, message: Message, deadline: float, allowed: Awaitable[bool]) -> Waiting:
        """The first publication, about which `authorize` has been asked."""
        peer = self._peer
        entry = self._box.entry(message, peer, deadline)
        peer.undelivered = self
        peer.spawn(self._run, entry, allowed)
        return entry

    def add(self, message: Message, deadline: float) -> Waiting:
        """One more, behind the others."""
        entry = self._box.entry(message, self._peer, deadline)
        if self._box.make_room(entry):
            self._box.add(entry)
        else:
            entry.waits = False  # dropped by the policy, and counted
        return entry

    async def settled(self, entry: Waiting, deadline: float) -> None:
        """Wait until one has been sent or refused, or the deadline has passed."""
        loop = self._peer.link.runtime.loop
        with anyio.move_on_at(deadline):
            while entry.waits and self._peer.undelivered is self:
                waiter = loop.waiter()
                self._publishers.append(waiter)
                try:
                    await waiter
                finally:
                    if waiter in self._publishers:
                        self._publishers.remove(waiter)

    async def _run(self, entry: Waiting | None, allowed: bool | Awaitable[bool]) -> None:
        peer = self._peer
        link = peer.link
        try:
            while entry is not None:
                self._deciding.charge(entry.size)
                granted = await allowed if inspect.isawaitable(allowed) else bool(allowed)
                if peer.undelivered is not self:
                    return  # the peer has gone meanwhile
                self._decided(entry, granted)
                self._deciding.release(entry.size)
                entry = self._box.pop()
                if entry is not None:
                    assert entry.message is not None
                    entry.waits = True  # for its publisher
                    allowed = link.services.access.may_receive(peer, entry.message.subject)
        finally:
            self._deciding.release(self._deciding.held)
            # Also when a cancellation escapes from `authorize`: what waited is refused, and what follows is not blocked.
            if peer.undelivered is self:
                self.lost()

    def _decided(self, entry: Waiting, granted: bool) -> None:
        link, message = self._peer.link, entry.message
        assert message is not None
        entry.waits = False
        if granted and entry.deadline <= link.runtime.time():
            link.services.counters.dropped += 1
        elif granted:
            try:
                link.publish(message, self._peer, entry.deadline)
            except BusError as error:
                link.bus._distribution.unsent(message, self._peer, "published", error)
        self._wake_publishers()

    def lost(self) -> None:
        """The peer has gone, or nobody decides any more: nothing waits here."""
        self._peer.link.services.counters.dropped += len(self._box.clear())
        self._peer.undelivered = None
        self._wake_publishers()

    def _wake_publishers(self) -> None:
        waiting, self._publishers = self._publishers, []
        for waiter in waiting:
            self._peer.link.runtime.loop.wake(waiter)
