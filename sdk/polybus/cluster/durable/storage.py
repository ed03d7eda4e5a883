"""Reading what is stored: by the engine of the cluster of a bus, or in streams of others behind its links."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define, field

from ..._util.log_fields import log_fields
from ...errors import AmbiguousRoute, BusError, LocalProtocolError, Unsupported, another
from ...plugins import ProtocolFeatures
from ...plugins.extensions import Extension, Keeper
from ...subjects import matches

if TYPE_CHECKING:
    from ... import Peer, Subscription
    from ..._core.bus.links import LinkRegistry
    from ..._core.handlers.handler import Handler
    from ..._core.handlers.subscriber import SubscriberSpec
    from ..._core.link.link import Link
    from ...stats import DurableStats
    from .consumers import StoreReaders
    from .foreign import ForeignStreams
    from .publishing import StoredPublishing
    from .reading import DurableSpec, ReplaySpec

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


@define(eq=False)
class StoredReading(Extension):
    """The engines at which this bus reads what is stored. Implements `plugins.extensions.Storage`.

    Attributes:
        engines: All of them, that of the cluster first.
        expected: A link is being opened, or was, behind which there may be streams.
    """

    _links: LinkRegistry
    engines: list[StoreReaders] = field(factory=list, init=False)
    expected: bool = field(default=False, init=False)
    cluster: StoreReaders | None = field(default=None, init=False)
    """The engine of the cluster that this bus is a node of, while it is in."""
    stores: StoredPublishing | None = field(default=None, init=False)
    """The publisher to the stores of that cluster, where it has some."""
    _streams: dict[Link, ForeignStreams] = field(factory=dict, init=False)
    _taken: dict[Handler, Link] = field(factory=dict, init=False)
    """The durable handlers that a link has taken."""
    _readers: dict[Subscription[Any], StoreReaders] = field(factory=dict, init=False)
    """The engine of each subscription."""

    @property
    def progress(self) -> tuple[DurableStats, ...]:
        """The state of durable handlers, as their engines told it last."""
        return tuple(one for engine in self.engines for one in engine.progress)

    @property
    def busy(self) -> bool:
        """True while stored publications are being handled."""
        return any(engine.busy for engine in self.engines)

    # -- the life of the bus -------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Begin to take what is stored."""
        for engine in self.engines:
            engine.begin()

    def withdraw(self) -> None:
        """Take nothing more."""
        for engine in self.engines:
            engine.withdraw()

    def give_back(self) -> None:
        """Take nothing more, and have what is being handled come again at once, to others."""
        for engine in self.engines:
            engine.give_back()

    def clear(self) -> None:
        """Forget what the end of the links has left: their event loop has gone down."""
        self.expected = False
        self.engines.clear()
        self._streams.clear()
        self._taken.clear()
        self._readers.clear()

    # -- links -------------------------------------------------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        """Go on with what is behind a link."""
        if (streams := self._streams.get(link)) is not None:
            streams.readers.up()

    link_moved = link_up

    def link_down(self, link: Link) -> None:
        """Wait for a link."""
        if (streams := self._streams.get(link)) is not None:
            streams.readers.down()

    def _behind(self, link: Link) -> ForeignStreams:
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
            from .foreign import ForeignStreams  # a tenth of a second, for few programs

            streams = self._streams[link] = link.reader = ForeignStreams(self._links.services, link)
            self.engines.append(streams.readers)
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
            BusError: As `StoreReaders.prepare`.
        """
        if self._links.mesh is not None:
            return
        specs = [spec for spec in self._waiting if not link.serves or _serves(link, spec.handler.subject)]
        if specs:
            streams = self._behind(link)
            self._taken.update((spec.handler, link) for spec in specs)
            try:
                await streams.readers.prepare(specs)
            except BaseException:
                self._forget_handlers(link)
                raise
            if self._links.services.ready:
                streams.readers.begin()
        for spec in self._waiting:
            text = "%s: its durable publications come from no link yet: %s has serves=, and none of that is %r"
            name = spec.handler.name
            logger.warning(text, name, link.url, spec.handler.subject, extra=log_fields(handler=name))

    @property
    def _waiting(self) -> list[SubscriberSpec]:
        """List the durable handlers that no link has taken."""
        specs = self._links.lookup.subscribers
        return [spec for spec in specs if spec.reading is not None and spec.handler not in self._taken]

    def check_handlers(self) -> None:
        """
        Raises:
            LocalProtocolError: A durable handler has no engine, and no link is expected that would lead to one.
        """
        if self._links.mesh is None and not self.expected:
            for spec in self._waiting:
                assert spec.reading is not None
                raise LocalProtocolError(_NOT_CLUSTERED % (spec.handler.name, spec.reading.name))

    def link_gone(self, link: Link, error: BusError | None) -> None:
        """End what reads behind a link, which does not come back; with an error its subscriptions raise that."""
        streams = self._streams.pop(link, None)
        if streams is None:
            return
        link.reader, engine = None, streams.readers
        self.engines.remove(engine)
        for subscription, other in list(self._readers.items()):
            if other is engine:
                subscription.end(None if error is None else another(error))
        engine.withdraw()
        engine.give_back()
        self._forget_handlers(link)

    def _forget_handlers(self, link: Link) -> None:
        self._taken = {handler: other for handler, other in self._taken.items() if other is not link}

    async def leave(self, link: Link, patience: float) -> None:
        """Take nothing more of a link that is about to be closed; what runs is finished, or given back."""
        if (streams := self._streams.get(link)) is not None:
            engine = streams.readers
            engine.withdraw()
            with anyio.move_on_after(patience):
                await link.runtime.notifier.until(lambda: not engine.busy)
            engine.give_back()

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

    def _engine(self, subscription: Subscription[Any]) -> StoreReaders:
        if subscription.peer is not None:
            return self._behind(subscription.peer.link).readers
        if self.cluster is not None:
            return self.cluster
        link = None if self._links.mesh is not None else self._chosen(subscription.pattern)
        if link is None:
            raise LocalProtocolError(_NOTHING_STORED % (subscription.pattern,))
        return self._behind(link).readers

    def unsubscribe(self, subscription: Subscription[Any]) -> None:
        """Hand nothing more to a subscription; one that is not in is ignored."""
        engine = self._readers.pop(subscription, None)
        if engine is not None:
            engine.unsubscribe(subscription)

    def keeper(self, subject: str | int, peers: Sequence[Any] | None, id: str | None, kept: bool) -> tuple[Keeper, Peer | None]:
        """Find who stores a publication, and the peer that has it thereby.

        Raises:
            LocalProtocolError: Nobody does, or not for several peers.
            Unsupported, AmbiguousRoute: As `subscribe`.
        """
        links = self._links
        if kept and peers is None and self.stores is not None:
            return self.stores, links.inner_peer
        if not kept and (peers is None or len(peers) == 1):
            link = self._chosen(subject) if peers is None and links.mesh is None else None
            peer = peers[0] if peers else None if link is None else link.peer
            if peer is not None:
                return self._behind(peer.link), peer
        raise LocalProtocolError(
            f"publish({subject!r}, id={id!r}): an id is for what a store keeps, so that it is stored once; "
            + ("leave out to=" if kept else "name the subject in Cluster(stores=[Store(...)])")
        )


def has_streams(link: Link) -> bool:
    """Tell whether there may be streams of others behind a link."""
    return link.opened and not link.inner and ProtocolFeatures.of(link.adapter).keeps


def _serves(link: Link, subject: str | int) -> bool:
    return any(matches(pattern, subject) for pattern in link.serves)
