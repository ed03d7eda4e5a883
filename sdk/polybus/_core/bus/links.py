"""Manages the links of a bus and their peers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from ..._validation import check_given, shown
from ...errors import AmbiguousRoute, BusError, Disconnected, NoHandler, another
from ...plugins import Closed, Listening, ProtocolFeatures
from ...plugins.extensions import Extension, Mesh, Resumption, Storage
from ...subjects import matches
from ..link.link import Link
from ..link.state import State
from ..peer.peer_core import PeerCore

if TYPE_CHECKING:
    from ...message import Message
    from ...plugins import ProtocolAdapter
    from ...stats import DurableStats
    from ..handlers.lookup import HandlerLookup
    from ..pubsub.pubsub import PubSub
    from ..runtime.runtime import Runtime
    from ..runtime.services import Services
    from ..tunnel import TunnelConnector
    from .acceptor import BusGate


class LinkRegistry:
    """The links and peers of a bus. Implements `_core.link.ports.LinkOwner` and `_core.peer.ports.PeerHost`.

    Attributes:
        opened: Dialled links that have been up and not been given up.
        gates: Gates for incoming connections, with their listeners.
        of_lifespan: Links that the lifespan dialled. They are closed after it has exited.
        extensions: Parts that optional packages have added to the bus.
    """

    def __init__(self, services: Services, lookup: HandlerLookup, pubsub: PubSub, make_storage: Callable[[], Any]) -> None:
        self._services = services
        self._make_storage = make_storage
        self.lookup: HandlerLookup = lookup
        self.pubsub: PubSub = pubsub
        self.deliver: Callable[[Message, PeerCore], None] = pubsub.receiver.deliver
        self.open_peer: Callable[..., PeerCore] = partial(PeerCore, self)
        self.opened: list[Link] = []
        self.gates: dict[BusGate, Listening] = {}
        self.of_lifespan: set[Link] = set()
        self._of_key: dict[str, dict[PeerCore, None]] = {}
        self.extensions: list[Extension] = []
        self.mesh: Mesh | None = None
        self.resumption: Resumption | None = None
        """Set if clients can resume their sessions at another bus."""
        self._storage: Storage | None = None

    @property
    def services(self) -> Services:
        return self._services

    @property
    def storage(self) -> Storage:
        """Extension for stored publications, created on first use."""
        storage = self._storage
        if storage is None:
            made: Any = self._make_storage()
            self.extensions.append(made)
            self._storage = storage = made
        return storage

    @property
    def progress(self) -> Collection[DurableStats]:
        return () if self._storage is None else self._storage.progress

    @property
    def inner_peer(self) -> PeerCore | None:
        return None if self.mesh is None else self.mesh.peer

    # -- peers -----------------------------------------------------------------------------------------------------------

    @property
    def peers(self) -> list[PeerCore]:
        runtime = self._services.runtime
        return [] if runtime is None else [peer for link in runtime.links for peer in link.peers]

    def peers_of(self, key: str) -> list[PeerCore]:
        return [peer for peer in self._of_key.get(key, ()) if not peer.gone]

    def choose(self, subject: str | int) -> PeerCore:
        """Choose the peer for requests to a subject. Raises `NoHandler` or `AmbiguousRoute` if none or several of the dialled
        links lead to the subject, or the reason why the only link is gone for good."""
        only: PeerCore | None = self.opened[0].peer if len(self.opened) == 1 else None
        if only is not None:
            return only
        self.check_gone()  # raises better errors: the reason, or that the bus is not entered
        opened = [link for link in self.opened if link.multiplexed is None]  # multiplexed links lead to clients behind a broker
        if not opened:
            if self._services.leaving:
                raise Disconnected("this bus is being left")
            raise NoHandler(f"no handler for {subject!r} here, and this bus has not opened a link (to= selects a peer)")
        chosen: PeerCore | None = next(
            (link.peer for link in opened if any(matches(pattern, subject) for pattern in link.serves)), None
        )
        if chosen is None:
            chosen = self.inner_peer
        if chosen is None:
            urls = ", ".join(link.url for link in opened)
            raise AmbiguousRoute(f"several links could carry {subject!r} ({urls}): pass to=, or connect with serves=")
        return chosen

    def check_gone(self) -> None:
        """Raise an error if the bus is not entered, or if it has no listener and its last dialled link is gone for good."""
        gone = self._services.running.gone
        if gone is not None and not self.opened and not self.gates:
            raise another(gone)

    def tunnel(self, name: Any, params: Mapping[str, str] | None, peer: PeerCore | None = None) -> TunnelConnector:
        from ..tunnel import TunnelConnector  # few programs use tunnels

        check_given(name, str, "name", "bus.tunnel('plant.7')")
        services = self._services
        services.subjects.check(name)
        given: dict[Any, Any] = dict(params or {})  # checked below
        if not all(isinstance(text, str) for pair in given.items() for text in pair):
            raise TypeError(f"params={shown(params)} must be a mapping of strings to strings")

        def route() -> PeerCore:
            services.running.check_here()
            return peer if peer is not None else self.choose(name)

        def lasting() -> bool:
            runtime = services.runtime
            return runtime is not None and not runtime.closing and (bool(self.opened) if peer is None else not peer.gone)

        return TunnelConnector(route, lasting, name, given)

    # -- adding links ----------------------------------------------------------------------------------------------------

    def add_gate(self, gate: BusGate, listening: Listening) -> None:
        self.gates[gate] = listening
        self.pubsub.forget_routes()

    def spellings(self, subject: str | int) -> dict[ProtocolAdapter, tuple[str, ...]]:
        """Return a publication's other names, by protocol. Only protocols with both names and addresses have them."""
        found = {adapter: ProtocolFeatures.of(adapter).spellings for adapter in self.adapters()}
        return {adapter: spellings(subject) for adapter, spellings in found.items() if spellings is not None}

    def adapters(self) -> set[ProtocolAdapter]:
        return {link.adapter for link in self._services.running.links} | {gate.adapter for gate in self.gates}

    async def announced(self, link: Link) -> None:
        peer = link.peer
        if peer is None:
            return
        try:
            if peer in self.pubsub.recipients.bus_identities.held_out:  # it may be the bus that dialled this one
                await peer.extended()
            await link.confirmed()
            if self.pubsub.announcer.has_patterns:
                await self.pubsub.announcer.restored(peer)
                if peer.speaks_extensions is not False and not peer.silent:
                    await peer.negotiation.confirm()
        except BusError:
            return

    # -- reports of links and peers --------------------------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        recipients = self.pubsub.recipients
        if link.opened:
            for extension in self.extensions:
                extension.link_up(link)
            if link not in self.opened:
                self.opened.append(link)
            if link.peer is not None:
                recipients.joined(link.peer)
        elif link.peer is not None and link.peer.admitted.key is not None:
            self._know(link.peer)
        self.pubsub.announcer.restore(link, alone=not self.gates and len(link.runtime.links) < 2)
        if not link.opened and link.peer is not None:
            for extension in self.extensions:
                extension.client_up(link.peer)

    def link_moved(self, link: Link) -> None:
        """Announce everything to the new server of a link, because it does not know this bus yet."""
        for extension in self.extensions:
            extension.link_moved(link)
        for peer in link.peers:
            self.pubsub.announcer.restore_peer(peer)

    def peer_up(self, peer: PeerCore) -> None:
        self._know(peer)
        for extension in self.extensions:
            extension.client_up(peer)
        self.pubsub.announcer.restore_peer(peer)

    def _know(self, peer: PeerCore) -> None:
        key = peer.identity_key
        if key is not None:
            self._of_key.setdefault(key, {})[peer] = None

    def _forget(self, peer: PeerCore) -> None:
        key = peer.identity_key
        if key is not None and (of_key := self._of_key.get(key)) is not None:
            of_key.pop(peer, None)
            if not of_key:
                del self._of_key[key]

    def link_closed(self, link: Link, why: Closed) -> None:
        recipients = self.pubsub.recipients
        self.pubsub.announcer.forget(link)
        if link in self.opened:
            self.opened.remove(link)
            recipients.left(link.peer)
            if not self.opened and not self.gates and why.code != 1000:
                gone = link.runtime.gone = link.disconnected(sent=False)
                self.pubsub.fail_subscriptions(gone)
            if link.peer is not None:
                recipients.bus_identities.forget(link.peer)
        if link.opened:
            for extension in self.extensions:
                extension.link_gone(link, None if self._services.leaving else link.disconnected(sent=False))
        for gate in self.gates:
            gate.gone(link)
        self.of_lifespan.discard(link)

    def lost(self, peer: PeerCore, gone: BusError | None) -> None:
        """Forget a disconnected peer's subscriptions. If the peer will not return, `gone` is the reason."""
        self.pubsub.recipients.remove(peer)
        link = peer.link
        for extension in self.extensions:
            if link.upstream:
                extension.link_down(link)
            else:
                extension.client_gone(peer)
        if gone is not None:
            self._forget(peer)
            self.pubsub.peer_gone(peer, gone)

    # -- closing ---------------------------------------------------------------------------------------------------------

    async def close(self, link: Link, *, drain: bool, code: int = 1000) -> None:
        """Close one link. With `drain`, the other end gets everything first."""
        limits = link.runtime.limits
        for extension in self.extensions:
            await extension.leave(link, limits.close_timeout if drain else 0)
        if drain:
            with anyio.move_on_after(limits.close_timeout):
                await self.all_sent(link.runtime, [link])
        link.close(code, "leaving")
        with anyio.move_on_after(limits.close_timeout + 1):
            await link.runtime.notifier.until(lambda: link.state is State.CLOSED)
        link.abort(Closed(code, "leaving"))

    async def all_sent(self, runtime: Runtime, links: Collection[Link]) -> None:
        """Wait until the outboxes are written, and until the servers have handled everything if their protocol confirms it.

        A server that finds its connection closed may drop what it has not yet read.
        """
        await runtime.notifier.until(lambda: not any(link.outbox and link.stands for link in links))
        for link in links:
            with suppress(Disconnected):
                await link.confirmed()

    async def close_all(self, runtime: Runtime, reason: str, *, of_lifespan: bool = False) -> None:
        """Say goodbye on all links, with `of_lifespan` also the lifespan's, and wait a limited time for them to close."""
        links = [link for link in runtime.links if of_lifespan or link not in self.of_lifespan]
        for link in links:
            link.close(1000 if link.opened else 1001, reason)
        with anyio.move_on_after(runtime.limits.close_timeout + 1):
            await runtime.notifier.until(lambda: not any(link in runtime.links for link in links))

    def clear(self) -> None:
        self.gates.clear()
        self.opened.clear()
        for extension in self.extensions:
            extension.clear()
        self.of_lifespan.clear()
