"""The readers of stores of a bus."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define, field

from ..._core.handlers.durable import DurableSpec, ReplaySpec
from ...errors import BusError, LocalProtocolError
from ...stats import DurableStats
from .consumers import DurableConsumer, ReplayConsumer
from .delivery import GIVEN_BACK, Fate
from .handling import HandlerTaker
from .iteration import SubscriptionTaker
from .jetstream import JetStreamError
from .pull import Pull
from .reader import Consumer, StoreReader, Taker, say

if TYPE_CHECKING:
    from ..._core.handlers.subscriber import SubscriberSpec
    from ..._core.peer.peer import Peer
    from ..._core.peer.subscription import Subscription
    from ..._core.runtime.services import Services
    from ...message import Message
    from ...plugins import ToReader
    from .consumers import Consumers
    from .dead_letters import Graveyard


logger: logging.Logger = logging.getLogger("polybus.cluster")

PACE: Final = 10.0
"""Seconds between two questions how far durable handlers are."""


def check_names(specs: Iterable[SubscriberSpec]) -> None:
    """Check that each durable name is of one handler, before the engine is asked to make anything.

    Raises:
        LocalProtocolError: One is of two.
    """
    names = dict[str, str]()
    for spec in specs:
        if spec.durable is not None:
            name, handler = spec.durable.name, spec.handler.name
            if name in names:
                raise LocalProtocolError(
                    f"durable={name!r} is the name of two handlers, {names[name]} and {handler}, and the publications would be "
                    "split between them at random: give each handler a name of its own"
                )
            names[name] = handler


@define(eq=False)
class StoreReaders:
    """The readers of stores of a bus while it is entered. Implements `_core.bus.stored.DurablePort`."""

    _services: Services
    _published: Callable[[str | int], str]
    _consumers: Consumers
    _graveyard: Graveyard
    _engine: Callable[[], Peer]
    _readers: dict[int, StoreReader] = field(factory=dict, init=False)
    _handlers: list[StoreReader] = field(factory=list, init=False)
    _durables: dict[int, DurableConsumer] = field(factory=dict, init=False)
    """Consumers of those of `_readers` that are durable."""
    _of_subscriptions: dict[Subscription[Any], int] = field(factory=dict, init=False)
    _numbers: Iterator[int] = field(factory=lambda: itertools.count(1), init=False)
    _can_bury: bool = field(default=False, init=False)
    """True once dead letters can be kept."""
    progress: tuple[DurableStats, ...] = field(default=(), init=False)
    """The state of the durable handlers of this bus, as the engine told it last; empty while it is away."""
    _is_up: bool = field(default=True, init=False)
    _watched: anyio.Event | None = field(default=None, init=False)
    """Present while the engine is asked for that from time to time; set to end that."""

    @property
    def busy(self) -> bool:
        """True while stored publications are being handled."""
        return any(reader.busy for reader in self._readers.values())

    async def prepare(self, specs: Iterable[SubscriberSpec]) -> None:
        """Make the consumers of durable handlers where there are none.

        Raises:
            BusError: One cannot be made, or the store of dead letters.
        """
        specs = list(specs)
        check_names(specs)
        for spec in specs:
            if spec.durable is not None:
                handler = spec.handler
                fate = self._fate(spec.durable, handler.name)
                taker, pattern = HandlerTaker(self._services, handler, fate), handler.subject
                consumer = DurableConsumer(self._consumers, spec.durable, self._published(pattern), pattern)
                reader = await self._add(consumer, taker, spec.concurrency)
                self._handlers.append(reader)
                self._durables[reader.number] = consumer

    async def subscribe(self, subscription: Subscription[Any], spec: DurableSpec | ReplaySpec) -> None:
        """Hand what is stored to a subscription, until `unsubscribe`.

        Raises:
            BusError: As `Consumers.durable` and `Consumers.replay`.
        """
        pattern, subject = subscription.pattern, self._published(subscription.pattern)
        if isinstance(spec, DurableSpec):
            fate = self._fate(spec, f"durable {spec.name}")
            taker = SubscriptionTaker(self._services, subscription, fate)
            consumer = DurableConsumer(self._consumers, spec, subject, pattern)
            reader = await self._add(consumer, taker, subscription.queue)
            self._durables[reader.number] = consumer
            self._watch()
        else:
            taker = SubscriptionTaker(self._services, subscription, None)
            reader = await self._add(ReplayConsumer(self._consumers, spec, subject, pattern), taker, subscription.queue)
        self._of_subscriptions[subscription] = reader.number
        reader.begin(self._engine())

    def unsubscribe(self, subscription: Subscription[Any]) -> None:
        """Hand nothing more to a subscription; one that is not in is ignored."""
        number = self._of_subscriptions.pop(subscription, None)
        reader = None if number is None else self._readers.pop(number)
        if number is not None:
            self._durables.pop(number, None)
        if reader is not None:
            reader.leave()

    def _fate(self, spec: DurableSpec, name: str) -> Fate:
        return Fate(self._services, spec, name, self._graveyard)

    async def _add(self, consumer: Consumer, taker: Taker, places: int) -> StoreReader:
        reader = StoreReader(self._services, next(self._numbers), consumer, taker, Pull(places))
        await reader.prepare()
        if taker.fate is not None and not self._can_bury:
            await self._graveyard.prepare(consumer.stream)
            self._can_bury = True
        self._readers[reader.number] = reader
        return reader

    def begin(self) -> None:
        """Begin to handle what is stored, now that the bus is ready."""
        for reader in self._handlers:
            reader.begin(self._engine())
        if self._handlers:
            self._watch()

    def _watch(self) -> None:
        if self._watched is None:
            self._watched = anyio.Event()
            self._services.running.spawn(self._look, self._watched)

    async def _look(self, ended: anyio.Event) -> None:
        """Ask the engine from time to time how far durable handlers are: who looks at the figures never waits for it."""
        while not ended.is_set():
            with anyio.move_on_after(PACE):
                await ended.wait()
            if ended.is_set() or not self._is_up:
                continue
            durables = {(consumer.stream, consumer.name): None for consumer in self._durables.values()}
            try:
                self.progress = await self._consumers.progress(durables, self._graveyard.place)
            except (BusError, JetStreamError) as error:
                self.progress = ()
                logger.debug("the engine does not say how far durable handlers are: %s", error)

    def up(self) -> None:
        """Go on: the link to the engine is back."""
        self._is_up = True
        if not self._services.leaving:
            for reader in self._readers.values():
                reader.up(self._engine())

    def down(self) -> None:
        """Wait: the link to the engine is down."""
        self._is_up, self.progress = False, ()
        for reader in self._readers.values():
            reader.down()

    def withdraw(self) -> None:
        """Take nothing more."""
        if self._watched is not None:
            self._watched.set()
            self._watched, self.progress = None, ()
        for reader in self._readers.values():
            reader.withdraw()

    def give_back(self) -> None:
        """Take nothing more, and have what is being handled come again at once, to others."""
        for reader in self._readers.values():
            reader.withdraw()
            reader.give_back()

    def receive(self, message: Message, to: ToReader) -> None:
        """Take what has come for one of them; what was on its way to one that is gone is given back."""
        reader = self._readers.get(to.reader)
        if to.status and to.ack:
            for one in self._readers.values():
                one.forbidden(to)
        elif reader is not None:
            reader.receive(message, to)
        elif to.ack:
            say(self._engine(), to, GIVEN_BACK)
