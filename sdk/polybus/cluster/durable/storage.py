"""Checks the ``durable=`` and ``start=`` arguments, and chooses the cluster's engine or an engine behind a link."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
from attrs import define, field, frozen

from ...errors import AmbiguousRoute, BusError, LocalProtocolError, Unsupported, another
from ...nodes import Start
from ...plugins import ProtocolFeatures
from ...plugins.extensions import Extension, Keeper
from ...plugins.tools import check_count, check_given, check_type, log_fields, seconds, shown
from ...retry import Backoff, Retry
from ...subjects import matches

if TYPE_CHECKING:
    from ...integrations import BusParts, Handler, IteratedQueue, Link, SubscriberSpec
    from ...stats import DurableStats
    from .readers import StoreReaders

RETRY: Final = Retry(attempts=5, backoff=Backoff(initial=1.0, maximum=60.0))
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_ACK_WAIT: Final = 30.0
_SHORTEST: Final = 1.0
_LONGEST: Final = 86_400.0  # Minimum and maximum of `ack_wait`, in seconds
MOST: Final = 20_000  # Maximum number of unacknowledged publications of a durable handler, counting all its workers
_YEARS: Final = 290  # Maximum time span that the engine can represent in its 64 bits of nanoseconds
_LARGEST: Final = (1 << 63) - 1  # Largest possible sequence number of a publication
_USUAL: Final = Retry()


@frozen
class DurableSpec:
    """The arguments of a durable handler or subscription, named as in `Bus.on`. Implements `plugins.extensions.Reading`."""

    unread: ClassVar[int] = 1
    settled: ClassVar[bool] = True
    name: str
    retry: Retry = RETRY
    ack_wait: float = _ACK_WAIT
    start: Start = "all"
    ordered: bool = False


@frozen
class ReplaySpec:
    """The arguments of a subscription to a store that does not keep its position. Implements `plugins.extensions.Reading`."""

    name: ClassVar[str] = ""
    unread: ClassVar[int] = 64
    settled: ClassVar[bool] = False
    start: Start


def reading_of(
    durable: Any,
    retry: Any,
    ack_wait: Any,
    start: Any,
    ordered: Any,
    group: Any,
    concurrency: int,
    of_handler: tuple[int | None, str] | None,
) -> DurableSpec | ReplaySpec | None:
    """Check the arguments of `on` or `subscribe`. Returns None if they are for live publications only.

    `of_handler` contains the `queue` and `when_full` of a handler, and is None for a subscription.
    """
    if durable is None:
        replays = of_handler is None and start is not None
        if replays and group is not None:
            raise ValueError(
                f"start={shown(start)} and group={group!r}: to share stored publications, use only durable='billing'"
            )
        need = {"retry": retry, "ack_wait": ack_wait, "start": None if replays else start, "ordered": ordered or None}
        for name, value in need.items():
            if value is not None:
                raise ValueError(f"{name}={shown(value)} requires durable=, for example durable='billing'")
        return ReplaySpec(_start(start)) if replays else None
    check_durable_name(durable)
    if group is not None:
        raise ValueError(
            f"durable={durable!r} and group={group!r}: workers with the same durable= already share the work; leave out group="
        )
    check_type(retry, Retry, "retry", "retry=Retry(attempts=5, backoff=(1, 5, 30))")
    wait = _ACK_WAIT if ack_wait is None else seconds(ack_wait, "ack_wait")
    if not _SHORTEST <= wait <= _LONGEST:
        raise ValueError(f"ack_wait={shown(ack_wait)} must be from {_SHORTEST:g} to {_LONGEST:g} seconds")
    check_given(ordered, bool, "ordered", "ordered=True")
    if concurrency > MOST:
        raise ValueError(f"concurrency={concurrency} must be at most {MOST} with durable=, for all of its workers together")
    if ordered and concurrency > 1:
        raise ValueError(f"ordered=True handles one publication at a time: leave out concurrency={concurrency}")
    for name, value, usual in zip(("queue", "when_full"), of_handler or (), (None, "drop_oldest"), strict=False):
        if value != usual:
            raise ValueError(
                f"{name}={value!r} has no effect with durable={durable!r}: concurrency= limits how many publications this "
                "worker takes at once, and the others wait in the store"
            )
    return DurableSpec(durable, RETRY if retry is None else _retry(retry, durable), wait, _start(start), ordered)


def check_durable_name(durable: Any) -> None:
    check_given(durable, str, "durable", "durable='billing'")
    if not _NAME.fullmatch(durable):
        raise ValueError(f"durable={durable!r:.60} must have 1 to 100 letters, digits, '-' and '_'")


def check_pause(pause: float, name: str) -> None:
    if pause >= timedelta(days=_YEARS * 365).total_seconds():
        raise ValueError(f"{name}={shown(pause)} must be less than {_YEARS} years, in seconds")


def _retry(retry: Retry, durable: str) -> Retry:
    for name, value, usual in (("idempotent=True", retry.idempotent, False), ("codes=...", retry.codes, _USUAL.codes)):
        if value != usual:
            raise ValueError(
                f"Retry({name}) has no effect with durable={durable!r}: every exception of the function causes a retry"
            )
    pauses = (retry.backoff.maximum,) if isinstance(retry.backoff, Backoff) else retry.backoff
    check_pause(max(pauses), "backoff")
    return retry


def _start(start: Any) -> Start:
    if start is None:
        return "all"
    if isinstance(start, timedelta):
        if start <= timedelta():
            raise ValueError(f"start={shown(start)} must be longer than 0")
        if start >= timedelta(days=_YEARS * 365):
            raise ValueError(f"start={shown(start)} must be less than {_YEARS} years; use 'all' for all stored publications")
        return start
    if isinstance(start, int) and not isinstance(start, bool):
        check_count(start, "start", 1, _LARGEST)
        return start
    if start not in ("all", "new"):
        raise ValueError(f"start={shown(start)} must be 'all', 'new', a timedelta, or the number of a publication")
    return "all" if start == "all" else "new"


logger: logging.Logger = logging.getLogger("polybus")

_NOT_CLUSTERED: Final = (
    "%s: durable=%r requires the engine of a cluster: create the bus with Bus(cluster='auto'). To read an external stream, "
    "enter the bus with connect('nats+tcp://...', bus=bus), or connect in its lifespan"
)
_NOTHING_STORED: Final = (
    "a subscription to stored publications of %r requires the engine of a cluster, or a link to a NATS network with an "
    "external stream: create the bus with Bus(cluster='auto'), set POLYBUS_CLUSTER, and enter it; in tests use "
    "polybus.testing.cluster(bus)"
)
_NO_STREAMS: Final = (
    "{} does not support stores: durable=, start= and id= are for the stores of a cluster, and for links to NATS networks"
)


@define(eq=False)
class StoredReading(Extension):
    """Reads stored publications from several engines. Implements `plugins.extensions.Storage`."""

    _parts: BusParts
    engines: dict[Link, StoreReaders] = field(factory=dict, init=False)
    """Readers of the engine behind each link. The cluster's engine comes first."""
    expected: bool = field(default=False, init=False)  # True once the bus opens a link that may lead to streams
    _taken: dict[Handler, Link] = field(factory=dict, init=False)  # Link that each durable handler reads from
    _readers: dict[IteratedQueue, StoreReaders] = field(factory=dict, init=False)

    @property
    def progress(self) -> tuple[DurableStats, ...]:
        return tuple(one for engine in self.engines.values() for one in engine.progress)

    @property
    def busy(self) -> bool:
        return any(engine.busy for engine in self.engines.values())

    async def begin(self) -> None:
        for engine in self.engines.values():
            engine.begin()

    def withdraw(self) -> None:
        for engine in self.engines.values():
            engine.withdraw()

    def give_back(self) -> None:
        for engine in self.engines.values():
            engine.give_back()

    def clear(self) -> None:
        self.expected = False
        self.engines.clear()
        self._taken.clear()
        self._readers.clear()

    def link_up(self, link: Link) -> None:
        if (engine := self.engines.get(link)) is not None:
            engine.up()

    link_moved = link_up

    def link_down(self, link: Link) -> None:
        if (engine := self.engines.get(link)) is not None:
            engine.down()

    def _behind(self, link: Link) -> StoreReaders:
        """Return the readers of a link's streams.

        Raises `Unsupported` if there cannot be any streams, and `Disconnected` if the link has closed.
        """
        engine = self.engines.get(link)
        if engine is None:
            if not has_streams(link):
                raise Unsupported(_NO_STREAMS.format(link.adapter.name))
            if link not in self._parts.links.opened:
                raise link.disconnected(sent=False)
            from .foreign import readers_behind  # takes 0.1 s, and few programs need it

            engine = self.engines[link] = link.reader = readers_behind(self._parts.services, link)
        return engine

    def _chosen(self, subject: str | int) -> Link | None:
        """Choose the link to a NATS network for a subject, with the same rules as for requests."""
        links: list[Link] = [link for link in self._parts.links.opened if has_streams(link)]
        if len(links) < 2:
            return links[0] if links else None
        for link in links:
            if _serves(link, subject):
                return link
        urls = ", ".join(link.url for link in links)
        raise AmbiguousRoute(f"several links could have a stream of {subject!r} ({urls}): connect with serves=")

    async def attach(self, link: Link) -> None:
        """Start reading from a new link, for all durable handlers or only the handlers that match its ``serves=``."""
        if self._parts.links.mesh is not None:
            return
        specs = [spec for spec in self._waiting if not link.serves or _serves(link, spec.handler.subject)]
        if specs:
            engine = self._behind(link)
            self._taken.update((spec.handler, link) for spec in specs)
            try:
                await engine.prepare(specs)
            except BaseException:
                self._forget_handlers(link)
                raise
            if self._parts.services.ready:
                engine.begin()
        for spec in self._waiting:
            text = "%s: no link reads its durable publications yet: %s has serves=, which does not match %r"
            name = spec.handler.name
            logger.warning(text, name, link.url, spec.handler.subject, extra=log_fields(handler=name))

    @property
    def _waiting(self) -> list[SubscriberSpec]:
        specs = self._parts.lookup.subscribers
        return [spec for spec in specs if spec.reading is not None and spec.handler not in self._taken]

    def check_handlers(self) -> None:
        """Raise `LocalProtocolError` if a durable handler has no engine and no expected link may lead to one."""
        if self._parts.links.mesh is None and not self.expected:
            for spec in self._waiting:
                assert spec.reading is not None
                raise LocalProtocolError(_NOT_CLUSTERED % (spec.handler.name, spec.reading.name))

    def link_gone(self, link: Link, error: BusError | None) -> None:
        """Stop reading from a closed link. Subscriptions raise the `error`, if there is one."""
        engine = None if link.inner else self.engines.pop(link, None)
        if engine is None:
            return
        link.reader = None
        for subscription, other in list(self._readers.items()):
            if other is engine:
                subscription.end(None if error is None else another(error))
        engine.withdraw()
        engine.give_back()
        self._forget_handlers(link)

    def _forget_handlers(self, link: Link) -> None:
        self._taken = {handler: other for handler, other in self._taken.items() if other is not link}

    async def leave(self, link: Link, patience: float) -> None:
        """Stop pulling from a link that is closing. After `patience` seconds, give back what handlers have not finished."""
        if (engine := self.engines.get(link)) is not None:
            engine.withdraw()
            with anyio.move_on_after(patience):
                await link.runtime.notifier.until(lambda: not engine.busy)
            engine.give_back()

    async def subscribe(self, subscription: IteratedQueue, spec: DurableSpec | ReplaySpec) -> None:
        engine = self._readers[subscription] = self._engine(subscription)
        await engine.subscribe(subscription, spec)

    def _engine(self, subscription: IteratedQueue) -> StoreReaders:
        if subscription.peer is not None:
            return self._behind(subscription.peer.link)
        if (cluster := self._parts.links.inner_peer) is not None and cluster.link in self.engines:
            return self.engines[cluster.link]
        link = None if self._parts.links.mesh is not None else self._chosen(subscription.pattern)
        if link is None:
            raise LocalProtocolError(_NOTHING_STORED % (subscription.pattern,))
        return self._behind(link)

    def unsubscribe(self, subscription: IteratedQueue) -> None:
        engine = self._readers.pop(subscription, None)
        if engine is not None:
            engine.unsubscribe(subscription)

    def keeper(self, subject: str | int, peers: Sequence[Any] | None, id: str | None, kept: bool) -> tuple[Keeper, Any]:
        links = self._parts.links
        cluster = links.inner_peer
        if kept and peers is None and cluster is not None and cluster.link in self.engines:
            return self.engines[cluster.link].publishing, cluster
        if not kept and (peers is None or len(peers) == 1):
            link = self._chosen(subject) if peers is None and links.mesh is None else None
            peer = peers[0] if peers else None if link is None else link.peer
            if peer is not None:
                return self._behind(peer.link).publishing, peer
        raise LocalProtocolError(
            f"publish({subject!r}, id={id!r}): id= is only for stores, which store each id once: "
            + ("leave out to=" if kept else "name the subject in Cluster(stores=[Store(...)])")
        )


def has_streams(link: Link) -> bool:
    return link.opened and not link.inner and ProtocolFeatures.of(link.adapter).keeps


def _serves(link: Link, subject: str | int) -> bool:
    return any(matches(pattern, subject) for pattern in link.serves)
