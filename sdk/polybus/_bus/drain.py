"""Draining: what runs may finish, what waits is written, the peers are told."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import anyio

from .._rpc.call import Call
from .._rpc.stream_call import ChannelCall
from ..errors import Code

if TYPE_CHECKING:
    from .._core.runtime import Runtime
    from .._handlers.lookup import HandlerLookup
    from .._pubsub.pubsub import PubSub
    from .._rpc.loopback import Loopback
    from .lifecycle import Lifecycle
    from .links import LinkRegistry

DRAIN = 20.0
"""Seconds for a drain by default."""

STREAMS_SHARE = 0.25
"""The part of a drain's time that streams and channels get: most have no end of their own to wait for."""

LEAVING = "the bus is leaving"


class Drain:
    """Brings what a bus does to an orderly end."""

    def __init__(self, lookup: HandlerLookup, pubsub: PubSub, loopback: Loopback, links: LinkRegistry) -> None:
        self._lookup = lookup
        self._pubsub = pubsub
        self._loopback = loopback
        self._links = links

    async def run(self, runtime: Runtime, timeout: float, guests: Collection[Lifecycle]) -> None:
        """Wait for requests, streams, publications and outboxes, `timeout` seconds at the most; then tell the peers.

        What the lifespan has opened stays, for its own last words.

        Args:
            guests: The lifecycles of the buses that this one has entered for tunnels.
        """
        until = runtime.notifier.until
        with anyio.move_on_after(timeout):
            with anyio.move_on_after(timeout * STREAMS_SHARE):
                await until(lambda: not self._runs(runtime))
            for call in list(self._calls(runtime)):
                if isinstance(call, ChannelCall):
                    call.cut(Code.UNAVAILABLE, "this bus is draining: ask another, or later")
            await until(lambda: not self._runs(runtime))
            for guest in list(guests):  # what came through tunnels is answered before they end
                await guest.drain(timeout)
            for entrance in self._lookup.entrances:  # and where others run the bus inside
                await entrance.drain(LEAVING)
            await until(lambda: not self._pubsub.busy)
            await until(lambda: not any(link.outbox and link.stands for link in runtime.links))
        await self._links.close_all(runtime, LEAVING)

    def _runs(self, runtime: Runtime) -> bool:
        """Tell whether a handler runs whose answer a client waits for."""
        if runtime.running + runtime.answering > runtime.stopping or self._loopback.calls:
            return True
        return any(peer.waiting for link in runtime.links for peer in link.peers)

    def _calls(self, runtime: Runtime) -> Iterator[Call]:
        yield from self._loopback.calls.values()
        for link in runtime.links:
            for peer in link.peers:
                yield from peer.calls.values()
