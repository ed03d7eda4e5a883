"""The parts of a bus, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...nodes import Cluster
from ...plugins.registry import make_extension
from ..pubsub.pubsub import PubSub
from ..rpc.loopback import Loopback
from .lifecycle import Lifecycle, Lifespan
from .links import LinkRegistry

if TYPE_CHECKING:
    from ..handlers.lookup import HandlerLookup
    from ..runtime.services import Services


class BusParts:
    """The parts of a bus, each handed those that it needs.

    Attributes:
        services: Limits, counters, events, access, and the runtime while the bus is entered.
        lookup: Handlers, routes of bridges and ends of tunnels, by subject.
        pubsub: Publications and subscriptions.
        loopback: Requests and channels of the bus to itself.
        links: Links and their peers.
        life: Entering, draining, leaving.
    """

    __slots__ = ("life", "links", "lookup", "loopback", "pubsub", "services")

    def __init__(
        self, services: Services, lookup: HandlerLookup, lifespan: Lifespan | None, cluster: Cluster | None = None
    ) -> None:
        self.services: Services = services
        self.lookup: HandlerLookup = lookup
        self.loopback: Loopback = Loopback(services)
        self.pubsub: PubSub = PubSub(services, lookup, lambda: self.links.check_gone())
        self.links: LinkRegistry = LinkRegistry(services, lookup, self.pubsub)
        self.pubsub.storage = self.pubsub.publisher.storage = lambda: self.links.storage
        self.pubsub.publisher.spellings = self.links.spellings
        if cluster is not None:
            mesh: Any = make_extension("cluster", self, cluster)
            self.links.extensions.append(mesh)
            self.links.mesh, self.pubsub.tells_inside = mesh, True
            lifespan = mesh.around(lifespan)
        self.life: Lifecycle = Lifecycle(services, lifespan, lookup, self.pubsub, self.loopback, self.links)
