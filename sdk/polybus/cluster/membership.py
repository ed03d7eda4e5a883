"""The nodes of a cluster, as the parts see them that ask one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .._core.peer.peer import Peer
    from ..plugins import NodeJoined


class Membership(Protocol):
    """The part that knows the other nodes: `backbone.Backbone`."""

    @property
    def nodes_known(self) -> Mapping[str, NodeJoined]:
        """The other nodes, by their names on the engine."""
        ...

    @property
    def host(self) -> str:
        """The machine that this bus runs on, as other nodes are told."""
        ...

    @property
    def title(self) -> str:
        """The name of this node, for people."""
        ...

    @property
    def peer(self) -> Peer | None:
        """The cluster, as the peer of its link."""
        ...

    def choose(self) -> Peer:
        """Give it, to be asked. May raise `Disconnected`."""
        ...

    def node_of(self, bus: str) -> str | None:
        """Find the node that a bus is."""
        ...
