"""The parts of a bus, and the methods that optional packages such as `cluster` use to access them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from ...body import JSON
from ...errors import BusError, Code, Disconnected
from ...message import Kind, Message
from ...nodes import Cluster
from ...plugins.extensions import core_of
from ...plugins.registry import make_extension
from ..peer.responses import response_to, send_error
from ..pubsub.publisher import make_publication
from ..pubsub.pubsub import PubSub
from ..rpc.loopback import Loopback
from ..rpc.reply import InternalReply, Reply
from ..runtime.memory_budgets import cost, trim
from .cluster_clients import RemotePeer
from .dialer import Connecting
from .lifecycle import Lifecycle, Lifespan
from .links import LinkRegistry
from .message_routing import MessageRouting

if TYPE_CHECKING:
    import ssl

    from ...plugins import Connector, ProtocolAdapter
    from ...plugins.extensions import LinkReader, PublicationQueue
    from ...retry import Backoff
    from ..handlers.lookup import HandlerLookup
    from ..peer.peer_core import PeerCore
    from ..runtime.services import Services

_LONGEST = 30.0
"""Maximum seconds that a publication to a single peer waits for space."""


class ToldReply(InternalReply, eq=False, kw_only=True):
    """A reply with a callback that runs as soon as the request ends, in the same event-loop iteration."""

    ended: Callable[[], None] | None = None

    def resolve(self, message: Message) -> None:
        if self.ended is not None:
            self.ended()
        super().resolve(message)

    def fail(self, error: BusError) -> None:
        if self.ended is not None:
            self.ended()
        super().fail(error)


class BusParts:
    """The parts of a bus, connected to each other.

    Attributes:
        services: Limits, counters, events, access control, and the runtime while entered.
        lookup: Handlers, routes of bridges and tunnel listeners, by subject.
        pubsub: Publications and subscriptions.
        loopback: Requests and channels that the bus sends to itself.
        links: Links and their peers.
        routing: Chooses the receiver of a message.
        life: Enters, drains and leaves the bus.
        deliver_to_all: Delivers a publication from the mesh to the subscriptions of this bus and its clients, and returns the
            queues.
    """

    def __init__(
        self, services: Services, lookup: HandlerLookup, lifespan: Lifespan | None, cluster: Cluster | None = None
    ) -> None:
        self.services: Services = services
        self.lookup: HandlerLookup = lookup
        self.loopback: Loopback = Loopback(services)
        self.pubsub: PubSub = PubSub(
            services,
            lookup,
            check_gone=lambda: self.links.check_gone(),
            storage=lambda: self.links.storage,
            spellings=lambda subject: self.links.spellings(subject),
        )
        self.links: LinkRegistry = LinkRegistry(services, lookup, self.pubsub, partial(make_extension, "storage", self))
        self.routing: MessageRouting = MessageRouting(lookup, self.loopback, self.links)
        self.deliver_to_all: Callable[[Message, PeerCore], Iterable[PublicationQueue]] = self.pubsub.receiver.deliver_to_all
        if cluster is not None:
            mesh: Any = make_extension("mesh", self, cluster)
            self.links.extensions.append(mesh)
            self.links.mesh, self.pubsub.tells_inside = mesh, True
            self.links.resumption = mesh.resumption
            lifespan = mesh.around(lifespan)
        self.life: Lifecycle = Lifecycle(services, lifespan, lookup, self.pubsub, self.loopback, self.links)

    # -- for extensions --------------------------------------------------------------------------------------------------

    @property
    def clients(self) -> list[PeerCore]:
        """Connected peers that opened their link to this bus."""
        return [peer for peer in self.links.peers if not peer.link.upstream and peer.connected]

    def clients_of(self, key: str) -> list[PeerCore]:
        return [peer for peer in self.links.peers_of(key) if peer.connected]

    async def gone(self, peer: Any) -> BusError:
        """Wait until a `Peer` has left for good, and return the reason."""
        core: PeerCore = core_of(peer)
        await self.services.running.notifier.until(lambda: core.gone)
        try:
            self.links.check_gone()
        except BusError as error:
            return error  # more specific, such as a refusal
        return core.departed()

    def connecting(
        self,
        connector: Connector,
        adapter: ProtocolAdapter,
        *,
        reader: LinkReader,
        tls: ssl.SSLContext | None,
        backoff: Backoff,
        wait: float,
        beyond: str,
    ) -> AbstractAsyncContextManager[Any]:
        """Open the link to the other buses of a mesh. `reader` receives messages for this bus or one of its clients. `beyond`
        names the other end in error texts."""
        return Connecting(self, connector, adapter, (), None, tls, backoff, wait, inner=reader, beyond=beyond)

    @property
    def _inside(self) -> PeerCore:
        if (peer := self.links.inner_peer) is None:
            raise Disconnected("this bus is in no mesh: it has not reached the other nodes yet, or none are named")
        return peer

    def answer(self, message: Message, value: Any) -> None:
        """Answer a request that another bus of the mesh sent to this bus. Raises `BusError` if that fails."""
        peer = self._inside
        peer.link.answer(response_to(message, value, peer.link), peer)

    def refuse(self, message: Message, code: Code, text: str, reason: str | None = None, *, kind: Kind = Kind.ERROR) -> None:
        """Answer a request from another bus of the mesh with an error. Raises `BusError` if that fails."""
        send_error(self._inside, message, code, text, reason, kind=kind)

    def ask_inside(
        self, to: Any, subject: str, body: Any, timeout: float, ended: Callable[[], None] | None = None
    ) -> Reply[Any]:
        """Send a request with a JSON body to another bus of the mesh. Raises the errors of `Peer.request`.

        Args:
            to: Address, as in `plugins.mesh`.
            ended: Called when the request has failed or its answer arrives, in order with other messages.
        """
        peer, raw = self._inside, None if body is None else JSON.encode(body)
        runtime = peer.link.runtime
        now = runtime.time()
        reply = ToldReply(runtime.loop, subject, Any, now, now + timeout, ended=ended)
        ttl = runtime.ttl(now, reply.deadline)
        peer.ask(Message(Kind.REQUEST, subject, None, raw, JSON, None, ttl, attributes={"to": to}), reply)
        return reply

    def tell_inside(self, to: Any, subject: str, body: bytes | None = None) -> None:
        """Send a notification in JSON to another bus of the mesh. Raises `BusError` if that fails."""
        peer = self._inside
        peer.link.answer(Message(Kind.NOTIFY, subject, None, body, JSON, attributes={"to": to}), peer)

    def pass_to(self, message: Message, client: PeerCore, now: float) -> None:
        from .forwarding import InnerRoute  # only nodes of clusters need it

        peer, route = self._inside, InnerRoute(">", self, lambda: client)
        if message.kind is Kind.OPEN:
            peer.streams.opened(message, now, route)
            return
        call = route.call(peer, message, math.inf if message.ttl is None else now + message.ttl)
        if message.kind is Kind.NOTIFY:
            message.id = call
        peer.inbound.start(call)

    def pass_on(self, pattern: str | int, choose: Callable[[], PeerCore]) -> None:
        """Forward clients' requests that have no handler here. `choose` returns the peer for each of them."""
        from .forwarding import InnerRoute

        self.lookup.routes.append(InnerRoute(pattern, self, choose, inward=True))

    def remote(self, id: str, node: str, key: str | None, protocol: str) -> RemotePeer:
        return RemotePeer(self.links, id, node, key, protocol)

    def publication(self, subject: str | int, body: Any) -> Message:
        """Return a publication with its body encoded. Raises the errors of `Bus.publish`."""
        return make_publication(self.pubsub.publisher.route(subject), subject, body, None, None)

    def send(self, message: Message, peer: PeerCore, how: str = "published") -> None:
        """Send a publication to one peer. Failures are counted, and logged as "not `how`"."""
        try:
            self.pubsub.publisher.send_nowait(message, peer, self.services.running.time() + _LONGEST)
        except BusError as error:
            self.pubsub.publisher.unsent(message, peer, how, error)

    def is_of_this_bus(self, message: Message) -> bool:
        """Return True if this bus has published a message itself or relays it for a client."""
        if message.peer is None or (peer := core_of(message.peer)).host is not self.links:
            return True
        return peer is not self.links.inner_peer and self.pubsub.relay.takes(message)

    def keep(self, keeps: Callable[[str | int], bool] | None) -> None:
        """Store publications if `keeps` returns True for their subject. `None` stops storing."""
        self.pubsub.publisher.keeps = keeps
        self.pubsub.publisher.routes.clear()

    def joined(self, peer: PeerCore, in_net: Callable[[], None]) -> None:
        """Announce the interests of this bus and its clients to the peer that stands for all other buses. `in_net` is called
        when this bus's publications may come back over a peer."""
        self.pubsub.announcer.inner, self.pubsub.publisher.net_joined = peer, in_net

    def parted(self) -> None:
        self.pubsub.announcer.inner = None

    def withhold(self, peer: PeerCore) -> bool:
        """Stop sending every publication to a client, if its protocol has no subscriptions. Returns False for other clients."""
        recipients = self.pubsub.recipients
        if peer not in recipients.gets_all or peer in recipients.bus_identities.held_out:
            return False
        recipients.remove(peer)
        return True

    def queue_for(self, peer: PeerCore, queue: PublicationQueue | None) -> None:
        """Put the client's publications into a queue instead, including for future subscriptions. `None` stops this."""
        peer.subscriptions.pass_to(queue)
        if queue is not None:
            self.pubsub.recipients.remove(peer)  # otherwise it gets everything until it has subscribed

    def take_over(self, peer: PeerCore, queue: PublicationQueue) -> tuple[tuple[str | int, ...], Sequence[Message]]:
        """Put the client's publications into a queue that outlives the client. Returns the patterns and the unsent messages."""
        patterns = tuple(peer.patterns)
        for pattern in patterns:  # before the client loses them: other nodes see no change
            self.pubsub.announcer.add_behind(pattern)
            self.pubsub.local.add(pattern, queue)
        peer.subscriptions.clear()
        return patterns, () if peer.undelivered is None else peer.undelivered.take()

    def weigh(self, message: Message) -> int:
        """Free spare memory of a waiting message's encoder, and return the number of bytes to charge for the message."""
        trim(message)
        return cost(message)
