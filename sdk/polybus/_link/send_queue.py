"""The send queue of a connection that is slow or down: its policy, the publishers that wait for room, and writing it."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import anyio

from ..errors import BusError, Code
from .outbox import Outbox, WaitingMessage

if TYPE_CHECKING:
    from .._rpc.reply import Reply
    from ..message import Message
    from .link import Link
    from .ports import PeerPort

__all__ = ["SendQueue"]

logger: logging.Logger = logging.getLogger("polybus.link")


class SendQueue(Outbox):
    """Messages that wait for a link. A link has one only while its connection takes nothing."""

    __slots__ = ("_link", "_room")

    def __init__(self, link: Link) -> None:
        super().__init__(link.runtime.limits, link.runtime, link.share)
        self._link = link
        self._room: list[Any] = []
        """Publishers that wait for room."""

    def __str__(self) -> str:
        return f"{len(self)} messages, {self.bytes} bytes (Limits.outbox, outbox_bytes)"

    # -- one more --------------------------------------------------------------------------------------------------------

    def entry(
        self, message: Message, peer: PeerPort, deadline: float, reply: Reply[Any] | None = None, droppable: bool = True
    ) -> WaitingMessage:
        """Make the entry of a message: encoded, so that its size is known.

        Raises:
            EncodeError: The body does not fit the wire.
        """
        link = self._link
        if message.raw is None and message.has_body:
            message.encoded(link.adapter.codec(link.runtime.limits).formats)
        level = 0 if link.urgency is None else link.urgency(message)
        return WaitingMessage(message, peer, reply, deadline, droppable, level)

    def wait(self, message: Message, peer: PeerPort, reply: Reply[Any] | None, deadline: float, *, droppable: bool) -> bool:
        """Let a message wait. False if there is no room for it."""
        entry = self.entry(message, peer, deadline, reply, droppable)
        if not self.make_room(entry):
            return False
        self.add(entry)
        if reply is not None:

            def abandon(abandoned: Reply[Any]) -> None:
                self.drop(entry)
                self.wake()
                self._link.runtime.notifier.signal()
                peer.abandoned(abandoned)

            reply.on_cancel = abandon
        return True

    def make_room(self, entry: WaitingMessage) -> bool:
        """Make room for one more message, by the policy. False where there is none."""
        link, size = self._link, entry.size
        if self.has_room(size):
            return True
        link.services.counters.dropped += self.drop_expired(link.runtime.time())
        if self.has_room(size):
            return True
        if link.upstream and (entry.droppable or entry.reply is not None):
            return False  # the publisher waits, the client is told
        while not self.has_room(size):
            greediest = entry.peer if link.multiplexed is None else self.greediest()
            if entry.droppable and greediest is entry.peer and link.when_full != "drop_oldest":
                if link.when_full == "disconnect":
                    link.too_slow(greediest, "its outbox is full")
                else:
                    link.dropped(greediest)
                return False
            if self.drop_oldest(greediest):
                link.dropped(greediest)
            elif greediest is entry.peer or entry.reply is not None:
                return False
            else:
                link.too_slow(greediest, "it has most in an outbox that is full")
        return True

    # -- room ------------------------------------------------------------------------------------------------------------

    async def room(self, deadline: float) -> bool:
        """Wait until there may be room again. False when the deadline has passed."""
        runtime = self._link.runtime
        with anyio.move_on_at(deadline) as scope:
            waiter = runtime.loop.waiter()
            self._room.append(waiter)
            if self.next_expiry < deadline:
                runtime.watch(self, self.next_expiry)
            try:
                await waiter
            finally:
                if waiter in self._room:
                    self._room.remove(waiter)
        return not scope.cancelled_caught

    def wake(self) -> None:
        """Let publishers go on that wait for room, and requests that wait for answers to leave."""
        waiting, self._room = self._room, []
        for waiter in waiting:
            self._link.runtime.loop.wake(waiter)
        self._link.let_begin()

    def _expire(self, now: float) -> float:
        """Drop what has expired, which makes room. The time at which more expires."""
        if not self._room:
            return math.inf
        if expired := self.drop_expired(now):
            self._link.services.counters.dropped += expired
            self.wake()
        return self.next_expiry

    # -- writing ---------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Write what waits, as far as the connection takes it."""
        link = self._link
        now = link.runtime.time()
        while link.takes_more and (entry := self.pop()) is not None:
            self._write(entry, now)
        self.wake()

    def _write(self, entry: WaitingMessage, now: float) -> None:
        link, message, reply, peer = self._link, entry.message, entry.reply, entry.peer
        assert message is not None
        if reply is not None:
            if reply.done():
                return
            if message.ttl is not None:  # part of it has passed here
                message.ttl = max(0.0, message.ttl - (now - reply.started))
            peer.request_leaves(reply)
            try:
                link.send_request(message, reply, peer, now)
            except BusError as error:
                reply.fail(error)
        elif entry.droppable and entry.deadline <= now:
            link.services.counters.dropped += 1
            link.services.dead_letter(peer, message, Code.DEADLINE_EXCEEDED, "expired before it could be sent")
            return
        else:
            if message.expires is not None:
                message.ttl = message.expires - now
            try:
                link.write(message, peer)
            except BusError as error:
                logger.warning("polybus: a waiting message could not be written: %s", error)
        link.flush()
