"""Manages the peers of a multiplexed connection, such as clients behind a broker."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ..._util.logs import ViolationCounter
from ...errors import BusError, Code, Unauthorized
from ...events import LinkDown, LinkUp
from ...message import Kind, Message
from ...plugins import Admission, Handshake, Identity, PeerOpened
from ...plugins.close_codes import code_for, text_of
from ..runtime.memory_budgets import MemoryBudget, cost

if TYPE_CHECKING:
    from .link import Link
    from .ports import PeerPort

_PARTS = 16
"""Number of parts into which the memory for pending peers is divided. Each peer may use one part."""


class PendingPeer(Struct, eq=False):
    event: PeerOpened
    budget: MemoryBudget
    messages: list[Message] = []

    def forget(self) -> list[Message]:
        self.budget.release(self.budget.held)
        messages, self.messages = self.messages, []
        return messages


class MultiplexedPeers:
    __slots__ = ("_budget", "_asking", "_due", "_expires", "_link", "_offences", "_pending", "_unasked", "peers")

    def __init__(self, link: Link) -> None:
        self._link = link
        self._budget = MemoryBudget(link.runtime, link.runtime.limits.queue_bytes, link.share)
        self._pending: dict[Any, PendingPeer] = {}
        self._unasked: dict[Any, PendingPeer] = {}
        """Pending peers that have not been passed to `authenticate` yet."""
        self._asking = 0
        self._expires: dict[Any, float] = {}
        self._offences: dict[Any, ViolationCounter] = {}
        self._due = math.inf
        self.peers: dict[Any, Any] = {}

    def opened(self, event: PeerOpened) -> None:
        link, key = self._link, event.key
        limits = link.runtime.limits
        self.closed(key, "its key was given to another")
        if len(self.peers) + len(self._pending) >= limits.peers:
            self._refuse(key, 1013, f"{limits.peers} peers are already connected (Limits.peers)")
        elif link.services.access.authenticate is None:
            self._let_in(event, Identity(key=str(key)))
        else:
            share = MemoryBudget(link.runtime, limits.queue_bytes // _PARTS, part_of=self._budget)
            self._pending[key] = self._unasked[key] = PendingPeer(event, share)
            if self._asking < limits.handshakes:
                self._asking += 1
                link.runtime.spawn(self._ask_all)

    async def _ask_all(self) -> None:
        """Authenticate pending peers in turn, using at most `Limits.handshakes` tasks."""
        try:
            while self._unasked:
                pending = self._unasked.pop(next(iter(self._unasked)))
                await self._ask(pending)
        finally:
            self._asking -= 1

    async def _ask(self, pending: PendingPeer) -> None:
        link, event = self._link, pending.event
        transport = link.transport.name if link.transport is not None else ""
        handshake = Handshake(
            protocol=link.adapter.name, transport=transport, url=link.url, address=event.address, params=event.params
        )
        try:
            outcome = await link.services.access.admit(handshake)
        except KeyboardInterrupt:  # tell the peer before the program ends
            self._refuse(event.key, 1013, "authentication is unavailable: try again later")
            self.closed(event.key, "not let in")
            raise
        if self._pending.get(event.key) is not pending or link.multiplexed is not self:
            return  # the peer has left, and another may have taken its key
        del self._pending[event.key]
        messages = pending.forget()
        if isinstance(outcome, Admission):
            self._let_in(event, outcome.identity)
            link.take(messages)
        else:
            self._refuse(event.key, code_for(outcome), text_of(outcome))

    def _let_in(self, event: PeerOpened, identity: Identity) -> None:
        link = self._link
        peer = self.peers[event.key] = link.owner.open_peer(link, event.key, identity, event.address)
        expires = identity.ends(link.runtime.time())
        if expires is not None:
            self._expires[event.key] = expires
            self._due = min(self._due, expires)
        link.owner.peer_up(peer)
        link.services.emit(LinkUp(peer=peer.public, url=link.url))

    def _refuse(self, key: Any, code: int, reason: str) -> None:
        link = self._link
        if link.session is not None:
            link.send_frames(link.session.close(code, reason, link.runtime.time(), key))

    def hold(self, message: Message) -> None:
        """Queue a message of a peer that is being authenticated. Messages of unknown peers are dropped."""
        link, pending = self._link, self._pending.get(message.peer)
        if pending is None:
            link.services.counters.dropped += 1
        elif len(pending.messages) < link.runtime.limits.running and pending.budget.hold(cost(message)):
            message.forget_value()
            pending.messages.append(message)
        else:
            link.services.counters.dropped += 1
            if message.kind is Kind.REQUEST and link.session is not None and link.takes_more:
                text = "too many messages before authentication was complete: try again later"
                facts = {"text": text, "reason": "too_many_requests", "detail": None}
                answer = Message(Kind.ERROR, message.subject, message.id, code=Code.RESOURCE_EXHAUSTED, attributes=facts)
                answer.reply_to = message.reply_to
                with suppress(BusError):
                    link.send_frames(link.session.send(answer, link.runtime.time(), message.peer)[1])

    def tick(self, now: float) -> None:
        if now < self._due:
            return
        error = Unauthorized("the identity has expired")
        for key in [key for key, expires in self._expires.items() if expires <= now]:
            self.send_away(self.peers[key], 4401, "the identity has expired: authenticate again", error)
        self._due = min(self._expires.values(), default=math.inf)

    def send_away(self, peer: PeerPort, code: int, reason: str, error: BusError | None = None) -> None:
        if self.peers.get(peer.key) is peer:
            self.expel(peer.key, code, reason, error)

    def expel(self, key: Any, code: int, reason: str, error: BusError | None = None) -> None:
        """Disconnect the peer with a key, even if it is being authenticated."""
        self._refuse(key, code, reason)
        self.closed(key, reason, code, error)

    def offences_of(self, key: Any) -> ViolationCounter | None:
        """Return the counter of a peer's malformed messages, or None if the key is unknown."""
        if key not in self.peers and key not in self._pending:
            return None
        return self._offences.setdefault(key, ViolationCounter())

    def closed(self, key: Any, reason: str, code: int = 1000, error: BusError | None = None) -> None:
        self._unasked.pop(key, None)
        self._expires.pop(key, None)
        self._offences.pop(key, None)
        pending = self._pending.pop(key, None)
        if pending is not None:
            pending.forget()
        peer = self.peers.pop(key, None)
        if peer is not None:
            peer.connection_lost(reason, going_on=False, error=error)
            if self._link.outbox is not None:
                self._link.outbox.lost(reason, error, peer)
            self._link.services.emit(LinkDown(peer=peer.public, url=self._link.url, code=code, reason=reason))

    def lost(self, reason: str, error: BusError | None) -> None:
        """Remove all peers, because the connection is lost. A peer that reconnects is a new peer."""
        for pending in self._pending.values():
            pending.forget()
        self._pending.clear()
        self._unasked.clear()
        self._expires.clear()
        self._offences.clear()
        self._due = math.inf
        peers, self.peers = self.peers, {}
        for peer in peers.values():
            peer.connection_lost(reason, going_on=False, error=error)
        if self._link.outbox is not None:
            self._link.outbox.lost(reason, error)
