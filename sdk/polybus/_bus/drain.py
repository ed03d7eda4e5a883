"""Draining: what runs may finish, what waits is written, the peers are told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import anyio

from .._link.link import Link
from .._rpc.call import Call
from .._rpc.stream_call import ChannelCall
from ..errors import Code

if TYPE_CHECKING:
    from .._core.runtime import Runtime
    from .bus import Bus

__all__ = ["LEAVING", "STREAMS_SHARE", "close_links", "drain"]

STREAMS_SHARE = 0.25
"""The part of a drain's time that streams and channels get: most have no end of their own to wait for."""


LEAVING = "the bus is leaving"


async def drain(bus: Bus, runtime: Runtime, timeout: float) -> None:
    """Wait for requests, streams, publications and outboxes, `timeout` seconds at the most; then tell the peers.

    What the lifespan has opened stays, for its own last words.
    """
    until = runtime.notifier.until
    with anyio.move_on_after(timeout):
        with anyio.move_on_after(timeout * STREAMS_SHARE):
            await until(lambda: not _runs(bus, runtime))
        _end_streams(bus, runtime)
        await until(lambda: not _runs(bus, runtime))
        for guest in list(bus._guests):  # what came through tunnels is answered before they end
            await guest.drain(timeout)
        for entrance in bus._entrances:  # and where others run the bus inside
            await entrance.drain(LEAVING)
        await until(lambda: not bus._pubsub.busy)
        await until(lambda: not any(link.outbox and link.stands for link in runtime.links))
    await close_links(bus, runtime, LEAVING)


async def close_links(bus: Bus, runtime: Runtime, reason: str, *, all_of_them: bool = False) -> None:
    """Say goodbye on the links and wait for their end, for a bounded time."""
    links = [link for link in runtime.links if all_of_them or link not in bus._own_links]
    for link in links:
        link.close(1000 if link.opened else 1001, reason)
    with anyio.move_on_after(runtime.limits.close_timeout + 1):
        await runtime.notifier.until(lambda: not any(link in runtime.links for link in links))


def _runs(bus: Bus, runtime: Runtime) -> bool:
    """Whether somebody waits for a handler."""
    if runtime.running + runtime.answering > runtime.stopping or bus._loopback.calls:
        return True
    return any(peer.waiting for link in runtime.links for peer in link.peers)


def _end_streams(bus: Bus, runtime: Runtime) -> None:
    for call in list(_calls(bus, runtime.links)):
        if isinstance(call, ChannelCall):
            call.cut(Code.UNAVAILABLE, "this bus is draining: ask another, or later")


def _calls(bus: Bus, links: dict[Link, None]) -> Iterator[Call]:
    yield from bus._loopback.calls.values()
    for link in links:
        for peer in link.peers:
            yield from peer.calls.values()
