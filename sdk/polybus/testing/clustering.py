"""Buses of one test as the nodes of one cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import anyio
from attrs import evolve

from .._core.bus.bus import Bus, parts_of
from ..cluster.backbone import Backbone
from ..errors import LocalProtocolError
from .nats_engine import NatsEngine

_PATIENCE: Final = 30.0
"""Seconds for all to know one another: in memory that takes none."""


@asynccontextmanager
async def cluster(*buses: Bus, url: str | None = None) -> AsyncIterator[str]:
    """Enter buses as the nodes of one cluster: ``async with cluster(gateway, worker): await gateway.publish(...)``

    When the block begins, each knows all others. The cluster that a bus was made for, in ``Bus(cluster=...)``, is not looked
    for, nor is ``POLYBUS_CLUSTER`` read; its other options hold. Gives the URL of the engine, for nodes that come later.

    Args:
        buses: As the application makes them, not entered.
        url: An engine that runs, such as a `NatsEngine` that the test cuts, or a real server; one in memory by default.

    Raises:
        LocalProtocolError: A bus was made without ``cluster=``, or is entered already.
        ConnectFailed: (on entering) There is no engine at `url`.
        TimeoutError: (on entering) The nodes have not heard of one another in 30 s.
    """
    backbones = [_backbone(bus) for bus in buses]
    name = backbones[0].options.name if backbones else ""
    async with AsyncExitStack() as stack:
        if url is None:
            url = (await stack.enter_async_context(NatsEngine())).url
        for backbone in backbones:
            stack.callback(setattr, backbone, "options", backbone.options)
            options = backbone.options
            backbone.options = evolve(options, url=url, name=name, tls=options.tls_for(url))
        for bus in buses:
            await stack.enter_async_context(bus)
        for bus in buses:
            await met(bus, *buses)
        yield url


async def met(bus: Bus, *others: Bus) -> None:
    """Wait until a node of a cluster knows others.

    Raises:
        TimeoutError: It has not heard of them in 30 s.
    """
    backbone = _backbone(bus, entered=True)
    services = parts_of(bus).services
    wanted = {parts_of(other).services.id for other in others} - {services.id}

    def unknown() -> set[str]:
        return wanted - {str(node.facts.get("bus")) for node in backbone.nodes_known.values()}

    with anyio.move_on_after(_PATIENCE) as scope:
        await services.running.notifier.until(lambda: not unknown())
    if scope.cancelled_caught:
        raise TimeoutError(
            f"a node has not heard of {len(unknown())} of {len(wanted)} others in {_PATIENCE:g} s: have they the same cluster?"
        )


def _backbone(bus: Bus, *, entered: bool = False) -> Backbone:
    parts = parts_of(bus)
    backbone = parts.links.mesh
    if not isinstance(backbone, Backbone):
        raise LocalProtocolError(
            f"{bus!r} is no node: make it with Bus(cluster='auto'), which is alone where no cluster is named"
        )
    if not entered and parts.services.runtime is not None:
        raise LocalProtocolError(f"{bus!r} is entered already, and has its cluster: cluster() enters its buses itself")
    return backbone
