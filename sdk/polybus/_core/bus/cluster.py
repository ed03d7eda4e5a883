"""What the core asks of the room that makes a bus a node of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ...stats import DurableStats
from ..peer import ports as peer_ports
from ..pubsub.ports import StoredPort

if TYPE_CHECKING:
    from ...nodes import Node, Survey
    from ..link.link import Link
    from ..peer.peer import Peer
    from .lifecycle import Lifespan


class HandoverPort(peer_ports.HandoverPort, Protocol):
    """The handing over of clients from one node to another, as the life of a bus sees it too."""

    @property
    def busy(self) -> bool:
        """Tells whether clients are about to be taken over here."""
        ...

    def park(self) -> None:
        """Keep publications for the clients that are connected, for whom this is the last turn."""

    async def handed_over(self, until: float) -> None:
        """Wait until the clients have been taken over by other nodes, a bounded time, and keep nothing any more."""


class DurablePort(StoredPort, Protocol):
    """The readers of a bus at one engine, as its life sees them: `cluster.durable.readers`."""

    @property
    def busy(self) -> bool:
        """Tells whether stored publications are being handled."""
        ...

    @property
    def progress(self) -> tuple[DurableStats, ...]:
        """The state of durable handlers, as the engine told it last."""
        ...

    def begin(self) -> None:
        """Begin to take what is stored."""

    def withdraw(self) -> None:
        """Take nothing more."""

    def give_back(self) -> None:
        """Take nothing more, and have what is being handled come again at once, to others."""


class ClusterPort(Protocol):
    """The room that makes a bus a node: `polybus.cluster`."""

    @property
    def durable(self) -> DurablePort | None:
        """The durable handlers; None while the bus has none, or is not in the cluster."""
        ...

    @property
    def handover(self) -> HandoverPort:
        """The part that hands clients over."""
        ...

    @property
    def peer(self) -> Peer | None:
        """The cluster, as the peer of its link; None while there is none, or the bus is alone."""
        ...

    @property
    def entered(self) -> bool:
        """True once the engine was reached, and keeps what this bus wants it to."""
        ...

    def outage(self) -> str:
        """Say since when the engine is away or silent, where that is longer than it may; else empty."""
        ...

    def around(self, lifespan: Lifespan | None) -> Lifespan:
        """Make the lifespan that connects to the engine before the given one begins, and leaves after it."""
        ...

    def link_up(self, link: Link) -> None:
        """Take note that the link to the engine can be used."""

    def link_moved(self) -> None:
        """Take note that it goes on over another connection."""

    def link_down(self) -> None:
        """Take note that it is down, and may come back."""

    def client_up(self, peer: Peer) -> None:
        """Take note of a client that has connected here."""

    def client_gone(self, peer: Peer) -> None:
        """Take note of a client that has gone."""

    def forward(self, pattern: str | int) -> None:
        """Send what clients ask, and this bus does not handle, on to the cluster."""

    async def nodes(self) -> Survey[Node]:
        """Ask all nodes for what they are."""
        ...

    async def present(self, pattern: str | int) -> Survey[Any]:
        """Ask all nodes which of their clients have subscribed to a pattern."""
        ...

    async def peers_of(self, key: str) -> Survey[Any]:
        """Ask all nodes which of their clients are a user."""
        ...

    async def metrics(self) -> tuple[str, dict[str, str | None]]:
        """Give the name of this node, and the metrics of the others on this machine: texts by name, None of a silent one."""
        ...
