"""Reading what is stored: by the engine of the cluster of a bus, or in streams of others behind its links."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
from attrs import define, field

from ..._util.log_fields import log_fields
from ...errors import AmbiguousRoute, BusError, LocalProtocolError, Unsupported, another
from ...plugins import ProtocolFeatures
from ...plugins.registry import make_foreign_streams
from ...subjects import matches
from ..link import ports
from .cluster import DurablePort

if TYPE_CHECKING:
    from ...message import Message
    from ...stats import DurableStats
    from ..handlers.durable import DurableSpec, ReplaySpec
    from ..handlers.handler import Handler
    from ..handlers.subscriber import SubscriberSpec
    from ..link.link import Link
    from ..peer.peer import Peer
    from ..peer.subscription import Subscription
    from .links import LinkRegistry

logger: logging.Logger = logging.getLogger("polybus")

_NOT_CLUSTERED: Final = (
    "%s: durable=%r needs a cluster, whose engine stores: make the bus with Bus(cluster='auto'). To read a stream of others, "
    "enter the bus by its link to their NATS network, connect('nats+tcp://...', bus=bus), or open that in its lifespan"
)
_NOTHING_STORED: Final = (
    "a subscription to what is stored of %r needs a cluster, whose engine stores, or a link to a NATS network with a stream of "
    "others: make the bus with Bus(cluster='auto'), set POLYBUS_CLUSTER, and enter it; in tests by "
    "polybus.testing.cluster(bus)"
)
_NO_STREAMS: Final = (
    "nothing is stored behind a link of {}: durable=, start= and id= are for the stores of a cluster, and for links to NATS "
    "networks"
)


class ForeignStreamsPort(DurablePort, ports.ForeignStreamsPort, Protocol):
    """The streams behind one link: `cluster.durable.foreign`."""

    async def prepare(self, specs: Iterable[SubscriberSpec]) -> None:
        """Find the consumers of durable handlers, or make them."""

    async def publish(self, message: Message, id: str | None, deadline: float) -> None:
        """Return when a stream has stored a publication."""


@define(eq=False)
class StoredReading:
    """The engines at which this bus reads what is stored. Implements `_core.pubsub.ports.StoredPort`.

    Attributes:
        engines: All of them, that of the cluster first.
        expected: A link is being opened, or was, behind which there may be streams.
    """

    _links: LinkRegistry
    engines: list[DurablePort] = field(factory=list, init=False)
    expected: bool = field(default=False, init=False)
    _streams: dict[Link, ForeignStreamsPort] = field(factory=dict, init=False)
    _taken: dict[Handler, Link] = field(factory=dict, init=False)
    """The durable handlers that a link has taken."""
    _readers: dict[Subscription[Any], DurablePort] = field(factory=dict, init=False)
    """The engine of each subscription."""

    @property
    def progress(self) -> tuple[DurableStats, ...]:
        """The state of durable handlers, as their engines told it last."""
        return tuple(one for engine in self.engines for one in engine.progress)

    @property
    def busy(self) -> bool:
        """True while stored publications are being handled."""
        return any(engine.busy for engine in self.engines)

    # -- links -------------------------------------------------------------------------------------------------------------

    def _behind(self, link: Link) -> ForeignStreamsPort:
        """Find the streams behind a link.

        Raises:
            Unsupported: There can be none.
            Disconnected: It is gone for good.
        """
        streams = self._streams.get(link)
        if streams is None:
            if not has_streams(link):
                raise Unsupported(_NO_STREAMS.format(link.adapter.name))
            if link not in self._links.opened:
                raise link.disconnected(sent=False)
            made: ForeignStreamsPort = make_foreign_streams(self._links.services, link)
            streams = self._streams[link] = link.foreign_streams = made
            self.engines.append(streams)
        return streams

    def _chosen(self, subject: str | int) -> Link | None:
        """Choose the link to a NATS network whose streams are meant, as requests do.

        Raises:
            AmbiguousRoute: Several could be.
        """
        links = [link for link in self._links.opened if has_streams(link)]
        if len(links) < 2:
            return links[0] if links else None
        for link in links:
            if _serves(link, subject):
                return link
        urls = ", ".join(link.url for link in links)
        raise AmbiguousRoute(f"several links could have a stream of {subject!r} ({urls}): connect with serves=")

    async def attach(self, link: Link) -> None:
        """Have a new link read for the durable handlers of a bus that is in no cluster; one with ``serves=`` for its own.

        Raises:
            BusError: As `ForeignStreamsPort.prepare`.
        """
        if self._links.cluster is not None:
            return
        specs = [spec for spec in self._waiting if not link.serves or _serves(link, spec.handler.subject)]
        if specs:
            streams = self._behind(link)
            self._taken.update((spec.handler, link) for spec in specs)
            try:
                await streams.prepare(specs)
            except BaseException:
                self._forget_handlers(link)
                raise
            if self._links.services.ready:
                streams.begin()
        for spec in self._waiting:
            text = "%s: its durable publications come from no link yet: %s has serves=, and none of that is %r"
            name = spec.handler.name
            logger.warning(text, name, link.url, spec.handler.subject, extra=log_fields(handler=name))

    @property
    def _waiting(self) -> list[SubscriberSpec]:
        """List the durable handlers that no link has taken."""
        specs = self._links.lookup.subscribers
        return [spec for spec in specs if spec.durable is not None and spec.handler not in self._taken]

    def check_handlers(self) -> None:
        """
        Raises:
            LocalProtocolError: A durable handler has no engine, and no link is expected that would lead to one.
        """
        if self._links.cluster is None and not self.expected:
            for spec in self._waiting:
                assert spec.durable is not None
                raise LocalProtocolError(_NOT_CLUSTERED % (spec.handler.name, spec.durable.name))

    def link_gone(self, link: Link, error: BusError | None) -> None:
        """End what reads behind a link that was read, and does not come back; with an error its subscriptions raise that."""
        streams, link.foreign_streams = self._streams.pop(link), None
        self.engines.remove(streams)
        for subscription, engine in list(self._readers.items()):
            if engine is streams:
                subscription.end(None if error is None else another(error))
        streams.withdraw()
        streams.give_back()
        self._forget_handlers(link)

    def _forget_handlers(self, link: Link) -> None:
        self._taken = {handler: other for handler, other in self._taken.items() if other is not link}

    async def leave(self, link: Link, patience: float) -> None:
        """Take nothing more of a link that was read, and is about to be closed; what runs is finished, or given back."""
        streams = self._streams[link]
        streams.withdraw()
        with anyio.move_on_after(patience):
            await link.runtime.notifier.until(lambda: not streams.busy)
        streams.give_back()

    def clear(self) -> None:
        """Forget what the end of the links has left: their event loop has gone down."""
        self.engines.clear()
        self._streams.clear()
        self._taken.clear()
        self._readers.clear()

    # -- subscriptions and publications --------------------------------------------------------------------------------------

    async def subscribe(self, subscription: Subscription[Any], spec: DurableSpec | ReplaySpec) -> None:
        """Hand what is stored to a subscription, until `unsubscribe`.

        Raises:
            LocalProtocolError: No engine stores for this bus.
            Unsupported, AmbiguousRoute: Nothing is stored behind the link of its peer, or several links could be meant.
            BusError: As `StoredPort.subscribe`.
        """
        engine = self._readers[subscription] = self._engine(subscription)
        await engine.subscribe(subscription, spec)

    def _engine(self, subscription: Subscription[Any]) -> DurablePort:
        if subscription.peer is not None:
            return self._behind(subscription.peer.link)
        cluster = self._links.cluster
        if cluster is not None and cluster.durable is not None:
            return cluster.durable
        link = None if cluster is not None else self._chosen(subscription.pattern)
        if link is None:
            raise LocalProtocolError(_NOTHING_STORED % (subscription.pattern,))
        return self._behind(link)

    def unsubscribe(self, subscription: Subscription[Any]) -> None:
        """Hand nothing more to a subscription; one that is not in is ignored."""
        engine = self._readers.pop(subscription, None)
        if engine is not None:
            engine.unsubscribe(subscription)

    def publishing(self, subject: str | int, peer: Peer | None) -> tuple[Peer, ForeignStreamsPort] | None:
        """Find the streams of others that a publication with an id is for; None where it can be for none.

        Raises:
            Unsupported, AmbiguousRoute: As `subscribe`.
        """
        if peer is None:
            link = None if self._links.cluster is not None else self._chosen(subject)
            return None if link is None or link.peer is None else (link.peer, self._behind(link))
        return peer, self._behind(peer.link)


def has_streams(link: Link) -> bool:
    """Tell whether there may be streams of others behind a link."""
    return link.opened and link.backbone is None and ProtocolFeatures.of(link.adapter).keeps


def _serves(link: Link, subject: str | int) -> bool:
    return any(matches(pattern, subject) for pattern in link.serves)
