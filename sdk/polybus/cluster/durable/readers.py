"""Manages all readers of an engine in this process, and tracks the progress of their durable handlers."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define, evolve, field

from ...errors import BusError, LocalProtocolError
from ...stats import DurableStats
from .consumers import Consumer, DurableConsumer, ReplayConsumer
from .dead_letters import count_few_letters
from .delivery import GIVEN_BACK, Fate, HandlerTaker, SubscriptionTaker
from .jetstream import count_of
from .reader import Pull, StoreReader, Taker, say
from .storage import DurableSpec, ReplaySpec

if TYPE_CHECKING:
    from ...integrations import IteratedQueue, PeerCore, Services, SubscriberSpec
    from ...message import Message
    from ...plugins import NodeJoined, NodeLeft
    from .dead_letters import Graveyard
    from .jetstream import JetStream, StoredPublishing

logger: logging.Logger = logging.getLogger("polybus.cluster")

PACE: Final = 10.0  # Seconds between requests for the durable handlers' progress


def check_names(specs: Iterable[SubscriberSpec]) -> None:
    """Raise `LocalProtocolError` if two handlers have the same durable name. Call this before creating anything."""
    names = dict[str, str]()
    for spec in specs:
        if spec.reading is not None:
            name, handler = spec.reading.name, spec.handler.name
            if name in names:
                raise LocalProtocolError(
                    f"durable={name!r} is the name of two handlers, {names[name]} and {handler}, so publications would be "
                    "split between them at random: give each handler its own name"
                )
            names[name] = handler


def _unavailable(stats: DurableStats) -> DurableStats:
    return evolve(stats, available=False, pending=None, unacknowledged=None, redelivered=None, dead_letters=None)


@define(eq=False)
class StoreReaders:
    """Reads stored publications from one engine. Implements `plugins.extensions.LinkReader` for an external network."""

    _services: Services
    _published: Callable[[str | int], str]  # Converts a pattern to a wire subject
    publishing: StoredPublishing
    _graveyard: Graveyard
    _readers: dict[int, StoreReader] = field(factory=dict, init=False)
    _handlers: list[StoreReader] = field(factory=list, init=False)
    _of_subscriptions: dict[IteratedQueue, int] = field(factory=dict, init=False)
    _numbers: Iterator[int] = field(factory=lambda: itertools.count(1), init=False)
    _can_bury: bool = field(default=False, init=False)  # True once dead letters can be stored
    progress: tuple[DurableStats, ...] = field(default=(), init=False)
    _is_up: bool = field(default=True, init=False)
    _watched: anyio.Event | None = field(default=None, init=False)
    """Event that stops the task that requests progress. `None` if there is no such task."""

    @property
    def _jetstream(self) -> JetStream:
        return self.publishing.jetstream

    @property
    def _engine(self) -> PeerCore:
        engine = self._jetstream.peer
        assert engine is not None  # there was a connection, and the peer stays the same after a reconnect
        return engine

    @property
    def busy(self) -> bool:
        return any(reader.busy for reader in self._readers.values())

    async def prepare(self, specs: Iterable[SubscriberSpec]) -> None:
        """Create the durable handlers' consumers, and the store for dead letters, that do not exist yet."""
        specs = list(specs)
        check_names(specs)
        for spec in specs:
            if isinstance(spec.reading, DurableSpec):
                handler = spec.handler
                fate = Fate(self._services, spec.reading, handler.name, self._graveyard)
                taker = HandlerTaker(self._services, handler, fate)
                reader = await self._add(spec.reading, handler.subject, taker, spec.concurrency)
                self._handlers.append(reader)

    async def subscribe(self, subscription: IteratedQueue, spec: DurableSpec | ReplaySpec) -> None:
        fate = None
        if isinstance(spec, DurableSpec):
            fate = Fate(self._services, spec, f"durable {spec.name}", self._graveyard)
        taker = SubscriptionTaker(self._services, subscription, fate)
        reader = await self._add(spec, subscription.pattern, taker, subscription.queue)
        if fate is not None:
            self._watch()
        self._of_subscriptions[subscription] = reader.number
        reader.begin(self._engine)

    def unsubscribe(self, subscription: IteratedQueue) -> None:
        number = self._of_subscriptions.pop(subscription, None)
        if number is not None:
            self._readers.pop(number).leave()

    async def _add(self, spec: DurableSpec | ReplaySpec, pattern: str | int, taker: Taker, places: int) -> StoreReader:
        consumer: Consumer
        if isinstance(spec, DurableSpec):
            consumer = DurableConsumer(self._jetstream, self._published(pattern), pattern, spec)
        else:
            consumer = ReplayConsumer(self._jetstream, self._published(pattern), pattern, spec)
        reader = StoreReader(self._services, next(self._numbers), consumer, taker, Pull(places))
        await reader.prepare()
        if taker.fate is not None and not self._can_bury:
            await self._graveyard.prepare(consumer.stream)
            self._can_bury = True
        self._readers[reader.number] = reader
        return reader

    def begin(self) -> None:
        for reader in self._handlers:
            reader.begin(self._engine)
        if self._handlers:
            self._watch()

    def _watch(self) -> None:
        if self._watched is None:
            self._watched = anyio.Event()
            self._services.running.spawn(self._look, self._watched)

    async def _look(self, ended: anyio.Event) -> None:
        while not ended.is_set():
            with anyio.move_on_after(PACE):
                await ended.wait()
            if ended.is_set() or not self._is_up:
                continue
            progress = await self._progress()
            if not ended.is_set():
                self.progress = progress

    async def _progress(self) -> tuple[DurableStats, ...]:
        consumers = [reader.consumer for reader in self._readers.values() if isinstance(reader.consumer, DurableConsumer)]
        durables = {(consumer.stream, consumer.name): None for consumer in consumers}
        place, letters, available = self._graveyard.place, None, True
        try:
            letters = None if place is None else await count_few_letters(self._jetstream, *place)
        except BusError as error:
            available = False
            logger.debug("the engine does not count dead letters: %s", error)
        found = [await self._one(*each, letters, available) for each in durables]
        return tuple(found if self._is_up else map(_unavailable, found))

    async def _one(self, stream: str, name: str, letters: dict[str, int] | None, available: bool) -> DurableStats:
        info: dict[str, Any] | None = None
        try:
            info = await self._jetstream.ask(f"CONSUMER.INFO.{stream}.{name}")
        except BusError as error:
            logger.debug("the engine does not report the progress of the durable handler %s: %s", name, error)
        return DurableStats(
            durable=name,
            store=stream,
            available=available and info is not None,
            pending=None if info is None else count_of(info, "num_pending"),
            unacknowledged=None if info is None else count_of(info, "num_ack_pending"),
            redelivered=None if info is None else count_of(info, "num_redelivered"),
            dead_letters=None if letters is None else letters.get(name, 0),
        )

    def up(self) -> None:
        self._is_up = True
        if not self._services.leaving:
            for reader in self._readers.values():
                reader.up(self._engine)

    def down(self) -> None:
        self._is_up, self.progress = False, tuple(map(_unavailable, self.progress))
        for reader in self._readers.values():
            reader.down()

    def withdraw(self) -> None:
        if self._watched is not None:
            self._watched.set()
            self._watched, self.progress = None, ()
        for reader in self._readers.values():
            reader.withdraw()

    def give_back(self) -> None:
        """Stop pulling, and let the engine redeliver unacknowledged publications to other workers immediately."""
        for reader in self._readers.values():
            reader.withdraw()
            reader.give_back()

    def named(self, node: str) -> None:
        """Do nothing, because readers need no node name."""

    def node_event(self, event: NodeJoined | NodeLeft) -> None: ...

    def receive(self, message: Message, now: float) -> None:
        """Pass a stored publication to its reader, or give it back to the engine if the reader has closed."""
        to: Any = message.peer
        message.peer = self._engine.public
        self._services.counters.received += 1
        reader = self._readers.get(to.reader)
        if to.status and to.ack:
            for one in self._readers.values():
                one.forbidden(to)
        elif reader is not None:
            reader.receive(message, to)
        elif to.ack:
            say(self._engine, to, GIVEN_BACK)
