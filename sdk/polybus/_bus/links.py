"""The links of a bus: opening and accepting them, who is at their other ends, and what becomes of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import anyio

from .._link.link import Link, State
from .._peer.peer import Peer
from ..backoff import Backoff
from ..errors import BusError, another
from ..plugins import Closed
from .acceptor import Listener, Serving
from .dialer import Connecting, Headers
from .lifecycle import Life

if TYPE_CHECKING:
    import os
    import ssl

    from ..plugins import Connector, ProtocolAdapter

__all__ = ["Links"]

logger: logging.Logger = logging.getLogger("polybus")


class Links(Life):
    """The part of a `Bus` that has to do with its links."""

    def connect(
        self,
        target: str | Connector,
        *,
        protocol: str | ProtocolAdapter | None = None,
        serves: Iterable[str | int] = (),
        headers: Headers = None,
        tls: ssl.SSLContext | None = None,
        backoff: Backoff | None = None,
        wait: float = 0.0,
        record: str | os.PathLike[str] | None = None,
    ) -> AbstractAsyncContextManager[Peer]:
        """Add a link to this bus; the async context manager yields the `Peer` at the other end.

        Args: as `polybus.connect`.

        Raises:
            ValueError: The URL or an option is wrong.
            ConnectFailed: (on entering) With the address and the reason.
            Unauthorized, Forbidden: (on entering) The server refuses us.
        """
        return Connecting(
            self._bus,
            target,
            protocol=protocol,
            serves=serves,
            headers=headers,
            tls=tls,
            backoff=backoff,
            wait=wait,
            record=record,
            gives_bus=False,
        )

    def serve(
        self,
        target: str | Any,
        *,
        protocol: str | ProtocolAdapter | None = None,
        origins: Iterable[str] = (),
        hosts: Iterable[str] = (),
        tls: ssl.SSLContext | None = None,
        when_full: str = "drop_oldest",
        insecure: bool = False,
    ) -> AbstractAsyncContextManager[Listener]:
        """Accept links at an address; the async context manager yields the `Listener`.

        Args:
            target: A URL such as ``ubre+ws://127.0.0.1:8000/bus``, or a transport object. Port 0 takes a free port.
            protocol: For a transport object: name or adapter.
            origins: Web origins whose pages may connect, besides those of the same host and port.
            hosts: Further ``Host`` values of a loopback server, behind a proxy.
            tls: For ``tls`` and ``wss``: a server-side context.
            when_full: What happens to publications for a peer whose outbox is full: ``drop_oldest``, ``drop_newest``,
                ``disconnect``.
            insecure: Allow an address that other machines can reach although everybody is let in.

        Raises:
            ValueError: The URL or an option is wrong.
            LocalProtocolError: An open address without `authenticate`.
            OSError: (on entering) The address cannot be bound.
        """
        return Serving(
            self._bus,
            target,
            protocol=protocol,
            origins=origins,
            hosts=hosts,
            tls=tls,
            when_full=when_full,
            insecure=insecure,
        )

    @property
    def peers(self) -> list[Peer]:
        """Everybody linked to this bus."""
        return (
            [peer for link in self._services.runtime.links for peer in link.peers] if self._services.runtime is not None else []
        )

    def peers_of(self, key: str) -> list[Peer]:
        """The peers of one identity (its `Identity.key`), without those on their way out: for ``publish(..., to=...)``."""
        return [peer for peer in self.peers if peer.identity_key == key and not peer.gone]

    def _link_up(self, link: Link) -> None:
        recipients = self._pubsub.recipients
        if link.opened:
            if link not in self._opened:
                self._opened.append(link)
            if link.peer is not None:
                recipients.upstream = tuple(dict.fromkeys((*recipients.upstream, link.peer)))
        self._pubsub.announcer.restore(link, alone=not self._listeners and len(link.runtime.links) < 2)

    def _peer_up(self, peer: Peer) -> None:
        """One of many peers on a link is there."""
        self._pubsub.announcer.restore_peer(peer)

    def _link_gone(self, link: Link, why: Closed) -> None:
        recipients = self._pubsub.recipients
        if link in self._opened:
            self._opened.remove(link)
            recipients.upstream = tuple(peer for peer in recipients.upstream if peer.link is not link)
            if not self._opened and not self._listeners and why.code != 1000:
                gone = link.runtime.gone = link.disconnected(sent=False)
                self._pubsub.fail_subscriptions(gone)
            if link.peer is not None:
                recipients.ends.forget(link.peer)
        for listener in self._listeners:
            listener._gate.gone(link)
        self._own_links.discard(link)

    def _check_gone(self) -> None:
        """
        Raises:
            BusError: The last link that this bus opened is gone for good, and it serves nobody: why.
        """
        gone = self._services.running.gone
        if gone is not None and not self._opened and not self._listeners:
            raise another(gone)

    async def _announced(self, link: Link) -> None:
        """Wait until a new link knows who this bus is and what it has subscribed to, as far as it is told."""
        peer = link.peer
        if peer is not None and peer in self._pubsub.recipients.ends.held_out:  # it may be who has dialled this bus
            try:
                await peer.extended()
            except BusError:
                return
        if self._pubsub.announcer.has_patterns and peer is not None:
            await self._pubsub.announcer.restored(peer)
            if peer.speaks_extensions is False or peer.silent:
                return
            try:
                await peer.negotiation.confirm()
            except BusError:
                return

    async def _close_link(self, link: Link, *, drain: bool, code: int = 1000) -> None:
        until = link.runtime.notifier.until
        if drain:
            with anyio.move_on_after(self.limits.close_timeout):
                await until(lambda: not link.outbox or not link.stands)
        link.close(code, "leaving")
        with anyio.move_on_after(self.limits.close_timeout + 1):
            await until(lambda: link.state is State.CLOSED)
        link.abort(Closed(code, "leaving"))

    def lost(self, peer: Peer, gone: BusError | None) -> None:
        """The connection to a peer is gone: what is known of its interest is forgotten.

        Args:
            gone: Why it does not come back, where it does not.
        """
        self._pubsub.recipients.remove(peer)
        if gone is not None:
            self._pubsub.peer_gone(peer, gone)
