"""The peers of a connection that carries many: clients behind a broker. They come and go, are let in, and are sent away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import BusError, Unauthorized
from .events import LinkDown, LinkUp
from .message import Message
from .peer import Peer
from .plugins import Admission, Handshake, Identity, PeerOpened

if TYPE_CHECKING:
    from .link import Link

__all__ = ["Crowd"]


class Crowd:
    """Who is there, by the session's keys, and who still waits for `authenticate`."""

    __slots__ = ("_knocking", "_link", "peers")

    def __init__(self, link: Link) -> None:
        self._link = link
        self._knocking: dict[Any, list[Message]] = {}
        self.peers: dict[Any, Peer] = {}

    def opened(self, event: PeerOpened, now: float) -> None:
        """A stranger has come: let it in, or ask first. What it says meanwhile waits."""
        link, key = self._link, event.key
        self.closed(key, "its key was given to another")
        if len(self.peers) + len(self._knocking) >= link.runtime.limits.peers:
            self._send_away(key, 1013, f"{link.runtime.limits.peers} peers are here (Limits.peers)")
        elif link.bus._authority.authenticate is None:
            self._let_in(event, Identity(key=str(key)))
        else:
            waiting = self._knocking[key] = []
            link.runtime.spawn(self._ask, event, waiting)

    async def _ask(self, event: PeerOpened, waiting: list[Message]) -> None:
        link = self._link
        transport = link.transport.name if link.transport is not None else ""
        handshake = Handshake(
            protocol=link.adapter.name, transport=transport, url=link.url, address=event.address, params=event.params
        )
        outcome = await link.bus._authority.admit(handshake)
        if self._knocking.get(event.key) is not waiting or link.crowd is not self:
            return  # it has gone meanwhile, and maybe another has come under its key
        del self._knocking[event.key]
        if isinstance(outcome, Admission):
            self._let_in(event, outcome.identity)
            link.receive_all(waiting)
        else:
            code = 4401 if isinstance(outcome, Unauthorized) else 4403
            self._send_away(event.key, code, _text(outcome))

    def _let_in(self, event: PeerOpened, identity: Identity) -> None:
        link = self._link
        peer = self.peers[event.key] = Peer(link, event.key, identity, event.address)
        link.bus._peer_up(peer)
        link.bus._emit(LinkUp(peer=peer, url=link.url))

    def _send_away(self, key: Any, code: int, reason: str) -> None:
        link = self._link
        if link.session is not None:
            link.session.close(code, reason, link.runtime.time(), key)
            link.flush()

    def hold(self, message: Message) -> None:
        """A message of somebody who is not in: kept while `authenticate` thinks, otherwise dropped."""
        waiting = self._knocking.get(message.peer)
        if waiting is not None and len(waiting) < self._link.runtime.limits.running:
            waiting.append(message)
        else:
            self._link.bus._counters.dropped += 1

    def closed(self, key: Any, reason: str) -> None:
        """Somebody has gone: what was in flight ends."""
        self._knocking.pop(key, None)
        peer = self.peers.pop(key, None)
        if peer is not None:
            peer._lost(reason, going_on=False)
            self._link.bus._emit(LinkDown(peer=peer, url=self._link.url, code=1000, reason=reason))

    def lost(self, reason: str, error: BusError | None) -> None:
        """The connection is gone, and everybody with it; those who come back are new."""
        self._knocking.clear()
        peers, self.peers = self.peers, {}
        for peer in peers.values():
            peer._lost(reason, going_on=False, error=error)


def _text(error: BusError) -> str:
    return str(getattr(error, "text", error))
